-- Maintenance that remembers how far each step came.

-- What a step left for its next run. Inserted when it differs from what stands there, and read newest first: a row
-- updated in place would, under an old snapshot, become a chain of versions that every run walks.
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
comment on table pgqueue.maintenance_steps is 'Private: what each step of maintain() left for its next run. stats() shows what matters of it.';
comment on column pgqueue.maintenance_steps.n is 'Order.';
comment on column pgqueue.maintenance_steps.at is 'When it was written.';
comment on column pgqueue.maintenance_steps.step is 'The step.';
comment on column pgqueue.maintenance_steps.next_at is 'The step is not due before this; null: it is due in each run.';
comment on column pgqueue.maintenance_steps.missed_since is 'Since when it has been due without a turn, as the time of each run was used up before; null: it had its turn.';
comment on column pgqueue.maintenance_steps.unfinished is 'Its share of the time ended before its work did.';
comment on column pgqueue.maintenance_steps.slice is 'How many rows it takes at once; smaller than usual where that took too long. Null: as many as usual.';
comment on column pgqueue.maintenance_steps.cursor is 'How far it came, where it goes through a table in turns.';
comment on column pgqueue.maintenance_steps.failures is 'How often it failed in a row.';
comment on column pgqueue.maintenance_steps.failing_since is 'Since when it fails.';
comment on column pgqueue.maintenance_steps.error is 'What it last failed with, or what it reports.';

-- Survives the end of a transaction, whatever ended it: a call that was killed within a step is seen by the next.
create sequence pgqueue.step_under_way minvalue 0 start 0;
comment on sequence pgqueue.step_under_way is 'Private: the number of the step that maintain() is in; 0: none.';

alter table pgqueue.housekeeping
    drop column minute_at,
    drop column partitions_at,
    drop column drop_at,
    drop column drop_failures,
    drop column failures,
    drop column key_cursor,
    drop column hidden_at,
    drop column hidden_took,
    add column expired bigint not null default 0;
comment on column pgqueue.housekeeping.expired is 'Jobs cancelled as they did not start in time, in all.';

-- Names that say what the manuals of other queues say.
alter table pgqueue.housekeeping rename to maintenance_runs;
alter index pgqueue.housekeeping_pkey rename to maintenance_runs_pkey;
alter sequence pgqueue.housekeeping_n_seq rename to maintenance_runs_n_seq;
comment on column pgqueue.maintenance_runs.gap_at is 'When the last gap of more than 5 s in maintenance ended: a lease that ran while nobody could extend it gets a grace period.';
comment on column pgqueue.maintenance_runs.prolonged is 'Leases that got a grace period after a gap, in all.';

alter table pgqueue.sleepers rename to idle_workers;
alter index pgqueue.sleepers_by_queue rename to idle_workers_by_queue;
alter index pgqueue.sleepers_by_worker rename to idle_workers_by_worker;
comment on table pgqueue.idle_workers is 'Private: idle registrations: workers that wait for NOTIFY.';
comment on column pgqueue.idle_workers.until is 'Until when it is idle; it polls by itself before.';

alter table pgqueue.beats rename to heartbeats;
alter index pgqueue.beats_pkey rename to heartbeats_pkey;
alter index pgqueue.beats_by_worker rename to heartbeats_by_worker;
alter sequence pgqueue.beats_n_seq rename to heartbeats_n_seq;
comment on table pgqueue.heartbeats is 'Private: heartbeats of workers, newest last.';
comment on table pgqueue.workers is 'Registered workers. Written at start and end only; liveness is in heartbeats.';
comment on column pgqueue.workers.info is 'What it reports about itself: host, pid, version, concurrency.';
comment on column pgqueue.workers.started_at is 'When it registered.';

alter table pgqueue.history rename column grain to granularity;
comment on column pgqueue.history.granularity is 'Private: d or m, partition of a day or of a month.';

alter table pgqueue.jobs rename column lease_prolonged to grace_given;
comment on column pgqueue.jobs.grace_given is 'Private: this reservation already got its grace period after a gap in maintenance.';

alter table pgqueue.heads rename column floors to fallback_heads;
alter table pgqueue.heads rename column floor_ids to fallback_ids;
comment on column pgqueue.heads.fallback_heads is 'Fallback marks: for each of open_xids, the time of the head that it must not lose.';
comment on column pgqueue.heads.fallback_ids is 'The ids that go with fallback_heads.';
comment on column pgqueue.heads.open_xids is 'Transactions that were open for long and may yet commit something below the head. Once one has ended, its fallback mark is the head.';
