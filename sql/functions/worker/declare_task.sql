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
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
    select pgqueue._check_name('task', declare_task.task);
    select w.is_written
    from (
        select queue, priority, max_attempts, retry_policy, retry_delay, retry_jitter, expires_in, retention_succeeded,
            retention_cancelled, retention_dead, retry_cap, retry_delays, retry_queue, accumulate, batch_size, timeout,
            max_crashes, store_result, docs, owner
    ) o
    cross join lateral (
        select jsonb_object_agg('declared_' || e.name, e.value) as options from jsonb_each(to_jsonb(o)) e (name, value)
    ) d
    cross join lateral pgqueue._write_options('task', task, d.options, true) w
$$;

comment on function pgqueue.declare_task is
    'Declare the options of a task, which hold where neither a job nor an operator sets another. False: nothing changed. '
    'docs: the address of the documentation of the task, such as a runbook; owner: who is responsible for it. [worker]';
