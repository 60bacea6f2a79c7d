-- declare_task: a task's options as the code declares them, written by a worker at its start.
--
-- Writes the declared_* columns only, and only when they differ: an operator's columns win and survive every deploy.
-- Locks the task's row, but not where nothing differs: an operator's open transaction keeps no worker from starting.

create or replace function pgqueue.declare_task(
    task text,
    queue text default null,
    priority integer default null,
    max_attempts integer default null,
    retry_policy text default null,
    retry_delay interval default null,
    retry_jitter double precision default null,
    expires_in interval default null,
    retention_succeeded interval default null,
    retention_cancelled interval default null,
    retention_dead interval default null,
    retry_cap interval default null,
    retry_delays interval[] default null,
    retry_queue text default null,
    accumulate boolean default null,
    batch_size integer default null,
    timeout interval default null,
    max_crashes integer default null,
    store_result boolean default null,
    docs text default null,
    owner text default null
)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_constraint text;
begin
    perform pgqueue._check_name('task', declare_task.task);
    if exists (
        select from pgqueue.tasks t
        where t.name = declare_task.task
            and (
                t.declared_queue, t.declared_priority, t.declared_max_attempts, t.declared_retry_policy,
                t.declared_retry_delay, t.declared_retry_jitter, t.declared_expires_in, t.declared_retention_succeeded,
                t.declared_retention_cancelled, t.declared_retention_dead, t.declared_retry_cap, t.declared_retry_delays,
                t.declared_retry_queue, t.declared_accumulate, t.declared_batch_size, t.declared_timeout,
                t.declared_max_crashes, t.declared_store_result, t.declared_docs, t.declared_owner
            ) is not distinct from (
                declare_task.queue, declare_task.priority, declare_task.max_attempts, declare_task.retry_policy,
                declare_task.retry_delay, declare_task.retry_jitter, declare_task.expires_in,
                declare_task.retention_succeeded, declare_task.retention_cancelled, declare_task.retention_dead,
                declare_task.retry_cap, declare_task.retry_delays, declare_task.retry_queue, declare_task.accumulate,
                declare_task.batch_size, declare_task.timeout, declare_task.max_crashes, declare_task.store_result,
                declare_task.docs, declare_task.owner
            )
    ) then
        return false;
    end if;
    insert into pgqueue.tasks (
        name, declared_queue, declared_priority, declared_max_attempts, declared_retry_policy, declared_retry_delay,
        declared_retry_jitter, declared_expires_in, declared_retention_succeeded, declared_retention_cancelled,
        declared_retention_dead, declared_retry_cap, declared_retry_delays, declared_retry_queue,
        declared_accumulate, declared_batch_size, declared_timeout, declared_max_crashes, declared_store_result,
        declared_docs, declared_owner
    )
    values (
        declare_task.task, declare_task.queue, declare_task.priority, declare_task.max_attempts,
        declare_task.retry_policy, declare_task.retry_delay, declare_task.retry_jitter, declare_task.expires_in,
        declare_task.retention_succeeded, declare_task.retention_cancelled, declare_task.retention_dead,
        declare_task.retry_cap, declare_task.retry_delays, declare_task.retry_queue,
        declare_task.accumulate, declare_task.batch_size, declare_task.timeout, declare_task.max_crashes,
        declare_task.store_result, declare_task.docs, declare_task.owner
    )
    on conflict (name) do update
    set
        declared_queue = excluded.declared_queue,
        declared_priority = excluded.declared_priority,
        declared_max_attempts = excluded.declared_max_attempts,
        declared_retry_policy = excluded.declared_retry_policy,
        declared_retry_delay = excluded.declared_retry_delay,
        declared_retry_jitter = excluded.declared_retry_jitter,
        declared_expires_in = excluded.declared_expires_in,
        declared_retention_succeeded = excluded.declared_retention_succeeded,
        declared_retention_cancelled = excluded.declared_retention_cancelled,
        declared_retention_dead = excluded.declared_retention_dead,
        declared_retry_cap = excluded.declared_retry_cap,
        declared_retry_delays = excluded.declared_retry_delays,
        declared_retry_queue = excluded.declared_retry_queue,
        declared_accumulate = excluded.declared_accumulate,
        declared_batch_size = excluded.declared_batch_size,
        declared_timeout = excluded.declared_timeout,
        declared_max_crashes = excluded.declared_max_crashes,
        declared_store_result = excluded.declared_store_result,
        declared_docs = excluded.declared_docs,
        declared_owner = excluded.declared_owner;
    return true;
exception when check_violation or numeric_value_out_of_range then
    get stacked diagnostics v_constraint = constraint_name;
    perform pgqueue._refuse_option('task', declare_task.task, v_constraint, sqlerrm);
end
$$;

comment on function pgqueue.declare_task(
    text, text, integer, integer, text, interval, double precision, interval, interval, interval, interval, interval,
    interval[], text, boolean, integer, interval, integer, boolean, text, text
) is
    'Declare the options of a task, which hold where neither a job nor an operator sets another. False: nothing changed. '
    'docs: the address of what to read about the task; owner: who answers for it.';
