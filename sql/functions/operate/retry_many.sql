-- retry_many: brings dead or cancelled jobs back with a fresh count of attempts, many at a time. See _act_in_bulk.
--
-- Skips a job that another session has locked, and the jobs of the call that wait for that job, for they would start
-- without it. The reader of a note locks the ended parents of new children until it commits.

create or replace function pgqueue.retry_many(
    queue text default repeat('*', 600), task text default repeat('*', 600), key text default repeat('*', 600), state text default repeat('*', 600),
    created_after timestamptz default '-infinity', created_before timestamptz default 'infinity',
    finished_after timestamptz default '-infinity', finished_before timestamptz default 'infinity', job_ids bigint[] default '{-9223372036854775808}',
    everything boolean default false, max_jobs integer default 1000, after jsonb default null,
    group_id bigint default '-9223372036854775808'
)
returns table (changed bigint, passed_over bigint, left_over bigint, is_exact boolean, next_after jsonb)
language sql security definer rows 1
set search_path = pg_catalog, pg_temp
as $$
    select b.*
    from (select queue, task, key, state, created_after, created_before, finished_after, finished_before, everything, group_id) a
    cross join lateral pgqueue._act_in_bulk('retry_many', to_jsonb(a), job_ids, max_jobs, after) b
$$;

comment on function pgqueue.retry_many is
    'Bring dead jobs back by filter, due now and with a fresh count of attempts. state: dead or cancelled; left out: dead, or both with job_ids or group_id. key needs queue. group_id: the members of a group. No filter may be null: leave it out. _after is inclusive, _before exclusive. '
    'One call changes at most max_jobs (1 to 10000) and reads about 100,000 rows at most. Call again with after => next_after until that is null. changed: the number of changed jobs; passed_over: the number left as they are, because another session holds or has changed them, or holds a job of this call for which they wait; left_over: matching jobs that remain, a lower bound unless is_exact.';
