-- configure_task: sets an operator's options of a task, whether or not a worker has declared the task.

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
    select pgqueue._configure('task', task, to_jsonb(o), reset)
    from (
        select queue, priority, max_attempts, retry_policy, retry_delay, retry_jitter, expires_in, retention_succeeded,
            retention_cancelled, retention_dead, retry_cap, retry_delays, retry_queue, accumulate, batch_size, timeout,
            max_crashes, store_result
    ) o
$$;

comment on function pgqueue.configure_task is
    'Set options of a task for all its jobs, from now on and over what the code declares. select pgqueue.configure_task(''send_email'', max_attempts => 3); '
    'An option that is left out keeps its value; reset => ''{max_attempts}'' takes it back, so that the declared one holds. '
    'The options: \d+ pgqueue.tasks; the options in effect: pgqueue.effective_tasks. False: unchanged.';
