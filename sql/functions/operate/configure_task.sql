-- configure_task: sets an operator's options of a task, whether or not a worker has declared the task.
--
-- Inserts the row of tasks where there is none, locks it, and writes an operator's columns only. They override the
-- declared ones, survive every deploy and take effect at once. An option that is left out keeps its value; reset names
-- options to take back.

create or replace function pgqueue.configure_task(
    task text, queue text default null, priority integer default null, max_attempts integer default null,
    retry_policy text default null, retry_delay interval default null, retry_jitter double precision default null,
    expires_in interval default null, retention_succeeded interval default null,
    retention_cancelled interval default null, retention_dead interval default null, retry_cap interval default null,
    retry_delays interval[] default null, retry_queue text default null, accumulate boolean default null,
    batch_size integer default null, timeout interval default null, max_crashes integer default null,
    store_result boolean default null, reset text[] default null
)
returns boolean
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
    select pgqueue._configure('task', configure_task.task, to_jsonb(o), configure_task.reset)
    from (
        select configure_task.queue, configure_task.priority, configure_task.max_attempts, configure_task.retry_policy,
            configure_task.retry_delay, configure_task.retry_jitter, configure_task.expires_in,
            configure_task.retention_succeeded, configure_task.retention_cancelled, configure_task.retention_dead,
            configure_task.retry_cap, configure_task.retry_delays, configure_task.retry_queue, configure_task.accumulate,
            configure_task.batch_size, configure_task.timeout, configure_task.max_crashes, configure_task.store_result
    ) o
$$;

comment on function pgqueue.configure_task is
    'Set options of a task for all its jobs, from now on and over what the code declares. select pgqueue.configure_task(''send_email'', max_attempts => 3); '
    'An option that is left out keeps its value; reset => ''{max_attempts}'' takes it back, so that the declared one holds. '
    'The options: \d+ pgqueue.tasks; the options in effect: pgqueue.effective_tasks. False: unchanged.';
