-- Taking: the UPDATEs that make a job executing, under a new reservation and a lease. Three: all rows of a claim at once
-- (_take), some of them ahead of the rest (_mark_rows), the payloads of a key together (_gather). A fourth takes a job
-- that is being enqueued: see _hand_off.
-- Rows are found by ctid, with index scans off: to a plan that was made while the table was empty, reading a whole index
-- seems as cheap.

-- Grows with every claim of the job, and is never reused: the random bits differ after a failover that lost some claims.
create or replace function pgqueue._next_reservation(p_reservation bigint)
returns bigint
language sql
volatile
parallel safe
as $$
    select (((p_reservation >> 20) + 1) << 20) | pg_catalog.floor(pg_catalog.random() * 1048576)::bigint
$$;

comment on function pgqueue._next_reservation(bigint) is
    'Private: the next reservation of a job: a count of claims, and 20 random bits.';

-- p_keyed: the unique index may find that another claim of a key was first. Then nothing was claimed, and the rows are
-- marked one by one. p_marked: some rows are executing already. p_slots: null where the rows are in order.
create or replace function pgqueue._take(
    p_rows tid[], p_slots integer[], p_keyed boolean, p_marked boolean, p_now timestamptz, p_worker text, p_lease interval
)
returns table (
    id bigint, task text, args jsonb, headers jsonb, queue text, key text, priority integer, attempt integer,
    max_attempts integer, reservation bigint, run_at timestamptz, created_at timestamptz, lease_expires_at timestamptz,
    leader bigint, score numeric, timeout interval, losses integer, crashes integer, store_result boolean
)
language plpgsql
volatile
parallel unsafe
rows 100
set search_path = pg_catalog, pg_temp
set enable_indexscan = off
set lock_timeout = '20ms'
as $$
#variable_conflict use_column
declare
    -- The end of a lease must not be below the clock of a transaction with an xid: see _heads.
    v_leased_at timestamptz := pgqueue._ready_at_unchecked(p_now);
    -- A variable: see extend.
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
begin
    if p_keyed then
        begin
            return query
            select t.* from pgqueue._take(p_rows, p_slots, false, p_marked, p_now, p_worker, p_lease) t;
            return;
        exception when unique_violation or lock_not_available or deadlock_detected then
            select m.rows, m.slots, true
            into p_rows, p_slots, p_marked
            from pgqueue._mark(pgqueue._as_verdicts(p_rows, p_slots), p_now, p_worker, p_lease) m;
        end;
    end if;
    if p_marked then
        return query
        select t.* from pgqueue._take_rest(p_rows, p_slots, p_now, v_leased_at, p_worker, p_lease) t;
        return;
    end if;
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
        from unnest(p_rows, p_slots) with ordinality w (row_ctid, slot, n)
        -- Not by the states of the ready index: a plan that was made on an empty table would read all of that index.
        where j.ctid = w.row_ctid and j.state <> v_executing
        returning
            w.slot, w.n, j.id, j.task, j.args, j.headers, j.queue, j.key, j.priority, j.attempts, j.max_attempts,
            j.reservation, j.run_at, j.created_at, j.lease_expires_at, j.score, j.timeout, j.losses, j.crashed_on
    )
    select
        c.id, c.task, c.args, c.headers, c.queue, c.key, c.priority::integer, c.attempts,
        pgqueue._max_attempts(c.max_attempts, t.max_attempts, t.accumulate),
        c.reservation, c.run_at, c.created_at, c.lease_expires_at, null::bigint, c.score, coalesce(c.timeout, t.timeout),
        c.losses, coalesce(cardinality(c.crashed_on), 0), coalesce(t.store_result, false)
    from claimed c
    left join pgqueue.effective_tasks t on t.name = c.task
    order by c.slot, c.n;
end
$$;

comment on function pgqueue._take(tid[], integer[], boolean, boolean, timestamptz, text, interval) is
    'Private: claims these rows and returns the jobs in the order of their slots.';

-- Rows that share a slot are payloads of one batch, which all are executing already.
create or replace function pgqueue._take_rest(
    p_rows tid[], p_slots integer[], p_now timestamptz, p_leased_at timestamptz, p_worker text, p_lease interval
)
returns table (
    id bigint, task text, args jsonb, headers jsonb, queue text, key text, priority integer, attempt integer,
    max_attempts integer, reservation bigint, run_at timestamptz, created_at timestamptz, lease_expires_at timestamptz,
    leader bigint, score numeric, timeout interval, losses integer, crashes integer, store_result boolean
)
language plpgsql
volatile
parallel unsafe
rows 100
set search_path = pg_catalog, pg_temp
set enable_indexscan = off
as $$
#variable_conflict use_column
declare
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
    v_rest record;
    v_held record;
begin
    select
        array_agg(w.row_ctid order by w.n) filter (where j.state = v_executing) as held_rows,
        array_agg(w.slot order by w.n) filter (where j.state = v_executing) as held_slots,
        array_agg(w.row_ctid) filter (where j.state <> v_executing) as rows,
        array_agg(w.slot) filter (where j.state <> v_executing) as slots
    into v_rest
    from unnest(p_rows, p_slots) with ordinality w (row_ctid, slot, n)
    join pgqueue.jobs j on j.ctid = w.row_ctid;
    select m.rows, m.slots into v_held
    from pgqueue._mark_rows(v_rest.rows, v_rest.slots, p_now, p_leased_at, p_worker, p_lease) m;
    return query
    select
        j.id, j.task, j.args, j.headers, j.queue, j.key, j.priority::integer, j.attempts,
        pgqueue._max_attempts(j.max_attempts, t.max_attempts, t.accumulate),
        j.reservation, j.run_at, j.created_at, j.lease_expires_at,
        case when j.leader is not null then first_value(j.id) over (partition by w.slot order by w.n) end,
        j.score, coalesce(j.timeout, t.timeout),
        j.losses, coalesce(cardinality(j.crashed_on), 0), coalesce(t.store_result, false)
    from unnest(v_rest.held_rows || v_held.rows, v_rest.held_slots || v_held.slots)
        with ordinality w (row_ctid, slot, n)
    join pgqueue.jobs j on j.ctid = w.row_ctid
    left join pgqueue.effective_tasks t on t.name = j.task
    order by w.slot, w.n;
end
$$;

comment on function pgqueue._take_rest(tid[], integer[], timestamptz, timestamptz, text, interval) is
    'Private: claims those of these rows that are not executing yet, and returns all in the order of their slots.';

create or replace function pgqueue._as_verdicts(p_rows tid[], p_slots integer[])
returns pgqueue.verdict[]
language plpgsql
stable
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    -- A variable: see extend.
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
begin
    return array(
        select
            row(
                w.row_ctid, case when j.state = v_executing or j.key is null then 'plain' else 'keyed' end, w.slot, null, null
            )::pgqueue.verdict
        from unnest(p_rows, p_slots) with ordinality w (row_ctid, slot, n)
        join pgqueue.jobs j on j.ctid = w.row_ctid
        order by w.n
    );
end
$$;

comment on function pgqueue._as_verdicts(tid[], integer[]) is
    'Private: rows that a claim took, as verdicts, so that they can be marked one by one; rows without a key or limit are plain.';

create or replace function pgqueue._mark_rows(
    p_rows tid[], p_slots integer[], p_now timestamptz, p_leased_at timestamptz, p_worker text, p_lease interval,
    out rows tid[], out slots integer[]
)
returns record
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_indexscan = off
as $$
begin
    with marked as (
        update pgqueue.jobs j
        set
            state = 'executing',
            reservation = pgqueue._next_reservation(j.reservation),
            attempts = j.attempts + 1,
            reserved_at = p_now,
            reserved_by = p_worker,
            lease = p_lease,
            lease_expires_at = pgqueue._after(p_leased_at, p_lease),
            grace_given = false
        from unnest(p_rows, p_slots) w (row_ctid, slot)
        where j.ctid = w.row_ctid
        returning w.slot, j.ctid as row_ctid
    )
    select array_agg(m.row_ctid), array_agg(m.slot) into rows, slots from marked m;
end
$$;

comment on function pgqueue._mark_rows(tid[], integer[], timestamptz, timestamptz, text, interval) is
    'Private: makes these rows executing, all or none, and returns their new ctids.';

-- Where the unique index finds that another claim was first, the row is dropped: it is neither claimed nor changed. If that
-- claim is not committed yet, this waits for it once, briefly; if it stays open, the row is deferred by a second, as behind
-- any locked row, so that the next call does not meet it again.
create or replace function pgqueue._mark(
    p_verdicts pgqueue.verdict[],
    p_now timestamptz,
    p_worker text,
    p_lease interval,
    out rows tid[],
    out slots integer[],
    out dropped_rows tid[],
    out dropped_slots integer[]
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
set enable_indexscan = on
set enable_hashjoin = off
set enable_mergejoin = off
set lock_timeout = '20ms'
as $$
declare
    v_started timestamptz := clock_timestamp();
    -- The safe time of leases: see _heads.
    v_leased_at timestamptz := pgqueue._ready_at_unchecked(p_now);
    v_waited boolean := false;
    v_verdict pgqueue.verdict;
    v_todo record;
    v_got record;
    v_marked tid[];
begin
    dropped_rows := '{}';
    dropped_slots := '{}';
    select
        coalesce(array_agg(v.row_ctid) filter (where v.kind = 'plain'), '{}') as plain_rows,
        coalesce(array_agg(v.slot) filter (where v.kind = 'plain'), '{}') as plain_slots,
        array_agg(v.row_ctid) filter (where v.kind <> 'plain') as rows,
        array_agg(v.slot) filter (where v.kind <> 'plain') as slots,
        bool_or(v.kind = 'gather') as gathers
    into v_todo
    from unnest(p_verdicts) v
    where v.slot is not null;
    rows := v_todo.plain_rows;
    slots := v_todo.plain_slots;
    if not v_todo.gathers then
        begin
            select m.rows, m.slots into v_got
            from pgqueue._mark_rows(v_todo.rows, v_todo.slots, p_now, v_leased_at, p_worker, p_lease) m;
            rows := rows || v_got.rows;
            slots := slots || v_got.slots;
            return;
        exception
            -- One of them conflicts: mark them one by one.
            when unique_violation then
                null;
            when lock_not_available or deadlock_detected then
                v_waited := true;
                perform set_config('lock_timeout', '1ms', true);
        end;
    end if;

    foreach v_verdict in array p_verdicts loop
        continue when v_verdict.slot is null or v_verdict.kind = 'plain';
        if v_waited and clock_timestamp() > v_started + interval '40 ms' then
            dropped_rows := dropped_rows || v_verdict.row_ctid;
            dropped_slots := dropped_slots || v_verdict.slot;
            continue;
        end if;
        begin
            if v_verdict.kind = 'gather' then
                v_marked := pgqueue._gather(v_verdict.row_ctid, p_now, p_worker, p_lease);
            else
                select m.rows into v_marked
                from pgqueue._mark_rows(
                    array[v_verdict.row_ctid], array[v_verdict.slot], p_now, v_leased_at, p_worker, p_lease
                ) m;
            end if;
            rows := rows || v_marked;
            slots := slots || array_fill(v_verdict.slot, array[cardinality(v_marked)]);
        exception
            when unique_violation then
                dropped_rows := dropped_rows || v_verdict.row_ctid;
                dropped_slots := dropped_slots || v_verdict.slot;
            when lock_not_available or deadlock_detected then
                v_waited := true;
                perform set_config('lock_timeout', '1ms', true);
                dropped_slots := dropped_slots || v_verdict.slot;
                update pgqueue.jobs j
                set
                    ready_at = pgqueue._ready_at(pgqueue._clock() + interval '1 s'),
                    resumed = false
                where j.ctid = v_verdict.row_ctid;
        end;
    end loop;
    -- A batch that kept another of its keys is still in use.
    dropped_slots := array(
        select distinct d.slot from unnest(dropped_slots) d (slot) where d.slot <> all (slots)
    );
end
$$;

comment on function pgqueue._mark(pgqueue.verdict[], timestamptz, text, interval) is
    'Private: makes jobs with keys or limits executing, and drops those whose key another claim took first; plain ones are returned as they are.';
