-- Retry policies: more of them for a task, overrides of a job's own, and a budget for a queue.

alter table pgqueue.tasks
    drop constraint tasks_retry_policy_check,
    drop constraint tasks_declared_retry_policy_check,
    add column retry_cap interval check (retry_cap >= '0' and retry_cap <= '1 year'),
    add column retry_delays interval[] check (
        array_ndims(retry_delays) = 1 and array_lower(retry_delays, 1) = 1 and cardinality(retry_delays) between 1 and 1000
        and array_position(retry_delays, null) is null
        and '0' <= all (retry_delays) and '1 year' >= all (retry_delays)
    ),
    add column retry_queue text collate "C" check (octet_length(retry_queue) between 1 and 128),
    add column retry_function text check (octet_length(retry_function) between 1 and 300),
    add column declared_retry_cap interval check (declared_retry_cap >= '0' and declared_retry_cap <= '1 year'),
    add column declared_retry_delays interval[] check (
        array_ndims(declared_retry_delays) = 1 and array_lower(declared_retry_delays, 1) = 1
        and cardinality(declared_retry_delays) between 1 and 1000
        and array_position(declared_retry_delays, null) is null
        and '0' <= all (declared_retry_delays) and '1 year' >= all (declared_retry_delays)
    ),
    add column declared_retry_queue text collate "C" check (octet_length(declared_retry_queue) between 1 and 128),
    add constraint tasks_retry_policy_check check (
        retry_policy in ('fixed', 'exponential', 'sidekiq', 'doubling', 'list', 'function')
        and (retry_policy <> 'list' or retry_delays is not null)
        and (retry_policy <> 'function' or retry_function is not null)
    ),
    add constraint tasks_declared_retry_policy_check check (
        declared_retry_policy in ('fixed', 'exponential', 'sidekiq', 'doubling', 'list')
        and (declared_retry_policy <> 'list' or declared_retry_delays is not null)
    );
comment on column pgqueue.tasks.retry_policy is
    'The delay after a failure, n = retries so far. fixed: retry_delay. exponential (default): retry_delay + n^5 s. '
    'sidekiq: retry_delay (15 s) + n^4 s + up to 30 * (n + 1) s at random. doubling: any part of retry_delay * 2^n. '
    'list: retry_delays in turn. function: retry_function says.';
comment on column pgqueue.tasks.retry_delay is 'The delay of the policy; default 30 seconds, 15 for sidekiq.';
comment on column pgqueue.tasks.retry_jitter is
    'How much of a delay is random; 0: nothing. fixed, exponential, list: up to this fraction is added; default 0.1. '
    'sidekiq: this fraction of its random part is; default 1. doubling: up to this fraction is taken off; default 1.';
comment on column pgqueue.tasks.retry_cap is
    'Longest delay of the policy, before anything random is added; default 1 hour for doubling, none otherwise.';
comment on column pgqueue.tasks.retry_delays is 'Delays of the policy list, one for each retry; the last holds for ever after.';
comment on column pgqueue.tasks.retry_queue is 'Where a job goes when it fails; null: it stays in its queue.';
comment on column pgqueue.tasks.retry_function is
    'The function of the policy function. Only the schema''s owner sets it, with set_retry_function(); code cannot declare it.';
comment on column pgqueue.tasks.declared_retry_cap is 'retry_cap, as declared by the code.';
comment on column pgqueue.tasks.declared_retry_delays is 'retry_delays, as declared by the code.';
comment on column pgqueue.tasks.declared_retry_queue is 'retry_queue, as declared by the code.';

-- One narrow column for what nearly no job has; history keeps it, so that a job that is retried still has it.
alter table pgqueue.jobs add column retry jsonb;
alter table pgqueue.history add column retry jsonb;
comment on column pgqueue.jobs.retry is
    'What this job itself says of retries, over its task: {"policy": ..., "delay": seconds, "queue": ...}; null as a rule.';
comment on column pgqueue.history.retry is 'What the job itself said of retries.';
comment on column pgqueue.jobs.errors is
    'The last ten errors, oldest first: class, message, traceback, attempt, worker, at; '
    'policy_error, where the rule that had to say when to retry failed itself.';

alter table pgqueue.queues add column retry_budget integer check (retry_budget between 1 and 1000000);
comment on column pgqueue.queues.retry_budget is
    'At most so many failed jobs of this queue become due in a second; the others are put off to the next with room. Null: no limit.';

-- Inserted and read newest first, never updated: a row per second that were updated would, while some session holds
-- an old snapshot, become a chain of versions that every failing job walks.
create table pgqueue.retry_bookings (
    n bigint generated always as identity primary key,
    second timestamptz not null,
    full_until timestamptz,
    booked integer not null,
    queue text collate "C" not null
);
create index retry_bookings_by_second on pgqueue.retry_bookings (queue, second, n);
create index retry_bookings_past on pgqueue.retry_bookings (second);
comment on table pgqueue.retry_bookings is 'Private: how many retries become due in which second, of queues with a retry_budget.';
comment on column pgqueue.retry_bookings.n is 'Order; of the rows of one second the newest holds.';
comment on column pgqueue.retry_bookings.second is 'When that second begins.';
comment on column pgqueue.retry_bookings.full_until is 'All seconds from this one to before that one are full; null: not known.';
comment on column pgqueue.retry_bookings.booked is 'Retries booked for it.';
comment on column pgqueue.retry_bookings.queue is 'The queue.';
