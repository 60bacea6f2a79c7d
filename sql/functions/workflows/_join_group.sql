-- How members join a group, and are cancelled with it. See _look_at_groups for how a group ends.

create or replace function pgqueue._join_group(p_group_id bigint)
returns bigint
language plpgsql
set enable_seqscan = off set jit = off
as $$
declare
    v_found record;
begin
    -- The group itself first: if it is a member of another group, the job joins the inner one.
    select j.blocked_on, j.task = '@group' as is_group, case when j.task = '@group' then j.id else j.group_id end as group_id
    into v_found
    from pgqueue.jobs j
    where j.id = p_group_id
    for key share;
    if not found or v_found.group_id is null then
        perform pgqueue._refuse(
            format('group_id names %s, which is no group', p_group_id),
            case when found then 'It is a job, and not a member of a group.'
                else 'There is no such group, or it has ended. Nothing was enqueued.' end,
            'Give the id that open_group() returned, or that of a member that has not ended.'
        );
    end if;
    if exists (select from pgqueue.jobs j where j.id = v_found.group_id and j.cancel_requested_at is not null) then
        perform pgqueue._refuse(
            format('the group of %s is cancelled', p_group_id), 'Nothing was enqueued.',
            'End the job: its group waits only for the members that it has.', '55000'
        );
    elsif not v_found.is_group then
        -- The group is not locked: a transaction that cancels it at the same time does not see the new member.
        perform pgqueue._leave_notes('cancel', array[v_found.group_id]);
    elsif v_found.blocked_on is distinct from '@open' then
        perform pgqueue._refuse(
            format('group %s is closed', p_group_id), 'Nothing was enqueued.',
            'Enqueue all members before close_group(); a member that has not ended gives its own id as group_id.', '55000'
        );
    end if;
    return v_found.group_id;
end
$$;

-- The caller has locked the rows. A group that is cancelled is closed, and ends when its members have ended.
-- p_error: that of a parent; null: an operator, or an outer group.
create or replace function pgqueue._cancel_groups(p_ids bigint[], p_error jsonb default null)
returns void
language plpgsql
set enable_seqscan = off set jit = off set enable_bitmapscan = off
as $$
begin
    update pgqueue.jobs j
    set
        blocked_on = '@group', cancel_requested_at = coalesce(j.cancel_requested_at, pgqueue._clock()),
        errors = case
            when p_error is not null then pgqueue._with_error(j.errors, p_error, j.attempts, null, pgqueue._clock(), null, null)
            else pgqueue._attempts_errors(j.errors, j.state, j.task)
        end
    where j.id = any (p_ids);
    perform pgqueue._leave_notes('cancel', p_ids);
    perform pgqueue._leave_notes('group', p_ids);
end
$$;

-- Whether a group has a live member in one of these states.
create or replace function pgqueue._has_members(p_group_id bigint, p_states pgqueue.job_state[] default '{executing,waiting,failed,blocked}')
returns boolean
language plpgsql parallel safe
set enable_sort = off set jit = off set enable_bitmapscan = off
as $$
begin
    -- One snapshot: a member that is put back and claimed meanwhile has a state that another statement misses. From the
    -- highest id: jobs start in the order of their ids, and the lowest have left dead entries. Not EXISTS: the planner takes
    -- the order out of that, and would walk from the lowest id.
    return (
        select true
        from unnest(p_states) s (state)
        cross join lateral (
            select from pgqueue.jobs j
            where j.group_id is not null and j.group_id = p_group_id and j.state = s.state
            order by j.group_id desc, j.state desc, j.id desc
            limit 1
        ) m
        limit 1
    ) is true;
end
$$;
