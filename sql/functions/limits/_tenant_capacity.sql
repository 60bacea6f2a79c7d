-- Limits and pauses of tenants in fair queues: claims pass their lanes over, and write nothing (where jobs have costs, they block
-- the first one that does not fit). See _find_in_turn.

-- How many rules a tenant has: limits, pauses, and max_share of its queue, if the worker has reported its slots. How many of p_most
-- jobs they let start now, and when to look again if none may start (null: when one of them ends).
-- Without a lock: _within_limits counts again. p_held: the lanes of what the worker holds in the queue; null: ask _held_in.
create or replace function pgqueue._tenant_capacity(
    p_worker text, p_queue text, p_priority smallint, p_limit_key text, p_most integer, p_now timestamptz, p_held text[],
    out rules bigint, out capacity integer, out next_at timestamptz
)
language plpgsql stable
set enable_sort = off
as $$
declare
    v_limit_key constant text := nullif(p_limit_key, '');
    v_lease_head timestamptz := pgqueue._lease_head();
begin
    select count(*), greatest(least(min(a.capacity), p_most), 0), max(a.next_at) filter (where a.capacity <= 0)
    into rules, capacity, next_at
    from (
        -- Where costs decide, none passes one that is blocked, save by a higher priority: see _within_limits.
        select
            case when c.units is null or not pgqueue._has_costs()
                or not exists (select from pgqueue._first_blocked_on(r.name) b where b.priority >= p_priority)
                then c.capacity else 0 end as capacity,
            case when r.kind = 'pause' then nullif(r.until, 'infinity') when c.timed then c.next_at end as next_at
        from pgqueue._rules_of(null, null, null, v_limit_key, p_now) r
        -- Column by column: a whole row would be made and taken apart for each lane.
        cross join lateral pgqueue._capacity_of(
            row(r.name, r.kind, r.target, r.max_executing, r.rate, r.per, r.max_cost, r.burst, r.until, r.rule)::pgqueue.rule,
            p_now, v_lease_head
        ) c
        union all
        -- What it has claimed and not started will take a slot, too. No one hears when one of them ends.
        select
            greatest(floor(q.max_share::numeric * least((w.info ->> 'concurrency')::numeric, 100000)), 1)::integer
                - cardinality(
                    array_positions(coalesce(p_held, (pgqueue._held_in(w.name, q.name, null)).lanes), pgqueue._lane_of(v_limit_key))
                ),
            p_now + interval '250 ms'
        from pgqueue.queues q
        join pgqueue.workers w on w.name = p_worker
        where q.name = p_queue and q.max_share < 1 and jsonb_typeof(w.info -> 'concurrency') = 'number'
    ) a;
end
$$;

-- What a worker holds of a queue with max_share: the jobs that it executes, and those of p_rows, which its claim has locked, with
-- their lanes. Its claims note it (_note_held), so that no job of another worker is read. is_noted: else the leases were read.
create or replace function pgqueue._held_in(
    p_worker text, p_queue text, p_rows tid[], out ids bigint[], out lanes text[], out is_noted boolean
)
language plpgsql stable
as $$
declare
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
begin
    -- A standby has no unlogged table.
    if not pg_is_in_recovery() then
        ids := (
            select t.held
            from pgqueue.turns t
            where t.worker = p_worker and t.queue = p_queue and t.priority = (-32768)::smallint
            order by t.worker desc, t.queue desc, t.priority desc, t.n desc
            limit 1
        );
    end if;
    is_noted := ids is not null;
    if not is_noted then
        ids := array(
            select j.id
            from pgqueue.jobs j
            where j.state = 'executing' and j.lease_expires_at >= pgqueue._lease_head() and j.reserved_by = p_worker
                and j.queue = p_queue
        );
    end if;
    select coalesce(array_agg(h.id), '{}'), coalesce(array_agg(h.lane_key), '{}') into ids, lanes
    from (
        -- A batch takes one slot.
        select coalesce(j.leader, j.id) as id, pgqueue._lane_of(j.limit_key) as lane_key
        from pgqueue.jobs j
        where j.id = any (ids) and j.state = v_executing and j.reserved_by = p_worker and j.queue = p_queue
        union
        select j.id, pgqueue._lane_of(j.limit_key) from pgqueue.jobs j where j.ctid = any (p_rows) and j.queue = p_queue
    ) h;
end
$$;

-- Notes it, under the lock of the worker: so each row has all of it. What came back at once starts also while another claim of the
-- worker has that lock, and is not noted then.
create or replace function pgqueue._note_held(p_worker text, p_queue text, p_rows tid[], p_now timestamptz)
returns void
language plpgsql
as $$
begin
    if exists (select from pgqueue.queues q where q.name = p_queue and q.max_share < 1)
        and pg_try_advisory_xact_lock(pgqueue._lock_class(), hashtext('share:' || p_worker) | -2147483648)
    then
        insert into pgqueue.turns (worker, queue, priority, lane_key, credit, at, held)
        select p_worker, p_queue, -32768, '', 0, p_now, h.ids from pgqueue._held_in(p_worker, p_queue, p_rows) h;
    end if;
end
$$;
