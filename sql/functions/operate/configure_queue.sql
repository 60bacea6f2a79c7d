-- configure_queue: sets the options of a queue, whether or not it has a row yet.
--
-- Inserts the row of queues where there is none, and locks it. Takes effect at once. An option that is left out
-- keeps its value; reset names options to take back. Pausing has functions of its own: pause_queue, resume_queue.

create or replace function pgqueue.configure_queue(
    queue text,
    priority integer default null,
    weight integer default null,
    retention_succeeded interval default null,
    retention_cancelled interval default null,
    retention_dead interval default null,
    retry_budget integer default null,
    reset text[] default null
)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_reset text[] := coalesce(configure_queue.reset, '{}'::text[]);
    v_before pgqueue.queues;
    v_after pgqueue.queues;
    v_constraint text;
begin
    perform pgqueue._check_name('queue', configure_queue.queue);
    perform pgqueue._check_reset(
        v_reset,
        array[
            'retention_succeeded', 'priority', 'weight', 'retention_cancelled', 'retention_dead', 'retry_budget'
        ],
        'configure_queue'
    );
    insert into pgqueue.queues (name) values (configure_queue.queue) on conflict do nothing;
    select t.* into v_before from pgqueue.queues t where t.name = configure_queue.queue for update;
    update pgqueue.queues t
    set
        priority = case when 'priority' <> all (v_reset) then coalesce(configure_queue.priority, t.priority) end,
        weight = case when 'weight' <> all (v_reset) then coalesce(configure_queue.weight, t.weight) end,
        retention_succeeded = case
            when 'retention_succeeded' <> all (v_reset) then coalesce(configure_queue.retention_succeeded, t.retention_succeeded)
        end,
        retention_cancelled = case
            when 'retention_cancelled' <> all (v_reset) then coalesce(configure_queue.retention_cancelled, t.retention_cancelled)
        end,
        retention_dead = case when 'retention_dead' <> all (v_reset) then coalesce(configure_queue.retention_dead, t.retention_dead) end,
        retry_budget = case when 'retry_budget' <> all (v_reset) then coalesce(configure_queue.retry_budget, t.retry_budget) end
    where t.name = configure_queue.queue
    returning t.* into v_after;
    return pgqueue._audit_options(
        'configure_queue', 'queue', configure_queue.queue, to_jsonb(v_before), to_jsonb(v_after)
    );
exception when check_violation or numeric_value_out_of_range then
    get stacked diagnostics v_constraint = constraint_name;
    perform pgqueue._refuse_option('queue', configure_queue.queue, v_constraint, sqlerrm);
end
$$;

comment on function pgqueue.configure_queue(
    text, integer, integer, interval, interval, interval, integer, text[]
) is
    'Set options of a queue, from now on. select pgqueue.configure_queue(''mail'', priority => 10, weight => 3); '
    'An option that is left out keeps its value; reset => ''{weight}'' takes it back to the default. '
    'The options: \d+ pgqueue.queues. False: unchanged.';
