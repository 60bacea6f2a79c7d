-- Lanes: registering them, finding unregistered ones, and how empty ones leave.
--
-- Registering is a plain insert: two callers that register one lane do not wait for each other. No claim reads a lane that
-- has no row, so a row leaves only when no job can be hidden by that:
-- 1. A transaction that makes a job ready takes its xid, reads the clock, and relies on a row only until the row's `until`,
--    and only for a job that is not ready before its `due_from`. Later it inserts a row of its own.
-- 2. A horizon whose time is after `until` (see _head) has an xid above those of all transactions that rely on the row. Once
--    all transactions with an earlier xid have ended, a snapshot that is taken then shows their jobs.
-- 3. So the lane is read with such a snapshot, without locks: jobs that other claims have locked are seen as well. If it has
--    none, the row goes. If all are for later, a row with their first time replaces it.
-- No transaction is exempted, however long it has been open: meanwhile rows stay, and claims visit lanes that are empty.
--
-- Up to 64 rows claims visit all of them, in the exact order, and a row lasts an hour. With more they go round those that
-- have something due (_next_lanes), and a row lasts four seconds, or thirty once maintenance has seen jobs in its lane.
-- Maintenance alone updates and deletes rows. It also searches for jobs between the registered lanes, as a safety net. It
-- probes only the gaps: a skip scan over the whole ready index would walk every dead entry in it.

-- p_ready_at: nothing that the caller makes ready is due before. p_lane_keys: the lanes of the tenants of these jobs; in it null
-- for jobs in none. Null: they came back at once.
create or replace function pgqueue._register_lane(
    p_queue text, p_priority smallint, p_ready_at timestamptz, p_lane_keys text[] default null
)
returns void
language plpgsql
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_fair boolean;
    v_is_known boolean;
begin
    select bool_or(l.is_fair), bool_or(l.until > v_now and l.due_from <= p_ready_at) into v_fair, v_is_known
    from pgqueue.lanes l
    where l.queue = p_queue and l.priority = p_priority;
    if v_is_known is not true then
        insert into pgqueue.lanes (queue, priority, is_fair, until)
        values (
            p_queue, p_priority,
            coalesce(v_fair, false) or exists (select from pgqueue.queues q where q.name = p_queue and q.fair_by is not null),
            v_now + case
                when (select count(*) from (select from pgqueue.lanes limit 64) x) = 64 then interval '4 s'
                else interval '1 hour'
            end
        )
        returning is_fair into v_fair;
    end if;
    if p_lane_keys is not null and (v_fair or num_nonnulls(variadic p_lane_keys) > 0) then
        perform pgqueue._register_tenants(p_queue, p_priority, p_lane_keys);
    end if;
    perform pgqueue._check_clock(p_ready_at);
end
$$;

-- Registers unregistered lanes that hold ready jobs; returns the number of rounds that found any. With more
-- than 500 lanes it probes the gaps behind those of a part.
create or replace function pgqueue._find_lanes()
returns integer
language plpgsql
as $$
declare
    v_found integer := 0;
    v_now timestamptz := pgqueue._clock();
    v_parts integer := pgqueue._queue_parts();
    v_part integer := floor(random() * v_parts)::integer;
begin
    for v_round in 1..100 loop
        -- Each round finds the first lane in each gap, which splits the gap for the next.
        with known as (
            select distinct a.queue, a.priority from pgqueue.lanes a
            union all
            select '', (-32768)::smallint
        ),
        gaps as (
            select
                k.queue, k.priority,
                lead(k.queue) over w as next_queue, lead(k.priority) over w as next_priority
            from known k
            window w as (order by k.queue, k.priority)
        )
        insert into pgqueue.lanes (queue, priority, until)
        select f.queue, f.priority, v_now + interval '4 s'
        from gaps g
        cross join lateral (
            (
                select j.queue, j.priority
                from pgqueue.jobs j
                where j.state in ('waiting', 'failed') and (j.queue, j.priority) > (g.queue, g.priority)
                    and (j.queue, j.priority) < (g.next_queue, g.next_priority)
                order by j.queue, j.priority, j.resumed, j.ready_at, j.id
                limit 1
            )
            union all
            (
                select j.queue, j.priority
                from pgqueue.jobs j
                where g.next_queue is null and j.state in ('waiting', 'failed') and (j.queue, j.priority) > (g.queue, g.priority)
                order by j.queue, j.priority, j.resumed, j.ready_at, j.id
                limit 1
            )
        ) f
        where g.next_queue is null or pgqueue._is_in_part(g.queue, v_parts, v_part);
        exit when not found;
        v_found := v_found + 1;
    end loop;
    return v_found;
end
$$;

-- Merges lanes registered twice, extends the rows of lanes with jobs, and lets empty ones leave.
create or replace function pgqueue._tidy_lanes(p_now timestamptz)
returns void
language plpgsql
as $$
declare
    v_many boolean := (select count(*) from (select from pgqueue.lanes limit 65) x) > 64;
    -- Null: nothing leaves.
    v_safe_at timestamptz := pgqueue._ended_before(p_now);
begin
    -- All rows of a lane say the same, whichever of them leaves: tenants take turns, until the queue is no longer fair and the
    -- last lanes of its tenants have left the path.
    update pgqueue.lanes a
    set is_fair = not a.is_fair
    from (
        select
            f.queue, f.priority,
            exists (select from pgqueue.queues q where q.name = f.queue and q.fair_by is not null)
            or exists (
                select from pgqueue.tenant_lanes t where t.queue = f.queue and t.priority = f.priority and t.lane_key <> ''
            ) as is_fair
        from (select distinct x.queue, x.priority from pgqueue.lanes x where x.is_fair) f
    ) w
    where a.queue = w.queue and a.priority = w.priority and a.is_fair <> w.is_fair;

    -- The time of their first job has come.
    insert into pgqueue.lanes (queue, priority, is_fair, until)
    select l.queue, l.priority, bool_or(l.is_fair), p_now + interval '4 s'
    from (
        select x.queue, x.priority, x.is_fair
        from pgqueue.lanes x
        where x.due_from > '-infinity' and x.due_from <= p_now
        order by x.due_from
        limit 1000
    ) l
    where (
        select true
        from pgqueue.lanes d
        where d.queue = l.queue and d.priority = l.priority and d.due_from = '-infinity'
        limit 1
    ) is null
    group by l.queue, l.priority;

    -- Transactions that rely on a row will have ended when one that lasts longer leaves.
    delete from pgqueue.lanes l
    where (l.until <= p_now or not v_many)
        and (
            select true
            from pgqueue.lanes o
            where o.queue = l.queue and o.priority = l.priority and o.due_from = '-infinity' and (o.until, o.ctid) > (l.until, l.ctid)
                and (o.is_fair or not l.is_fair)
            limit 1
        );

    -- By a snapshot later than the one that shows which transactions have ended.
    with ended as materialized (
        select
            l.row_ctid, l.queue, l.priority, l.is_fair, l.until, l.until > greatest(p_now, l.due_from) + interval '2 hours' as is_of_before,
            (
                select min(j.ready_at)
                from (values (true), (false)) r (resumed)
                cross join lateral (select x.* from pgqueue._head(l.queue, l.priority, r.resumed) x offset 0) h
                cross join lateral pgqueue._first_ready(l.queue, l.priority, r.resumed, h.head, h.head_id, 'infinity') j
            ) as ready_at
        from (
            select x.ctid as row_ctid, x.queue, x.priority, x.is_fair, x.due_from, x.until
            from pgqueue.lanes x
            -- The last: written before the clock stepped back.
            where not v_many or (x.until <= v_safe_at and x.due_from <= p_now) or x.until > greatest(p_now, x.due_from) + interval '2 hours'
            order by x.until
            limit 1000
        ) l
    ),
    decided as materialized (
        select
            e.*,
            coalesce(e.until <= v_safe_at, false) and case
                when v_many then coalesce(e.ready_at > p_now, true)
                -- Unregistered, it is probed without a head: it must not have the dead entries that an old snapshot keeps.
                else e.ready_at is null and pg_stat_get_dead_tuples('pgqueue.jobs'::regclass) < 100000
            end as is_leaving
        from ended e
    ),
    gone as (delete from pgqueue.lanes l where l.ctid = any (array(select d.row_ctid from decided d where d.is_leaving))),
    extended as (
        update pgqueue.lanes l
        set due_from = '-infinity', until = p_now + case when v_many then interval '30 s' else interval '1 hour' end
        where l.ctid = any (array(
            select d.row_ctid
            from decided d
            where not d.is_leaving
                and (d.is_of_before or (d.ready_at is not null and d.until < p_now + interval '30 min'))
        ))
    )
    insert into pgqueue.lanes (queue, priority, is_fair, due_from, until)
    select d.queue, d.priority, d.is_fair, d.ready_at, d.ready_at
    from decided d
    where d.is_leaving and d.ready_at is not null
        and (
            select true
            from pgqueue.lanes o
            where o.queue = d.queue and o.priority = d.priority and o.due_from > p_now and o.due_from <= d.ready_at
            limit 1
        ) is null;
end
$$;
