-- A wait knows when it began: an event goes to the jobs that waited when it was emitted, however late it reaches them.
-- For the jobs that wait already it is unknown: an event that was emitted before may still have to reach them.
alter table pgqueue.event_waits add since timestamptz not null default '-infinity';
alter table pgqueue.event_waits alter since drop default;
comment on column pgqueue.event_waits.since is 'When it began to wait.';
-- What a process holds changes with each heartbeat, and so stands with it: a worker's own row is written at start and end.
alter table pgqueue.heartbeats add memory bigint;
comment on column pgqueue.heartbeats.memory is 'The resident memory of its process in bytes; null: it did not report it.';
-- What a task is about, for the people who find its jobs dead.
alter table pgqueue.tasks
    add declared_docs text check (declared_docs ~ '^https?://[^[:space:][:cntrl:]]+$' and length(declared_docs) <= 2000),
    add declared_owner text check (length(declared_owner) between 1 and 128);
comment on column pgqueue.tasks.declared_docs is 'The address of what to read about the task, a runbook perhaps, as declared by the code.';
comment on column pgqueue.tasks.declared_owner is 'Who answers for the task, as declared by the code.';
-- A group that is being cancelled because of a parent has the error of that from the start, no longer only at its end.
update pgqueue.jobs j
set errors = coalesce(j.errors, '[]') || jsonb_build_array(jsonb_build_object(
    'class', 'ParentFailed',
    'message', format('job %s, which it depends on, did not succeed: it is %s', d.parent, d.ended),
    'attempt', j.attempts,
    'at', now()
))
from (
    select distinct on (x.child) x.child, x.parent, x.ended
    from pgqueue.dependencies x
    where x.ended is not null
    order by x.child, x.parent
) d
where j.id = d.child
    and j.task = '@group'
    and j.cancel_requested_at is not null
    and coalesce(j.run_if, 'succeeded') = 'succeeded'
    and (j.errors -> -1 ->> 'class') is distinct from 'ParentFailed';
-- A group does not end before the members that are to come back with it are back.
create index notes_members on pgqueue.notes (id) where kind = 'b';
comment on column pgqueue.notes.name is 'How the parent ended; or the event; or, for a group, back: members of it were retried.';
comment on column pgqueue.samples.ended is 'What started and ended since the row before, as workers reported: for each task, the attempts that started (workers of 0.1.0 do not report them), the jobs by outcome (succeeded, failed, dead, cancelled, snoozed, lost), and run and wait: sum and max in seconds, and buckets of 0.001, 0.004, 0.016, 0.064, 0.25, 1, 4, 16, 60, 300, 3600 s and more. Null: nothing.';
-- The payloads of a key wait for one of them that suspended itself, whatever its position.
create index jobs_key_suspended on pgqueue.jobs (queue, key) where key is not null and blocked_on = '@jobs';
-- What blocked jobs wait for.
alter table pgqueue.samples add blocked_by_limit integer, add blocked_by_parents integer;
comment on column pgqueue.samples.blocked_by_limit is 'How many of the blocked jobs are at a limit. Null: the row is of before they were told apart.';
comment on column pgqueue.samples.blocked_by_parents is 'How many of the blocked jobs wait for other jobs to end; the rest is behind a job of its key.';
comment on column pgqueue.samples.blocked is 'Jobs that wait for another job of their key, for a limit, or for jobs that they depend on.';
-- enqueue() hands a job to an idle worker.
alter table pgqueue.idle_workers add handoff_channel text, add listener integer, add lease interval;
comment on column pgqueue.idle_workers.handoff_channel is
    'The channel on which it takes jobs that enqueue() reserves for it; null: it takes none.';
comment on column pgqueue.idle_workers.listener is 'The process id of the session that listens on that channel.';
comment on column pgqueue.idle_workers.lease is 'The lease of its reservations.';
-- The same facts in plainer words.
comment on column pgqueue.heads.xid is
    'The transaction that wrote it. If this server has no such transaction, the row came with a dump and does not count.';
comment on column pgqueue.history.retry is 'The options for retries that the job itself had.';
comment on column pgqueue.jobs.retry is
    'Options for retries of this job, over those of its task: {"policy": ..., "delay": seconds, "queue": ...}; null as a rule.';
comment on column pgqueue.jobs.cancel_requested_at is 'When cancel() was called for it while it was executing.';
comment on column pgqueue.jobs.leader is
    'For a job executing in a batch of an accumulating task: the job that stands for all payloads of its key; on that one its own id.';
comment on column pgqueue.jobs.followers is 'For a leader: the jobs with the other payloads of its key, in its batch.';
comment on table pgqueue.key_notes is
    'Private: keys whose next job the next maintain() or idle reserve() is to release, once no claim blocks jobs behind job_id.';
comment on column pgqueue.key_notes.job_id is
    'The job that left its position while a claim was blocking others behind it; null: none.';
comment on table pgqueue.limit_waits is 'Private: limits that block jobs, and when to check whether they have capacity.';
comment on column pgqueue.limits.max_executing is 'How many execute at a time at most; null: no limit of this sort.';
comment on column pgqueue.limits.rate is
    'How many start at most in any stretch of time as long as per; null: no limit of this sort.';
comment on column pgqueue.maintenance_runs.gap_at is
    'When the last gap of more than 5 s in maintenance ended: a lease that could not be extended in the gap gets a grace period.';
comment on column pgqueue.maintenance_runs.unparked is
    'Blocked jobs found with nothing ahead of them, in all; none as a rule.';
comment on table pgqueue.queues is
    'What operators set for a queue; takes effect at once. A queue without a row exists as well: it has the defaults.';
comment on column pgqueue.queues.retry_budget is
    'How many failed jobs of this queue become due in a second at most; the others are deferred to the next with capacity. Null: no limit.';
comment on column pgqueue.schedule_runs.outcome is
    'enqueued; overlap: skipped, the last job was still alive; planned: nothing was due but next_at was set, or missed runs were skipped; '
    'manual: run_schedule_now(); error.';
comment on column pgqueue.schedule_runs.passed_from is 'Missed instants from this one on were skipped, as catch_up says.';
comment on column pgqueue.schedules.catch_up_cap is 'With catch_up all: how many of them at most, the latest. Default 100.';
comment on column pgqueue.schedules.jitter is 'A job''s run_at is deferred at random by up to this; null: not at all.';
comment on column pgqueue.tasks.accumulate is 'Whether all due payloads of a key go to one batch; default false.';
comment on column pgqueue.tasks.batch_size is 'For an accumulating task: how many keys one batch gets; default 1.';
-- Composite, so that the end of a job that leaves nothing behind collects its id alone.
create type pgqueue.ended_job as (
    id bigint, task text, queue text, key text, limit_key text, dedupe text, group_id bigint, followers bigint[],
    has_steps boolean
);
comment on type pgqueue.ended_job is 'Private: a job that ended, with what others may wait for: see _follow_ends.';
create type pgqueue.end_report as (
    outcome text, job_id bigint, reservation bigint, lease_expires_at timestamptz, note text
);
comment on type pgqueue.end_report is 'Private: what exchange() says about a job that ended: see _end_jobs.';
