-- configure_queue: sets the options of a queue, whether or not it has a row yet.

create or replace function pgqueue.configure_queue(
    queue text, priority integer default null, weight integer default null, retention_succeeded interval default null,
    retention_cancelled interval default null, retention_dead interval default null, retry_budget integer default null,
    reset text[] default null, fair_by text default null, max_share double precision default null
)
returns boolean
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
    -- Claims go round from the commit on, and visit what is ready by then.
    select pgqueue._register_tenants(a.queue, a.priority, null)
    from pgqueue.lanes a
    where configure_queue.fair_by is not null and a.queue = configure_queue.queue
    group by a.queue, a.priority
    having not bool_or(a.is_fair);
    -- What claims noted under a max_share of before lacks the jobs that started without one: see _held_in.
    delete from pgqueue.turns t
    where configure_queue.max_share is not null and t.queue = configure_queue.queue and t.held is not null;
    select pgqueue._configure('queue', queue, to_jsonb(o), reset)
    from (select priority, weight, retention_succeeded, retention_cancelled, retention_dead, retry_budget, fair_by, max_share) o
$$;

comment on function pgqueue.configure_queue(
    text, integer, integer, interval, interval, interval, integer, text[], text, double precision
) is
    'Set options of a queue, from now on. select pgqueue.configure_queue(''mail'', priority => 10, weight => 3); '
    'An option that is left out keeps its value; reset => ''{weight}'' takes it back to the default. '
    'The options: \d+ pgqueue.queues. False: unchanged.';
