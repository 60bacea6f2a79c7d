-- Circles: a job must not wait for what waits for it.
--
-- depends_on names jobs that exist, so dependencies alone make no circle. A group waits for its members, though, and an
-- executing job may wait for jobs that it started, also for one behind it in its key. Only those ways are checked.
--
-- Two sessions may each add a part of a circle, and neither sees the other's: no call is refused. Each leaves a note with
-- its job, and the note of the one that commits last is read when all have committed: _break_circles takes one job out of the
-- circle then, and all readers choose the same one. _sweep_dependencies finds circles that have no note.

-- How these parents would make a circle; null: they make none.
-- p_job_id: the job, if others may wait for it already. p_group_id: the group that it belongs to.
-- Walks from the parents through what they wait for, up to 1,000 members of a group and 10,000 jobs. If that may not have been
-- all, it also walks from the job and its groups through what waits for them, up to p_bound jobs: a group of many members is
-- one step then. Null may mean that the circle is larger: maintain looks again, with a larger bound.
create or replace function pgqueue._circle(p_job_id bigint, p_group_id bigint, p_parents bigint[], p_bound integer default 10000)
returns text
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    v_behind bigint[];
    v_ahead bigint;
    v_walked bigint;
begin
    with recursive outer_groups (id, n) as (
        select p_group_id, 1
        where p_group_id is not null
        union all
        select j.group_id, o.n + 1
        from outer_groups o
        cross join lateral (select x.group_id from pgqueue.jobs x where x.id = o.id limit 1) j
        where j.group_id is not null and o.n < 100
    )
    select array_remove(array_agg(o.id) || p_job_id, null) into v_behind from outer_groups o;

    with recursive ahead (id) as (
        select p.id from unnest(p_parents) p (id)
        union
        select w.id
        from ahead a
        cross join lateral (select x.group_id from pgqueue.jobs x where x.id = a.id limit 1) j
        cross join lateral pgqueue._waits_for(a.id) w
        where a.id <> all (v_behind)
            -- The members of the group were checked when they joined it.
            and (p_job_id is not null or j.group_id is distinct from p_group_id)
    )
    select min(r.id) filter (where r.id = any (v_behind)), count(*) into v_ahead, v_walked
    from (select a.id from ahead a limit 10000) r;
    if v_ahead is null and v_walked >= 1000 and v_behind <> '{}' and pgqueue._jobs_behind(v_behind, p_bound) && p_parents then
        v_ahead := coalesce(p_group_id, p_job_id);
    end if;
    return case
        when v_ahead = p_job_id then 'A job that it names waits for this job.'
        when v_ahead is not null
            then format('It names group %s, or a job that waits for it, and that group waits for this job.', v_ahead)
    end;
end
$$;

-- Inlined: no SET.
create or replace function pgqueue._open_parents(p_child bigint)
returns table (id bigint)
language sql stable parallel safe rows 10
as $$
    select d.parent from pgqueue.dependencies d where d.child = p_child and d.ended is null limit 1000
$$;

-- Dependencies of a job that is not blocked are left over from an earlier wait; a cancelled group waits for its members only.
-- A job that has not started waits, too, for the one of its key that executes or has suspended itself; so does a member of
-- a batch, for its leader. Inlined: no SET.
create or replace function pgqueue._waits_for(p_id bigint)
returns table (id bigint)
language sql stable parallel safe rows 10
as $$
    select w.id
    from (
        select
            x.queue, x.task = '@group' as is_group,
            case
                when x.reservation = 0 or x.leader <> x.id or (x.state = 'blocked' and x.blocked_on is null) then x.key
            end as key,
            x.blocked_on in ('@parents', '@jobs', '@open', '@group') and x.cancel_requested_at is null as is_child
        from pgqueue.jobs x
        where x.id = p_id and (x.state = 'blocked' or (x.state = 'waiting' and x.key is not null) or x.leader <> x.id)
        limit 1
    ) j
    cross join lateral (
        (select d.id from pgqueue._open_parents(p_id) d where j.is_child)
        union all
        (
            select m.id
            from pgqueue.jobs m
            where j.is_group and m.group_id is not null and m.group_id = p_id and m.state = 'blocked'
            limit 1000
        )
        union all
        (
            select y.id
            from pgqueue.jobs y
            where y.key is not null and y.blocked_on = '@jobs' and y.queue = j.queue and y.key = j.key
            limit 100
        )
        union all
        (select r.id from pgqueue._executing_of_key(j.queue, j.key, 0) r where j.key is not null)
    ) w
$$;

-- Refuses dependencies on the group of a job, and on jobs that wait for the job or for its group.
create or replace function pgqueue._refuse_circle(p_job_id bigint, p_group_id bigint, p_parents bigint[])
returns void
language plpgsql
as $$
begin
    perform pgqueue._refuse(
        'depends_on would make a circle', c.detail,
        'Leave out depends_on, or group_id: what follows a group must not be a member of it.'
    )
    from (select pgqueue._circle(p_job_id, p_group_id, p_parents) as detail offset 0) c
    where c.detail is not null;
end
$$;

-- The jobs of notes, read in a transaction after the one that made them wait. A job in a circle is one for which another
-- waits; the whole circle is then among the jobs that it waits for.
create or replace function pgqueue._break_circles(p_children bigint[])
returns void
language plpgsql
as $$
declare
    v_waited bigint[] := '{}'::bigint[];
    v_group record;
    v_around bigint[];
    v_victim bigint;
begin
    for v_group in
        select j.is_waited_for, j.group_id, array_agg(distinct j.id) as ids, array_agg(distinct d.id) as parents
        from unnest(p_children) w (id)
        cross join lateral (
            select
                x.id, x.group_id, coalesce(x.key is not null and x.blocked_on = '@jobs', false)
                or exists (select from pgqueue.dependencies y where y.parent = x.id and y.ended is null) as is_waited_for
            from pgqueue.jobs x
            where x.id = w.id and x.state = 'blocked'
            limit 1
        ) j
        left join lateral pgqueue._open_parents(case when not j.is_waited_for then j.id end) d on true
        where j.is_waited_for or j.group_id is not null
        group by j.is_waited_for, j.group_id
    loop
        -- The others count if their group waits. This is the check of the enqueue, which stops at other members.
        if v_group.is_waited_for or pgqueue._circle(null, v_group.group_id, v_group.parents) is not null then
            v_waited := v_waited || v_group.ids;
        end if;
    end loop;
    if v_waited = '{}' then
        return;
    end if;
    with recursive around (id) as (
        select u.id from unnest(v_waited) u (id)
        union
        select w.id from around a cross join lateral pgqueue._waits_for(a.id) w
    )
    select array_agg(l.id) into v_around from (select a.id from around a limit 10000) l;
    -- The last job that suspended itself; without one, a circle leads through a group, to a member that depends on others. One
    -- walk for each of them, and for each group.
    for v_group in
        select
            j.suspended, j.group_id, array_agg(distinct j.id order by j.id desc) as ids, array_agg(distinct d.parent) as parents
        from unnest(v_around) w (id)
        cross join lateral (
            select x.id, x.group_id, case when x.blocked_on = '@jobs' then x.id end as suspended
            from pgqueue.jobs x
            where x.id = w.id and x.blocked_on in ('@parents', '@jobs', '@open', '@group') and x.cancel_requested_at is null
                and (x.blocked_on = '@jobs' or x.group_id is not null)
            limit 1
        ) j
        cross join lateral pgqueue._open_parents(w.id) d (parent)
        group by j.suspended, j.group_id
        order by j.suspended desc nulls last, j.group_id desc
    loop
        continue when pgqueue._circle(v_group.suspended, v_group.group_id, v_group.parents) is null;
        v_victim := coalesce(
            v_group.suspended,
            (
                select m.id
                from unnest(v_group.ids) m (id)
                where pgqueue._circle(null, v_group.group_id, array(select d.id from pgqueue._open_parents(m.id) d)) is not null
                limit 1
            )
        );
        exit when v_victim is not null;
    end loop;
    -- There may be a second circle.
    perform pgqueue._leave_notes(
        'parents', v_waited, case when pgqueue._leave_circle(v_victim) then interval '0' else interval '200 ms' end
    )
    where v_victim is not null;
end
$$;

-- A suspended job comes back, asks again to wait, and is refused then. A job that did not begin is cancelled. False: another
-- session has locked the job, or it is in no circle any more.
create or replace function pgqueue._leave_circle(p_id bigint, p_bound integer default 10000)
returns boolean
language plpgsql
as $$
declare
    v_job record;
    v_self bigint;
    v_circle text;
    v_error jsonb;
begin
    select j.reservation, j.blocked_on, j.group_id into v_job
    from pgqueue.jobs j
    where j.id = p_id and j.blocked_on in ('@parents', '@jobs', '@open', '@group') and j.cancel_requested_at is null
    for update skip locked;
    if not found then
        return false;
    end if;
    -- Later statements, which see everything that was committed when the row was locked.
    v_self := case when v_job.blocked_on = '@jobs' then p_id end;
    v_circle := pgqueue._circle(v_self, v_job.group_id, array(select d.id from pgqueue._open_parents(p_id) d), p_bound);
    v_error := jsonb_build_object('class', 'Circle', 'message', 'depends_on would make a circle: ' || v_circle);
    if v_circle is null then
        return false;
    elsif v_self is not null then
        perform pgqueue._release_children(array[p_id], true);
    elsif v_job.blocked_on = '@parents' then
        perform pgqueue._finish(array[p_id], array[v_job.reservation], false, 'cancelled', null, v_error);
    else
        perform pgqueue._cancel_groups(array[p_id], v_error);
    end if;
    return true;
end
$$;

-- The jobs that wait for these, directly or not, up to p_bound, by the other direction of _waits_for; these too, if in a circle.
create or replace function pgqueue._jobs_behind(p_ids bigint[], p_bound integer)
returns bigint[]
language sql stable parallel safe
set plan_cache_mode = force_generic_plan set enable_bitmapscan = off
as $$
    with recursive behind (id, is_found) as (
        select p.id, false from unnest(p_ids) p (id)
        union
        select w.id, true
        from behind b
        cross join lateral (
            (
                select d.child as id
                from pgqueue.dependencies d
                where d.parent between b.id and b.id and d.ended is null
                order by d.parent, d.child
                limit 1000000
            )
            union all
            (select j.group_id from pgqueue.jobs j where j.id = b.id and j.group_id is not null limit 1)
            union all
            (
                select y.id
                from (
                    select x.queue, x.key from pgqueue.jobs x
                    where x.id = b.id and x.key is not null and (x.blocked_on = '@jobs' or x.state = 'executing')
                    limit 1
                ) h
                cross join lateral (
                    select y.id from pgqueue.jobs y
                    where y.key is not null and y.state = 'blocked' and y.queue = h.queue and y.key = h.key
                    limit 1000
                ) y
            )
        ) w
    )
    select coalesce(array_agg(l.id), '{}') from (select b.id from behind b where b.is_found limit p_bound) l
$$;
