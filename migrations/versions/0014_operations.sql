-- Samples of the queues, what workers count, and the audit of operators.

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
    ended jsonb
);
create index samples_by_time on pgqueue.samples (span, at);
comment on table pgqueue.samples is 'The numbers of each queue, every 10 s, by maintain(): for pages, monitors and stats(recent => true). A queue without a row at a time had nothing in it; the queue '''' stands for all. select at, due, ended from pgqueue.samples where queue = ''mail'' and span = 10 order by at desc limit 360;';
comment on column pgqueue.samples.n is 'Ascending number of the row.';
comment on column pgqueue.samples.at is 'When it was taken; for a row of 600 s, when that time ended.';
comment on column pgqueue.samples.span is 'Seconds that it stands for: 10 (kept for a day), or 600 (kept for 90 days).';
comment on column pgqueue.samples.queue is 'The queue; '''': all queues together, and all tasks in ended.';
comment on column pgqueue.samples.waiting is 'Jobs in the state waiting, due or not.';
comment on column pgqueue.samples.due is 'Waiting and failed jobs that could start.';
comment on column pgqueue.samples.scheduled is 'Waiting and failed jobs whose time has not come.';
comment on column pgqueue.samples.failed is 'Jobs in the state failed: they will be retried.';
comment on column pgqueue.samples.blocked is 'Jobs behind another job of their key, or at a limit.';
comment on column pgqueue.samples.executing is 'Jobs that are reserved.';
comment on column pgqueue.samples.dead is 'Dead jobs in history.';
comment on column pgqueue.samples.counted_to is 'Where counting stopped: a number as high as this means at least that many. Null: the numbers are exact.';
comment on column pgqueue.samples.oldest_due_at is 'Since when the oldest due job could have started; for a row of 600 s, of the sample with the greatest lag.';
comment on column pgqueue.samples.ended is 'What ended since the row before, as workers reported: for each task, the jobs by outcome (succeeded, failed, dead, cancelled, snoozed, lost), and run and wait: sum and max in seconds, and buckets of 0.001, 0.004, 0.016, 0.064, 0.25, 1, 4, 16, 60, 300, 3600 s and more. Null: nothing.';

create table pgqueue.worker_reports (
    n bigint generated always as identity primary key,
    worker text not null,
    at timestamptz not null,
    report jsonb not null
);
comment on table pgqueue.worker_reports is 'Private: what workers counted since their last heartbeat, until the next sample takes it.';
comment on column pgqueue.worker_reports.n is 'Ascending number of the row.';
comment on column pgqueue.worker_reports.worker is 'The worker.';
comment on column pgqueue.worker_reports.at is 'When it reported.';
comment on column pgqueue.worker_reports.report is 'What it gave to beat().';

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
comment on table pgqueue.audit is 'What operators did, by the functions that they called; kept for 90 days. select * from pgqueue.audit order by n desc limit 20;';
comment on column pgqueue.audit.n is 'Ascending number of the row.';
comment on column pgqueue.audit.at is 'When.';
comment on column pgqueue.audit.actor is 'Who: the setting pgqueue.actor, which a page or a script sets for the person behind it; else the role that logged in.';
comment on column pgqueue.audit.db_role is 'The role that logged in.';
comment on column pgqueue.audit.action is 'The function.';
comment on column pgqueue.audit.filter is 'What it was called with; of many job_ids the first hundred.';
comment on column pgqueue.audit.changed is 'How many jobs, or rows, it changed.';
comment on column pgqueue.audit.via is 'By which program: the setting pgqueue.via, else application_name.';

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
    args jsonb[]
);
comment on type pgqueue.job_filter is 'Private: the filter of search(), read.';
