-- Limits at work: how much capacity each has, which jobs it blocks, and which it releases.
--
-- A claim counts what executes under a limit (lapsed leases included), and the starts within the period of a rate. At the
-- limit it blocks the job, and takes no lock. Below it, it takes the limit's advisory lock and counts again, in a statement
-- after the one that took the lock, so that no two claims start jobs by the same count. It only tries: while another claim
-- has the lock, these jobs are skipped. The lock is held until the transaction ends, for only then can others count the
-- jobs that it started. Blocking, releasing and maintenance do not take it.
-- A job without capacity is blocked under the limit's name (kind:target). Each job that ends releases one blocked job, in a
-- statement after the one that ended it. It cannot see the jobs that a claim blocks at the same moment; so each claim that
-- blocks jobs inserts a row of limit_waits, due soon after, in its own transaction. A reader of that row deletes it, and
-- then checks the limit in a later statement, whose snapshot shows the jobs that were blocked with the row. Rates, whose
-- capacity comes with time, are handled the same way. Claims and maintain read the rows that are due.
-- Jobs over a rate are blocked as well, and not deferred to the next free start: a million of them would all come due, and
-- be deferred again, with each one.

create or replace function pgqueue._limits_of(p_task text, p_key text, p_limit_key text)
returns table (
    name text, kind text, target text, max_executing integer, rate integer, per interval, rule text
)
language sql
stable
parallel safe
rows 2
set search_path = pg_catalog, pg_temp
as $$
    select 'task:' || l.target, l.kind, l.target, l.max_executing, l.rate, l.per, l.target
    from pgqueue.limits l
    where l.kind = 'task' and l.target = p_task
    union all
    select 'key:' || l.target, l.kind, l.target, l.max_executing, l.rate, l.per, l.target
    from pgqueue.limits l
    where l.kind = 'key' and starts_with(p_key, l.target)
    union all
    -- The limit of the value itself, else that of the longest prefix*.
    (
        select 'limit_key:' || p_limit_key, l.kind, p_limit_key, l.max_executing, l.rate, l.per, l.target
        from pgqueue.limits l
        where l.kind = 'limit_key'
            and (l.target = p_limit_key or (right(l.target, 1) = '*' and starts_with(p_limit_key, left(l.target, -1))))
        order by l.target = p_limit_key desc, length(l.target) desc
        limit 1
    )
$$;

comment on function pgqueue._limits_of(text, text, text) is
    'Private: the limits that apply to a job, save that of its queue, each with its name; rule: the target of its row in limits.';

-- Counts by the snapshots of its own statements: see above.
create or replace function pgqueue._capacity(
    p_name text, p_kind text, p_target text, p_max_executing integer, p_rate integer, p_per interval, p_now timestamptz,
    out capacity integer, out next_at timestamptz, out timed boolean
)
returns record
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_started bigint;
    v_first timestamptz;
begin
    capacity := 1000000;
    next_at := p_now + interval '100 ms';
    timed := false;
    if p_max_executing is not null then
        capacity := p_max_executing - pgqueue._count_executing(p_kind, p_target, p_max_executing);
    end if;
    if p_rate is not null and capacity > 0 then
        -- Starts in the future were recorded before the clock stepped back.
        select coalesce(sum(s.started), 0), min(s.at)
        into v_started, v_first
        from pgqueue.limit_starts s
        where s.name = p_name and s.at > pgqueue._after(p_now, -p_per) and s.at <= p_now + interval '1 s';
        if p_rate - v_started <= capacity then
            -- Also below the limit: the claim may use up the capacity, and block further jobs.
            next_at := pgqueue._after(coalesce(v_first, p_now), p_per);
            timed := true;
        end if;
        capacity := least(capacity, p_rate - v_started)::integer;
    end if;
end
$$;

comment on function pgqueue._capacity(text, text, text, integer, integer, interval, timestamptz) is
    'Private: how many more jobs may start under a limit, counting committed jobs, and when to check it again if none may.';

create or replace function pgqueue._lock_limit(p_name text)
returns boolean
language sql
volatile
parallel unsafe
as $$
    -- Limits use the negative half of the second keys. Two limits with one hash exclude each other without need.
    select pg_catalog.pg_try_advisory_xact_lock(pgqueue._lock_class(), pg_catalog.hashtext(p_name) | -2147483648)
$$;

comment on function pgqueue._lock_limit(text) is
    'Private: takes the lock of a limit, under which jobs are started, until the transaction ends; false: another claim has it.';
