-- Tables, types and indexes of the first release. Functions, views and grants stand under sql/ and are
-- loaded after this in the same transaction.
--
-- Names are compared byte by byte (collate "C"): ranges over them must not change with the system's locale.

revoke all on schema pgqueue from public;
comment on schema pgqueue is 'pgqueue, a job queue. Start with \df+ pgqueue.* and select * from pgqueue.all_jobs.';

create type pgqueue.job_state as enum (
    'waiting', 'executing', 'failed', 'blocked', 'succeeded', 'dead', 'cancelled'
);
comment on type pgqueue.job_state is
    'waiting: due when its time has come. executing: reserved by a worker. failed: will be retried. '
    'blocked: behind another job. Final: succeeded, dead (out of retries), cancelled.';

-- What an administrator may set for the whole queue: one row, read by every enqueue, hardly ever written.
create table pgqueue.settings (
    one boolean primary key default true check (one),
    max_args_bytes integer not null default 1048576 check (max_args_bytes between 262144 and 200000000),
    retention_succeeded interval not null default '1 day'
        check (retention_succeeded >= '0' and retention_succeeded <= '2 years'),
    retention_cancelled interval not null default '7 days'
        check (retention_cancelled >= '0' and retention_cancelled <= '2 years'),
    retention_dead interval not null default '90 days'
        check (retention_dead >= '0' and retention_dead <= '2 years')
);
insert into pgqueue.settings default values;
comment on table pgqueue.settings is 'One row of settings; an update takes effect at once.';
comment on column pgqueue.settings.one is 'Always true: there is one row.';
comment on column pgqueue.settings.max_args_bytes is 'Largest args of a job, in bytes of JSON text; at least 256 KiB. Default 1 MiB.';
comment on column pgqueue.settings.retention_succeeded is 'How long a succeeded job stays in history, unless its job, task or queue says otherwise. Zero: no row is kept.';
comment on column pgqueue.settings.retention_cancelled is 'The same for cancelled jobs.';
comment on column pgqueue.settings.retention_dead is 'The same for dead jobs.';

create table pgqueue.queues (
    name text collate "C" primary key check (octet_length(name) between 1 and 128),
    paused_at timestamptz,
    priority smallint check (priority between -100 and 100),
    retention_succeeded interval check (retention_succeeded >= '0' and retention_succeeded <= '2 years'),
    retention_cancelled interval check (retention_cancelled >= '0' and retention_cancelled <= '2 years'),
    retention_dead interval check (retention_dead >= '0' and retention_dead <= '2 years')
);
comment on table pgqueue.queues is
    'What an operator says of a queue; takes effect at once. A queue without a row exists as well: it has the defaults.';
comment on column pgqueue.queues.name is 'The queue.';
comment on column pgqueue.queues.paused_at is 'Since when no job of this queue is handed out; null: it runs. See pause_queue().';
comment on column pgqueue.queues.priority is 'Priority of jobs that name none and whose task names none.';
comment on column pgqueue.queues.retention_succeeded is 'How long history keeps succeeded jobs of this queue; null: as settings says.';
comment on column pgqueue.queues.retention_cancelled is 'The same for cancelled jobs.';
comment on column pgqueue.queues.retention_dead is 'The same for dead jobs.';

create table pgqueue.tasks (
    name text collate "C" primary key check (octet_length(name) between 1 and 128),
    queue text collate "C" check (octet_length(queue) between 1 and 128),
    priority smallint check (priority between -100 and 100),
    max_attempts integer check (max_attempts between 1 and 100000),
    retry_policy text check (retry_policy in ('fixed', 'exponential')),
    retry_delay interval check (retry_delay >= '0' and retry_delay <= '1 year'),
    retry_jitter double precision check (retry_jitter between 0 and 1),
    expires_in interval check (expires_in > '0'),
    retention_succeeded interval check (retention_succeeded >= '0' and retention_succeeded <= '2 years'),
    retention_cancelled interval check (retention_cancelled >= '0' and retention_cancelled <= '2 years'),
    retention_dead interval check (retention_dead >= '0' and retention_dead <= '2 years'),
    declared_queue text collate "C" check (octet_length(declared_queue) between 1 and 128),
    declared_priority smallint check (declared_priority between -100 and 100),
    declared_max_attempts integer check (declared_max_attempts between 1 and 100000),
    declared_retry_policy text check (declared_retry_policy in ('fixed', 'exponential')),
    declared_retry_delay interval check (declared_retry_delay >= '0' and declared_retry_delay <= '1 year'),
    declared_retry_jitter double precision check (declared_retry_jitter between 0 and 1),
    declared_expires_in interval check (declared_expires_in > '0'),
    declared_retention_succeeded interval
        check (declared_retention_succeeded >= '0' and declared_retention_succeeded <= '2 years'),
    declared_retention_cancelled interval
        check (declared_retention_cancelled >= '0' and declared_retention_cancelled <= '2 years'),
    declared_retention_dead interval
        check (declared_retention_dead >= '0' and declared_retention_dead <= '2 years')
);
comment on table pgqueue.tasks is
    'Options of a task. declared_* is what the code says, written when a worker starts; the plain columns are an '
    'operator''s: they win, survive deploys and take effect at once.';
comment on column pgqueue.tasks.name is 'The task, as in enqueue(task).';
comment on column pgqueue.tasks.queue is 'Queue of jobs that name none.';
comment on column pgqueue.tasks.priority is 'Priority of jobs that name none, -100 to 100; higher runs first.';
comment on column pgqueue.tasks.max_attempts is 'Tries before a job is dead; default 11.';
comment on column pgqueue.tasks.retry_policy is 'fixed: retry_delay after every failure. exponential (default): retry_delay + n^5 seconds, n = retries so far.';
comment on column pgqueue.tasks.retry_delay is 'The delay of the policy; default 30 seconds.';
comment on column pgqueue.tasks.retry_jitter is 'Random part added to a delay, as a fraction of it; default 0.1.';
comment on column pgqueue.tasks.expires_in is 'How long after its run_at a job may still start; then it is cancelled. Null: for ever.';
comment on column pgqueue.tasks.retention_succeeded is 'How long history keeps succeeded jobs; null: as the queue, then settings, says.';
comment on column pgqueue.tasks.retention_cancelled is 'The same for cancelled jobs.';
comment on column pgqueue.tasks.retention_dead is 'The same for dead jobs.';
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

-- Live jobs only. Columns stand widest first, so that no row pays for alignment.
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
    lease_prolonged boolean not null default false,
    queue text collate "C" not null,
    task text collate "C" not null,
    key text collate "C",
    reserved_by text,
    tags text[],
    args jsonb not null,
    headers jsonb,
    errors jsonb
) with (
    fillfactor = 85,
    -- Every row is inserted, updated about once and deleted. Vacuum by absolute numbers, without pauses:
    -- what it has not yet cleaned, every claim walks.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_threshold = -1,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2,
    autovacuum_analyze_threshold = 5000
);
comment on table pgqueue.jobs is 'Live jobs. Read pgqueue.all_jobs instead, write through the functions.';
comment on column pgqueue.jobs.id is 'The id that enqueue returned; grows with time.';
comment on column pgqueue.jobs.reservation is 'The fence: grows with every claim of this job and is never reused. complete, fail, extend, release and snooze take it.';
comment on column pgqueue.jobs.run_at is 'When the job is to run, as its producer said.';
comment on column pgqueue.jobs.ready_at is 'Private: the place in the ready index; the time from which reserve may hand the job out.';
comment on column pgqueue.jobs.created_at is 'When it was enqueued.';
comment on column pgqueue.jobs.expires_at is 'It does not start after this; it is cancelled instead. Null: never expires.';
comment on column pgqueue.jobs.reserved_at is 'When it was last reserved.';
comment on column pgqueue.jobs.lease_expires_at is 'Until when the reservation holds unless it is extended.';
comment on column pgqueue.jobs.cancel_requested_at is 'When somebody asked to cancel it while it was executing.';
comment on column pgqueue.jobs.lease is 'Length of the lease, as reserve or extend last said.';
comment on column pgqueue.jobs.retention is 'How long history keeps this job; null: as its task, queue and settings say.';
comment on column pgqueue.jobs.state is 'waiting, executing, failed or blocked.';
comment on column pgqueue.jobs.attempts is 'Tries so far, the one under way included. A release, a snooze and a lapsed lease give theirs back.';
comment on column pgqueue.jobs.max_attempts is 'Tries before it is dead; null: as its task says.';
comment on column pgqueue.jobs.losses is 'How often its lease lapsed.';
comment on column pgqueue.jobs.priority is 'Higher runs first, -100 to 100.';
comment on column pgqueue.jobs.resumed is 'Private: came back (released, lease lapsed, retried by hand) and is read before the rest of its lane.';
comment on column pgqueue.jobs.lease_prolonged is 'Private: this reservation already got its one extra lease after a gap in housekeeping.';
comment on column pgqueue.jobs.queue is 'The queue.';
comment on column pgqueue.jobs.task is 'The named function that a worker runs.';
comment on column pgqueue.jobs.key is 'Order group.';
comment on column pgqueue.jobs.reserved_by is 'The worker that holds it, or held it last.';
comment on column pgqueue.jobs.tags is 'Labels for people.';
comment on column pgqueue.jobs.args is 'Arguments of the task, a JSON object.';
comment on column pgqueue.jobs.headers is 'Trace context and middleware data, apart from args.';
comment on column pgqueue.jobs.errors is 'The last ten errors, oldest first: class, message, traceback, attempt, worker, at.';

-- A lane is one (queue, priority). reserve reads it by equality on the first three columns and a range on
-- ready_at, so jobs of the future are never touched and order is exact.
create index jobs_ready on pgqueue.jobs (queue, priority, resumed, ready_at, id)
    where state in ('waiting', 'failed');
create index jobs_lease on pgqueue.jobs (lease_expires_at) where state = 'executing';
create index jobs_expiry on pgqueue.jobs (expires_at)
    where expires_at is not null and state in ('waiting', 'failed', 'blocked');

-- Which lanes exist. No unique constraint, for two enqueues that register one lane must not wait for each
-- other; readers take distinct and maintain merges.
create table pgqueue.lanes (
    queue text collate "C" not null,
    priority smallint not null,
    seen_at timestamptz not null
);
create index lanes_by_name on pgqueue.lanes (queue, priority);
comment on table pgqueue.lanes is 'Private: the (queue, priority) pairs that reserve visits.';
comment on column pgqueue.lanes.queue is 'The queue.';
comment on column pgqueue.lanes.priority is 'The priority.';
comment on column pgqueue.lanes.seen_at is 'When it was last seen in use; a lane that was empty for an hour is dropped.';

-- Finished jobs, one row each. A row lives in the partition of the day (kept up to 8 days) or the month (kept
-- longer) on which it expires, so that retention is a dropped table and never a DELETE.
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
    grain "char" not null,
    queue text collate "C" not null,
    task text collate "C" not null,
    key text collate "C",
    reserved_by text,
    tags text[],
    args jsonb not null,
    headers jsonb,
    errors jsonb,
    result jsonb
) partition by list (grain);
create table pgqueue.history_days partition of pgqueue.history for values in ('d') partition by range (kept_until);
create table pgqueue.history_months partition of pgqueue.history for values in ('m') partition by range (kept_until);
create index history_id on pgqueue.history (id);
-- The morgue and the cancelled are few and looked for; the succeeded are many and are not.
create index history_unfinished on pgqueue.history (queue, state, id) where state <> 'succeeded';
comment on table pgqueue.history is 'Finished jobs, until their retention ends. Read pgqueue.all_jobs.';
comment on table pgqueue.history_days is 'Private: rows kept up to 8 days, one partition for each day on which they expire.';
comment on table pgqueue.history_months is 'Private: rows kept longer, one partition for each month in which they expire.';
comment on column pgqueue.history.id is 'The job.';
comment on column pgqueue.history.reservation is 'Its last reservation; a job that is retried goes on counting from it.';
comment on column pgqueue.history.run_at is 'When it was to run.';
comment on column pgqueue.history.created_at is 'When it was enqueued.';
comment on column pgqueue.history.reserved_at is 'When it was last reserved.';
comment on column pgqueue.history.finished_at is 'When it ended.';
comment on column pgqueue.history.kept_until is 'When this row expires.';
comment on column pgqueue.history.retention is 'How long the job itself said that it is kept; null: its task, queue or settings said so.';
comment on column pgqueue.history.state is 'succeeded, dead or cancelled.';
comment on column pgqueue.history.attempts is 'Tries that it took.';
comment on column pgqueue.history.max_attempts is 'Tries that it had, where the job itself said so.';
comment on column pgqueue.history.losses is 'How often its lease lapsed.';
comment on column pgqueue.history.priority is 'Its priority.';
comment on column pgqueue.history.grain is 'Private: d or m, partition of a day or of a month.';
comment on column pgqueue.history.queue is 'Its queue.';
comment on column pgqueue.history.task is 'Its task.';
comment on column pgqueue.history.key is 'Its order group.';
comment on column pgqueue.history.reserved_by is 'The worker that held it last.';
comment on column pgqueue.history.tags is 'Labels for people.';
comment on column pgqueue.history.args is 'Arguments of the task.';
comment on column pgqueue.history.headers is 'Trace context and middleware data.';
comment on column pgqueue.history.errors is 'The last ten errors, oldest first.';
comment on column pgqueue.history.result is 'What complete was given.';

create table pgqueue.workers (
    name text primary key check (octet_length(name) between 1 and 256),
    channel text not null,
    queues text[],
    info jsonb not null,
    started_at timestamptz not null
);
comment on table pgqueue.workers is 'Workers that said hello and not bye. Written at start and end only; liveness is in beats.';
comment on column pgqueue.workers.name is 'The worker, as in reserve(worker).';
comment on column pgqueue.workers.channel is 'Its personal NOTIFY channel.';
comment on column pgqueue.workers.queues is 'The queues it serves; null: all.';
comment on column pgqueue.workers.info is 'What it tells of itself: host, pid, version, concurrency.';
comment on column pgqueue.workers.started_at is 'When it said hello.';

-- Liveness is inserted and read newest first: a row updated in place would, while some session holds an old
-- snapshot, become a chain of versions that every reader walks.
create table pgqueue.beats (
    n bigint generated always as identity primary key,
    worker text not null,
    at timestamptz not null
);
create index beats_by_worker on pgqueue.beats (worker, n);
comment on table pgqueue.beats is 'Private: signs of life of workers, newest last.';
comment on column pgqueue.beats.n is 'Order of arrival.';
comment on column pgqueue.beats.worker is 'The worker.';
comment on column pgqueue.beats.at is 'When.';

-- Who is asleep, until when. The question of enqueue is a range over (queue, until > its ready time), so rows
-- of the past, dead or alive, are never visited.
create table pgqueue.sleepers (
    queue text collate "C" not null,
    until timestamptz not null,
    worker text not null,
    channel text not null
);
create index sleepers_by_queue on pgqueue.sleepers (queue, until);
create index sleepers_by_worker on pgqueue.sleepers (worker, until);
comment on table pgqueue.sleepers is 'Private: workers that wait for NOTIFY.';
comment on column pgqueue.sleepers.queue is 'A queue it serves; empty: all queues.';
comment on column pgqueue.sleepers.until is 'Until when it sleeps; it looks by itself before.';
comment on column pgqueue.sleepers.worker is 'The worker.';
comment on column pgqueue.sleepers.channel is 'The channel that wakes it.';

-- One row for each run of maintain, read newest first; the newest carries what the next has to know.
create table pgqueue.housekeeping (
    n bigint generated always as identity primary key,
    at timestamptz not null,
    gap_at timestamptz,
    stepped_from timestamptz,
    minute_at timestamptz,
    partitions_at timestamptz,
    drop_at timestamptz,
    drop_failures integer not null default 0,
    rescued bigint not null default 0,
    prolonged bigint not null default 0,
    found_lanes bigint not null default 0,
    failures jsonb not null default '{}'
);
comment on table pgqueue.housekeeping is 'Private: runs of maintain(). stats() shows what matters of it.';
comment on column pgqueue.housekeeping.n is 'Order of the runs.';
comment on column pgqueue.housekeeping.at is 'When it ran.';
comment on column pgqueue.housekeeping.gap_at is 'When the last gap of more than 5 s in housekeeping ended: a lease begun before gets one more length.';
comment on column pgqueue.housekeeping.stepped_from is 'Where the clock stood before it last stepped back, while jobs from there are still being brought forward.';
comment on column pgqueue.housekeeping.minute_at is 'When the steps of each minute last ran.';
comment on column pgqueue.housekeeping.partitions_at is 'When history partitions were last known to be complete.';
comment on column pgqueue.housekeeping.drop_at is 'When a history partition was last dropped, or tried.';
comment on column pgqueue.housekeeping.drop_failures is 'Tries to drop since the last success: readers were in the way.';
comment on column pgqueue.housekeeping.rescued is 'Jobs taken back from lapsed leases, in all.';
comment on column pgqueue.housekeeping.prolonged is 'Leases that got one more length after a gap, in all.';
comment on column pgqueue.housekeeping.found_lanes is 'Lanes with jobs that were not registered, in all.';
comment on column pgqueue.housekeeping.failures is 'Steps that failed in their last run: {step: {error, since, count}}.';

create table pgqueue.grants (
    role name not null,
    kind text not null check (kind in ('producer', 'worker', 'operator', 'reader')),
    primary key (role, kind)
);
comment on table pgqueue.grants is 'What grant_access() gave; applied again whenever the functions are reloaded.';
comment on column pgqueue.grants.role is 'The role.';
comment on column pgqueue.grants.kind is 'producer, worker, operator or reader.';

create table pgqueue.releases (
    n bigint generated always as identity primary key,
    revision text not null,
    digest text not null,
    version text not null,
    installed_at timestamptz not null default clock_timestamp()
);
comment on table pgqueue.releases is 'Which versions of the functions were loaded, newest last. A worker reads it at start.';
comment on column pgqueue.releases.n is 'Order.';
comment on column pgqueue.releases.revision is 'The migration that the tables stand at.';
comment on column pgqueue.releases.digest is 'SHA-256 over sql/.';
comment on column pgqueue.releases.version is 'Version of the Python package that loaded them.';
comment on column pgqueue.releases.installed_at is 'When.';
