-- configure_task: sets an operator's options of a task, whether or not a worker has declared the task.
--
-- Inserts the row of tasks where there is none, locks it, and writes an operator's columns only. They override the
-- declared ones, survive every deploy and take effect at once. An option that is left out keeps its value; reset names
-- options to take back.

create or replace function pgqueue.configure_task(
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
    reset text[] default null
)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_reset text[] := coalesce(configure_task.reset, '{}'::text[]);
    v_before pgqueue.tasks;
    v_after pgqueue.tasks;
    v_constraint text;
begin
    perform pgqueue._check_name('task', configure_task.task);
    perform pgqueue._check_reset(
        v_reset,
        array[
            'max_attempts', 'queue', 'priority', 'retry_policy', 'retry_delay', 'retry_jitter', 'expires_in',
            'retention_succeeded', 'retention_cancelled', 'retention_dead', 'retry_cap', 'retry_delays',
            'retry_queue', 'accumulate', 'batch_size', 'timeout', 'max_crashes', 'store_result'
        ],
        'configure_task'
    );
    if configure_task.retry_policy = 'function' then
        perform pgqueue._refuse(
            'retry_policy cannot be function here', 'Only the owner of the schema may name a function.',
            'Call set_retry_function(task, function) as the owner.'
        );
    end if;
    insert into pgqueue.tasks (name) values (configure_task.task) on conflict do nothing;
    select t.* into v_before from pgqueue.tasks t where t.name = configure_task.task for update;
    update pgqueue.tasks t
    set
        queue = case when 'queue' <> all (v_reset) then coalesce(configure_task.queue, t.queue) end,
        priority = case when 'priority' <> all (v_reset) then coalesce(configure_task.priority, t.priority) end,
        max_attempts = case when 'max_attempts' <> all (v_reset) then coalesce(configure_task.max_attempts, t.max_attempts) end,
        retry_policy = case when 'retry_policy' <> all (v_reset) then coalesce(configure_task.retry_policy, t.retry_policy) end,
        retry_delay = case when 'retry_delay' <> all (v_reset) then coalesce(configure_task.retry_delay, t.retry_delay) end,
        retry_jitter = case when 'retry_jitter' <> all (v_reset) then coalesce(configure_task.retry_jitter, t.retry_jitter) end,
        expires_in = case when 'expires_in' <> all (v_reset) then coalesce(configure_task.expires_in, t.expires_in) end,
        retention_succeeded = case
            when 'retention_succeeded' <> all (v_reset) then coalesce(configure_task.retention_succeeded, t.retention_succeeded)
        end,
        retention_cancelled = case
            when 'retention_cancelled' <> all (v_reset) then coalesce(configure_task.retention_cancelled, t.retention_cancelled)
        end,
        retention_dead = case when 'retention_dead' <> all (v_reset) then coalesce(configure_task.retention_dead, t.retention_dead) end,
        retry_cap = case when 'retry_cap' <> all (v_reset) then coalesce(configure_task.retry_cap, t.retry_cap) end,
        retry_delays = case when 'retry_delays' <> all (v_reset) then coalesce(configure_task.retry_delays, t.retry_delays) end,
        retry_queue = case when 'retry_queue' <> all (v_reset) then coalesce(configure_task.retry_queue, t.retry_queue) end,
        accumulate = case when 'accumulate' <> all (v_reset) then coalesce(configure_task.accumulate, t.accumulate) end,
        batch_size = case when 'batch_size' <> all (v_reset) then coalesce(configure_task.batch_size, t.batch_size) end,
        timeout = case when 'timeout' <> all (v_reset) then coalesce(configure_task.timeout, t.timeout) end,
        max_crashes = case when 'max_crashes' <> all (v_reset) then coalesce(configure_task.max_crashes, t.max_crashes) end,
        store_result = case when 'store_result' <> all (v_reset) then coalesce(configure_task.store_result, t.store_result) end
    where t.name = configure_task.task
    returning t.* into v_after;
    return pgqueue._audit_options(
        'configure_task', 'task', configure_task.task, to_jsonb(v_before), to_jsonb(v_after)
    );
exception when check_violation or numeric_value_out_of_range then
    get stacked diagnostics v_constraint = constraint_name;
    perform pgqueue._refuse_option('task', configure_task.task, v_constraint, sqlerrm);
end
$$;

comment on function pgqueue.configure_task(
    text, text, integer, integer, text, interval, double precision, interval, interval, interval, interval, interval,
    interval[], text, boolean, integer, interval, integer, boolean, text[]
) is
    'Set options of a task for all its jobs, from now on and over what the code declares. select pgqueue.configure_task(''send_email'', max_attempts => 3); '
    'An option that is left out keeps its value; reset => ''{max_attempts}'' takes it back, so that the declared one holds. '
    'The options: \d+ pgqueue.tasks; the options in effect: pgqueue.effective_tasks. False: unchanged.';
