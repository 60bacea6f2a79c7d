-- close_group: after it, only members may add members to the group. An empty group ends at once.
--
-- Locks the group's row, and so waits for transactions that add members, at most 5 s (55P03).

create or replace function pgqueue.close_group(group_id bigint)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
declare
    v_group record;
begin
    select j.blocked_on, j.task into v_group from pgqueue.jobs j where j.id = close_group.group_id for update;
    perform pgqueue._refuse(
        format('%s is no group', close_group.group_id), 'It is a job.', 'Give the id that open_group() returned.'
    )
    where v_group.task <> '@group';
    if v_group.blocked_on is distinct from '@open' then
        return false;
    end if;
    update pgqueue.jobs j set blocked_on = '@group' where j.id = close_group.group_id;
    perform pgqueue._leave_notes('group', array[close_group.group_id]) where pgqueue._old_snapshot();
    perform pgqueue._look_at_groups(array[close_group.group_id]) where not pgqueue._old_snapshot();
    return true;
end
$$;

comment on function pgqueue.close_group(bigint) is
    'Close a group: it ends when its members have ended. Others may still be added with the id of a member that has not ended as their '
    'group_id; any other caller gets 55000. False: it was closed, or there is no such group. select pgqueue.close_group(17); [producer]';
