-- kill_many: makes waiting, failed and blocked jobs dead, many at a time. See _act_in_bulk. It does not touch executing jobs.

create or replace function pgqueue.kill_many(
    queue text default repeat('*', 600), task text default repeat('*', 600), key text default repeat('*', 600), state text default repeat('*', 600),
    created_after timestamptz default '-infinity', created_before timestamptz default 'infinity', job_ids bigint[] default '{-9223372036854775808}',
    everything boolean default false, max_jobs integer default 1000, after jsonb default null
)
returns table (changed bigint, passed_over bigint, left_over bigint, is_exact boolean, next_after jsonb)
language sql security definer rows 1
set search_path = pg_catalog, pg_temp
as $$
    select b.*
    from (select queue, task, key, state, created_after, created_before, everything) a
    cross join lateral pgqueue._act_in_bulk('kill_many', to_jsonb(a), job_ids, max_jobs, after) b
$$;

comment on function pgqueue.kill_many is
    'Make jobs dead by filter, for example all failed ones with state => ''failed''. state: waiting, failed or blocked; left out: all of these. retry_many() brings them back. key needs queue. No filter may be null: leave it out. _after is inclusive, _before exclusive. '
    'One call changes at most max_jobs (1 to 10000) and reads about 100,000 rows at most. Call again with after => next_after until that is null. changed: the number of changed jobs; passed_over: the number left as they are, because another session holds or has changed them; left_over: matching jobs that remain, a lower bound unless is_exact.';
