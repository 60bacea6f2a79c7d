-- update_many: changes what update_job changes, of many jobs that a filter fits. See _act_in_bulk and update_job.

create or replace function pgqueue.update_many(
    filter jsonb, args jsonb default null, run_at timestamptz default null, priority integer default null,
    queue text default null, limit_key text default null, max_jobs integer default 1000, after jsonb default null
)
returns table (changed bigint, passed_over bigint, next_after jsonb)
language plpgsql security definer rows 1
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_changes jsonb := pgqueue._checked_changes(args, run_at, priority, queue, limit_key);
begin
    perform pgqueue._refuse('filter is empty', 'It would change every job.', 'Give filter as {"queues": ["mail"]}.')
    where case jsonb_typeof(filter) when 'object' then filter - 'states' = '{}' end;
    return query
    select a.changed, a.skipped, a.next_after
    from pgqueue._act_on_jobs(
        'update_many',
        pgqueue._read_filter(
            case
                when v_changes - 'args' = '{}' then '{"states": ["waiting", "blocked", "failed"]}'::jsonb
                else '{"states": ["waiting", "blocked"]}'
            end || filter,
            max_jobs, 50000
        ),
        v_changes || jsonb_build_object('filter', filter), v_changes, max_jobs, after
    ) a;
end
$$;

comment on function pgqueue.update_many is
    'Change jobs that were never started and fit a filter as search() takes it: only what is given, as update_job() does. Without states: waiting and blocked jobs, with args alone failed ones as well. '
    'One call changes at most max_jobs (1 to 10000). Call again with after => next_after until that is null. passed_over: jobs that fit, and were locked, executing or attempted. '
    'select * from pgqueue.update_many(''{"queues": ["mail"], "tasks": ["import"]}'', queue => ''slow'');';
