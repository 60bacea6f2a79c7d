-- all_jobs: every job, live and finished, for people to query. A reader locks the partitions of history in ACCESS
-- SHARE: that blocks no completion, and only delays dropping old partitions.

create or replace view pgqueue.all_jobs as
select
    j.id, j.queue, j.task, j.state, j.priority, j.attempts, j.max_attempts, j.run_at,
    case when j.state in ('waiting', 'failed') then j.ready_at end as due_at,
    j.created_at, j.expires_at, j.reserved_at, j.reserved_by,
    case when j.state = 'executing' then j.reservation end as reservation,
    j.lease_expires_at, j.cancel_requested_at, null::timestamptz as finished_at, null::timestamptz as kept_until,
    j.losses, j.key, j.tags, j.args, j.headers, j.errors, null::jsonb as result,
    j.retry, j.score, j.limit_key, j.blocked_on, j.leader, j.dedupe, null::bigint as merged_into,
    j.timeout, coalesce(cardinality(j.crashed_on), 0) as crashes, j.crashed_on, j.progress, j.enqueued_by,
    j.depends_on, j.run_if, j.group_id, (j.reservation >> 20)::integer as claims, j.cost
from pgqueue.jobs j
union all
select
    h.id, h.queue, h.task, h.state, h.priority, h.attempts, h.max_attempts, h.run_at, null,
    h.created_at, null, h.reserved_at, h.reserved_by, null, null, null, h.finished_at, h.kept_until,
    h.losses, h.key, h.tags, h.args, h.headers, h.errors, h.result,
    h.retry, h.score, h.limit_key, null, null, h.dedupe, h.merged_into,
    h.timeout, coalesce(cardinality(h.crashed_on), 0), h.crashed_on, h.progress, h.enqueued_by,
    h.depends_on, h.run_if, h.group_id, (h.reservation >> 20)::integer, h.cost
from pgqueue.history h;

comment on view pgqueue.all_jobs is 'Every job, live and finished. select * from pgqueue.all_jobs where state = ''dead'' order by id desc limit 20;';
comment on column pgqueue.all_jobs.id is 'The id that enqueue returned.';
comment on column pgqueue.all_jobs.queue is 'Its queue.';
comment on column pgqueue.all_jobs.task is 'Its task.';
comment on column pgqueue.all_jobs.state is 'waiting, executing, failed (will be retried), blocked; succeeded, dead, cancelled.';
comment on column pgqueue.all_jobs.priority is 'Higher runs first.';
comment on column pgqueue.all_jobs.attempts is 'Attempts so far, including the current one.';
comment on column pgqueue.all_jobs.max_attempts is 'Attempts before it is dead, where the job itself sets that; null: the task decides.';
comment on column pgqueue.all_jobs.run_at is 'When it was to run, as enqueued.';
comment on column pgqueue.all_jobs.due_at is 'When it may be reserved: its run_at, its next attempt, or the end of a snooze.';
comment on column pgqueue.all_jobs.created_at is 'When it was enqueued.';
comment on column pgqueue.all_jobs.expires_at is 'Its first start must be before this; null once it began.';
comment on column pgqueue.all_jobs.reserved_at is 'When it was last reserved.';
comment on column pgqueue.all_jobs.reserved_by is 'The worker that holds it, or held it last.';
comment on column pgqueue.all_jobs.reservation is 'The reservation under which it is executing.';
comment on column pgqueue.all_jobs.lease_expires_at is 'When that reservation ends, unless extended.';
comment on column pgqueue.all_jobs.cancel_requested_at is 'When a cancel was requested while it was executing.';
comment on column pgqueue.all_jobs.finished_at is 'When it ended.';
comment on column pgqueue.all_jobs.kept_until is 'When its retention in history ends.';
comment on column pgqueue.all_jobs.losses is 'How often its reservation was lost: the lease lapsed, or its worker reconnected without it.';
comment on column pgqueue.all_jobs.key is 'The key: jobs of one queue and key run one at a time, in order.';
comment on column pgqueue.all_jobs.tags is 'Labels to search by.';
comment on column pgqueue.all_jobs.args is 'Arguments of the task.';
comment on column pgqueue.all_jobs.headers is 'Metadata besides args, such as a trace context and what middleware adds.';
comment on column pgqueue.all_jobs.errors is 'The last ten errors, oldest first.';
comment on column pgqueue.all_jobs.result is 'The result given to complete().';
comment on column pgqueue.all_jobs.retry is 'Retry options of the job itself, which override its task: policy, delay in seconds, queue.';
comment on column pgqueue.all_jobs.score is 'Position of a payload within its batch of an accumulating task; null: by the time of its enqueue.';
comment on column pgqueue.all_jobs.limit_key is 'The value to which limits of the kind limit_key apply.';
comment on column pgqueue.all_jobs.blocked_on is 'What a blocked job waits for: a limit; @parents, the jobs that it depends on; null: the job ahead of it in its key.';
comment on column pgqueue.all_jobs.leader is 'For a job that executes in a batch of an accumulating task: the job that leads the payloads of its key.';
comment on column pgqueue.all_jobs.dedupe is 'The dedupe key under which it was enqueued.';
comment on column pgqueue.all_jobs.merged_into is 'The job with the same payload that ran in its place.';
comment on column pgqueue.all_jobs.timeout is 'How long one attempt may take, where the job itself sets that; null: the task decides.';
comment on column pgqueue.all_jobs.crashes is 'How many workers died while they ran it; at max_crashes of its task (3) it is dead.';
comment on column pgqueue.all_jobs.crashed_on is 'The workers that died while they ran it.';
comment on column pgqueue.all_jobs.progress is 'The last progress that its handler reported: done, total, note, at.';
comment on column pgqueue.all_jobs.enqueued_by is 'Who enqueued it: the role that was logged in, and its application_name, if it had one; for a scheduled job, the word schedule and the name.';
comment on column pgqueue.all_jobs.depends_on is 'The jobs for which it waits, or waited.';
comment on column pgqueue.all_jobs.run_if is 'How those jobs must end so that it starts: succeeded, finished or failed.';
comment on column pgqueue.all_jobs.group_id is 'The group that it is a member of.';
comment on column pgqueue.all_jobs.claims is 'How often it was reserved.';
comment on column pgqueue.all_jobs.cost is 'How many units of its limits a start takes; null: 1.';
