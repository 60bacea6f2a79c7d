-- Taking: the UPDATE that makes jobs executing, under a new reservation and a lease: for claims, for the payloads of a key
-- (_take_batch), and for a job that is handed off as it is enqueued (_hand_off).
-- Rows are found by ctid, and the options of their tasks by the index of tasks.

-- All rows or none: where the unique index of keys finds that another claim was first, this raises unique_violation, or, if
-- that claim stays open, lock_not_available after the lock_timeout of the caller.
-- p_batch: the ids of p_rows, which are one batch; it counts p_attempts so far, and only the first, its leader, has a lease.
create or replace function pgqueue._take_jobs(
    p_rows tid[], p_now timestamptz, p_worker text, p_lease interval, p_batch bigint[] default null,
    p_attempts integer default null
)
returns setof pgqueue.claimed_job
language plpgsql rows 100
as $$
declare
    -- The end of a lease must not be below the clock of a transaction with an xid: see _head.
    v_leased_at timestamptz := pgqueue._ready_at_unchecked(p_now);
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
begin
    return query
    with claimed as (
        update pgqueue.jobs j
        set
            state = 'executing',
            -- Grows with every claim, and is never reused: the random bits differ after a failover that lost some claims.
            reservation = (((j.reservation >> 20) + 1) << 20) | floor(random() * 1048576)::bigint,
            attempts = coalesce(p_attempts, j.attempts) + 1,
            reserved_at = p_now,
            reserved_by = p_worker,
            lease = p_lease,
            lease_expires_at = case when p_batch is null or w.n = 1 then pgqueue._after(v_leased_at, p_lease) end,
            grace_given = false,
            -- Null, too, for a member of a batch with a step whose task accumulates no more.
            leader = p_batch[1],
            followers = case when p_batch is null then j.followers when w.n = 1 then nullif(p_batch[2:], '{}') end,
            blocked_on = null
        from unnest(p_rows) with ordinality w (row_ctid, n)
        -- Not by the states of the ready index: a plan that was made on an empty table would read all of that index.
        where j.ctid = w.row_ctid and j.state <> v_executing
        returning
            j.id, j.task, j.args, j.headers, j.queue, j.key, j.priority, j.attempts, j.max_attempts, j.reservation,
            j.run_at, j.created_at, j.lease_expires_at, j.score, j.timeout, j.losses, j.crashed_on
    )
    select
        c.id, c.task, c.args, c.headers, c.queue, c.key, c.priority::integer, c.attempts,
        pgqueue._max_attempts(c.max_attempts, t.max_attempts, t.accumulate),
        c.reservation, c.run_at, c.created_at, c.lease_expires_at, p_batch[1], c.score, coalesce(c.timeout, t.timeout),
        c.losses, coalesce(cardinality(c.crashed_on), 0), coalesce(t.store_result, false)
    -- In the order of p_rows, without a sort: both joins are nested loops over it, for each caller turns the other ones off.
    from claimed c
    left join pgqueue.effective_tasks t on t.name = c.task;
end
$$;

-- Where the unique index finds that another claim was first, jobs are taken one by one, and that row is dropped: it is neither
-- claimed nor changed. If that claim is not committed yet, this waits for it once, briefly; if it stays open, the row is
-- deferred by a second, as behind any locked row, so that the next call does not meet it again. After 40 ms in all, what is left
-- is dropped. A batch that loses its first key starts no other one: its slot goes to the next job, which may stand before them.

-- p_starts: the jobs with their slots, where payloads start; null: all of p_rows. started: how many slots. skipped: the dropped
-- rows that stay in the ready index, where they are due; null: all have started.
create or replace function pgqueue._take_keyed(
    p_rows tid[], p_candidates pgqueue.candidate[], p_starts pgqueue.start[], p_now timestamptz, p_worker text,
    p_lease interval, out jobs pgqueue.claimed_job[], out started integer, out skipped tid[]
)
language plpgsql
set lock_timeout = '20ms'
as $$
declare
    v_starts pgqueue.start[] := p_starts;
    v_keyed tid[];
    v_began timestamptz;
    v_waited boolean := false;
    v_start pgqueue.start;
    v_taken pgqueue.claimed_job[];
    -- For each of them its slot.
    v_slots integer[];
    v_got pgqueue.claimed_job[];
begin
    if v_starts is null then
        begin
            jobs := array(select t from pgqueue._take_jobs(p_rows, p_now, p_worker, p_lease) t);
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
    v_taken := array(
        select t
        from pgqueue._take_jobs(
            array(select s.row_ctid from unnest(v_starts) s where s.kind = 'plain' order by s.slot), p_now, p_worker, p_lease
        ) t
    );
    v_slots := array(select s.slot from unnest(v_starts) s where s.kind = 'plain' order by s.slot);
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
                v_got := pgqueue._take_batch(v_start.row_ctid, p_now, p_worker, p_lease);
            else
                v_got := array(select t from pgqueue._take_jobs(array[v_start.row_ctid], p_now, p_worker, p_lease) t);
            end if;
            for v_n in 1..cardinality(v_got) loop
                exit when v_start.opens;
                -- The keys of a batch have the leader of its first one.
                v_got[v_n].leader := v_taken[array_position(v_slots, v_start.slot)].leader;
            end loop;
            v_taken := v_taken || v_got;
            v_slots := v_slots || array_fill(v_start.slot, array[cardinality(v_got)]);
        exception
            when unique_violation then
                skipped := skipped || v_start.row_ctid;
            when lock_not_available or deadlock_detected then
                v_waited := true;
                perform set_config('lock_timeout', '1ms', true);
                update pgqueue.jobs j
                set ready_at = pgqueue._ready_at(pgqueue._clock() + interval '1 s'), resumed = j.resumed and j.lane_key is not null
                where j.ctid = v_start.row_ctid;
        end;
    end loop;
    jobs := array(select v_taken[u.n] from unnest(v_slots) with ordinality u (slot, n) order by u.slot, u.n);
    started := (select count(distinct u.slot)::integer from unnest(v_slots) u (slot));
end
$$;
