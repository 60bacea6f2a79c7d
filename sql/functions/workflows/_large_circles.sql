-- Circles that are too large for the walk of an enqueue: what waits for a job, and for what waits for it. In this direction a group
-- of many members is one step. See _circles.

-- The other direction of _waits_for. Inlined: no SET.
create or replace function pgqueue._waited_by(p_id bigint)
returns table (id bigint)
language sql
stable
parallel safe
rows 10
as $$
    (
        select d.child
        from pgqueue.dependencies d
        where d.parent between p_id and p_id and d.ended is null
        order by d.parent, d.child
        limit 1000000
    )
    union all
    (select j.group_id from pgqueue.jobs j where j.id = p_id and j.group_id is not null limit 1)
    union all
    (
        select y.id
        from (
            select x.queue, x.key from pgqueue.jobs x
            where x.id = p_id and x.key is not null and (x.blocked_on = '@jobs' or x.state = 'executing')
            limit 1
        ) h
        cross join lateral (
            select y.id from pgqueue.jobs y
            where y.key is not null and y.state = 'blocked' and y.queue = h.queue and y.key = h.key
            limit 1000
        ) y
    )
$$;

-- The jobs that wait for these, directly or not, up to p_bound; one of these itself, if it is in a circle.
create or replace function pgqueue._behind(p_ids bigint[], p_bound integer)
returns bigint[]
language plpgsql
stable
parallel safe
set plan_cache_mode = force_generic_plan
set enable_bitmapscan = off
as $$
begin
    return (
        with recursive behind (id) as (
            select distinct w.id from unnest(p_ids) p (id) cross join lateral pgqueue._waited_by(p.id) w
            union
            select w.id from behind b cross join lateral pgqueue._waited_by(b.id) w
        )
        select coalesce(array_agg(l.id), '{}') from (select b.id from behind b limit p_bound) l
    );
end
$$;

-- Where a note led to no circle, for it is too large. Each of p_groups has a member that waits for what is blocked.
create or replace function pgqueue._break_large_circles(p_groups bigint[])
returns void
language plpgsql
as $$
declare
    v_bound constant integer := 200000;
    v_group bigint;
    v_behind bigint[];
    v_victim bigint;
begin
    foreach v_group in array coalesce(p_groups, '{}') loop
        v_behind := pgqueue._behind(array[v_group], v_bound);
        continue when not v_group = any (v_behind);
        -- A suspended job before one that has not begun; the last one of them.
        v_victim := (
            select j.id
            from pgqueue.jobs j
            where j.id = any (v_behind)
                and j.group_id = v_group
                and j.blocked_on in ('@parents', '@jobs', '@open', '@group')
                and j.cancel_requested_at is null
            order by j.blocked_on = '@jobs' desc, j.id desc
            limit 1
        );
        if v_victim is not null then
            perform pgqueue._leave_circle(v_victim, v_bound);
        end if;
    end loop;
end
$$;
