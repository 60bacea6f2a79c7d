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
        -- Column by column: a whole row would be made and taken apart for each lane.
        cross join lateral pgqueue._capacity_of(
            row(r.name, r.kind, r.target, r.max_executing, r.rate, r.per, r.max_cost, r.burst, r.until, r.rule)::pgqueue.rule,
            p_now, v_lease_head
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
