-- Taking: the UPDATE that makes jobs executing, under a new reservation and a lease. Two do: this one, and that of the
-- payloads of a key (_gather). A third takes a job that is being enqueued: see _hand_off.
-- Rows are found by ctid, with index scans off: to a plan that was made while the table was empty, reading a whole index
-- seems as cheap.

-- Grows with every claim of the job, and is never reused: the random bits differ after a failover that lost some claims.
create or replace function pgqueue._next_reservation(p_reservation bigint)
returns bigint
language sql
parallel safe
as $$
    select (((p_reservation >> 20) + 1) << 20) | pg_catalog.floor(pg_catalog.random() * 1048576)::bigint
$$;

-- All rows or none: where the unique index of keys finds that another claim was first, this raises unique_violation, or, if
-- that claim stays open, lock_not_available after the lock_timeout of the caller.
create or replace function pgqueue._take(p_rows tid[], p_now timestamptz, p_worker text, p_lease interval)
returns table (
    id bigint, task text, args jsonb, headers jsonb, queue text, key text, priority integer, attempt integer,
    max_attempts integer, reservation bigint, run_at timestamptz, created_at timestamptz, lease_expires_at timestamptz,
    leader bigint, score numeric, timeout interval, losses integer, crashes integer, store_result boolean
)
language plpgsql
rows 100
set enable_indexscan = off
as $$
#variable_conflict use_column
declare
    -- The end of a lease must not be below the clock of a transaction with an xid: see _heads.
    v_leased_at timestamptz := pgqueue._ready_at_unchecked(p_now);
    -- A variable: see extend.
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
begin
    return query
    with claimed as (
        update pgqueue.jobs j
        set
            state = 'executing',
            reservation = pgqueue._next_reservation(j.reservation),
            attempts = j.attempts + 1,
            reserved_at = p_now,
            reserved_by = p_worker,
            lease = p_lease,
            lease_expires_at = pgqueue._after(v_leased_at, p_lease),
            grace_given = false
        from unnest(p_rows) with ordinality w (row_ctid, n)
        -- Not by the states of the ready index: a plan that was made on an empty table would read all of that index.
        where j.ctid = w.row_ctid and j.state <> v_executing
        returning
            w.n, j.id, j.task, j.args, j.headers, j.queue, j.key, j.priority, j.attempts, j.max_attempts, j.reservation,
            j.run_at, j.created_at, j.lease_expires_at, j.score, j.timeout, j.losses, j.crashed_on
    )
    select
        c.id, c.task, c.args, c.headers, c.queue, c.key, c.priority::integer, c.attempts,
        pgqueue._max_attempts(c.max_attempts, t.max_attempts, t.accumulate),
        c.reservation, c.run_at, c.created_at, c.lease_expires_at, null::bigint, c.score, coalesce(c.timeout, t.timeout),
        c.losses, coalesce(cardinality(c.crashed_on), 0), coalesce(t.store_result, false)
    from claimed c
    left join pgqueue.effective_tasks t on t.name = c.task
    order by c.n;
end
$$;

-- Where the unique index finds that another claim was first, jobs are taken one by one, and that row is dropped: it is neither
-- claimed nor changed. If that claim is not committed yet, this waits for it once, briefly; if it stays open, the row is
-- deferred by a second, as behind any locked row, so that the next call does not meet it again. A batch that loses its first
-- key starts no other one: its slot goes to the next job, which may stand before them.

-- p_starts: the jobs with their slots, where payloads start; null: all of p_rows. started: how many slots. skipped: the dropped
-- rows that stay in the ready index; null: all have started.
create or replace function pgqueue._take_keyed(
    p_rows tid[], p_candidates pgqueue.candidate[], p_starts pgqueue.start[], p_now timestamptz, p_worker text,
    p_lease interval, out jobs pgqueue.claimed_job[], out started integer, out skipped tid[]
)
returns record
language plpgsql
set lock_timeout = '20ms'
as $$
declare
    v_starts pgqueue.start[] := p_starts;
    v_keyed tid[];
    v_began timestamptz;
    v_waited boolean := false;
    v_start pgqueue.start;
    v_plain tid[];
    v_ids bigint[];
    v_slots integer[];
    v_got bigint[];
begin
    if v_starts is null then
        begin
            jobs := array(
                select row(t.*)::pgqueue.claimed_job from pgqueue._take(p_rows, p_now, p_worker, p_lease) t
            );
            started := cardinality(jobs);
            return;
        exception when unique_violation or lock_not_available or deadlock_detected then
            v_waited := sqlstate <> '23505';
        end;
        if v_waited then
            perform set_config('lock_timeout', '1ms', true);
        end if;
        v_keyed := array(select c.row_ctid from unnest(p_candidates) c where c.key is not null);
        v_starts := array(
            select row(u.r, case when u.r = any (v_keyed) then 'keyed' else 'plain' end, u.n, true)::pgqueue.start
            from unnest(p_rows) with ordinality u (r, n)
            order by u.n
        );
    end if;

    v_began := clock_timestamp();
    skipped := '{}';
    select array_agg(s.row_ctid order by s.slot), coalesce(array_agg(s.slot order by s.slot), '{}')
    into v_plain, v_slots
    from unnest(v_starts) s
    where s.kind = 'plain';
    v_ids := array(select t.id from pgqueue._take(v_plain, p_now, p_worker, p_lease) t);
    foreach v_start in array v_starts loop
        continue when v_start.kind = 'plain';
        -- The first key of its batch was dropped.
        continue when not v_start.opens and v_start.slot <> all (v_slots);
        if v_waited and clock_timestamp() > v_began + interval '40 ms' then
            skipped := skipped || v_start.row_ctid;
            continue;
        end if;
        begin
            if v_start.kind = 'gather' then
                v_got := pgqueue._gather(v_start.row_ctid, p_now, p_worker, p_lease);
            else
                v_got := array(
                    select t.id from pgqueue._take(array[v_start.row_ctid], p_now, p_worker, p_lease) t
                );
            end if;
            v_ids := v_ids || v_got;
            v_slots := v_slots || array_fill(v_start.slot, array[cardinality(v_got)]);
        exception
            when unique_violation then
                skipped := skipped || v_start.row_ctid;
            when lock_not_available or deadlock_detected then
                v_waited := true;
                perform set_config('lock_timeout', '1ms', true);
                update pgqueue.jobs j
                set
                    ready_at = pgqueue._ready_at(pgqueue._clock() + interval '1 s'),
                    resumed = false
                where j.ctid = v_start.row_ctid;
        end;
    end loop;
    select
        array_agg(
            row(
                j.id, j.task, j.args, j.headers, j.queue, j.key, j.priority::integer, j.attempts,
                pgqueue._max_attempts(j.max_attempts, t.max_attempts, t.accumulate),
                j.reservation, j.run_at, j.created_at, j.lease_expires_at, case when j.leader is not null then w.leader end,
                j.score, coalesce(j.timeout, t.timeout), j.losses, coalesce(cardinality(j.crashed_on), 0),
                coalesce(t.store_result, false)
            )::pgqueue.claimed_job
            order by w.slot, w.n
        ),
        count(distinct w.slot)::integer
    into jobs, started
    from (
        -- The keys of a batch have the leader of its first one.
        select u.id, u.slot, u.n, first_value(u.id) over (partition by u.slot order by u.n) as leader
        from unnest(v_ids, v_slots) with ordinality u (id, slot, n)
    ) w
    join pgqueue.jobs j on j.id = w.id
    left join pgqueue.effective_tasks t on t.name = j.task;
end
$$;
