-- purge_queue: all that waits in a queue is deleted, many jobs at a time.
--
-- See _bulk: found without locks, along the queue's part of jobs_ready and of what is blocked, then locked FOR UPDATE
-- SKIP LOCKED in the order of ids; it never waits. What is executing goes on, and history stays.

create or replace function pgqueue.purge_queue(queue text, max_jobs integer default 1000, after jsonb default null)
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
    v_filter jsonb;
begin
    perform pgqueue._check_name('queue', purge_queue.queue);
    v_filter := pgqueue._bulk_filter(
        '{waiting,failed,blocked}', null, purge_queue.queue, null, null, null, null, null, null, null, false
    );
    return query
    select b.changed, b.passed_over, b.left_over, b.is_exact, b.next_after
    from pgqueue._bulk('purge_queue', v_filter, purge_queue.max_jobs, purge_queue.after) b;
end
$$;

comment on function pgqueue.purge_queue(text, integer, jsonb) is
    'Delete all that waits in a queue: waiting, scheduled, failed, blocked. What executes goes on, history stays. '
    'At most max_jobs (1 to 10000) are changed and some 100,000 rows looked at in one call; call again with after => next_after until that is null. changed: how many; passed_over: held by somebody or changed meanwhile; left_over: matching jobs still ahead, exact where is_exact, else so many or more.';
