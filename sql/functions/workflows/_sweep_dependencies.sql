-- The safety net of dependencies: finds, in slices, children that wait for no parent, and rows of children that have gone.
--
-- A row counts as left behind if its child is blocked, its parent is nowhere, and no note has either, in one snapshot.
-- Normally there is none. It also finds circles through keys, of which a job came behind a suspended one later, and circles
-- that are too large for the walk of an enqueue.

create or replace function pgqueue._sweep_dependencies(
    p_limit integer, p_cursor text[], out released integer, out next_cursor text[]
)
language plpgsql
set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    v_cancelled constant pgqueue.job_state := 'cancelled'::pgqueue.job_state;
    v_dead constant pgqueue.job_state := 'dead'::pgqueue.job_state;
    v_blocked constant pgqueue.job_state := 'blocked'::pgqueue.job_state;
    v_bound constant integer := 200000;
    v_found record;
begin
    released := 0;
    -- Where nothing depends on anything, the plan below is not even made: it opens all partitions of history.
    if p_cursor is null and not exists (select from pgqueue.dependencies) then
        return;
    end if;
    with slice as materialized (
        select d.child, d.parent, d.ended, d.ctid as row_ctid, d.xmin as row_xmin
        from pgqueue.dependencies d
        where (d.child, d.parent) > (coalesce(p_cursor[1]::bigint, 0), coalesce(p_cursor[2]::bigint, 0))
        order by d.child, d.parent
        limit p_limit
    ),
    seen as materialized (
        select
            s.*,
            case
                -- A child that never started may come back, and waits again.
                when c.blocked_on is null then
                    not exists (
                        select from pgqueue.history h
                        where h.id = s.child and (h.state = v_cancelled or (h.state = v_dead and h.reservation = 0))
                    )
                else c.blocked_on not in ('@parents', '@jobs', '@group', '@open')
            end as is_over,
            s.ended is null
                and c.blocked_on in ('@parents', '@jobs')
                and not exists (select from pgqueue.jobs p where p.id = s.parent limit 1)
                and not exists (select from pgqueue.notes n where n.id in (s.parent, s.child)) as is_left,
            c.blocked_on = '@jobs' and c.key is not null as holds_key,
            case
                when c.group_id is not null and s.ended is null
                    and exists (select from pgqueue.jobs p where p.id = s.parent and p.state = v_blocked limit 1)
                    then c.group_id
            end as waiting_group
        from slice s
        left join lateral (
            select coalesce(j.blocked_on, '') as blocked_on, j.key, j.group_id from pgqueue.jobs j where j.id = s.child limit 1
        ) c on true
    )
    select
        (select array[s.child::text, s.parent::text] from slice s order by s.child desc, s.parent desc limit 1) as cursor,
        array_agg(distinct s.child) filter (where s.is_left) as left_behind,
        array_agg(s.row_ctid) filter (where s.is_over) as ctids, array_agg(s.row_xmin::text) filter (where s.is_over) as xmins,
        array_agg(distinct s.child) filter (where s.holds_key) as holders,
        array_agg(distinct s.waiting_group) filter (where s.waiting_group is not null) as waiting_groups
    into v_found
    from seen s;
    next_cursor := v_found.cursor;
    -- Only as they were seen: the child may have begun to wait again since.
    delete from pgqueue.dependencies d
    where d.ctid = any (
        array(
            select x.ctid
            from unnest(v_found.ctids, v_found.xmins) w (row_ctid, row_xmin)
            join pgqueue.dependencies x on x.ctid = w.row_ctid and x.xmin::text = w.row_xmin
            for update of x skip locked
        )
    );
    released := coalesce(cardinality(v_found.left_behind), 0);
    perform pgqueue._leave_notes('parents', v_found.left_behind);
    perform pgqueue._break_circles(v_found.holders);
    -- Where a note led to no circle, for it is too large. Each of these groups has a member that waits for what is blocked.
    perform pgqueue._leave_circle(v.id, v_bound)
    from unnest(v_found.waiting_groups) g (id)
    cross join lateral (select pgqueue._jobs_behind(array[g.id], v_bound) as ids offset 0) b
    cross join lateral (
        -- A suspended job before one that has not begun; the last one of them.
        select j.id
        from pgqueue.jobs j
        where j.id = any (b.ids) and j.group_id = g.id
            and j.blocked_on in ('@parents', '@jobs', '@open', '@group') and j.cancel_requested_at is null
        order by j.blocked_on = '@jobs' desc, j.id desc
        limit 1
    ) v
    where g.id = any (b.ids);
end
$$;
