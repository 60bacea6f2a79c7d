-- Lanes: registering them, finding unregistered ones, dropping unused ones.
--
-- Registering is a plain insert: two callers that register one lane do not wait for each other. An enqueue that saw a
-- lane registered may commit after maintain has dropped it; its job is then in a lane that reserve does not visit.
-- So maintain searches for jobs between the registered lanes. It probes only the gaps: a skip scan over the whole ready
-- index would walk every dead entry in it.

-- p_lane_keys: the lanes of the tenants of these jobs; in it null for jobs in none. Null: they came back at once.
create or replace function pgqueue._register_lane(
    p_queue text, p_priority smallint, p_now timestamptz, p_lane_keys text[] default null
)
returns void
language plpgsql
as $$
declare
    v_fair boolean := (
        select bool_or(l.is_fair) from pgqueue.lanes l where l.queue = p_queue and l.priority = p_priority
    );
begin
    if v_fair is null then
        insert into pgqueue.lanes (queue, priority, seen_at, is_fair)
        values (
            p_queue, p_priority, p_now,
            exists (select from pgqueue.queues q where q.name = p_queue and q.fair_by is not null)
        )
        returning is_fair into v_fair;
    end if;
    if p_lane_keys is not null and (v_fair or num_nonnulls(variadic p_lane_keys) > 0) then
        perform pgqueue._register_tenants(p_queue, p_priority, p_lane_keys);
    end if;
    perform pgqueue._check_clock(p_now);
end
$$;

-- Registers unregistered lanes that hold ready jobs; returns the number of rounds that found any.
create or replace function pgqueue._find_lanes()
returns integer
language plpgsql
as $$
declare
    v_found integer := 0;
    v_now timestamptz := pgqueue._clock();
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
        insert into pgqueue.lanes (queue, priority, seen_at)
        select f.queue, f.priority, v_now
        from (
            select b.queue, b.priority
            from gaps g
            cross join lateral (
                select j.queue, j.priority
                from pgqueue.jobs j
                where j.state in ('waiting', 'failed') and (j.queue, j.priority) > (g.queue, g.priority)
                    and (j.queue, j.priority) < (g.next_queue, g.next_priority)
                order by j.queue, j.priority, j.resumed, j.ready_at, j.id
                limit 1
            ) b
            where g.next_queue is not null
            union all
            select b.queue, b.priority
            from gaps g
            cross join lateral (
                select j.queue, j.priority
                from pgqueue.jobs j
                where j.state in ('waiting', 'failed') and (j.queue, j.priority) > (g.queue, g.priority)
                order by j.queue, j.priority, j.resumed, j.ready_at, j.id
                limit 1
            ) b
            where g.next_queue is null
        ) f;
        exit when not found;
        v_found := v_found + 1;
    end loop;
    return v_found;
end
$$;

-- Merges lanes registered twice and drops those empty for an hour.
create or replace function pgqueue._tidy_lanes(p_now timestamptz)
returns void
language plpgsql
as $$
begin
    delete from pgqueue.lanes a
    using pgqueue.lanes b
    where a.queue = b.queue and a.priority = b.priority
        and (a.is_fair, a.seen_at, a.ctid) < (b.is_fair, b.seen_at, b.ctid);

    -- In a queue that is no longer fair the last lanes of tenants have left the path.
    update pgqueue.lanes a
    set is_fair = false
    where a.is_fair
        and not exists (select from pgqueue.queues q where q.name = a.queue and q.fair_by is not null)
        and not exists (
            select
            from pgqueue.tenant_lanes t
            where t.queue = a.queue and t.priority = a.priority and t.lane_key <> ''
        );

    update pgqueue.lanes a
    set seen_at = p_now
    where a.seen_at not between p_now - interval '30 min' and p_now
        -- A scalar subquery: the planner may turn an EXISTS into a join that reads every waiting job.
        and (
            select true
            from (values (true), (false)) r (resumed)
            cross join lateral pgqueue._head(a.queue, a.priority, r.resumed) h
            cross join lateral pgqueue._first_ready(a.queue, a.priority, r.resumed, h.head, h.head_id, 'infinity') j
            limit 1
        );

    -- An unregistered lane is probed without a head, so it must not still have the dead entries that an old snapshot keeps.
    if pg_stat_get_dead_tuples('pgqueue.jobs'::regclass) < 100000 then
        delete from pgqueue.lanes a where a.seen_at < p_now - interval '1 hour';
    end if;
end
$$;
