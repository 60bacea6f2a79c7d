-- groups: groups of jobs, the newest first, for lists. Reads only.
--
-- Its cost does not depend on how many members a group has: each state is counted up to count_to, or read from the result.
-- Groups are found by their members, one probe for each, and those that have not ended by the index of blocked jobs.

create or replace function pgqueue.groups(
    group_id bigint default null, before bigint default null, max integer default 20, count_to integer default 1000
)
returns table (
    id bigint, name text, state text, is_open boolean, created_at timestamptz, finished_at timestamptz, total bigint,
    waiting bigint, failed bigint, blocked bigint, executing bigint, succeeded bigint, dead bigint, cancelled bigint,
    counted_to integer
)
language plpgsql stable parallel safe security definer rows 20
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off set jit = off
as $$
begin
    perform pgqueue._check_range('max', groups.max, 1, 1000, 'Give max within this range, and call again with before => the last id.');
    perform pgqueue._check_range('count_to', groups.count_to, 1, 1000000, 'Give count_to within this range.');
    return query
    with recursive found (id) as (
        select coalesce(groups.before, 9223372036854775807) where groups.group_id is null
        union all
        select (
            select a.group_id
            from pgqueue.all_jobs a
            where a.group_id is not null and a.group_id < f.id
            order by a.group_id desc
            limit 1
        )
        from found f
        where f.id is not null
    ),
    listed (id) as (
        select groups.group_id where groups.group_id is not null
        union all
        (
            select l.id
            from (
                (select f.id from found f where f.id is not null limit groups.max offset 1)
                union
                (
                    select j.id
                    from (values ('@open'), ('@group')) b (blocked_on)
                    cross join lateral (
                        select x.id
                        from pgqueue.jobs x
                        where groups.group_id is null and x.state = 'blocked' and x.blocked_on = b.blocked_on and (groups.before is null or x.id < groups.before)
                        -- Backwards, so that the newest are among them.
                        order by x.blocked_on desc, x.priority, x.ready_at desc, x.id desc
                        limit 10000
                    ) j
                )
            ) l
            order by l.id desc
            limit groups.max
        )
    )
    select
        i.id, g.name, coalesce(g.state, 'forgotten'), coalesce(g.is_open, false), g.created_at, g.finished_at,
        n.waiting + n.failed + n.blocked + n.executing + n.succeeded + n.dead + n.cancelled,
        n.waiting, n.failed, n.blocked, n.executing, n.succeeded, n.dead, n.cancelled,
        case when n.is_cut then groups.count_to end
    from listed i
    left join lateral (
        select
            a.args ->> 'name' as name, a.state::text as state, a.blocked_on = '@open' as is_open, a.created_at, a.finished_at,
            a.result
        from pgqueue.all_jobs a
        where a.id = i.id and a.task = '@group'
        limit 1
    ) g on true
    cross join lateral pgqueue._group_numbers(i.id, g.result, groups.count_to) n
    where groups.group_id is null or g.state is not null
    order by i.id desc;
end
$$;

comment on function pgqueue.groups(bigint, bigint, integer, integer) is
    'Groups, newest first, with the number of their members in each state, of live ones and those that history keeps; a group that has ended has the numbers of all its members. '
    'group_id: only this one. Call again with before => the last id. counted_to: where counting stopped; a number as high as this means at least that many; null: the numbers are exact. '
    'select id, name, state, total, dead from pgqueue.groups(); [reader]';

-- How many members a group has in each state, each live state and all of history counted up to p_most.
-- p_result: the result of the group, to count members that history no longer keeps as well; null: it is not used.
create or replace function pgqueue._group_numbers(
    p_id bigint, p_result jsonb, p_most integer, out waiting bigint, out failed bigint, out blocked bigint,
    out executing bigint, out succeeded bigint, out dead bigint, out cancelled bigint, out is_cut boolean
)
language plpgsql stable parallel safe
as $$
begin
    select
        max(m.n) filter (where s.state = 'waiting'), max(m.n) filter (where s.state = 'failed'),
        max(m.n) filter (where s.state = 'blocked'), max(m.n) filter (where s.state = 'executing'), max(m.n) >= p_most
    into waiting, failed, blocked, executing, is_cut
    from unnest('{waiting,failed,blocked,executing}'::pgqueue.job_state[]) s (state)
    cross join lateral (
        select count(*) as n
        from (
            select from pgqueue.jobs j
            where j.group_id is not null and j.group_id = p_id and j.state = s.state
            limit p_most
        ) j
    ) m;
    if p_result ?& '{succeeded,dead,cancelled}' and waiting + failed + blocked + executing = 0 then
        select r.succeeded, r.dead, r.cancelled into succeeded, dead, cancelled
        from jsonb_to_record(p_result) r (succeeded bigint, dead bigint, cancelled bigint);
        return;
    end if;
    select
        count(*) filter (where h.state = 'succeeded'), count(*) filter (where h.state = 'dead'),
        count(*) filter (where h.state = 'cancelled'), is_cut or count(*) >= p_most
    into succeeded, dead, cancelled, is_cut
    from (select x.state from pgqueue.history x where x.group_id is not null and x.group_id = p_id limit p_most) h;
end
$$;
