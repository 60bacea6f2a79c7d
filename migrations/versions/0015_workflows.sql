-- Dependencies, groups, durable steps and events.

alter table pgqueue.jobs
    add column depends_on bigint[],
    add column run_if text,
    add column group_id bigint,
    add column has_steps boolean;
comment on column pgqueue.jobs.depends_on is 'The jobs that it was to wait for; null: none.';
comment on column pgqueue.jobs.run_if is 'What must become of those: succeeded, finished or failed.';
comment on column pgqueue.jobs.group_id is 'The group that it is a member of.';
comment on column pgqueue.jobs.has_steps is 'True: it has completed a step. Null: it has not.';

alter table pgqueue.history
    add column depends_on bigint[],
    add column run_if text,
    add column group_id bigint,
    add column steps jsonb;
comment on column pgqueue.history.depends_on is 'The jobs that it was to wait for; null: none.';
comment on column pgqueue.history.run_if is 'What must become of those: succeeded, finished or failed.';
comment on column pgqueue.history.group_id is 'The group that it was a member of.';
comment on column pgqueue.history.steps is 'Its steps, in the order in which they ended: name and at; and result, where it did not succeed.';

-- A job that waits for others holds no place in its key: it would block those that it waits for.
drop index pgqueue.jobs_key_held;
create index jobs_key_held on pgqueue.jobs (queue, key, id)
    where key is not null
        and (state = 'blocked' or (state in ('waiting', 'failed') and reservation > 0))
        and blocked_on is distinct from '@parents';
create index jobs_key_children on pgqueue.jobs (queue, key, id) where key is not null and blocked_on = '@parents';
create index jobs_group on pgqueue.jobs (group_id, state, id) where group_id is not null;
create index history_group on pgqueue.history (group_id, id) where group_id is not null;

create table pgqueue.dependencies (
    parent bigint not null,
    child bigint not null,
    ended text,
    traceless boolean not null default false,
    primary key (parent, child)
);
create index dependencies_by_child on pgqueue.dependencies (child, parent);
create index dependencies_ended on pgqueue.dependencies (child, parent) where ended is not null;
comment on table pgqueue.dependencies is 'Private: a job, and one that waits for it. The row goes when the job succeeds; otherwise it stays until the other one starts or is gone.';
comment on column pgqueue.dependencies.parent is 'The job that is waited for.';
comment on column pgqueue.dependencies.child is 'The job that waits.';
comment on column pgqueue.dependencies.ended is 'How the parent ended, if it did not succeed: dead, cancelled or deleted; null: it has not ended.';
comment on column pgqueue.dependencies.traceless is 'Whether a parent that is nowhere to be found has succeeded, because history does not keep such jobs.';

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
comment on table pgqueue.events is 'Events that were emitted, each until its time is over.';
comment on column pgqueue.events.name is 'The name of the event.';
comment on column pgqueue.events.payload is 'What its emitter said.';
comment on column pgqueue.events.emitted_at is 'When it was emitted.';
comment on column pgqueue.events.kept_until is 'Until when it is kept.';

create table pgqueue.event_waits (
    name text collate "C" not null,
    job_id bigint not null,
    step text collate "C" not null,
    until timestamptz,
    primary key (name, job_id, step)
);
create index event_waits_by_job on pgqueue.event_waits (job_id);
comment on table pgqueue.event_waits is 'Private: a job that waits for an event.';
comment on column pgqueue.event_waits.name is 'The name of the event.';
comment on column pgqueue.event_waits.job_id is 'The job.';
comment on column pgqueue.event_waits.step is 'The step of the job that the event completes.';
comment on column pgqueue.event_waits.until is 'When the job goes on without it; null: never.';

create table pgqueue.notes (
    n bigint generated always as identity primary key,
    kind "char" not null,
    id bigint,
    after bigint,
    name text collate "C",
    look_at timestamptz not null,
    xid xid8 not null
);
comment on table pgqueue.notes is 'Private: something to check again in a later transaction.';
comment on column pgqueue.notes.n is 'In order of insertion.';
comment on column pgqueue.notes.kind is 'c: a new child, with its parents; w: a job that waits, with what is left of its waiting; p: the children of a job that ended; r: the children of a job that was retried; g: a group; m: the members of a group that is cancelled; b: those of one that came back; e: an event.';
comment on column pgqueue.notes.id is 'The job or group.';
comment on column pgqueue.notes.after is 'The children up to this one are done.';
comment on column pgqueue.notes.name is 'How the parent ended, or the event.';
comment on column pgqueue.notes.look_at is 'When to check.';
comment on column pgqueue.notes.xid is 'The transaction that left it, which cannot see what runs beside it.';

alter table pgqueue.settings
    add column retention_parents interval not null default '31 days'
    check (retention_parents between '0' and '2 years');
comment on column pgqueue.settings.retention_parents is 'How long history keeps, at least, a job that others waited for.';

alter type pgqueue.job_options add attribute run_if text, add attribute group_id bigint;
