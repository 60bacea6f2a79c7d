-- Groups: jobs that are awaited together. A group is a job without a handler; its members are the jobs with its group_id.
--
-- The group is blocked on '@open' until close_group, then on '@group'. It ends when it is closed, the jobs that it depends on
-- allow it, and no member lives: no row of jobs has its group_id. There is no counter: the index jobs_group is the set. A
-- member that ends leaves a note with the group only if no member waits any more, so that 100,000 ends write a handful; the one
-- of the member that commits last is read when all have committed. A cancel or delete of a waiting member always leaves one:
-- the members that it saw waiting may end at the same time. While another session has locked a member that executes, the note
-- is kept: it may be ending, and may have seen members that waited then. One that is not locked leaves a note when it ends.
-- Joining locks the group's row (KEY SHARE, until the producer commits), and close_group waits for that; afterwards only a
-- member adds others, and locks its own row, which keeps the group from ending.

-- Follows notes with groups: ends a group that can end, and brings back an ended one that has live members again, after a
-- retry. p_recount: a retry of members left the notes. A session that ends the group at the same time does not see the retried
-- member. If that has ended again by now, it did so after the group; where the clock does not show it, the counts of the
-- group differ from those of its members.
create or replace function pgqueue._look_at_groups(p_ids bigint[], p_recount boolean default false)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off
as $$
declare
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
    v_id bigint;
    v_group record;
    v_is_ending boolean;
    v_verdict text;
    v_result jsonb;
    v_state pgqueue.job_state;
begin
    foreach v_id in array p_ids loop
        -- close_group checks an open group again, once this lock has ended. Those that add members have the same one, and do not
        -- wait.
        perform from pgqueue.jobs j where j.id = v_id and j.blocked_on = '@open' for key share skip locked;
        continue when found;
        select
            j.reservation, j.run_if, j.cancel_requested_at is not null as is_cancelled,
            -- Then it has the error of the parent.
            (j.cancel_requested_at is not null and j.errors -> -1 ->> 'class' in ('ParentFailed', 'NotNeeded')) is true
                as by_parent
        into v_group
        from pgqueue.jobs j
        where j.id = v_id and j.task = '@group' and j.blocked_on <> '@open'
        for update skip locked;
        if not found then
            if exists (select from pgqueue.jobs j where j.id = v_id) then
                -- Another session is joining, closing or ending it, or has just tried to close it.
                perform pgqueue._leave_notes(
                    case when p_recount then 'recount' else 'group' end, array[v_id], interval '200 ms'
                );
            elsif pgqueue._has_members(v_id) then
                perform pgqueue._revive_group(v_id);
            elsif p_recount then
                perform pgqueue._revive_group(v_id)
                from pgqueue.history h
                where h.id = v_id and h.task = '@group'
                    and (
                        h.result <> pgqueue._ended_members(v_id)
                        or exists (
                            select from pgqueue.history m
                            where m.group_id is not null and m.group_id = v_id and m.finished_at > h.finished_at
                        )
                    );
            end if;
            continue;
        end if;
        -- Later statements, which see everything that was committed when the row was locked.
        continue when pgqueue._has_members(v_id, '{waiting,failed,blocked}');
        -- A member executes, or is to come back. Also a session that is bringing members back has not removed its note yet.
        if pgqueue._has_members(v_id) or exists (select from pgqueue.notes n where n.kind = 'revive' and n.id = v_id) then
            v_is_ending := true;
            begin
                -- More are not asked: each lock is a write.
                select coalesce(bool_or(l.id is null), true) or count(*) > 100 into v_is_ending
                from (
                    select j.id
                    from pgqueue.jobs j
                    where j.group_id is not null and j.group_id = v_id and j.state = v_executing
                    limit 101
                ) e
                left join lateral (select x.id from pgqueue.jobs x where x.id = e.id for key share skip locked) l on true;
                -- The locks end with this block.
                raise exception using errcode = 'lock_not_available';
            exception when lock_not_available then
                null;
            end;
            perform pgqueue._leave_notes('group', array[v_id], interval '500 ms') where v_is_ending;
            continue;
        end if;
        v_verdict := pgqueue._decide_child(
            v_group.run_if, exists (select from pgqueue.dependencies d where d.child = v_id and d.ended is null),
            exists (select from pgqueue.dependencies d where d.child = v_id and d.ended is not null)
        );
        if v_group.is_cancelled or v_verdict = 'run' then
            v_result := pgqueue._ended_members(v_id);
            v_state := case
                when v_group.is_cancelled then 'cancelled'::pgqueue.job_state
                when v_result -> 'dead' > '0' then 'dead'::pgqueue.job_state
                when v_result -> 'cancelled' > '0' then 'cancelled'::pgqueue.job_state
                else 'succeeded'::pgqueue.job_state
            end;
            perform pgqueue._finish(
                array[v_id], array[v_group.reservation], false, v_state, array[v_result],
                case
                    when v_group.is_cancelled and not v_group.by_parent then pgqueue._group_error(v_id)
                    when not v_group.is_cancelled and v_state <> 'succeeded' then jsonb_build_object(
                        'class', 'MemberFailed',
                        'message', format(
                            '%s of its members are dead, %s were cancelled, %s succeeded',
                            v_result -> 'dead', v_result -> 'cancelled', v_result -> 'succeeded'
                        )
                    )
                end
            );
        end if;
        -- The parent may have been retried since: then the group comes back. Or it ended while another session had locked the
        -- group, and did not cancel it.
        perform pgqueue._leave_notes('settle', array[v_id])
        where v_group.by_parent or (v_verdict = 'cancel' and not v_group.is_cancelled);
    end loop;
end
$$;

-- The result of a group: how many of its members, as far as history keeps them, ended in each state.
create or replace function pgqueue._ended_members(p_group_id bigint)
returns jsonb
language plpgsql parallel safe
as $$
begin
    return (
        select jsonb_build_object(
            'succeeded', count(*) filter (where h.state = 'succeeded'), 'dead', count(*) filter (where h.state = 'dead'),
            'cancelled', count(*) filter (where h.state = 'cancelled')
        )
        from pgqueue.history h
        where h.group_id is not null and h.group_id = p_group_id
    );
end
$$;

-- Brings an ended group back, because a member of it was retried.
create or replace function pgqueue._revive_group(p_id bigint)
returns void
language plpgsql
as $$
declare
    v_group pgqueue.found_job;
begin
    select h.id, h.granularity, h.kept_until, false into v_group
    from pgqueue.history h
    where h.id = p_id and h.task = '@group'
    for update skip locked;
    if found then
        perform pgqueue._requeue(array[v_group]);
        perform pgqueue._leave_notes('group', array[p_id]);
        perform pgqueue._reopen_children(array[p_id]);
    elsif exists (select from pgqueue.history h where h.id = p_id and h.task = '@group') then
        perform pgqueue._leave_notes('group', array[p_id], interval '200 ms');
    end if;
end
$$;

-- _revive_members finds by this class the members to bring back.
create or replace function pgqueue._group_error(p_group_id bigint)
returns jsonb
language sql immutable parallel safe
as $$
    select jsonb_build_object('class', 'GroupCancelled', 'message', format('group %s was cancelled', p_group_id))
$$;

-- In slices of 1,000; a note leaves the rest to a later call. Executing members are asked to cancel.
create or replace function pgqueue._cancel_members(p_group_id bigint)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off
as $$
declare
    v_state pgqueue.job_state;
    v_ids bigint[];
    v_reservations bigint[];
    v_groups bigint[];
    v_left integer := 1000;
begin
    if not exists (select from pgqueue.jobs j where j.id = p_group_id and j.cancel_requested_at is not null) then
        return;
    end if;
    foreach v_state in array '{executing,failed,blocked,waiting}'::pgqueue.job_state[] loop
        select
            array_agg(l.id) filter (where l.task <> '@group'), array_agg(l.reservation) filter (where l.task <> '@group'),
            array_agg(l.id) filter (where l.task = '@group')
        into v_ids, v_reservations, v_groups
        from (
            select j.id, j.reservation, j.task
            from pgqueue.jobs j
            where j.group_id is not null and j.group_id = p_group_id and j.state = v_state and j.cancel_requested_at is null
            order by j.id
            limit v_left
            for update skip locked
        ) l;
        if v_state = 'executing' then
            perform pgqueue._request_cancel(v_ids);
        elsif v_ids is not null then
            v_left := v_left - cardinality(
                pgqueue._finish(v_ids, v_reservations, false, 'cancelled', null, pgqueue._group_error(p_group_id))
            );
        end if;
        perform pgqueue._cancel_groups(v_groups);
        exit when v_left <= 0;
    end loop;
    perform pgqueue._leave_notes('cancel', array[p_group_id], interval '100 ms')
    where exists (
        select from pgqueue.jobs j
        where j.group_id is not null and j.group_id = p_group_id and j.cancel_requested_at is null
        limit 1
    );
end
$$;
