-- Schedules: what they are, and what became of them.

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
    spec bytea,
    check ((declared_expression is null) <> (every is null)),
    check ((declared_expression is null) = (spec is null))
);
comment on table pgqueue.schedules is
    'Jobs that are enqueued by the clock. paused_at, expression and timezone are an operator''s: they win, survive '
    'deploys and take effect within a second. All else is what schedule() said last. See pgqueue.effective_schedules.';
comment on column pgqueue.schedules.name is 'The schedule.';
comment on column pgqueue.schedules.paused_at is 'Since when it enqueues nothing; null: it runs. See pause_schedule().';
comment on column pgqueue.schedules.expression is 'A cron expression instead of what was declared; null: as declared. A wrong one shows in stats() and nothing runs until it is put right.';
comment on column pgqueue.schedules.timezone is 'A time zone instead of the declared one; null: as declared.';
comment on column pgqueue.schedules.declared_expression is 'The cron expression, as declared; null: it runs by every.';
comment on column pgqueue.schedules.declared_timezone is 'The time zone in which the expression is read, as declared.';
comment on column pgqueue.schedules.every is 'The interval between two runs; null: it runs by an expression.';
comment on column pgqueue.schedules.anchor is 'The instant from which every counts: when the schedule was declared, or every last changed.';
comment on column pgqueue.schedules.catch_up is 'Runs that were missed: skip them, run the last of them (default), or all.';
comment on column pgqueue.schedules.catch_up_cap is 'With catch_up all: at most so many of them, the latest. Default 100.';
comment on column pgqueue.schedules.overlap is 'While its last job lives: start another anyway (default), or skip the run.';
comment on column pgqueue.schedules.jitter is 'A job''s run_at is put off at random by up to this; null: not at all.';
comment on column pgqueue.schedules.task is 'Task of its jobs.';
comment on column pgqueue.schedules.args is 'Arguments of its jobs.';
comment on column pgqueue.schedules.queue is 'Queue of its jobs; null: as the task says.';
comment on column pgqueue.schedules.priority is 'Priority of its jobs; null: as task and queue say.';
comment on column pgqueue.schedules.max_attempts is 'Tries of its jobs; null: as the task says.';
comment on column pgqueue.schedules.expires_in is 'How long after its run_at a job may still start; null: as the task says.';
comment on column pgqueue.schedules.headers is 'Headers of its jobs, beside schedule and scheduled_at, which every one has.';
comment on column pgqueue.schedules.tags is 'Tags of its jobs.';
comment on column pgqueue.schedules.retention is 'How long history keeps its jobs; null: as task, queue and settings say.';
comment on column pgqueue.schedules.spec is 'Private: declared_expression, parsed.';

-- What became of each instant, and with it where each schedule stands: next_at of its newest row. Inserted, never
-- updated: next_at in a row of schedules would, for a schedule of every second and while some session holds an old
-- snapshot, become a chain of versions that every look walks. Read newest first (n, not time: the clock may step
-- back), rows of the past, dead or alive, are never visited.
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
-- One row for each instant of a schedule, and so one job, whoever asks and however often.
create unique index schedule_runs_once on pgqueue.schedule_runs (schedule, at);
create index schedule_runs_standing on pgqueue.schedule_runs (schedule, n) where rule is not null;
create index schedule_runs_jobs on pgqueue.schedule_runs (schedule, n) where job_id is not null;
comment on table pgqueue.schedule_runs is 'What became of each instant of each schedule, for a week. Read pgqueue.schedule_history instead.';
comment on column pgqueue.schedule_runs.n is 'Order.';
comment on column pgqueue.schedule_runs.schedule is 'The schedule.';
comment on column pgqueue.schedule_runs.at is 'The instant at which it was due; null: the row is not about one.';
comment on column pgqueue.schedule_runs.decided_at is 'When this was written.';
comment on column pgqueue.schedule_runs.outcome is
    'enqueued; overlap: skipped, the last job was still alive; planned: nothing was due but next_at was set, or missed runs were passed over; '
    'manual: run_schedule_now(); error.';
comment on column pgqueue.schedule_runs.job_id is 'The job.';
comment on column pgqueue.schedule_runs.next_at is 'When the schedule is due next; null: never again.';
comment on column pgqueue.schedule_runs.passed_from is 'Missed instants from this one on were passed over, as catch_up says.';
comment on column pgqueue.schedule_runs.retry_at is 'After an error: when it is tried again.';
comment on column pgqueue.schedule_runs.rule is 'Private: from what next_at was computed; another rule, and it is computed anew. Null: next_at counts for nothing.';
comment on column pgqueue.schedule_runs.error is 'What went wrong.';
