-- Limits and pauses of tenants in fair queues: claims pass their lanes over, and write nothing. See _find_in_turn.

-- How many rules a tenant has: limits, pauses, and max_share of its queue, if the worker has reported its slots. How many of p_most
-- jobs they let start now, and when to look again if none may start (null: when one of them ends).
-- Without a lock: _within_limits counts again.
create or replace function pgqueue._tenant_capacity(
    p_worker text, p_queue text, p_limit_key text, p_most integer, p_now timestamptz,
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
        select c.capacity, case when r.kind = 'pause' then nullif(r.until, 'infinity') when c.timed then c.next_at end as next_at
        from pgqueue._rules_of(null, null, null, v_limit_key, p_now) r
        cross join lateral pgqueue._capacity_of(
            r.name, r.kind, r.target, r.max_executing, r.rate, r.per, r.max_cost, r.burst, p_now, v_lease_head
        ) c
        union all
        -- What it has claimed and not started will take a slot, too. No one hears when one of them ends.
        select
            greatest(floor(q.max_share::numeric * least((w.info ->> 'concurrency')::numeric, 100000)), 1)::integer - (
                select count(*)::integer
                from (
                    (
                        select j.*
                        from pgqueue.jobs j
                        where j.state = 'executing' and j.limit_key = v_limit_key and j.lease_expires_at >= v_lease_head
                        order by j.limit_key, j.lease_expires_at
                    )
                    union all
                    (
                        select j.*
                        from pgqueue.jobs j
                        where v_limit_key is null and j.limit_key is null and j.state = 'executing'
                            and j.lease_expires_at >= v_lease_head
                        order by j.lease_expires_at, j.id
                    )
                ) h
                where h.queue = q.name and h.reserved_by = w.name and coalesce(h.leader, h.id) = h.id
            ),
            p_now + interval '250 ms'
        from pgqueue.queues q
        join pgqueue.workers w on w.name = p_worker
        where q.name = p_queue and q.max_share < 1 and jsonb_typeof(w.info -> 'concurrency') = 'number'
    ) a;
end
$$;

-- When an idle worker should claim from lanes of tenants in which something seems to be due: p_now, unless all that is due is of
-- tenants at their limits, paused, or with their part of the worker's slots. The first 1,000 lanes are asked.
create or replace function pgqueue._next_turn_due(p_worker text, p_queues text[], p_now timestamptz)
returns timestamptz
language plpgsql stable
as $$
begin
    if not exists (select from pgqueue.limits x where x.kind = 'limit_key')
        and not exists (select from pgqueue.pauses p where p.kind = 'limit_key' and p.until > p_now)
        and not exists (select from pgqueue.queues q where q.max_share < 1)
    then
        return p_now;
    end if;
    return (
        select min(case when t.due_from > p_now then t.due_from when c.capacity > 0 then p_now else c.next_at end)
        from (
            select x.queue, x.priority, x.lane_key, min(x.due_from) as due_from
            from (
                select * from pgqueue.tenant_lanes y where p_queues is null or y.queue = any (p_queues) limit 1000
            ) x
            group by x.queue, x.priority, x.lane_key
        ) t
        cross join lateral (
            select from pgqueue._first_in_lane(t.queue, t.priority, t.lane_key, greatest(t.due_from, p_now))
            union all
            select where t.due_from > p_now
            limit 1
        ) due
        cross join lateral pgqueue._tenant_capacity(p_worker, t.queue, substr(t.lane_key, 9), 1, p_now) c
    );
end
$$;
