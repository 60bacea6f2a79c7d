-- Limits at work: how much capacity each has, which jobs it blocks, and which it releases.
--
-- A claim takes the advisory lock of each limit of its jobs, and counts what executes under it (lapsed leases included), and
-- the starts within the period of a rate, in a statement after the one that took the lock, so that no two claims start jobs by
-- the same count. It only tries: while another claim has the lock, these jobs are skipped. The lock is held until the
-- transaction ends, for only then can others count the jobs that it started. Blocking, releasing and maintenance do not take it.
-- A job without capacity is blocked under the limit's name (kind:target). Each job that ends releases one blocked job, in a
-- statement after the one that ended it. It cannot see the jobs that a claim blocks at the same moment; so each claim that
-- blocks jobs inserts a row of limit_waits, due soon after. A reader of that row (claims, maintain) deletes it, and checks the
-- limit in a later statement, whose snapshot shows the jobs that were blocked with the row. Rates are handled the same way.
-- A pause is a limit without capacity: the jobs of a paused task or limit_key are blocked under a name of its own
-- (pause:kind:target), checked soon after like all others, and then at the end of the pause. The lanes of a paused queue are
-- left out where they are read. What a pause releases goes to the ordinary part of its lane.
-- Jobs over a rate are blocked as well: deferred to the next free start, a million would come due, and be deferred, with each.

-- Inlined, as the next ones. A limit_key has the limit of its own value, else that of the longest prefix*; each value is counted
-- by itself. rule: the target of the row.
create or replace function pgqueue._limits_of(p_queue text, p_task text, p_key text, p_limit_key text)
returns setof pgqueue.rule
language sql stable parallel safe rows 2
as $$
    select
        l.kind || ':' || l.value, l.kind, l.value, l.max_executing, l.rate, l.per, l.max_cost, l.burst, null::timestamptz,
        l.target
    from (
        select x.*, x.target as value from pgqueue.limits x where x.kind = 'queue' and x.target = p_queue
        union all
        select x.*, x.target from pgqueue.limits x where x.kind = 'task' and x.target = p_task
        union all
        select x.*, x.target
        from pgqueue.limits x
        where x.kind = 'key' and x.target = any (case when p_key is not null and exists (select from pgqueue.limits k where k.kind = 'key')
            then array(select left(p_key, n) from generate_series(1, length(p_key)) n) end)
        union all
        (
            select x.*, p_limit_key
            from pgqueue.limits x
            where p_limit_key is not null and x.kind = 'limit_key' and x.target = p_limit_key
                and num_nonnulls(x.max_executing, x.rate, x.max_cost) > 0
            union all
            (
                select x.*, p_limit_key
                from pgqueue.limits x
                where p_limit_key is not null and x.kind = 'limit_key' and right(x.target, 1) = '*'
                    and starts_with(p_limit_key, left(x.target, -1)) and num_nonnulls(x.max_executing, x.rate, x.max_cost) > 0
                order by length(x.target) desc
                limit 1
            )
            limit 1
        )
    ) l
    -- The others only say that there is a breaker, here and elsewhere.
    where num_nonnulls(l.max_executing, l.rate, l.max_cost) > 0
$$;

-- The pauses of a task and of a limit_key, each with its longest end. Every one that matches lets nothing execute. That of a
-- breaker has no end: from its half_open_at on it lets one probe execute.
create or replace function pgqueue._pauses_of(p_task text, p_limit_key text, p_now timestamptz)
returns setof pgqueue.rule
language sql stable parallel safe rows 1
as $$
    select
        'pause:' || p.kind || ':' || p.target, case when p.until > p_now then 'pause' else 'probe' end, p.target,
        (p.until <= p_now)::integer, null::integer, null::interval, null::integer, null::integer, p.until, null::text
    from (
        select x.kind, x.target, max(coalesce(x.half_open_at, x.until)) as until
        from (
            select y.* from pgqueue.pauses y where y.kind = 'task' and y.target = p_task
            union all
            select y.* from pgqueue.pauses y where y.kind = 'limit_key' and y.target = p_limit_key
            union all
            select y.*
            from pgqueue.pauses y
            where p_limit_key is not null and y.kind = 'limit_key' and right(y.target, 1) = '*'
                and starts_with(p_limit_key, left(y.target, -1)) and y.target <> p_limit_key
        ) x
        where x.until > p_now
        group by x.kind, x.target
    ) p
$$;

-- What may stop a job.
create or replace function pgqueue._rules_of(p_queue text, p_task text, p_key text, p_limit_key text, p_now timestamptz)
returns setof pgqueue.rule
language sql stable parallel safe rows 2
as $$
    select l.* from pgqueue._limits_of(p_queue, p_task, p_key, p_limit_key) l
    union all
    select p.* from pgqueue._pauses_of(p_task, p_limit_key, p_now) p
$$;

-- How many more jobs of one unit may start under a rule, counting committed jobs and those of this transaction, and when to
-- check it again if none may. units: see _units_of; null: it counts jobs alone.
create or replace function pgqueue._capacity_of(p_rule pgqueue.rule, p_now timestamptz, p_lease_head timestamptz)
returns table (capacity integer, next_at timestamptz, timed boolean, units double precision)
language sql stable parallel safe rows 1
as $$
    select
        greatest(least(e.capacity, w.capacity), -1000000000)::integer,
        -- Also below the limit: the claim may use up the capacity, and block further jobs.
        case
            when not u.timed then p_now + interval '100 ms'
            when (p_rule).burst is null and not pgqueue._has_costs()
                then pgqueue._after(coalesce(r.first_at, p_now), (p_rule).per)
            else pgqueue._units_at(p_rule, w.units, pgqueue._wanted_units((p_rule).name, p_now), p_now)
        end,
        u.timed,
        w.units
    from (
        select case
            when (p_rule).max_executing is null then 1000000
            when (p_rule).kind = 'probe' then pgqueue._may_probe(split_part((p_rule).name, ':', 2), (p_rule).target, p_now)
            else (p_rule).max_executing - x.executing
        end as capacity
        from pgqueue._executing_under((p_rule).kind, (p_rule).target, coalesce((p_rule).max_executing, 0), p_lease_head) x
        offset 0
    ) e
    cross join lateral (
        -- Starts in the future were recorded before the clock stepped back.
        select (p_rule).rate - coalesce(sum(s.started), 0) as units, min(s.at) as first_at
        from pgqueue.limit_starts s
        where (p_rule).rate is not null and (p_rule).burst is null and s.name = (p_rule).name
            and s.at > pgqueue._after(p_now, -(p_rule).per) and s.at <= (select pgqueue._clock()) + interval '1 s'
    ) r
    cross join lateral (
        select
            c.units,
            case
                when c.units = 'infinity' then least(coalesce((p_rule).burst, (p_rule).rate), (p_rule).max_cost)
                else floor(c.units + 1e-6)
            end as capacity
        from (
            select case
                when num_nonnulls((p_rule).max_cost, (p_rule).burst) > 0
                    then pgqueue._units_of(p_rule, r.units, p_now, p_lease_head)
                when r.units >= (p_rule).rate then 'infinity'
                else r.units
            end as units
            offset 0
        ) c
    ) w
    cross join lateral (
        select coalesce((p_rule).rate is not null and e.capacity > 0 and w.capacity <= e.capacity, false) as timed
    ) u
$$;

-- Each kind fits one index, and the order is given so that it fits no other, whatever the planner believes of their sizes: for a
-- queue or a task that of leases, which has both of all executing jobs; for keys the unique one, where keys of one prefix stand
-- together. The payloads of one batch of an accumulating task count as one.
create or replace function pgqueue._executing_under(p_kind text, p_target text, p_most integer, p_lease_head timestamptz)
returns table (executing bigint)
language sql stable parallel safe rows 1
as $$
    select sum(b.n)::bigint
    from (
        select count(*) as n
        from (
            select
            from pgqueue.jobs j
            where p_kind = 'limit_key' and j.state = 'executing' and j.limit_key is not null
                and j.limit_key = p_target and j.lease_expires_at >= p_lease_head
            order by j.limit_key, j.lease_expires_at
            limit p_most
        ) e
        union all
        select count(*)
        from (
            select
            from pgqueue.jobs j
            where p_kind in ('queue', 'task') and j.state = 'executing' and j.lease_expires_at >= p_lease_head
                and case p_kind when 'queue' then j.queue else j.task end = p_target
            order by j.lease_expires_at, j.id
            limit p_most
        ) e
        union all
        -- The keys that begin with p_target come first among all keys from p_target on.
        select count(*) filter (where e.is_meant)
        from (
            select starts_with(j.key, p_target) as is_meant
            from pgqueue.jobs j
            where p_kind = 'key' and j.state = 'executing' and j.key is not null
                and (j.leader is null or j.leader = j.id)
                and j.key >= p_target collate "C"
            order by j.key, j.queue
            limit p_most
        ) e
    ) b
$$;

-- Without a lock: _within_limits counts again. Called for lanes of queues with a limit alone.
create or replace function pgqueue._queue_capacity(p_queue text, p_most integer, p_now timestamptz)
returns integer
language plpgsql stable
set enable_sort = off
as $$
declare
    v_lease_head timestamptz := pgqueue._lease_head();
    v_found record;
begin
    select greatest(0, least(p_most, c.capacity)) as jobs, c.units into v_found
    from pgqueue.limits l
    cross join lateral pgqueue._capacity_of(
        row('queue:' || p_queue, l.kind, p_queue, l.max_executing, l.rate, l.per, l.max_cost, l.burst, null, null)::pgqueue.rule,
        p_now, v_lease_head
    ) c
    where l.kind = 'queue' and l.target = p_queue;
    -- None passes the first job, also if another claim has locked it: what costs much would never start.
    if v_found.jobs > 0 and v_found.units < 'infinity' and pgqueue._has_costs()
        and v_found.units < pgqueue._wanted_units('queue:' || p_queue, p_now)
    then
        return 0;
    end if;
    return v_found.jobs;
end
$$;

-- The limit that a job is at, and for what it was set if that is tenant:*; p_name: if it is this one.
create or replace function pgqueue._reached_limit(p_job pgqueue.jobs, p_name text, p_now timestamptz)
returns table (name text, detail text, until timestamptz)
language plpgsql stable rows 1
as $$
declare
    v_lease_head timestamptz := pgqueue._lease_head();
begin
    return query
    select
        l.name,
        case
            when c.units < w.units and (w.units > 1 or num_nonnulls(l.max_cost, l.burst) > 0) then format(
                'its limit %s has %s of %s units%s', r.rule, to_char(floor(c.units), 'FM999,999,999,990'),
                to_char(w.units, 'FM999,999,999,990'),
                case when c.timed then ', full enough in ' || ceil(extract(epoch from a.next_at - p_now)) || ' s' end
            )
            when c.timed
                then format('%s of %s jobs started within %s under the limit %s', to_char(l.rate - c.capacity, 'FM999,999,999,990'),
                    to_char(l.rate, 'FM999,999,999,990'), l.per, r.rule)
            -- Counted up to the limit.
            else format('%1$s of %1$s jobs execute under the limit %2$s', to_char(l.max_executing, 'FM999,999,999,990'), r.rule)
        end,
        a.next_at
    from pgqueue._limits_of(p_job.queue, p_job.task, p_job.key, p_job.limit_key) l
    cross join lateral (select concat(l.name, ' (set for ' || nullif(l.rule, l.target) || ')') as rule) r
    cross join lateral pgqueue._capacity_of(l, p_now, v_lease_head) c
    -- All wait for the first that it blocks.
    cross join lateral (
        select least(
            greatest(case when p_name is null then coalesce(p_job.cost, 1) end, pgqueue._wanted_units(l.name, p_now)),
            coalesce(l.burst, l.rate), l.max_cost
        ) as units
    ) w
    cross join lateral (
        select case
            when c.timed and (l.burst is not null or w.units > 1) then pgqueue._units_at(l, c.units, w.units, p_now)
            when c.timed then c.next_at
        end as next_at
    ) a
    where (p_name is null or l.name = p_name) and (c.capacity <= 0 or c.units < w.units)
    union all
    select
        'max_share:' || q.name,
        format('its tenant has as many slots of each worker as max_share %s of queue %s gives to one', q.max_share, q.name), null
    from pgqueue.queues q
    where p_name is null and p_job.lane_key is not null and q.name = p_job.queue and q.max_share < 1
        and (
            select max((pgqueue._tenant_capacity(w.name, q.name, p_job.priority, p_job.limit_key, 1, p_now, null)).capacity)
            from pgqueue.workers w
            where w.queues is null or q.name = any (w.queues)
        ) = 0
    limit 1;
end
$$;
