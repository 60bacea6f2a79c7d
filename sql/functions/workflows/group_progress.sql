-- group_progress: the state of a group and the numbers of its members, in one row. Reads only, along two indexes.

create or replace function pgqueue.group_progress(group_id bigint)
returns table (
    name text, state text, is_open boolean, total bigint, waiting bigint, failed bigint, blocked bigint, executing bigint,
    succeeded bigint, dead bigint, cancelled bigint
)
language plpgsql stable parallel safe security definer rows 1
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
as $$
begin
    return query
    select
        g.name, g.state::text, coalesce(g.blocked_on = '@open', false),
        n.waiting + n.failed + n.blocked + n.executing + n.succeeded + n.dead + n.cancelled,
        n.waiting, n.failed, n.blocked, n.executing, n.succeeded, n.dead, n.cancelled
    from (
        select a.args ->> 'name' as name, a.state, a.blocked_on
        from pgqueue.all_jobs a
        where a.id = group_progress.group_id and a.task = '@group'
        limit 1
    ) g
    cross join lateral pgqueue._group_numbers(group_progress.group_id, null, 2147483647) n;
end
$$;

comment on function pgqueue.group_progress(bigint) is
    'The name and state of a group, and how many members it has in each state, live ones and those that history keeps. '
    'No row: there is no such group. select * from pgqueue.group_progress(17); [worker, reader]';
