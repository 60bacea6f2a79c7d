-- purge_queue: deletes the waiting jobs of a queue, many at a time. See _act_in_bulk.

create or replace function pgqueue.purge_queue(queue text, max_jobs integer default 1000, after jsonb default null)
returns table (changed bigint, passed_over bigint, left_over bigint, is_exact boolean, next_after jsonb)
language sql security definer rows 1
set search_path = pg_catalog, pg_temp
as $$
    select b.*
    from pgqueue._act_in_bulk('purge_queue', jsonb_build_object('queue', queue), '{-9223372036854775808}', max_jobs, after) b
$$;

comment on function pgqueue.purge_queue(text, integer, jsonb) is
    'Delete the jobs of a queue that do not execute: waiting, scheduled, failed, blocked. Executing jobs and history stay. '
    'One call changes at most max_jobs (1 to 10000) and reads about 100,000 rows at most. Call again with after => next_after until that is null. changed: the number of changed jobs; passed_over: the number left as they are, because another session holds or has changed them; left_over: matching jobs that remain, a lower bound unless is_exact.';
