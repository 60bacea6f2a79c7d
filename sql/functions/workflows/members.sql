-- members: the jobs of a group, live and ended, by id. Reads only, as search_oldest() does.

create or replace function pgqueue.members(group_id bigint, state text default null, after bigint default 0, max integer default 1000)
returns table (id bigint, task text, job_state text, queue text, attempts integer, error jsonb)
language plpgsql stable security definer rows 100
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
begin
    perform pgqueue._check_range('max', members.max, 1, 10000, 'Give max within this range, and call again with after => the last id.');
    perform pgqueue._refuse(
        'state is unknown', format('It is %s.', quote_literal(members.state)),
        format('Give state as one of %s, or leave it out.', array_to_string(enum_range(null::pgqueue.job_state), ', '))
    )
    where members.state <> all (enum_range(null::pgqueue.job_state)::text[]);
    return query
    select a.id, a.task, a.state::text, a.queue, a.attempts, a.errors -> -1
    from pgqueue._search_by_id(
        pgqueue._read_filter(
            jsonb_strip_nulls(jsonb_build_object('groups', array[members.group_id], 'states', string_to_array(members.state, ' '))), 1, 1
        ), true, members.after, members.max, 2147483647
    ) f
    cross join lateral unnest(f.matches) m (id)
    cross join lateral (select x.* from pgqueue.all_jobs x where x.id = m.id limit 1) a
    order by a.id;
end
$$;

comment on function pgqueue.members(bigint, text, bigint, integer) is
    'The members of a group, by id, live ones and those that history keeps; with their last error. state: only members in it. '
    'Call again with after => the last id for more than max. select * from pgqueue.members(17, state => ''dead''); [worker, reader]';
