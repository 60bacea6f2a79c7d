-- The options of each task: the operator's if it is set, else the declared one.

create or replace view pgqueue.effective_tasks as
select
    t.name,
    coalesce(t.queue, t.declared_queue) as queue,
    coalesce(t.priority, t.declared_priority) as priority,
    coalesce(t.max_attempts, t.declared_max_attempts) as max_attempts,
    coalesce(t.retry_policy, t.declared_retry_policy) as retry_policy,
    coalesce(t.retry_delay, t.declared_retry_delay) as retry_delay,
    coalesce(t.retry_jitter, t.declared_retry_jitter) as retry_jitter,
    coalesce(t.expires_in, t.declared_expires_in) as expires_in,
    coalesce(t.retention_succeeded, t.declared_retention_succeeded) as retention_succeeded,
    coalesce(t.retention_cancelled, t.declared_retention_cancelled) as retention_cancelled,
    coalesce(t.retention_dead, t.declared_retention_dead) as retention_dead,
    coalesce(t.retry_cap, t.declared_retry_cap) as retry_cap,
    coalesce(t.retry_delays, t.declared_retry_delays) as retry_delays,
    coalesce(t.retry_queue, t.declared_retry_queue) as retry_queue,
    t.retry_function,
    coalesce(t.accumulate, t.declared_accumulate) as accumulate,
    coalesce(t.batch_size, t.declared_batch_size) as batch_size,
    coalesce(t.timeout, t.declared_timeout) as timeout,
    coalesce(t.max_crashes, t.declared_max_crashes) as max_crashes,
    coalesce(t.store_result, t.declared_store_result) as store_result,
    t.declared_docs as docs,
    t.declared_owner as owner
from pgqueue.tasks t;

comment on view pgqueue.effective_tasks is
    'The options that hold for each task: what an operator set in pgqueue.tasks, else what the code declared; null: the default.';
comment on column pgqueue.effective_tasks.name is 'The task.';
comment on column pgqueue.effective_tasks.queue is 'Queue of jobs enqueued without one.';
comment on column pgqueue.effective_tasks.priority is 'Priority of jobs enqueued without one.';
comment on column pgqueue.effective_tasks.max_attempts is 'Attempts before a job is dead; null: 11.';
comment on column pgqueue.effective_tasks.retry_policy is 'fixed, exponential, sidekiq, doubling, list or function; null: exponential.';
comment on column pgqueue.effective_tasks.retry_delay is 'Delay of the policy; null: 30 seconds, 15 for sidekiq.';
comment on column pgqueue.effective_tasks.retry_jitter is 'Random part of a delay; null: 0.1, or 1 for sidekiq and doubling.';
comment on column pgqueue.effective_tasks.expires_in is 'How long after run_at a job may still start; null: no limit.';
comment on column pgqueue.effective_tasks.retention_succeeded is 'How long history keeps succeeded jobs; null: the queue decides, then settings.';
comment on column pgqueue.effective_tasks.retention_cancelled is 'How long history keeps cancelled jobs; null: the queue decides, then settings.';
comment on column pgqueue.effective_tasks.retention_dead is 'How long history keeps dead jobs; null: the queue decides, then settings.';
comment on column pgqueue.effective_tasks.retry_cap is 'Longest delay of the policy; null: 1 hour for doubling, 1 day for exponential and sidekiq, none otherwise.';
comment on column pgqueue.effective_tasks.retry_delays is 'Delays of the policy list.';
comment on column pgqueue.effective_tasks.retry_queue is 'Queue of a job that failed; null: its own.';
comment on column pgqueue.effective_tasks.retry_function is 'Function of the policy function; see set_retry_function().';
comment on column pgqueue.effective_tasks.accumulate is 'Whether all due payloads of a key are handled in one batch; null: no.';
comment on column pgqueue.effective_tasks.batch_size is 'How many keys one call of the handler of an accumulating task gets; null: 1.';
comment on column pgqueue.effective_tasks.timeout is 'How long one attempt may take; null: no limit.';
comment on column pgqueue.effective_tasks.max_crashes is 'Workers that may die while they run a job before it is dead; null: 3.';
comment on column pgqueue.effective_tasks.store_result is 'Whether history keeps the return value of the handler; null: no.';
comment on column pgqueue.effective_tasks.docs is 'The address of its documentation, such as a runbook.';
comment on column pgqueue.effective_tasks.owner is 'Who is responsible for it.';
