-- The queue: types, tables and indexes. Functions, views and grants are under sql/ and are loaded after this file, in the
-- same transaction; sql/README.md introduces them all.
--
--   state     job_state
--   options   settings, queues, tasks, limits, pauses, breakers, schedules
--   jobs      jobs, history
--   claims    lanes, heads, head_marks, horizons, lease_promises
--   rules     key_notes, dedupe_keys, limit_starts, limit_levels, limit_waits, breaker_ends, retry_bookings, schedule_runs
--   graph     dependencies, traces, steps, events, event_waits, notes
--   workers   workers, heartbeats, worker_reports, idle_workers
--   upkeep    maintenance_runs, maintenance_steps, samples
--   records   grants, audit, releases
--   types     what functions pass to each other
--
-- Names are compared byte by byte (collate "C"): ranges over them must not change with the system's locale.

revoke all on schema pgqueue from public;
comment on schema pgqueue is 'pgqueue, a job queue. Start with \df+ pgqueue.* and select * from pgqueue.all_jobs.';

create type pgqueue.job_state as enum (
    'waiting', 'executing', 'failed', 'blocked', 'succeeded', 'dead', 'cancelled'
);
comment on type pgqueue.job_state is
    'waiting: due once its time has come. executing: reserved by a worker. failed: to be retried. blocked: it waits for another job or for a limit. Final: succeeded, dead (out of attempts), cancelled.';

-- Settings of the whole queue, for its owner: one row, read by every enqueue, hardly ever written.
create table pgqueue.settings (
    one boolean primary key default true check (one),
    max_args_bytes integer not null default 1048576 check (max_args_bytes between 262144 and 200000000),
    retention_succeeded interval not null default '1 day'
        check (retention_succeeded >= '0' and retention_succeeded <= '2 years'),
    retention_cancelled interval not null default '7 days'
        check (retention_cancelled >= '0' and retention_cancelled <= '2 years'),
    retention_dead interval not null default '90 days'
        check (retention_dead >= '0' and retention_dead <= '2 years'),
    dedupe_wait interval not null default '5 s' check (dedupe_wait >= '0' and dedupe_wait <= '1 hour'),
    retention_parents interval not null default '31 days'
        check (retention_parents between '0' and '2 years'),
    retention_audit interval not null default '90 days'
        check (retention_audit between '1 day' and '100 years'),
    throttle_most interval not null default '1 hour' check (throttle_most between '1 s' and '30 days'),
    retention_logs interval not null default '7 days'
        check (retention_logs between '1 hour' and '2 years')
);
insert into pgqueue.settings default values;
comment on table pgqueue.settings is 'One row of settings; an update takes effect at once.';
comment on column pgqueue.settings.one is 'Always true: there is one row.';
comment on column pgqueue.settings.max_args_bytes is
    'Largest args of a job, in bytes of JSON text; at least 256 KiB. Default 1 MiB.';
comment on column pgqueue.settings.retention_succeeded is
    'How long a succeeded job stays in history, unless its job, task or queue says otherwise. Zero: no row is kept.';
comment on column pgqueue.settings.retention_cancelled is 'How long a cancelled job stays in history, in the same way.';
comment on column pgqueue.settings.retention_dead is 'How long a dead job stays in history, in the same way.';
comment on column pgqueue.settings.dedupe_wait is
    'How long an enqueue waits for an open transaction that holds its dedupe key, before it fails with 55P03. Default 5 seconds.';
comment on column pgqueue.settings.retention_parents is
    'How long history keeps a job that others waited for, at least.';
comment on column pgqueue.settings.retention_audit is
    'How long a row of the audit is kept. Only the owner of the schema may set it, because the audit records what operators do.';
comment on column pgqueue.settings.retention_logs is 'How long a log line of a job is kept after it was written.';

comment on column pgqueue.settings.throttle_most is
    'How long a throttle lasts at most, even if a handler asks for more.';

-- Options of queues and tasks, set by operators; declared_* are those that the code declares.
create table pgqueue.queues (
    name text collate "C" primary key check (octet_length(name) between 1 and 128),
    priority smallint check (priority between -100 and 100),
    retention_succeeded interval check (retention_succeeded >= '0' and retention_succeeded <= '2 years'),
    retention_cancelled interval check (retention_cancelled >= '0' and retention_cancelled <= '2 years'),
    retention_dead interval check (retention_dead >= '0' and retention_dead <= '2 years'),
    weight integer check (weight between 1 and 1000000),
    retry_budget integer check (retry_budget between 1 and 1000000),
    fair_by text collate "C" check (fair_by = 'limit_key'),
    max_share double precision check (max_share > 0 and max_share <= 1)
);
-- Each claim asks whether one has a weight.
create index queues_weighted on pgqueue.queues (name) where weight <> 1;
-- And each end of a batch, here and below, whether one says how long its jobs are kept.
create index queues_kept on pgqueue.queues (name)
    where num_nonnulls(retention_succeeded, retention_cancelled, retention_dead) > 0;
comment on table pgqueue.queues is
    'The options that operators set for a queue; they take effect at once. A queue without a row has the defaults.';
comment on column pgqueue.queues.name is 'The queue.';
comment on column pgqueue.queues.priority is
    'The priority of jobs for which neither the enqueue nor the task gives one.';
comment on column pgqueue.queues.retention_succeeded is
    'How long history keeps succeeded jobs of this queue; null: as settings says.';
comment on column pgqueue.queues.retention_cancelled is
    'How long history keeps cancelled jobs of this queue; null: as settings says.';
comment on column pgqueue.queues.retention_dead is
    'How long history keeps dead jobs of this queue; null: as settings says.';
comment on column pgqueue.queues.weight is
    'The share of this queue in the claims of workers that are given no weights; a queue without one has 1.';
comment on column pgqueue.queues.retry_budget is
    'How many failed jobs of this queue may become due in one second; more are deferred to the next second with capacity. Null: no limit.';
comment on column pgqueue.queues.fair_by is
    'limit_key: among the due jobs of one priority tenants take turns, which are the values of limit_key, each by its share (see set_share). Null: jobs start in the order of their times.';
comment on column pgqueue.queues.max_share is
    'The part of a worker''s slots, rounded down and at least one, that one tenant of a fair queue may have: of ten slots 0.9 keeps one for all others. Null: a tenant may have all of them.';

create table pgqueue.tasks (
    name text collate "C" primary key check (octet_length(name) between 1 and 128),
    queue text collate "C" check (octet_length(queue) between 1 and 128),
    priority smallint check (priority between -100 and 100),
    max_attempts integer check (max_attempts between 1 and 100000),
    retry_policy text,
    retry_delay interval check (retry_delay >= '0' and retry_delay <= '1 year'),
    retry_jitter double precision check (retry_jitter between 0 and 1),
    expires_in interval check (expires_in > '0'),
    retention_succeeded interval check (retention_succeeded >= '0' and retention_succeeded <= '2 years'),
    retention_cancelled interval check (retention_cancelled >= '0' and retention_cancelled <= '2 years'),
    retention_dead interval check (retention_dead >= '0' and retention_dead <= '2 years'),
    declared_queue text collate "C" check (octet_length(declared_queue) between 1 and 128),
    declared_priority smallint check (declared_priority between -100 and 100),
    declared_max_attempts integer check (declared_max_attempts between 1 and 100000),
    declared_retry_policy text,
    declared_retry_delay interval check (declared_retry_delay >= '0' and declared_retry_delay <= '1 year'),
    declared_retry_jitter double precision check (declared_retry_jitter between 0 and 1),
    declared_expires_in interval check (declared_expires_in > '0'),
    declared_retention_succeeded interval
        check (declared_retention_succeeded >= '0' and declared_retention_succeeded <= '2 years'),
    declared_retention_cancelled interval
        check (declared_retention_cancelled >= '0' and declared_retention_cancelled <= '2 years'),
    declared_retention_dead interval
        check (declared_retention_dead >= '0' and declared_retention_dead <= '2 years'),
    retry_cap interval check (retry_cap >= '0' and retry_cap <= '1 year'),
    retry_delays interval[] check (
        array_ndims(retry_delays) = 1 and array_lower(retry_delays, 1) = 1 and cardinality(retry_delays) between 1 and 1000
        and array_position(retry_delays, null) is null
        and '0' <= all (retry_delays) and '1 year' >= all (retry_delays)
    ),
    retry_queue text collate "C" check (octet_length(retry_queue) between 1 and 128),
    retry_function text check (octet_length(retry_function) between 1 and 300),
    declared_retry_cap interval check (declared_retry_cap >= '0' and declared_retry_cap <= '1 year'),
    declared_retry_delays interval[] check (
        array_ndims(declared_retry_delays) = 1 and array_lower(declared_retry_delays, 1) = 1
        and cardinality(declared_retry_delays) between 1 and 1000
        and array_position(declared_retry_delays, null) is null
        and '0' <= all (declared_retry_delays) and '1 year' >= all (declared_retry_delays)
    ),
    declared_retry_queue text collate "C" check (octet_length(declared_retry_queue) between 1 and 128),
    accumulate boolean,
    batch_size integer check (batch_size between 1 and 1000),
    declared_accumulate boolean,
    declared_batch_size integer check (declared_batch_size between 1 and 1000),
    timeout interval check (timeout > '0' and timeout <= '7 days'),
    max_crashes integer check (max_crashes between 1 and 1000),
    store_result boolean,
    declared_timeout interval check (declared_timeout > '0' and declared_timeout <= '7 days'),
    declared_max_crashes integer check (declared_max_crashes between 1 and 1000),
    declared_store_result boolean,
    declared_docs text check (declared_docs ~ '^https?://[^[:space:][:cntrl:]]+$' and length(declared_docs) <= 2000),
    declared_owner text check (length(declared_owner) between 1 and 128),
    constraint tasks_retry_policy_check check (
        retry_policy in ('fixed', 'exponential', 'sidekiq', 'doubling', 'list', 'function')
        and (retry_policy <> 'list' or retry_delays is not null)
        and (retry_policy <> 'function' or retry_function is not null)
    ),
    constraint tasks_declared_retry_policy_check check (
        declared_retry_policy in ('fixed', 'exponential', 'sidekiq', 'doubling', 'list')
        and (declared_retry_policy <> 'list' or declared_retry_delays is not null)
    )
);
create index tasks_kept on pgqueue.tasks (name)
    where num_nonnulls(
        retention_succeeded, retention_cancelled, retention_dead,
        declared_retention_succeeded, declared_retention_cancelled, declared_retention_dead
    ) > 0;
comment on table pgqueue.tasks is
    'The options of a task. Code declares the declared_* columns when a worker starts. An operator sets the others, which override them, survive deploys and take effect at once.';
comment on column pgqueue.tasks.name is 'The task, as in enqueue(task).';
comment on column pgqueue.tasks.queue is 'The queue of jobs that are enqueued without one.';
comment on column pgqueue.tasks.priority is
    'The priority of jobs that are enqueued without one, -100 to 100; higher runs first.';
comment on column pgqueue.tasks.max_attempts is 'How many attempts a job has before it is dead; default 11.';
comment on column pgqueue.tasks.retry_policy is
    'How the delay after a failure is computed, with n retries so far. fixed: retry_delay. exponential (default): retry_delay + n^5 s. sidekiq: retry_delay (15 s) + n^4 s + up to 30 * (n + 1) s at random. doubling: a random part of retry_delay * 2^n. list: retry_delays one after the other. function: retry_function decides.';
comment on column pgqueue.tasks.retry_delay is 'The delay of the policy; default 30 seconds, 15 for sidekiq.';
comment on column pgqueue.tasks.retry_jitter is
    'How much of a delay is random, 0 to 1. fixed, exponential and list: up to this fraction is added; default 0.1. sidekiq: this fraction of its random part is added; default 1. doubling: up to this fraction is subtracted; default 1.';
comment on column pgqueue.tasks.expires_in is
    'How long after its run_at a job may still start; after that it is cancelled. Null: it never expires.';
comment on column pgqueue.tasks.retention_succeeded is
    'How long history keeps succeeded jobs; null: as the queue says, then settings.';
comment on column pgqueue.tasks.retention_cancelled is
    'How long history keeps cancelled jobs; null: as the queue says, then settings.';
comment on column pgqueue.tasks.retention_dead is
    'How long history keeps dead jobs; null: as the queue says, then settings.';
comment on column pgqueue.tasks.declared_queue is 'queue, as declared by the code.';
comment on column pgqueue.tasks.declared_priority is 'priority, as declared by the code.';
comment on column pgqueue.tasks.declared_max_attempts is 'max_attempts, as declared by the code.';
comment on column pgqueue.tasks.declared_retry_policy is 'retry_policy, as declared by the code.';
comment on column pgqueue.tasks.declared_retry_delay is 'retry_delay, as declared by the code.';
comment on column pgqueue.tasks.declared_retry_jitter is 'retry_jitter, as declared by the code.';
comment on column pgqueue.tasks.declared_expires_in is 'expires_in, as declared by the code.';
comment on column pgqueue.tasks.declared_retention_succeeded is 'retention_succeeded, as declared by the code.';
comment on column pgqueue.tasks.declared_retention_cancelled is 'retention_cancelled, as declared by the code.';
comment on column pgqueue.tasks.declared_retention_dead is 'retention_dead, as declared by the code.';
comment on column pgqueue.tasks.retry_cap is
    'The longest delay of the policy, before a random part is added. Default: 1 hour for doubling; 1 day for exponential and sidekiq, or retry_delay if that is longer; none otherwise.';
comment on column pgqueue.tasks.retry_delays is
    'The delays of the policy list, one for each retry; further retries use the last one.';
comment on column pgqueue.tasks.retry_queue is 'The queue to which a failed job moves; null: it stays in its queue.';
comment on column pgqueue.tasks.retry_function is
    'The function that the policy function calls. Only the owner of the schema sets it, with set_retry_function(); code cannot declare it.';
comment on column pgqueue.tasks.declared_retry_cap is 'retry_cap, as declared by the code.';
comment on column pgqueue.tasks.declared_retry_delays is 'retry_delays, as declared by the code.';
comment on column pgqueue.tasks.declared_retry_queue is 'retry_queue, as declared by the code.';
comment on column pgqueue.tasks.accumulate is
    'Whether all due payloads of a key are handled in one batch; default false.';
comment on column pgqueue.tasks.batch_size is
    'For an accumulating task: how many keys are handled in one call of the handler; default 1.';
comment on column pgqueue.tasks.declared_accumulate is 'accumulate, as declared by the code.';
comment on column pgqueue.tasks.declared_batch_size is 'batch_size, as declared by the code.';
comment on column pgqueue.tasks.timeout is 'How long one attempt may take; null: no limit.';
comment on column pgqueue.tasks.max_crashes is
    'How many workers may die while they run a job before the job is dead; default 3.';
comment on column pgqueue.tasks.store_result is 'Whether history keeps what the function returns; default false.';
comment on column pgqueue.tasks.declared_timeout is 'timeout, as declared by the code.';
comment on column pgqueue.tasks.declared_max_crashes is 'max_crashes, as declared by the code.';
comment on column pgqueue.tasks.declared_store_result is 'store_result, as declared by the code.';
comment on column pgqueue.tasks.declared_docs is
    'The address of the documentation of the task, such as a runbook, as declared by the code.';
comment on column pgqueue.tasks.declared_owner is 'Who is responsible for the task, as declared by the code.';

-- Limits, by the number of executing jobs and by the rate of starts.
create table pgqueue.limits (
    kind text not null check (kind in ('queue', 'task', 'key', 'limit_key')),
    target text collate "C" not null check (octet_length(target) between 1 and 512),
    max_executing integer check (max_executing between 0 and 1000000),
    rate integer check (rate between 1 and 1000000000),
    per interval check (per >= '1 ms' and per <= '31 days'),
    max_cost integer check (max_cost between 1 and 1000000000),
    burst integer check (burst between 1 and 1000000000),
    breaks boolean,
    set_at timestamptz,
    n bigint generated always as identity,
    primary key (kind, target),
    check (num_nonnulls(max_executing, rate, max_cost, breaks) > 0),
    check ((rate is null) = (per is null)),
    check (burst is null or rate is not null)
);
-- Limits of all values with a common beginning (target*) are looked up separately from those of one value.
create index limits_prefix on pgqueue.limits (length(target) desc) where kind = 'limit_key' and right(target, 1) = '*';
comment on table pgqueue.limits is
    'How many jobs may execute at the same time, and start within a time, over the whole fleet. A change takes effect at once.';
comment on column pgqueue.limits.kind is
    'queue, task, key (all keys that begin with target, together) or limit_key (each value by itself; target* for all values that begin with target).';
comment on column pgqueue.limits.target is 'The queue, the task, the beginning of keys, or the limit_key.';
comment on column pgqueue.limits.max_executing is 'How many jobs may execute at the same time; null: no such limit.';
comment on column pgqueue.limits.rate is
    'How many units may start in any period of the length per; each job is as many units as its cost, 1 by default. Null: no such limit.';
comment on column pgqueue.limits.per is 'The length of the period for rate.';
comment on column pgqueue.limits.max_cost is 'How many units of jobs may execute at the same time; null: no such limit.';
comment on column pgqueue.limits.burst is
    'The size of a bucket of units, which is filled at the rate; null: the rate holds for any period.';
comment on column pgqueue.limits.breaks is
    'Whether a breaker is set for the same kind and target; null: none is. Ends read this row anyway.';
comment on column pgqueue.limits.set_at is
    'When set_limit() changed it last: workers give back what they have claimed before and not started.';
comment on column pgqueue.limits.n is 'Private: its sequence says whether there ever was a limit: see _ruled_tasks.';

-- Pauses: rows are inserted and deleted, never updated, because many workers may throttle one target at the same time.
create table pgqueue.pauses (
    n bigint generated always as identity primary key,
    kind text not null check (kind in ('queue', 'task', 'limit_key')),
    target text collate "C" not null check (octet_length(target) between 1 and 512),
    source text not null check (source in ('operator', 'throttle', 'breaker')),
    until timestamptz not null,
    at timestamptz not null,
    reason text,
    by text not null,
    half_open_at timestamptz
);
create index pauses_by_target on pgqueue.pauses (kind, target, until);
create index pauses_by_time on pgqueue.pauses (until);
create index pauses_prefix on pgqueue.pauses (until) where kind = 'limit_key' and right(target, 1) = '*';
comment on table pgqueue.pauses is
    'Queues, tasks and limit_keys of which no job starts: see pause() and throttle(). If several rows match a job, the one that ends last counts.';
comment on column pgqueue.pauses.n is 'The order in which rows were written.';
comment on column pgqueue.pauses.kind is 'queue, task or limit_key.';
comment on column pgqueue.pauses.target is
    'The queue, the task or the limit_key; target* stands for all limit_keys that begin with target.';
comment on column pgqueue.pauses.source is
    'operator: pause(). throttle: throttle(), usually called by a handler. breaker: a circuit breaker.';
comment on column pgqueue.pauses.until is 'When the pause ends; infinity: when resume() is called.';
comment on column pgqueue.pauses.at is 'Since when its source lets nothing start.';
comment on column pgqueue.pauses.reason is 'Why, as given to pause() or throttle().';
comment on column pgqueue.pauses.by is 'Who: the actor, as in the audit; for a throttle, the worker.';
comment on column pgqueue.pauses.half_open_at is 'When a breaker becomes half-open: from then on one job at a time starts, until an attempt decides.';

create table pgqueue.breakers (
    kind text not null check (kind in ('task', 'limit_key')),
    target text collate "C" not null check (octet_length(target) between 1 and 512),
    failures double precision not null check (failures between 0.01 and 1),
    of integer not null check (of between 1 and 10000),
    pause interval not null check (pause between '1 s' and '1 hour'),
    primary key (kind, target)
);
comment on table pgqueue.breakers is 'What stops when it fails: see set_breaker(). A change takes effect at the next end.';
comment on column pgqueue.breakers.kind is 'task or limit_key (each value for itself; target* for all values that begin so).';
comment on column pgqueue.breakers.target is 'The task or the limit_key.';
comment on column pgqueue.breakers.failures is 'The share of failed attempts that opens it.';
comment on column pgqueue.breakers.of is 'How many attempts, the newest ones, decide at least.';
comment on column pgqueue.breakers.pause is 'How long nothing starts when it opens; twice as long each time a probe fails, up to an hour.';

-- Each statement that stores ends inserts a row for each breaker that they are under; read newest first.
create table pgqueue.breaker_ends (
    n bigint generated always as identity primary key,
    kind text not null,
    target text collate "C" not null,
    at timestamptz not null,
    ended integer not null,
    failed integer not null,
    since timestamptz
);
create index breaker_ends_newest on pgqueue.breaker_ends (kind, target, n desc);
create index breaker_ends_opened on pgqueue.breaker_ends (kind, target, n desc) where since is not null;
create index breaker_ends_past on pgqueue.breaker_ends (at);
comment on table pgqueue.breaker_ends is 'Private: attempts that ended under a breaker.';
comment on column pgqueue.breaker_ends.n is 'Order.';
comment on column pgqueue.breaker_ends.kind is 'task or limit_key.';
comment on column pgqueue.breaker_ends.target is 'The task, or the value of the limit_key.';
comment on column pgqueue.breaker_ends.at is 'When.';
comment on column pgqueue.breaker_ends.ended is 'How many succeeded or failed.';
comment on column pgqueue.breaker_ends.failed is 'How many of them failed.';
comment on column pgqueue.breaker_ends.since is 'It was opened here: attempts that were reserved before this time count for nothing.';

-- Operators write timezone themselves. IST is another zone in another session; _check_timezone says more.
create table pgqueue.schedules (
    name text collate "C" primary key check (octet_length(name) between 1 and 128),
    paused_at timestamptz,
    expression text,
    timezone text,
    declared_expression text,
    declared_timezone text not null,
    every interval check (every >= '1 s' and every <= '10 years'),
    anchor timestamptz not null,
    catch_up text not null check (catch_up in ('skip', 'last', 'all')),
    catch_up_cap integer not null check (catch_up_cap between 1 and 10000),
    overlap text not null check (overlap in ('start', 'skip')),
    jitter interval check (jitter >= '0' and jitter <= '1 day'),
    task text collate "C" not null check (octet_length(task) between 1 and 128),
    args jsonb not null,
    queue text collate "C" check (octet_length(queue) between 1 and 128),
    priority smallint check (priority between -100 and 100),
    max_attempts integer check (max_attempts between 1 and 100000),
    expires_in interval check (expires_in > '0'),
    headers jsonb,
    tags text[],
    retention interval check (retention >= '0' and retention <= '2 years'),
    spec text[],
    check ((declared_expression is null) <> (every is null)),
    check ((declared_expression is null) = (spec is null)),
    constraint schedules_timezone_check check (
        timezone !~ '^[A-Za-z]{1,5}$'
        or upper(timezone collate "C") in
            ('UTC', 'GMT', 'CUBA', 'EGYPT', 'EIRE', 'GB', 'IRAN', 'JAPAN', 'LIBYA', 'NZ', 'PRC', 'ROC', 'ROK', 'UCT', 'ZULU')
    )
);
comment on table pgqueue.schedules is
    'Schedules, which enqueue jobs by the clock. An operator sets paused_at, expression and timezone, which survive deploys and take effect within a second. The other columns are as schedule() last wrote them. Read pgqueue.effective_schedules.';
comment on column pgqueue.schedules.name is 'The schedule.';
comment on column pgqueue.schedules.paused_at is
    'Since when the schedule enqueues nothing; null: it runs. See pause_schedule().';
comment on column pgqueue.schedules.expression is
    'A cron expression that overrides the declared one; null: as declared. While it is wrong, stats() shows the error, and nothing is enqueued.';
comment on column pgqueue.schedules.timezone is 'A time zone that overrides the declared one; null: as declared.';
comment on column pgqueue.schedules.declared_expression is
    'The cron expression, as declared; null: the schedule runs by every.';
comment on column pgqueue.schedules.declared_timezone is 'The time zone of the expression, as declared.';
comment on column pgqueue.schedules.every is 'The interval between two runs; null: the schedule runs by an expression.';
comment on column pgqueue.schedules.anchor is
    'The instant from which every is counted: when the schedule was first declared, also where every has changed since.';
comment on column pgqueue.schedules.catch_up is
    'What happens to missed runs: skip, last (only the last one runs; the default) or all.';
comment on column pgqueue.schedules.catch_up_cap is
    'How many missed runs are made up for with catch_up = all, the latest ones. Default 100.';
comment on column pgqueue.schedules.overlap is
    'What happens while the previous job is live: start another one (the default), or skip the run.';
comment on column pgqueue.schedules.jitter is
    'The run_at of a job is deferred at random by up to this; null: it is not deferred.';
comment on column pgqueue.schedules.task is 'The task of its jobs.';
comment on column pgqueue.schedules.args is 'The arguments of its jobs.';
comment on column pgqueue.schedules.queue is 'The queue of its jobs; null: as the task says.';
comment on column pgqueue.schedules.priority is 'The priority of its jobs; null: as the task says, then the queue.';
comment on column pgqueue.schedules.max_attempts is 'How many attempts its jobs have; null: as the task says.';
comment on column pgqueue.schedules.expires_in is
    'How long after its run_at a job may still start; null: as the task says.';
comment on column pgqueue.schedules.headers is
    'Headers of its jobs, in addition to schedule and scheduled_at, which each of them has.';
comment on column pgqueue.schedules.tags is 'The tags of its jobs.';
comment on column pgqueue.schedules.retention is
    'How long history keeps its jobs; null: as the task says, then the queue, then settings.';
comment on column pgqueue.schedules.spec is 'Private: declared_expression, parsed.';

-- Live jobs only. Columns that few jobs use are null, and cost the others nothing.
create table pgqueue.jobs (
    id bigint generated always as identity primary key,
    reservation bigint not null default 0,
    run_at timestamptz not null,
    ready_at timestamptz not null,
    created_at timestamptz not null,
    expires_at timestamptz,
    reserved_at timestamptz,
    lease_expires_at timestamptz,
    cancel_requested_at timestamptz,
    lease interval,
    retention interval,
    state pgqueue.job_state not null default 'waiting',
    attempts integer not null default 0,
    max_attempts integer,
    losses integer not null default 0,
    priority smallint not null,
    resumed boolean not null default false,
    grace_given boolean not null default false,
    queue text collate "C" not null,
    task text collate "C" not null,
    key text collate "C",
    reserved_by text,
    tags text[],
    args jsonb not null,
    headers jsonb,
    errors jsonb,
    retry jsonb,
    leader bigint,
    followers bigint[],
    score numeric,
    limit_key text collate "C",
    blocked_on text collate "C",
    dedupe text collate "C",
    timeout interval,
    started bigint,
    crashed_on text[],
    progress jsonb,
    -- An expression, because a function would cost more; pgqueue._enqueued_by() returns the same.
    enqueued_by text default rtrim(session_user || ' ' || current_setting('application_name')),
    depends_on bigint[],
    run_if text,
    group_id bigint,
    has_steps boolean,
    offered boolean,
    throttled_since timestamptz,
    lane_key text collate "C",
    cost integer
) with (
    -- Every row is inserted, updated about once and deleted. Vacuum works by absolute numbers and without pauses,
    -- because every claim walks the dead rows that it has not yet removed.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2,
    autovacuum_analyze_threshold = 5000,
    -- Half of a page for the versions that claims write: on the page of the old one, such a version needs no lock of its own in
    -- WAL, and its args are not written there once more.
    fillfactor = 50,
    -- A backlog that only grows has no dead rows: its new pages are marked as visible to all, so that it is counted by an index
    -- alone, in a ninth of the time.
    autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_vacuum_insert_scale_factor = 0
);
-- A lane is one (queue, priority). reserve reads it by equality on the first three columns and a range on ready_at, so jobs
-- of the future are never touched and order is exact.
create index jobs_ready on pgqueue.jobs (queue, priority, resumed, ready_at, id)
    where state in ('waiting', 'failed');
create index jobs_expiry on pgqueue.jobs (expires_at)
    where expires_at is not null and state in ('waiting', 'failed', 'blocked');
-- Two executing jobs of one key are impossible, whatever the code does. The payloads of one batch count as one job.
create unique index jobs_key_executing on pgqueue.jobs (key, queue)
    where state = 'executing' and key is not null and (leader is null or leader = id);
-- The other jobs that hold a position in a key: a job without an attempt, once its run_at has passed; a job that is blocked
-- or was ever reserved, always (jobs_key_held, below). Each live row is in at most one of the three, jobs without a key in none.
create index jobs_key_waiting on pgqueue.jobs (queue, key, id, run_at)
    where key is not null and state = 'waiting' and reservation = 0;
-- Fresh payloads of an accumulating task wait for those that failed: which of them are not due yet?
create index jobs_key_returned on pgqueue.jobs (queue, key, ready_at)
    where key is not null and state in ('waiting', 'failed') and reservation > 0;
create index jobs_blocked on pgqueue.jobs (blocked_on, priority desc, ready_at, id)
    where state = 'blocked' and blocked_on is not null;
-- Limits count executing jobs, and stop counting at the limit; the index of leases serves that as well. There is no separate
-- index, because every index of jobs costs every enqueue. The leases of one claim share their time.
create index jobs_lease on pgqueue.jobs (lease_expires_at, id, queue, task, limit_key) where state = 'executing';
-- jobs_key_executing keeps a key from running twice; this finds the one that runs, from an id on.
create index jobs_key_running on pgqueue.jobs (queue, key, id)
    where state = 'executing' and key is not null and (leader is null or leader = id);
-- A job that waits for others holds no position in its key, because it would block the jobs for which it waits.
create index jobs_key_held on pgqueue.jobs (queue, key, id)
    where key is not null
        and (state = 'blocked' or (state in ('waiting', 'failed') and reservation > 0))
        and blocked_on is distinct from '@parents';
create index jobs_key_children on pgqueue.jobs (queue, key, id) where key is not null and blocked_on = '@parents';
create index jobs_group on pgqueue.jobs (group_id, state, id) where group_id is not null;
-- The payloads of a key wait for one of them that suspended itself, whatever its position.
create index jobs_key_suspended on pgqueue.jobs (queue, key) where key is not null and blocked_on = '@jobs';
-- A batch that has a step keeps its members, and payloads that came later wait for it.
create index jobs_key_stepped on pgqueue.jobs (queue, key) where key is not null and has_steps;
-- Large queues are counted in full, one after the other, by indexes alone. The condition is written so that it matches no
-- other statement: one that looks for a failed job by its id would read all of this index while it seems small.
create index jobs_failed on pgqueue.jobs (queue) where case when state = 'failed' then true else false end;
-- For the number of jobs that execute under a limit_key. Other jobs do not pay for it.
create index jobs_limit_key on pgqueue.jobs (limit_key, lease_expires_at) where state = 'executing' and limit_key is not null;
-- Ready jobs again, in the lanes of tenants in fair queues. Other jobs do not pay for it.
create index jobs_in_lanes on pgqueue.jobs (queue, priority, lane_key, ready_at, id)
    where state in ('waiting', 'failed') and lane_key is not null and not resumed;
-- For an idle worker that asks which jobs were handed to it and never arrived. Jobs that were not offered are not in it.
create index jobs_offered on pgqueue.jobs (reserved_by, reserved_at)
    where state = 'executing' and offered and key is null;
comment on table pgqueue.jobs is 'Live jobs. Read pgqueue.all_jobs instead, and write through the functions.';
comment on column pgqueue.jobs.id is 'The id that enqueue() returned; ids grow with time.';
comment on column pgqueue.jobs.reservation is
    'The fencing token: it grows with every claim of this job and is never reused. complete(), fail(), extend(), release() and snooze() take it.';
comment on column pgqueue.jobs.run_at is 'When the job is to run, as its producer asked.';
comment on column pgqueue.jobs.ready_at is
    'Private: its position in the ready index: the time from which reserve() may return the job.';
comment on column pgqueue.jobs.created_at is 'When it was enqueued.';
comment on column pgqueue.jobs.expires_at is
    'The job is cancelled if it has not started by then. Null: it never expires.';
comment on column pgqueue.jobs.reserved_at is 'When it was last reserved.';
comment on column pgqueue.jobs.lease_expires_at is 'Until when the reservation holds, unless it is extended.';
comment on column pgqueue.jobs.cancel_requested_at is 'When cancel() was called for it while it was executing.';
comment on column pgqueue.jobs.lease is 'The length of the lease, as last given to reserve() or extend().';
comment on column pgqueue.jobs.retention is
    'How long history keeps this job; null: as its task says, then its queue, then settings.';
comment on column pgqueue.jobs.state is 'waiting, executing, failed or blocked.';
comment on column pgqueue.jobs.attempts is
    'The attempts so far, including the one under way. A release, a snooze and a lapsed lease do not use one.';
comment on column pgqueue.jobs.max_attempts is 'How many attempts it has before it is dead; null: as its task says.';
comment on column pgqueue.jobs.losses is 'How often its lease lapsed.';
comment on column pgqueue.jobs.priority is 'The priority, -100 to 100; higher runs first.';
comment on column pgqueue.jobs.resumed is
    'Private: whether the job came back (released, lease lapsed, retried by hand); such jobs are read before the others of their lane.';
comment on column pgqueue.jobs.grace_given is
    'Private: whether this reservation has had its grace period after a gap in maintenance.';
comment on column pgqueue.jobs.queue is 'The queue.';
comment on column pgqueue.jobs.task is 'The task: the named function that a worker runs.';
comment on column pgqueue.jobs.key is
    'The key: jobs of one queue and key run one at a time, in the order of their ids.';
comment on column pgqueue.jobs.reserved_by is 'The worker that holds the job, or held it last.';
comment on column pgqueue.jobs.tags is 'Labels for people.';
comment on column pgqueue.jobs.args is 'The arguments of the task, a JSON object.';
comment on column pgqueue.jobs.headers is 'Metadata besides args, such as a trace context and what middleware adds.';
comment on column pgqueue.jobs.errors is
    'The last ten errors, oldest first: class, message, traceback, attempt, worker, reserved_at, at (when it failed) and retry_at; and policy_error, if the rule that decides about the retry failed itself.';
comment on column pgqueue.jobs.retry is
    'Options for the retries of this job, which override those of its task: {"policy": ..., "delay": seconds, "queue": ..., "cap": seconds}; null: those of its task.';
comment on column pgqueue.jobs.leader is
    'For a job in a batch of an accumulating task: the job that represents all payloads of its key; the leader has its own id here while it executes.';
comment on column pgqueue.jobs.followers is 'For a leader: the jobs with the other payloads of its key in this batch.';
comment on column pgqueue.jobs.score is
    'The order of a payload within the batch of an accumulating task; null: by the time of its enqueue.';
comment on column pgqueue.jobs.limit_key is 'The value to which limits of the kind limit_key apply.';
comment on column pgqueue.jobs.blocked_on is
    'The limit or pause for which a blocked job waits; null: it waits for the job ahead of it in its key.';
comment on column pgqueue.jobs.dedupe is 'The dedupe key under which it was enqueued.';
comment on column pgqueue.jobs.timeout is 'How long one attempt may take; null: as its task says.';
comment on column pgqueue.jobs.started is 'The reservation under which its worker last reported that the handler runs.';
comment on column pgqueue.jobs.crashed_on is
    'The workers that died while they ran the job, one entry for each time; null: none.';
comment on column pgqueue.jobs.progress is 'What its handler last reported: done, total, note, at.';
comment on column pgqueue.jobs.enqueued_by is
    'Who enqueued it: the role that was logged in, and its application_name, if it had one; for a scheduled job, the word schedule and the name.';
comment on column pgqueue.jobs.depends_on is 'The jobs for which it waits; null: none.';
comment on column pgqueue.jobs.run_if is
    'How those jobs must end so that this one runs: succeeded, finished or failed.';
comment on column pgqueue.jobs.group_id is 'The group of which it is a member.';
comment on column pgqueue.jobs.has_steps is 'Whether it has completed a step; null: it has not.';
comment on column pgqueue.jobs.throttled_since is
    'Since when the job has only been throttled; after a day the next throttle counts as an attempt. Null: it was not throttled, or an attempt has counted, or gone back for another reason, since.';
comment on column pgqueue.jobs.lane_key is
    'Private: the tenant in whose lane of a fair queue the job takes its turn, after eight digits of its hash. Null: its queue was not fair.';
comment on column pgqueue.jobs.cost is 'How many units of its limits a start takes; null: 1.';
comment on column pgqueue.jobs.offered is
    'Private: whether its enqueue saw an idle worker; then _hand_off() reads the job again when that transaction commits. Null: it did not look.';

-- Finished jobs, one row each. A row lives in the partition of the day (kept up to 8 days) or the month (kept longer) on
-- which its retention ends, so that this is a dropped table and never a DELETE.
create table pgqueue.history (
    id bigint not null,
    reservation bigint not null,
    run_at timestamptz not null,
    created_at timestamptz not null,
    reserved_at timestamptz,
    finished_at timestamptz not null,
    kept_until timestamptz not null,
    retention interval,
    state pgqueue.job_state not null,
    attempts integer not null,
    max_attempts integer,
    losses integer not null,
    priority smallint not null,
    granularity "char" not null,
    queue text collate "C" not null,
    task text collate "C" not null,
    key text collate "C",
    reserved_by text,
    tags text[],
    args jsonb not null,
    headers jsonb,
    errors jsonb,
    result jsonb,
    retry jsonb,
    score numeric,
    limit_key text collate "C",
    dedupe text collate "C",
    merged_into bigint,
    timeout interval,
    crashed_on text[],
    progress jsonb,
    enqueued_by text,
    depends_on bigint[],
    run_if text,
    group_id bigint,
    steps jsonb,
    cost integer
) partition by list (granularity);
create table pgqueue.history_days partition of pgqueue.history for values in ('d') partition by range (kept_until);
create table pgqueue.history_months partition of pgqueue.history for values in ('m') partition by range (kept_until);
-- Not inherited: each partition has its own. See lanes.
alter table pgqueue.history replica identity full;
alter table pgqueue.history_days replica identity full;
alter table pgqueue.history_months replica identity full;
create index history_id on pgqueue.history (id);
-- Dead and cancelled jobs are few, and people search for them; succeeded jobs are many, and people do not.
create index history_unfinished on pgqueue.history (queue, state, id) where state <> 'succeeded';
-- For all_jobs by key alone. Jobs without a key pay nothing for it.
create index history_key on pgqueue.history (key, id) where key is not null;
create index history_group on pgqueue.history (group_id, id) where group_id is not null;
-- For all_jobs by task alone. A btree costs every job 65 bytes of WAL, and a block range index nothing that can be measured:
-- VACUUM writes it, and an insert only reads it. Task names are spread over all blocks, so it keeps a Bloom filter of each
-- sixteen blocks, some 400 jobs. It serves rare tasks; those of a frequent one are found from the newest id on.
create index history_task on pgqueue.history using brin (task text_bloom_ops(n_distinct_per_range = 64))
    with (pages_per_range = 16);
create index history_unfinished_by_id on pgqueue.history (state, id) include (queue) where state <> 'succeeded';
comment on table pgqueue.history is 'Finished jobs, until their retention ends. Read pgqueue.all_jobs instead.';
comment on column pgqueue.history.id is 'The job.';
comment on column pgqueue.history.reservation is
    'Its last reservation; if the job is retried, the next one is counted from it.';
comment on column pgqueue.history.run_at is 'When it was to run, as its producer asked.';
comment on column pgqueue.history.created_at is 'When it was enqueued.';
comment on column pgqueue.history.reserved_at is 'When it was last reserved.';
comment on column pgqueue.history.finished_at is 'When it ended.';
comment on column pgqueue.history.kept_until is 'When its retention ends.';
comment on column pgqueue.history.retention is
    'How long history keeps it, if the job itself says so; null: its task, queue or settings say so.';
comment on column pgqueue.history.state is 'succeeded, dead or cancelled.';
comment on column pgqueue.history.attempts is 'How many attempts it used.';
comment on column pgqueue.history.max_attempts is 'How many attempts it had, if the job itself said so.';
comment on column pgqueue.history.losses is 'How often its lease lapsed.';
comment on column pgqueue.history.priority is 'Its priority.';
comment on column pgqueue.history.granularity is 'Private: d or m, for the partition of a day or of a month.';
comment on column pgqueue.history.queue is 'Its queue.';
comment on column pgqueue.history.task is 'Its task.';
comment on column pgqueue.history.key is 'Its key.';
comment on column pgqueue.history.reserved_by is 'The worker that held it last.';
comment on column pgqueue.history.tags is 'Labels for people.';
comment on column pgqueue.history.args is 'The arguments of the task.';
comment on column pgqueue.history.headers is
    'Metadata besides args, such as a trace context and what middleware added.';
comment on column pgqueue.history.errors is 'The last ten errors, oldest first.';
comment on column pgqueue.history.result is 'The result that complete() was given.';
comment on column pgqueue.history.retry is 'The options for retries of the job itself.';
comment on column pgqueue.history.score is 'Its order within the batch of an accumulating task.';
comment on column pgqueue.history.limit_key is 'The value to which limits of the kind limit_key applied.';
comment on column pgqueue.history.dedupe is 'The dedupe key under which it was enqueued.';
comment on column pgqueue.history.merged_into is 'The job with the same payload that ran in its place.';
comment on column pgqueue.history.timeout is 'How long one attempt might take, if the job itself said so.';
comment on column pgqueue.history.crashed_on is
    'The workers that died while they ran the job, one entry for each time.';
comment on column pgqueue.history.progress is 'What its handler last reported: done, total, note, at.';
comment on column pgqueue.history.enqueued_by is
    'Who enqueued it: the role that was logged in, and its application_name, if it had one; for a scheduled job, the word schedule and the name.';
comment on column pgqueue.history.depends_on is 'The jobs for which it waited; null: none.';
comment on column pgqueue.history.run_if is
    'How those jobs had to end so that this one ran: succeeded, finished or failed.';
comment on column pgqueue.history.group_id is 'The group of which it was a member.';
comment on column pgqueue.history.steps is
    'Its steps, in the order in which they completed: name and at; also result, if the job did not succeed.';
comment on column pgqueue.history.cost is 'How many units of its limits a start took; null: 1.';
comment on table pgqueue.history_days is 'Private: rows kept up to 8 days, one partition for each day on which their retention ends.';
comment on table pgqueue.history_months is 'Private: rows kept longer, one partition for each month in which their retention ends.';

-- Which lanes exist. No unique constraint, for two enqueues that register one lane must not wait for each other; readers
-- take distinct and maintain merges. A row of a lane with jobs is only ever extended, and `until` is in no index: the
-- new version needs no entries of its own.
create table pgqueue.lanes (
    queue text collate "C" not null,
    priority smallint not null,
    is_fair boolean not null default false,
    due_from timestamptz not null default '-infinity',
    until timestamptz not null,
    turn double precision not null default random()
) with (fillfactor = 70);
-- Under a publication for all tables PostgreSQL refuses to update or delete rows of a table that has no key. A key would
-- cost each insert an index entry; the whole row as identity costs only updates and deletes, which are rare here.
alter table pgqueue.lanes replica identity full;
create index lanes_by_name on pgqueue.lanes (queue, priority);
-- Where there are many: the lanes that claims go round, and those that nothing is due in before a time.
create index lanes_in_turn on pgqueue.lanes (priority, turn) where due_from = '-infinity';
create index lanes_later on pgqueue.lanes (due_from) where due_from > '-infinity';
comment on table pgqueue.lanes is 'Private: the (queue, priority) pairs that reserve visits.';
comment on column pgqueue.lanes.queue is 'The queue.';
comment on column pgqueue.lanes.priority is 'The priority.';
comment on column pgqueue.lanes.is_fair is 'Whether tenants take turns in it.';
comment on column pgqueue.lanes.due_from is
    'Where there are more than 64 rows, claims visit the lane from then on; it holds nothing that is due before.';
comment on column pgqueue.lanes.until is
    'Who makes a job ready before then, and not before due_from, relies on this row; later, a row is inserted. It stays until all those transactions have ended.';
comment on column pgqueue.lanes.turn is
    'Where there are more than 64 rows, claims visit the lanes of a priority in this order, from where the last one ended.';

-- In which lanes of tenants a job may be due: what claims of a fair queue visit. A row says that nothing of its lane is
-- due before due_from, and promises, to whoever makes a job ready before `until`, that the lane is visited. Rows are
-- inserted, and maintenance deletes them: see _lane_of.
create table pgqueue.tenant_lanes (
    due_from timestamptz not null,
    until timestamptz not null,
    priority smallint not null,
    queue text collate "C" not null,
    lane_key text collate "C" not null
);
alter table pgqueue.tenant_lanes replica identity full;
create index tenant_lanes_by_name on pgqueue.tenant_lanes (queue, priority, lane_key, due_from);
create index tenant_lanes_by_until on pgqueue.tenant_lanes (until);
-- In which queues does a tenant have jobs? An end under its limit asks. An expression, so that claims cannot choose this index.
create index tenant_lanes_by_tenant on pgqueue.tenant_lanes (substr(lane_key, 9), queue, priority);
comment on table pgqueue.tenant_lanes is 'Private: the lanes of tenants that claims of fair queues visit.';
comment on column pgqueue.tenant_lanes.due_from is 'Nothing of the lane is due before.';
comment on column pgqueue.tenant_lanes.until is
    'A transaction that makes a job ready relies on this row until then; afterwards maintenance deletes or renews it.';
comment on column pgqueue.tenant_lanes.priority is 'The priority.';
comment on column pgqueue.tenant_lanes.queue is 'The queue.';
comment on column pgqueue.tenant_lanes.lane_key is
    'The lane: jobs.lane_key. Empty: jobs of this queue and priority that are in no lane, as from before it was fair.';

-- Where the last claim of a worker from a fair queue ended. Inserted, and the newest is read: a row that is updated would
-- become, beside an old snapshot, a chain of versions. After a crash workers begin at tenants that they draw, so the log need
-- not have it.
create unlogged table pgqueue.turns (
    n bigint generated always as identity,
    at timestamptz not null,
    credit integer not null,
    priority smallint not null,
    worker text not null,
    queue text collate "C" not null,
    lane_key text collate "C" not null,
    began text collate "C",
    held bigint[],
    primary key (worker, queue, priority, n)
);
comment on table pgqueue.turns is
    'Private: from which tenant on the next claim of a worker goes round; and which jobs it holds of a queue with max_share.';
comment on column pgqueue.turns.n is 'Order: the newest counts.';
comment on column pgqueue.turns.at is 'When.';
comment on column pgqueue.turns.credit is 'How many jobs that tenant may still start in its turn.';
comment on column pgqueue.turns.priority is 'The priority; -32768: of a row with held, in which neither lane_key nor credit counts.';
comment on column pgqueue.turns.worker is 'The worker.';
comment on column pgqueue.turns.queue is 'The queue.';
comment on column pgqueue.turns.lane_key is 'The lane of the tenant that was served last.';
comment on column pgqueue.turns.began is
    'Where the round of claims began that have found nothing so far; null: the last one has found something, or has been once round.';
comment on column pgqueue.turns.held is
    'In a queue with max_share: the jobs that the worker held when it claimed last, and what that claim found.';

create table pgqueue.shares (
    limit_key text collate "C" primary key check (octet_length(limit_key) between 1 and 512),
    weight integer not null check (weight between 1 and 1000),
    n bigint generated always as identity
);
comment on table pgqueue.shares is 'How many jobs a tenant of a fair queue starts in its turn, where it is not one. See set_share().';
comment on column pgqueue.shares.limit_key is
    'The tenant; or a prefix and *: all that begin so, where neither a row of their own nor a longer prefix matches.';
comment on column pgqueue.shares.weight is 'How many jobs.';
comment on column pgqueue.shares.n is 'Private: its sequence says whether there ever was a row.';

-- No job of a lane is ready below its head, so no claim walks jobs that were claimed long ago. A row is a fact that stays true,
-- whatever is written after it: any session inserts rows, in any order, and the newest is read. Rows that are updated in
-- place would, under an old snapshot, become a chain of versions that each claim walks.
create table pgqueue.heads (
    n bigint generated always as identity,
    at timestamptz not null,
    head timestamptz not null,
    xid xid8 not null,
    idle_since timestamptz,
    newest_id bigint,
    priority smallint not null,
    resumed boolean not null,
    queue text collate "C" not null,
    open_xids xid8[],
    fallback_heads timestamptz[],
    head_id bigint not null default 0,
    fallback_ids bigint[],
    primary key (queue, priority, resumed, n)
);
comment on table pgqueue.heads is
    'Private: low-water marks. No job of a sub-lane is ready below its newest head, a pair of a time and an id.';
comment on column pgqueue.heads.n is 'The order in which rows were written.';
comment on column pgqueue.heads.at is 'When the row was written.';
comment on column pgqueue.heads.head is 'The time of the head.';
comment on column pgqueue.heads.xid is
    'The transaction that wrote the row. If this server has no such transaction, the row came with a dump and does not count.';
comment on column pgqueue.heads.idle_since is 'Since when no job of the lane has been due or claimed; null: one has.';
comment on column pgqueue.heads.newest_id is 'The newest job at that time.';
comment on column pgqueue.heads.priority is 'The priority of the lane.';
comment on column pgqueue.heads.resumed is 'Which sub-lane: the one of jobs that came back, or the ordinary one.';
comment on column pgqueue.heads.queue is
    'The queue of the lane; empty: the leases, by the time at which they lapse. With a priority above 800, queue and tenant: see _lane_of.';
comment on column pgqueue.heads.open_xids is
    'Transactions that have been open for long and may still commit jobs below the head. Once one of them has ended, its fallback becomes the head.';
comment on column pgqueue.heads.fallback_heads is
    'Fallbacks: for each of open_xids, the time to which the head falls back when that transaction ends.';
comment on column pgqueue.heads.head_id is
    'The id of the head: of the jobs of exactly that time, none with a lower id is ready.';
comment on column pgqueue.heads.fallback_ids is 'The ids that go with fallback_heads.';

-- Reasons for which heads do not count: all of them after a step of the clock, the head of keys after a retry.
create table pgqueue.head_marks (
    reason text not null check (reason in ('clock', 'key')),
    n bigint generated always as identity,
    at timestamptz not null,
    seen_xid xid8,
    primary key (reason, n)
);
comment on table pgqueue.head_marks is
    'Private: while there is a row, heads do not count, and claims read from the beginning. Usually empty.';
comment on column pgqueue.head_marks.reason is
    'clock: the clock stepped back, so no head counts. key: a job with a key got its old id again, so the head of jobs with keys does not count.';
comment on column pgqueue.head_marks.n is 'The order in which rows were written.';
comment on column pgqueue.head_marks.at is 'When the row was written; of a key, once maintain() has seen it: when it first did.';
comment on column pgqueue.head_marks.seen_xid is
    'All transactions with an earlier xid may have begun before maintain() saw the row; null: it has not seen it yet.';

-- Safe points: a time, and a transaction that had no xid then. Inserted, and read newest first.
create table pgqueue.horizons (
    n bigint generated always as identity primary key,
    at timestamptz not null,
    xid xid8 not null,
    newest_id bigint
);
comment on table pgqueue.horizons is
    'Private: safe points: a time, and a transaction that took its xid after it. A transaction with a later xid makes no job ready before that time.';
comment on column pgqueue.horizons.n is 'The order in which rows were written.';
comment on column pgqueue.horizons.at is 'The time, read before the xid was taken.';
comment on column pgqueue.horizons.xid is 'The xid.';
comment on column pgqueue.horizons.newest_id is 'The newest id that a job had at that time; null: unknown.';

-- Leases that extend granted for rows that it could not lock. Inserted, so that it waits for no session; read by rescue;
-- never updated.
-- An index by time within each job keeps old promises, and dead rows under an old snapshot, out of the way.
create table pgqueue.lease_promises (
    job_id bigint not null,
    reservation bigint not null,
    until timestamptz not null,
    lease interval not null
);
alter table pgqueue.lease_promises replica identity full;
create index lease_promises_by_job on pgqueue.lease_promises (job_id, until);
comment on table pgqueue.lease_promises is
    'Private: leases that extend() granted while another session had locked the row of the job, so that they could not be written there.';
comment on column pgqueue.lease_promises.job_id is 'The job.';
comment on column pgqueue.lease_promises.reservation is
    'The reservation that asked for it. When the job gets another reservation, the row is void.';
comment on column pgqueue.lease_promises.until is 'Until when the reservation holds.';
comment on column pgqueue.lease_promises.lease is 'The length of the lease.';

-- Above READ COMMITTED the end of a job cannot see jobs that were blocked behind it meanwhile, so it leaves a note.
create table pgqueue.key_notes (
    n bigint generated always as identity primary key,
    queue text collate "C" not null,
    key text collate "C" not null,
    job_id bigint,
    next_at timestamptz not null default '-infinity'
);
comment on table pgqueue.key_notes is
    'Private: keys of which the next maintain() or idle reserve() is to release the next job, once no claim blocks jobs behind job_id.';
comment on column pgqueue.key_notes.n is 'The order in which rows were written.';
comment on column pgqueue.key_notes.queue is 'The queue.';
comment on column pgqueue.key_notes.key is 'The key.';
comment on column pgqueue.key_notes.job_id is
    'The job that left its position while a claim was blocking others behind it; null: there is none.';
comment on column pgqueue.key_notes.next_at is 'When to check it.';

-- Which job holds a dedupe key. It is a separate row, because the key may outlive its job.
create table pgqueue.dedupe_keys (
    task text collate "C" not null,
    dedupe text collate "C" not null,
    job_id bigint not null,
    until timestamptz,
    primary key (task, dedupe)
);
create index dedupe_keys_until on pgqueue.dedupe_keys (until) where until is not null;
create index dedupe_keys_by_job on pgqueue.dedupe_keys (job_id);
comment on table pgqueue.dedupe_keys is 'Private: which job holds a dedupe key.';
comment on column pgqueue.dedupe_keys.task is 'The task; dedupe keys of two tasks are independent.';
comment on column pgqueue.dedupe_keys.dedupe is 'The dedupe key.';
comment on column pgqueue.dedupe_keys.job_id is 'The job that holds the key.';
comment on column pgqueue.dedupe_keys.until is
    'Until when it holds the key, even if the job has ended; null: as long as the job lives.';

-- Starts are inserted and summed over the time that counts; nothing is updated in place.
create table pgqueue.limit_starts (
    name text collate "C" not null,
    at timestamptz not null,
    started integer not null
);
alter table pgqueue.limit_starts replica identity full;
create index limit_starts_by_time on pgqueue.limit_starts (name, at);
create index limit_starts_past on pgqueue.limit_starts (at);
comment on table pgqueue.limit_starts is 'Private: starts under a rate limit.';
comment on column pgqueue.limit_starts.name is 'The limit: kind:target.';
comment on column pgqueue.limit_starts.at is 'When the jobs started.';
comment on column pgqueue.limit_starts.started is 'How many units started, or what spent() added or gave back.';

-- Inserted by the claim that has the lock of the limit, and read newest first. What spent() adds or gives back waits in rows of
-- its own, for no job waits for that lock.
create table pgqueue.limit_levels (
    n bigint generated always as identity primary key,
    name text collate "C" not null,
    at timestamptz not null,
    level double precision not null,
    is_spent boolean not null default false
);
create index limit_levels_newest on pgqueue.limit_levels (name, n desc) where not is_spent;
create index limit_levels_spent on pgqueue.limit_levels (name, at) where is_spent;
create index limit_levels_past on pgqueue.limit_levels (at);
comment on table pgqueue.limit_levels is 'Private: the levels of limits with a burst.';
comment on column pgqueue.limit_levels.n is 'Order; of the levels of a limit the newest holds.';
comment on column pgqueue.limit_levels.name is 'The limit: kind:target; or spent:id:reservation, for what spent() was told of an attempt.';
comment on column pgqueue.limit_levels.at is 'When.';
comment on column pgqueue.limit_levels.level is 'The units in the bucket then; of a row that is_spent, what a job took beyond its cost.';
comment on column pgqueue.limit_levels.is_spent is 'Whether spent() wrote it, and no claim has counted it yet.';

create sequence pgqueue.costs owned by pgqueue.jobs.cost;
comment on sequence pgqueue.costs is 'Private: whether a job ever had a cost: see _has_costs.';

create table pgqueue.limit_waits (
    n bigint generated always as identity primary key,
    name text collate "C" not null,
    next_at timestamptz not null,
    timed boolean not null default false
);
create index limit_waits_timed on pgqueue.limit_waits (next_at) where timed;
create index limit_waits_by_time on pgqueue.limit_waits (next_at);
create index limit_waits_by_name on pgqueue.limit_waits (name, next_at);
comment on table pgqueue.limit_waits is 'Private: limits that block jobs, and when to check whether they have capacity.';
comment on column pgqueue.limit_waits.n is 'The order in which rows were written.';
comment on column pgqueue.limit_waits.name is 'The limit, as kind:target; for a pause, pause:kind:target.';
comment on column pgqueue.limit_waits.next_at is 'When to check it.';
comment on column pgqueue.limit_waits.timed is
    'Whether a rate will have capacity at that time: then workers wake for it.';

-- Inserted and read newest first, never updated: a row per second that were updated would, while some session holds an old
-- snapshot, become a chain of versions that every failing job walks.
create table pgqueue.retry_bookings (
    n bigint generated always as identity primary key,
    second timestamptz not null,
    full_until timestamptz,
    booked integer not null,
    queue text collate "C" not null
);
create index retry_bookings_by_second on pgqueue.retry_bookings (queue, second, n);
create index retry_bookings_past on pgqueue.retry_bookings (second);
comment on table pgqueue.retry_bookings is
    'Private: how many retries become due in which second, for queues with a retry_budget.';
comment on column pgqueue.retry_bookings.n is
    'The order in which rows were written; of the rows for one second, the newest counts.';
comment on column pgqueue.retry_bookings.second is 'The beginning of the second.';
comment on column pgqueue.retry_bookings.full_until is
    'All seconds from this one until that time have no capacity left; null: not known.';
comment on column pgqueue.retry_bookings.booked is 'How many retries are booked for it.';
comment on column pgqueue.retry_bookings.queue is 'The queue.';

-- The outcome of each instant of a schedule; next_at of its newest row is when the schedule is due. Inserted, never updated:
-- next_at in a row of schedules would, for a schedule of every second and while some session holds an old snapshot, become a
-- chain of versions that every check walks. Read newest first (by n, not by time: the clock may step back), so rows of the
-- past, dead or alive, are never visited.
create table pgqueue.schedule_runs (
    n bigint generated always as identity primary key,
    schedule text collate "C" not null,
    at timestamptz,
    decided_at timestamptz not null,
    outcome text not null check (outcome in ('enqueued', 'overlap', 'planned', 'manual', 'error')),
    job_id bigint,
    next_at timestamptz,
    passed_from timestamptz,
    retry_at timestamptz,
    rule text,
    error text
);
-- One row for each instant of a schedule, and so one job, even if several workers enqueue it at once.
create unique index schedule_runs_once on pgqueue.schedule_runs (schedule, at);
create index schedule_runs_standing on pgqueue.schedule_runs (schedule, n) where rule is not null;
create index schedule_runs_jobs on pgqueue.schedule_runs (schedule, n) where job_id is not null;
comment on table pgqueue.schedule_runs is
    'The outcome of each instant of each schedule, kept for a week. Read pgqueue.schedule_history instead.';
comment on column pgqueue.schedule_runs.n is 'The order in which rows were written.';
comment on column pgqueue.schedule_runs.schedule is 'The schedule.';
comment on column pgqueue.schedule_runs.at is 'The instant at which the schedule was due; null: the row is about none.';
comment on column pgqueue.schedule_runs.decided_at is 'When the row was written.';
comment on column pgqueue.schedule_runs.outcome is
    'enqueued; overlap: skipped, because the previous job was live; planned: nothing was due, but next_at was set, or missed runs were skipped; manual: run_schedule_now(); error.';
comment on column pgqueue.schedule_runs.job_id is 'The job that was enqueued.';
comment on column pgqueue.schedule_runs.next_at is 'When the schedule is due next; null: never again.';
comment on column pgqueue.schedule_runs.passed_from is
    'The first of the missed instants that were skipped, as catch_up says.';
comment on column pgqueue.schedule_runs.retry_at is 'After an error: when the schedule is tried again.';
comment on column pgqueue.schedule_runs.rule is
    'Private: the rule from which next_at was computed; if the schedule has another rule, it is computed anew. Null: next_at does not count.';
comment on column pgqueue.schedule_runs.error is 'The error.';

-- Which jobs a job waits for; how parents ended that history does not keep; steps, events, and jobs to check again.
create table pgqueue.dependencies (
    parent bigint not null,
    child bigint not null,
    ended text,
    traceless boolean not null default false,
    primary key (parent, child)
);
create index dependencies_by_child on pgqueue.dependencies (child, parent);
create index dependencies_ended on pgqueue.dependencies (child, parent) where ended is not null;
comment on table pgqueue.dependencies is
    'Private: a job, and one that waits for it. The row is deleted when the job succeeds; otherwise it stays until the waiting job starts or is gone.';
comment on column pgqueue.dependencies.parent is 'The job for which the child waits.';
comment on column pgqueue.dependencies.child is 'The job that waits.';
comment on column pgqueue.dependencies.ended is
    'How the parent ended, if it did not succeed: dead, cancelled or deleted; null: it has not ended.';
comment on column pgqueue.dependencies.traceless is
    'Whether a parent that is found nowhere has succeeded, because history does not keep such jobs.';

-- A job that did not succeed leaves a trace even if history does not keep it: a child that is being enqueued must not run.
create table pgqueue.traces (
    id bigint primary key,
    state text not null,
    open text[]
);
comment on table pgqueue.traces is
    'Private: a job that did not succeed and that history does not keep, for as long as a transaction of its time is open.';
comment on column pgqueue.traces.id is 'The job.';
comment on column pgqueue.traces.state is 'How it ended: dead, cancelled or deleted.';
comment on column pgqueue.traces.open is
    'The virtual ids of the transactions that were open when maintain() first saw the row; null: it has not seen it yet.';

create table pgqueue.steps (
    job_id bigint not null,
    name text collate "C" not null,
    result jsonb,
    attempt integer not null,
    at timestamptz not null,
    primary key (job_id, name)
);
comment on table pgqueue.steps is 'Private: completed steps of live jobs.';
comment on column pgqueue.steps.job_id is 'The job.';
comment on column pgqueue.steps.name is 'The name of the step.';
comment on column pgqueue.steps.result is 'What the step returned.';
comment on column pgqueue.steps.attempt is 'The attempt that completed it.';
comment on column pgqueue.steps.at is 'When it was completed.';

create table pgqueue.events (
    name text collate "C" primary key,
    payload jsonb,
    emitted_at timestamptz not null,
    kept_until timestamptz not null
);
create index events_kept on pgqueue.events (kept_until);
comment on table pgqueue.events is 'Events that were emitted, until their retention ends.';
comment on column pgqueue.events.name is 'The name of the event.';
comment on column pgqueue.events.payload is 'The payload that emit_event() was given.';
comment on column pgqueue.events.emitted_at is 'When it was emitted.';
comment on column pgqueue.events.kept_until is 'Until when it is kept.';

create table pgqueue.event_waits (
    name text collate "C" not null,
    job_id bigint not null,
    step text collate "C" not null,
    until timestamptz,
    since timestamptz not null,
    primary key (name, job_id, step)
);
create index event_waits_by_job on pgqueue.event_waits (job_id);
comment on table pgqueue.event_waits is 'Private: a job that waits for an event.';
comment on column pgqueue.event_waits.name is 'The name of the event.';
comment on column pgqueue.event_waits.job_id is 'The job.';
comment on column pgqueue.event_waits.step is 'The step of the job that the event completes.';
comment on column pgqueue.event_waits.until is 'When the job continues without the event; null: never.';
comment on column pgqueue.event_waits.since is 'When the job began to wait.';

create table pgqueue.notes (
    n bigint generated always as identity primary key,
    kind text not null,
    id bigint,
    after bigint,
    name text collate "C",
    look_at timestamptz not null,
    xid xid8 not null
);
-- A group does not end before the members that are to come back with it are back. A superseded job is asked to cancel.
create index notes_by_id on pgqueue.notes (id) where kind in ('revive', 'superseded');
comment on table pgqueue.notes is 'Private: a job or group to check again in a later transaction.';
comment on column pgqueue.notes.n is 'The order in which rows were written.';
comment on column pgqueue.notes.kind is
    'parents: a new child and its parents. settle: a job that waits, and what it still waits for. ended: the children of a job that ended. retried: the children of a job that was retried. doubtful: a child whose dead or cancelled parent may come back. group: a group. recount: a group with members that were retried. cancel: the members of a group that is cancelled. revive: the members of a group that came back. event: an event. steps: an ended job, whose steps move to history. superseded: a job to cancel, because another one has its dedupe key.';
comment on column pgqueue.notes.id is 'The job or group.';
comment on column pgqueue.notes.after is 'The children up to this id are done.';
comment on column pgqueue.notes.name is 'How the parent ended, or the name of the event.';
comment on column pgqueue.notes.look_at is 'When to check.';
comment on column pgqueue.notes.xid is 'The transaction that left the note, which cannot see concurrent transactions.';

-- Written at a worker's start and end, and by an operator who commands it.
create table pgqueue.workers (
    name text primary key check (octet_length(name) between 1 and 256),
    channel text not null,
    queues text[],
    info jsonb not null,
    started_at timestamptz not null,
    command text check (command in ('quiet', 'stop', 'kill')),
    commanded_at timestamptz,
    obeyed_at timestamptz,
    database oid,
    stack_of bigint,
    stack_asked_at timestamptz,
    server_started_at timestamptz
);
comment on table pgqueue.workers is
    'Registered workers. A row is written at start and end only; heartbeats say whether a worker is alive.';
comment on column pgqueue.workers.name is 'The worker, as in reserve(worker).';
comment on column pgqueue.workers.channel is 'The NOTIFY channel of this worker alone.';
comment on column pgqueue.workers.queues is 'The queues that it serves; null: all.';
comment on column pgqueue.workers.info is 'What it reports about itself, such as host, pid, version and concurrency.';
comment on column pgqueue.workers.started_at is 'When it registered.';
comment on column pgqueue.workers.command is
    'The command that an operator gave it: quiet, stop or kill; null: none. See quiet_worker(), stop_worker() and kill_worker().';
comment on column pgqueue.workers.commanded_at is 'When the command was given.';
comment on column pgqueue.workers.obeyed_at is
    'When the worker reported that it follows the command; null: it has not yet.';
comment on column pgqueue.workers.database is
    'The oid of the database in which the worker registered: in a copy of that database the row does not count. Null: the row was written before this was recorded.';
comment on column pgqueue.workers.server_started_at is
    'When the server started in which the worker registered. After a failover or a restart, and in a copy, the worker does not count as alive until it has registered again. Null: the row was written before this was recorded.';
comment on column pgqueue.workers.stack_of is
    'Private: the job whose handler''s stack an operator asked for, until the worker has read that.';
comment on column pgqueue.workers.stack_asked_at is
    'Private: when the stack was asked for; the request is valid for ten seconds.';

-- Heartbeats and memory are inserted and read newest first: a row that is updated in place would, while some session holds
-- an old snapshot, become a chain of versions that every reader walks.
create table pgqueue.heartbeats (
    n bigint generated always as identity primary key,
    worker text not null,
    at timestamptz not null,
    memory bigint,
    troubles jsonb,
    report_id bigint
);
create index heartbeats_by_worker on pgqueue.heartbeats (worker, n);
create index heartbeats_with_troubles on pgqueue.heartbeats (n) where troubles is not null;
create unique index heartbeats_by_report on pgqueue.heartbeats (worker, report_id) where report_id is not null;
comment on table pgqueue.heartbeats is 'Private: heartbeats of workers, newest last.';
comment on column pgqueue.heartbeats.n is 'The order in which heartbeats arrived.';
comment on column pgqueue.heartbeats.worker is 'The worker.';
comment on column pgqueue.heartbeats.at is 'When the heartbeat arrived.';
comment on column pgqueue.heartbeats.memory is
    'The resident memory of the worker''s process in bytes; null: it did not report it.';
comment on column pgqueue.heartbeats.troubles is
    'The last attempts that failed since the heartbeat before, as beat() takes them; null: none did. Read pgqueue.troubles instead.';
comment on column pgqueue.heartbeats.report_id is 'The id of the report that came with it, for one that is sent again.';

-- The log lines and stacks of handlers. Inserted, read by job, and deleted by age.
create table pgqueue.job_logs (
    n bigint generated always as identity,
    job_id bigint not null,
    attempt integer not null,
    written_at timestamptz not null,
    at timestamptz not null,
    level text not null,
    line text not null,
    primary key (job_id, n)
);
create index job_logs_by_time on pgqueue.job_logs (written_at);
comment on table pgqueue.job_logs is
    'Private: log lines of jobs, kept for settings.retention_logs. Read job_log() instead.';
comment on column pgqueue.job_logs.n is 'The order in which lines were stored.';
comment on column pgqueue.job_logs.job_id is 'The job.';
comment on column pgqueue.job_logs.attempt is 'The attempt in which the line was written.';
comment on column pgqueue.job_logs.written_at is 'When the line was stored.';
comment on column pgqueue.job_logs.at is 'When the handler wrote the line, by the clock of its host.';
comment on column pgqueue.job_logs.level is 'The level, DEBUG to CRITICAL; STACK: a line of the handler''s stack.';
comment on column pgqueue.job_logs.line is 'The text, at most 1,024 characters.';

create table pgqueue.worker_reports (
    n bigint generated always as identity primary key,
    worker text not null,
    at timestamptz not null,
    report jsonb not null
);
comment on table pgqueue.worker_reports is
    'Private: what workers have counted since their last heartbeat, until the next sample includes it.';
comment on column pgqueue.worker_reports.n is 'The order in which reports arrived.';
comment on column pgqueue.worker_reports.worker is 'The worker.';
comment on column pgqueue.worker_reports.at is 'When it reported.';
comment on column pgqueue.worker_reports.report is 'The report that it gave to beat().';

-- Which workers are idle, and until when. An enqueue reads a range over (queue, until > its ready time), so rows of the past,
-- dead or alive, are never visited. A registration ends with the session that made it, so a crash may lose it, and its commit
-- need not wait for the disk. Only enqueue, reserve and idle read it, never a standby.
create unlogged table pgqueue.idle_workers (
    queue text collate "C" not null,
    until timestamptz not null,
    worker text not null,
    channel text not null,
    handoff_channel text,
    listener integer,
    lease interval
);
create index idle_workers_by_queue on pgqueue.idle_workers (queue, until);
create index idle_workers_by_worker on pgqueue.idle_workers (worker, until);
comment on table pgqueue.idle_workers is 'Private: idle registrations, of workers that wait for NOTIFY.';
comment on column pgqueue.idle_workers.queue is 'A queue that it serves; empty: all queues.';
comment on column pgqueue.idle_workers.until is 'Until when it counts as idle; it polls by itself before that.';
comment on column pgqueue.idle_workers.worker is 'The worker.';
comment on column pgqueue.idle_workers.channel is 'The channel that wakes it.';
comment on column pgqueue.idle_workers.handoff_channel is
    'The channel on which it receives jobs that enqueue() reserves for it; null: it receives none.';
comment on column pgqueue.idle_workers.listener is 'The process id of the session that listens on that channel.';
comment on column pgqueue.idle_workers.lease is 'The lease of its reservations.';

-- One row for each run of maintain, read newest first; the newest has the state for the next run.
create table pgqueue.maintenance_runs (
    n bigint generated always as identity primary key,
    at timestamptz not null,
    gap_at timestamptz,
    stepped_from timestamptz,
    rescued bigint not null default 0,
    grace_periods bigint not null default 0,
    found_lanes bigint not null default 0,
    unblocked bigint not null default 0,
    hidden bigint not null default 0,
    expired bigint not null default 0,
    due_lanes integer,
    busy_lanes text[]
);
comment on table pgqueue.maintenance_runs is 'Private: runs of maintain(). Read stats() instead.';
comment on column pgqueue.maintenance_runs.n is 'The order of the runs.';
comment on column pgqueue.maintenance_runs.at is 'When it ran.';
comment on column pgqueue.maintenance_runs.gap_at is
    'When the last gap of more than 8 s in maintenance ended: leases that could not be extended during the gap get a grace period.';
comment on column pgqueue.maintenance_runs.stepped_from is
    'The time from which the clock last stepped back, while jobs with later times are still being brought forward.';
comment on column pgqueue.maintenance_runs.rescued is 'How many jobs were taken back from lapsed leases, in all.';
comment on column pgqueue.maintenance_runs.grace_periods is 'How many leases got a grace period after a gap, in all.';
comment on column pgqueue.maintenance_runs.found_lanes is
    'How many lanes with jobs were found that were not registered, in all.';
comment on column pgqueue.maintenance_runs.unblocked is
    'How many blocked jobs were found with nothing ahead of them, in all; normally none.';
comment on column pgqueue.maintenance_runs.hidden is
    'How many lanes were found with ready jobs below their heads, in all; normally none.';
comment on column pgqueue.maintenance_runs.expired is
    'How many jobs were cancelled because they had not started in time, in all.';
comment on column pgqueue.maintenance_runs.due_lanes is
    'Where there are more than 64 lanes, how many of them claims go round, up to 10,000. Null: claims visit each.';
comment on column pgqueue.maintenance_runs.busy_lanes is
    'In fair queues the tenants that execute more than their part, and come after all others: the length of the name of the queue, that name, and the lane.';

-- The state that a step leaves for its next run. Inserted when it differs from the newest row, and read newest first: a row
-- that is updated in place would, under an old snapshot, become a chain of versions that every run walks.
create table pgqueue.maintenance_steps (
    n bigint generated always as identity primary key,
    at timestamptz not null,
    step text collate "C" not null,
    next_at timestamptz,
    missed_since timestamptz,
    unfinished boolean not null default false,
    slice integer,
    cursor text[],
    failures integer not null default 0,
    failing_since timestamptz,
    error text
);
create index maintenance_steps_by_step on pgqueue.maintenance_steps (step, n);
comment on table pgqueue.maintenance_steps is
    'Private: the state that each step of maintain() left for its next run. Read stats() instead.';
comment on column pgqueue.maintenance_steps.n is 'The order in which rows were written.';
comment on column pgqueue.maintenance_steps.at is 'When the row was written.';
comment on column pgqueue.maintenance_steps.step is 'The name of the step.';
comment on column pgqueue.maintenance_steps.next_at is
    'The step is not due before this time; null: it is due in each run.';
comment on column pgqueue.maintenance_steps.missed_since is
    'Since when the step has been due without a turn, because earlier steps used up the time of each run; null: it had its turn.';
comment on column pgqueue.maintenance_steps.unfinished is 'Whether its share of the time ended before its work did.';
comment on column pgqueue.maintenance_steps.slice is
    'How many rows the step processes at once, if that is fewer than usual because those took too long. Null: as many as usual.';
comment on column pgqueue.maintenance_steps.cursor is
    'How far the step came, if it goes through a table in several runs.';
comment on column pgqueue.maintenance_steps.failures is 'How often the step has failed in a row.';
comment on column pgqueue.maintenance_steps.failing_since is 'Since when the step has failed.';
comment on column pgqueue.maintenance_steps.error is 'The last error of the step, or what it reports.';

-- It survives the end of a transaction, so the next call sees that one was killed within a step.
create sequence pgqueue.step_under_way minvalue 0 start 0;
comment on sequence pgqueue.step_under_way is 'Private: the number of the step that maintain() runs; 0: none.';

-- The numbers of the queues over time.
create table pgqueue.samples (
    n bigint generated always as identity primary key,
    at timestamptz not null,
    span smallint not null,
    queue text collate "C" not null,
    waiting integer not null,
    due integer not null,
    scheduled integer not null,
    failed integer not null,
    blocked integer not null,
    executing integer not null,
    dead integer not null,
    counted_to integer,
    oldest_due_at timestamptz,
    ended jsonb,
    blocked_by_limit integer,
    blocked_by_parents integer,
    is_large boolean not null default false,
    counted_at timestamptz,
    oldest_stuck_at timestamptz,
    is_ready_kept boolean not null default false
);
create index samples_by_time on pgqueue.samples (span, at);
-- Plots, rates and usual times are of one queue: by the time alone they would read the rows of all queues.
create index samples_by_queue on pgqueue.samples (queue, span, at);
comment on table pgqueue.samples is
    'The numbers of each queue, written every 10 s by maintain(), for pages, monitors and stats(recent => true). A queue without a row at a time was empty; the queue '''' stands for all queues. select at, due, ended from pgqueue.samples where queue = ''mail'' and span = 10 order by at desc limit 360;';
comment on column pgqueue.samples.n is 'The order in which rows were written.';
comment on column pgqueue.samples.at is 'When the sample was taken; for a row of 600 s, when that time ended.';
comment on column pgqueue.samples.span is
    'How many seconds the row stands for: 10 (kept for a day), or 600 (kept for 90 days).';
comment on column pgqueue.samples.queue is 'The queue; '''': all queues together, and all tasks in ended.';
comment on column pgqueue.samples.waiting is 'Jobs in the state waiting, due or not.';
comment on column pgqueue.samples.due is 'Waiting and failed jobs that may start now.';
comment on column pgqueue.samples.scheduled is 'Waiting and failed jobs that may not start yet.';
comment on column pgqueue.samples.failed is 'Jobs in the state failed, which will be retried.';
comment on column pgqueue.samples.blocked is
    'Jobs that wait for another job of their key, for a limit, or for jobs that they depend on.';
comment on column pgqueue.samples.executing is 'Jobs that are reserved.';
comment on column pgqueue.samples.dead is 'Dead jobs in history.';
comment on column pgqueue.samples.counted_to is
    'Where counting stopped: a number as high as this means at least that many. Null: the numbers were exact at counted_at.';
comment on column pgqueue.samples.oldest_due_at is
    'Since when the oldest due job may start; for a row of 600 s, in the sample with the greatest lag.';
comment on column pgqueue.samples.ended is
    'What started and ended since the previous row, as workers reported it: for each task, the attempts that started (workers of 0.1.0 do not report them), the jobs by outcome (succeeded, failed, dead, cancelled, snoozed, lost), and run and wait: sum and max in seconds, and a histogram with buckets up to 0.001, 0.004, 0.016, 0.064, 0.25, 1, 4, 16, 60, 300, 3600 s and more. Null: nothing.';
comment on column pgqueue.samples.blocked_by_limit is
    'How many of the blocked jobs wait for a limit. Null: the row was written before this was recorded.';
comment on column pgqueue.samples.blocked_by_parents is
    'How many of the blocked jobs wait for other jobs to end; the others wait behind a job of their key.';
comment on column pgqueue.samples.is_large is 'Whether the queue has too many jobs to be counted in each sample.';
comment on column pgqueue.samples.counted_at is
    'When the numbers were counted, except executing and oldest_due_at; null: they have not been counted in full yet.';
comment on column pgqueue.samples.oldest_stuck_at is
    'Since when the oldest job has waited for a limit or behind its key, or the oldest one whose task no worker knows; null: there is none.';
comment on column pgqueue.samples.is_ready_kept is
    'Whether waiting, due, scheduled and failed are of counted_at, too; otherwise of at: only blocked or dead jobs were too many.';

-- A role may be renamed, and another role may get its name: the oid identifies it. A role without any right on the schema is
-- not the one to which it was granted.
create table pgqueue.grants (
    role name not null,
    kind text not null check (kind in ('producer', 'worker', 'operator', 'reader')),
    role_oid oid,
    recorded_in oid,
    primary key (role, kind)
);
comment on table pgqueue.grants is
    'The rights that grant_access() gave; they are granted again whenever the functions are reloaded.';
comment on column pgqueue.grants.role is 'The role.';
comment on column pgqueue.grants.kind is 'producer, worker, operator or reader.';
comment on column pgqueue.grants.role_oid is
    'The oid of the role: a role that was renamed keeps its rights, and a new role with an old name gets none.';
comment on column pgqueue.grants.recorded_in is
    'Private: the oid that this table had when role_oid was recorded. In a restored dump it is another one, and roles go by their names.';

-- The actions of operators, and the versions of the functions that were loaded.
create table pgqueue.audit (
    n bigint generated always as identity primary key,
    at timestamptz not null,
    actor text not null,
    db_role text not null,
    action text not null,
    filter jsonb not null,
    changed bigint not null,
    via text not null
);
create index audit_by_time on pgqueue.audit (at);
comment on table pgqueue.audit is
    'The actions of operators, one row for each function that they called; kept for settings.retention_audit. select * from pgqueue.audit order by n desc limit 20;';
comment on column pgqueue.audit.n is 'The order of the actions.';
comment on column pgqueue.audit.at is 'When the function was called.';
comment on column pgqueue.audit.actor is
    'Who called it: the setting pgqueue.actor, which a page or a script sets to the person that uses it; else the role that logged in.';
comment on column pgqueue.audit.db_role is 'The role that logged in.';
comment on column pgqueue.audit.action is 'The function.';
comment on column pgqueue.audit.filter is 'The arguments; of many job_ids, the first hundred.';
comment on column pgqueue.audit.changed is 'How many jobs or rows it changed.';
comment on column pgqueue.audit.via is 'The program: the setting pgqueue.via, else application_name.';

-- Which jobs a bulk retry brought back, for the page that says what became of them. Inserted, and deleted by age.
create table pgqueue.retries (
    n bigint generated always as identity primary key,
    at timestamptz not null,
    actor text not null,
    task text collate "C" not null,
    class text,
    fingerprint text not null,
    job_ids bigint[] not null
);
create index retries_by_time on pgqueue.retries (at);
comment on table pgqueue.retries is 'Private: the jobs that retry_many() brought back within two days. Read retry_fates() instead.';
comment on column pgqueue.retries.n is 'Ascending number of the row.';
comment on column pgqueue.retries.at is 'When.';
comment on column pgqueue.retries.actor is 'Who, as the audit has it.';
comment on column pgqueue.retries.task is 'The task of these jobs.';
comment on column pgqueue.retries.class is 'The class of the error that each of them had died of.';
comment on column pgqueue.retries.fingerprint is 'The fingerprint of that error, as dead_groups() has it.';
comment on column pgqueue.retries.job_ids is 'The jobs, in the order of their ids.';

create table pgqueue.releases (
    n bigint generated always as identity primary key,
    revision text not null,
    digest text not null,
    version text not null,
    installed_at timestamptz not null default clock_timestamp()
);
comment on table pgqueue.releases is
    'The versions of the functions that were loaded, newest last. A worker reads it when it starts.';
comment on column pgqueue.releases.n is 'The order in which they were loaded.';
comment on column pgqueue.releases.revision is 'The revision of the tables.';
comment on column pgqueue.releases.digest is 'SHA-256 over sql/.';
comment on column pgqueue.releases.version is 'The version of the Python package that loaded them.';
comment on column pgqueue.releases.installed_at is 'When they were loaded.';

-- The options of a job; filters that find jobs, and the rows that they find.
create type pgqueue.job_options as (
    task text,
    args jsonb,
    queue text,
    priority integer,
    run_at timestamptz,
    delay interval,
    expires_in interval,
    timeout interval,
    max_attempts integer,
    key text,
    score numeric,
    dedupe text,
    dedupe_for interval,
    on_conflict text,
    depends_on bigint[],
    headers jsonb,
    tags text[],
    retention interval,
    retry_policy text,
    retry_delay interval,
    retry_queue text,
    limit_key text,
    debounce_max interval,
    declared jsonb,
    run_if text,
    group_id bigint,
    retry_cap interval,
    cost integer
);
comment on type pgqueue.job_options is 'Private: the options of a job, as enqueue() takes them.';

create type pgqueue.job_filter as (
    states text[],
    queues text[],
    tasks text[],
    keys text[],
    tags text[],
    workers text[],
    classes text[],
    lines text[],
    errors text[],
    ids bigint[],
    id_from bigint,
    id_to bigint,
    priority_from integer,
    priority_to integer,
    attempts_from integer,
    attempts_to integer,
    created_from timestamptz,
    created_to timestamptz,
    run_from timestamptz,
    run_to timestamptz,
    finished_from timestamptz,
    finished_to timestamptz,
    age_from interval,
    age_to interval,
    args jsonb[],
    groups bigint[],
    fingerprints text[],
    tenants text[],
    enqueued_by text[],
    retries bigint[]
);
comment on type pgqueue.job_filter is 'Private: the filter of search(), parsed.';

create type pgqueue.found_job as (id bigint, granularity "char", kept_until timestamptz, is_asked_to_stop boolean);
comment on type pgqueue.found_job is
    'Private: a job that matches a filter; granularity and kept_until lead to the partition of an ended one.';

-- Claims.
create type pgqueue.sub_lane as (queue text, priority smallint, resumed boolean);
comment on type pgqueue.sub_lane is 'Private: the ordinary jobs of a lane, or those that came back.';

create type pgqueue.due_lane as (
    queue text, priority smallint, is_fair boolean, is_limited boolean, resumed boolean, head timestamptz, head_id bigint
);
comment on type pgqueue.due_lane is
    'Private: a lane in which a job is due; whether tenants take turns in it, its queue is under a limit, and these jobs came back at once; its head.';

create type pgqueue.candidate as (
    row_ctid tid, id bigint, queue text, task text, key text, limit_key text, is_expired boolean, is_limited boolean
);
comment on type pgqueue.candidate is
    'Private: a job that a claim has locked, with what decides whether it may start: see _find_due.';

create type pgqueue.rule as (
    name text, kind text, target text, max_executing integer, rate integer, per interval, max_cost integer, burst integer,
    until timestamptz, rule text
);
comment on type pgqueue.rule is 'Private: a limit, a pause or a half-open breaker that a job is under: see _rules_of.';

create type pgqueue.touched_limit as (
    name text, kind text, target text, max_executing integer, rate integer, per interval, wanted integer,
    max_cost integer, burst integer, units bigint, waiting smallint
);
comment on type pgqueue.touched_limit is 'Private: a limit that jobs of a claim are under: see _within_limits.';

create type pgqueue.start as (row_ctid tid, kind text, slot integer, opens boolean);
comment on type pgqueue.start is
    'Private: a job that a claim starts by itself: plain, keyed, or gather (with the other payloads of its key). opens: it is the first in its slot.';

create type pgqueue.turn as (queue text, slots integer[]);
comment on type pgqueue.turn is 'Private: a queue that slots of a claim drew, and the numbers of these slots.';

create type pgqueue.tenant_turn as (
    lane_key text, credit integer, began text, has_shares boolean, is_shared boolean, has_rules boolean, heads text
);
comment on type pgqueue.tenant_turn is
    'Private: where the last claim of a worker from a fair queue ended, and what its next claims ask of each lane: see _find_in_turn.';

create type pgqueue.claimed_job as (
    id bigint, task text, args jsonb, headers jsonb, queue text, key text, priority integer, attempt integer,
    max_attempts integer, reservation bigint, run_at timestamptz, created_at timestamptz, lease_expires_at timestamptz,
    leader bigint, score numeric, timeout interval, losses integer, crashes integer, store_result boolean
);
comment on type pgqueue.claimed_job is 'Private: a row of reserve().';

create type pgqueue.lane_round as (lanes pgqueue.due_lane[], turn text, is_drawn boolean, is_whole boolean);
comment on type pgqueue.lane_round is 'Private: the lanes that a claim visits where there are many: see _next_lanes.';

create type pgqueue.draw as (
    turns pgqueue.turn[], among text[], undrawn integer[], jobs pgqueue.claimed_job[], filled pgqueue.turn[],
    share integer, round pgqueue.lane_round
);
comment on type pgqueue.draw is
    'Private: which queues the slots of a claim drew, and with which result: see _next_turn.';

-- Ends.
create type pgqueue.failure as (
    n integer,
    job_id bigint,
    reservation bigint,
    error jsonb,
    retry_in interval,
    retry boolean,
    policy text,
    cancel boolean
);
comment on type pgqueue.failure is
    'Private: a failed attempt as its worker reports it, with the arguments of fail(); n: its position in the call.';

create type pgqueue.failed_attempt as (
    n integer,
    job_id bigint,
    reservation bigint,
    error jsonb,
    retry_in interval,
    retry boolean,
    policy text,
    cancel boolean,
    task text,
    queue text,
    priority smallint,
    key text,
    limit_key text,
    members bigint[],
    worker text,
    attempts integer,
    max_attempts integer,
    own_policy text,
    retry_delay interval,
    retry_jitter double precision,
    retry_cap interval,
    retry_delays interval[],
    retry_function text,
    retry_budget integer,
    may_ask boolean,
    state text,
    ready_at timestamptz,
    policy_error text,
    reserved_at timestamptz
);
comment on type pgqueue.failed_attempt is
    'Private: a failure with the retry options of its job and task, and with the outcome: state, and ready_at if the job is retried.';

create type pgqueue.ended_job as (
    id bigint, task text, queue text, key text, limit_key text, dedupe text, group_id bigint, followers bigint[],
    has_steps boolean, reserved_at timestamptz
);
comment on type pgqueue.ended_job is 'Private: a job that ended, with what other jobs may wait for: see _follow_ends.';

create type pgqueue.end_report as (
    outcome text, job_id bigint, reservation bigint, lease_expires_at timestamptz, note text
);
comment on type pgqueue.end_report is 'Private: what exchange() reports about a job that ended: see _end_jobs.';
