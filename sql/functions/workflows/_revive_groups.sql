-- Ended groups come back when members of them are retried, and end again as those do.
--
-- A session that ends the group at the same time does not see the retried member. The note that the retry leaves is read
-- when both are committed: a member lives, and the group comes back. If the member has ended again by then, it did so after
-- the group; where the clock does not show it, the counts of the group differ from those of its members.

-- Brings an ended group back, because a member of it was retried.
create or replace function pgqueue._revive_group(p_id bigint)
returns void
language plpgsql
as $$
declare
    v_position record;
begin
    select h.id, h.granularity, h.kept_until into v_position
    from pgqueue.history h
    where h.id = p_id and h.task = '@group'
    for update skip locked;
    if not found then
        if exists (select from pgqueue.history h where h.id = p_id and h.task = '@group') then
            perform pgqueue._leave_notes('group', array[p_id], interval '200 ms');
        end if;
        return;
    end if;
    perform pgqueue._requeue(array[v_position.id], array[v_position.granularity], array[v_position.kept_until]);
    update pgqueue.jobs j set state = 'blocked', blocked_on = '@group', resumed = false where j.id = p_id;
    perform pgqueue._leave_notes('group', array[p_id]);
    perform pgqueue._reopen_children(array[p_id]);
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
            'succeeded', count(*) filter (where h.state = 'succeeded'),
            'dead', count(*) filter (where h.state = 'dead'),
            'cancelled', count(*) filter (where h.state = 'cancelled')
        )
        from pgqueue.history h
        where h.group_id is not null and h.group_id = p_group_id
    );
end
$$;

-- The groups of notes that a retry of members left, after _look_at_groups.
create or replace function pgqueue._recount_groups(p_ids bigint[])
returns void
language plpgsql
as $$
declare
    v_id bigint;
    v_group record;
begin
    foreach v_id in array p_ids loop
        if exists (select from pgqueue.jobs j where j.id = v_id) then
            perform from pgqueue.jobs j where j.id = v_id for update skip locked;
            if not found then
                -- Another session may be ending it.
                perform pgqueue._leave_notes('recount', array[v_id], interval '200 ms');
            end if;
            continue;
        end if;
        select h.result, h.finished_at into v_group from pgqueue.history h where h.id = v_id and h.task = '@group';
        if found and (
            v_group.result <> pgqueue._ended_members(v_id)
            or exists (
                select from pgqueue.history m
                where m.group_id is not null and m.group_id = v_id and m.finished_at > v_group.finished_at
            )
        ) then
            perform pgqueue._revive_group(v_id);
        end if;
    end loop;
end
$$;
