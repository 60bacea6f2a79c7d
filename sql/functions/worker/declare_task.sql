-- declare_task: a task's options as the code declares them, written by a worker at its start.
--
-- Writes the declared_* columns only, and only when they differ: an operator's columns win and survive every deploy.
-- Locks the task's row, but not where nothing differs: an operator's open transaction keeps no worker from starting.

create or replace function pgqueue.declare_task(
    task text, queue text default null, priority integer default null, max_attempts integer default null,
    retry_policy text default null, retry_delay interval default null, retry_jitter double precision default null,
    expires_in interval default null, retention_succeeded interval default null,
    retention_cancelled interval default null, retention_dead interval default null, retry_cap interval default null,
    retry_delays interval[] default null, retry_queue text default null, accumulate boolean default null,
    batch_size integer default null, timeout interval default null, max_crashes integer default null,
    store_result boolean default null, docs text default null, owner text default null
)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_options constant jsonb := jsonb_build_object(
        'declared_queue', declare_task.queue, 'declared_priority', declare_task.priority,
        'declared_max_attempts', declare_task.max_attempts, 'declared_retry_policy', declare_task.retry_policy,
        'declared_retry_delay', declare_task.retry_delay, 'declared_retry_jitter', declare_task.retry_jitter,
        'declared_expires_in', declare_task.expires_in, 'declared_retention_succeeded', declare_task.retention_succeeded,
        'declared_retention_cancelled', declare_task.retention_cancelled,
        'declared_retention_dead', declare_task.retention_dead, 'declared_retry_cap', declare_task.retry_cap,
        'declared_retry_delays', declare_task.retry_delays, 'declared_retry_queue', declare_task.retry_queue,
        'declared_accumulate', declare_task.accumulate, 'declared_batch_size', declare_task.batch_size,
        'declared_timeout', declare_task.timeout, 'declared_max_crashes', declare_task.max_crashes,
        'declared_store_result', declare_task.store_result, 'declared_docs', declare_task.docs,
        'declared_owner', declare_task.owner
    );
begin
    perform pgqueue._check_name('task', declare_task.task);
    return (select w.is_written from pgqueue._write_options('task', declare_task.task, v_options, true) w);
end
$$;

comment on function pgqueue.declare_task is
    'Declare the options of a task, which hold where neither a job nor an operator sets another. False: nothing changed. '
    'docs: the address of the documentation of the task, such as a runbook; owner: who is responsible for it. [worker]';
