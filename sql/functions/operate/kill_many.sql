-- kill_many: jobs that do not run are sent to the dead, many at a time.
--
-- See _bulk: found without locks, then locked FOR UPDATE SKIP LOCKED in the order of ids; it never waits. Each ends with
-- an error of class Killed, and its place in its key passes to the next job.

create or replace function pgqueue.kill_many(
    queue text default null,
    task text default null,
    key text default null,
    state text default null,
    created_after timestamptz default null,
    created_before timestamptz default null,
    job_ids bigint[] default null,
    everything boolean default false,
    max_jobs integer default 1000,
    after jsonb default null
)
returns table (changed bigint, passed_over bigint, left_over bigint, is_exact boolean, next_after jsonb)
language plpgsql
volatile
parallel unsafe
security definer
rows 1
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_filter jsonb := pgqueue._bulk_filter(
        '{waiting,failed,blocked}', kill_many.state, kill_many.queue, kill_many.task, kill_many.key,
        kill_many.created_after, kill_many.created_before, null, null,
        kill_many.job_ids, kill_many.everything
    );
begin
    return query
    select b.changed, b.passed_over, b.left_over, b.is_exact, b.next_after
    from pgqueue._bulk('kill_many', v_filter, kill_many.max_jobs, kill_many.after) b;
end
$$;

comment on function pgqueue.kill_many(
    text, text, text, text, timestamptz, timestamptz, bigint[], boolean, integer, jsonb
) is
    'Send jobs to the dead, by filter: all failed ones, say, with state => ''failed''. state: waiting, failed or blocked; null: these three. retry_many() brings them back. key needs queue. Times: from _after on, before _before. '
    'At most max_jobs (1 to 10000) are changed and some 100,000 rows looked at in one call; call again with after => next_after until that is null. changed: how many; passed_over: held by somebody or changed meanwhile; left_over: matching jobs still ahead, exact where is_exact, else so many or more.';
