-- cancel_many: jobs that do not run are cancelled, those that do are asked to stop, many at a time.
--
-- See _bulk: found without locks, then locked FOR UPDATE SKIP LOCKED in the order of ids; it never waits. A worker whose
-- jobs are asked to stop is notified once; a job that was asked already is passed by.

create or replace function pgqueue.cancel_many(
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
        '{waiting,failed,blocked,executing}', cancel_many.state, cancel_many.queue, cancel_many.task, cancel_many.key,
        cancel_many.created_after, cancel_many.created_before, null, null,
        cancel_many.job_ids, cancel_many.everything
    );
begin
    return query
    select b.changed, b.passed_over, b.left_over, b.is_exact, b.next_after
    from pgqueue._bulk('cancel_many', v_filter, cancel_many.max_jobs, cancel_many.after) b;
end
$$;

comment on function pgqueue.cancel_many(
    text, text, text, text, timestamptz, timestamptz, bigint[], boolean, integer, jsonb
) is
    'Cancel jobs, by filter; those that are executing are asked to stop, and count as changed. state: waiting, failed, blocked or executing; null: all of these. key needs queue. Times: from _after on, before _before. '
    'At most max_jobs (1 to 10000) are changed and some 100,000 rows looked at in one call; call again with after => next_after until that is null. changed: how many; passed_over: held by somebody or changed meanwhile; left_over: matching jobs still ahead, exact where is_exact, else so many or more.';
