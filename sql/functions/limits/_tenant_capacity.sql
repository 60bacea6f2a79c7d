-- Limits and pauses of tenants in fair queues: claims pass their lanes over, and write nothing. See _find_in_turn.

-- How many limits and pauses a tenant has; how many of p_most jobs they let start now, and when to look again if none may
-- start (null: when one of them ends).
-- Without a lock: _within_limits counts again.
create or replace function pgqueue._tenant_capacity(
    p_limit_key text, p_most integer, p_now timestamptz, out rules bigint, out capacity integer, out next_at timestamptz
)
language plpgsql stable
set enable_sort = off
as $$
declare
    v_lease_head timestamptz := pgqueue._lease_head();
begin
    select
        count(*), greatest(least(min(c.capacity), p_most), 0),
        max(case when r.kind = 'pause' then nullif(r.until, 'infinity') when c.timed then c.next_at end) filter (where c.capacity <= 0)
    into rules, capacity, next_at
    from pgqueue._rules_of(null, null, null, nullif(p_limit_key, ''), p_now) r
    cross join lateral pgqueue._capacity_of(
        r.name, r.kind, r.target, r.max_executing, r.rate, r.per, r.max_cost, r.burst, p_now, v_lease_head
    ) c;
end
$$;

-- When an idle worker should claim from lanes of tenants in which something seems to be due: p_now, unless all that is due is of
-- tenants at their limits, or paused. The first 1,000 lanes are asked.
create or replace function pgqueue._next_turn_due(p_queues text[], p_now timestamptz)
returns timestamptz
language plpgsql stable
as $$
begin
    if not exists (select from pgqueue.limits x where x.kind = 'limit_key')
        and not exists (select from pgqueue.pauses p where p.kind = 'limit_key' and p.until > p_now)
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
        cross join lateral pgqueue._tenant_capacity(substr(t.lane_key, 9), 1, p_now) c
    );
end
$$;
