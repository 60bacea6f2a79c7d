-- Keys (one at a time and in order), accumulating tasks, dedupe, and limits.

alter table pgqueue.jobs
    add column leader bigint,
    add column followers bigint[],
    add column score numeric,
    add column limit_key text collate "C",
    add column blocked_on text collate "C",
    add column dedupe text collate "C";
comment on column pgqueue.jobs.key is 'Order group: jobs of one queue and key run one at a time, in the order of their ids.';
comment on column pgqueue.jobs.leader is
    'Of a job executing in a call of an accumulating task: the job that stands for all payloads of its key; its own id on that one.';
comment on column pgqueue.jobs.followers is 'Of a leader: the jobs with the other payloads of its key, in its call.';
comment on column pgqueue.jobs.score is 'Order of a payload within its call of an accumulating task; null: by the time of its enqueue.';
comment on column pgqueue.jobs.limit_key is 'What limits of the kind limit_key go by.';
comment on column pgqueue.jobs.blocked_on is 'The limit that a blocked job waits for; null: it waits for the job ahead of it in its key.';
comment on column pgqueue.jobs.dedupe is 'The dedupe key under which it was enqueued.';

alter table pgqueue.history
    add column score numeric,
    add column limit_key text collate "C",
    add column dedupe text collate "C",
    add column merged_into bigint;
comment on column pgqueue.history.key is 'Its order group.';
comment on column pgqueue.history.score is 'Its place within a call of an accumulating task.';
comment on column pgqueue.history.limit_key is 'What limits of the kind limit_key went by.';
comment on column pgqueue.history.dedupe is 'The dedupe key under which it was enqueued.';
comment on column pgqueue.history.merged_into is 'The job with the same payload that ran instead of it.';

-- Two executing jobs of one key are impossible, whatever the code does. The payloads of one call count as one job.
create unique index jobs_key_executing on pgqueue.jobs (key, queue)
    where state = 'executing' and key is not null and (leader is null or leader = id);
-- Who holds a place in a key besides: a job never tried, while its run_at has passed; one that is parked or was ever
-- reserved, always. Each live row stands in at most one of the three. Jobs without a key pay for none.
create index jobs_key_waiting on pgqueue.jobs (queue, key, id, run_at)
    where key is not null and state = 'waiting' and reservation = 0;
create index jobs_key_held on pgqueue.jobs (queue, key, id)
    where key is not null and (state = 'blocked' or (state in ('waiting', 'failed') and reservation > 0));
-- Of an accumulating task fresh payloads wait for those that failed: which of them are not due yet?
create index jobs_key_returned on pgqueue.jobs (queue, key, ready_at)
    where key is not null and state in ('waiting', 'failed') and reservation > 0;

-- Limits count what executes, and stop at the limit: the index of leases answers that too, for those who have limits.
-- Every index of jobs costs every enqueue, for its sake there is no other.
drop index pgqueue.jobs_lease;
create index jobs_lease on pgqueue.jobs (lease_expires_at, queue, task, limit_key) where state = 'executing';

-- Above READ COMMITTED a job that ends cannot see who was parked behind it meanwhile: it leaves a note.
create table pgqueue.key_notes (
    n bigint generated always as identity primary key,
    queue text collate "C" not null,
    key text collate "C" not null
);
comment on table pgqueue.key_notes is 'Private: keys whose next job the next maintain() or idle reserve() is to release.';
comment on column pgqueue.key_notes.n is 'Order.';
comment on column pgqueue.key_notes.queue is 'The queue.';
comment on column pgqueue.key_notes.key is 'The key.';

alter table pgqueue.tasks
    add column accumulate boolean,
    add column batch_size integer check (batch_size between 1 and 1000),
    add column declared_accumulate boolean,
    add column declared_batch_size integer check (declared_batch_size between 1 and 1000);
comment on column pgqueue.tasks.accumulate is 'Whether all due payloads of a key go to one call; default false.';
comment on column pgqueue.tasks.batch_size is 'Of an accumulating task: how many keys one call gets; default 1.';
comment on column pgqueue.tasks.declared_accumulate is 'accumulate, as declared by the code.';
comment on column pgqueue.tasks.declared_batch_size is 'batch_size, as declared by the code.';

-- Limits, by count of what executes and by rate of starts.
create table pgqueue.limits (
    kind text not null check (kind in ('queue', 'task', 'key', 'limit_key')),
    target text collate "C" not null check (octet_length(target) between 1 and 512),
    max_executing integer check (max_executing between 0 and 1000000),
    rate integer check (rate between 1 and 1000000),
    per interval check (per >= '1 ms' and per <= '31 days'),
    primary key (kind, target),
    check (max_executing is not null or rate is not null),
    check ((rate is null) = (per is null))
);
comment on table pgqueue.limits is 'How many jobs may execute at a time, and start in a time, over the whole fleet. A change takes effect at once.';
comment on column pgqueue.limits.kind is
    'queue, task, key (all keys that begin with target, together) or limit_key (each value for itself; target* for all values that begin so).';
comment on column pgqueue.limits.target is 'The queue, the task, the beginning of keys, or the limit_key.';
comment on column pgqueue.limits.max_executing is 'At most so many execute at a time; null: no limit of this sort.';
comment on column pgqueue.limits.rate is 'At most so many start in any stretch of time as long as per; null: no limit of this sort.';
comment on column pgqueue.limits.per is 'The length of that time.';

create index jobs_parked on pgqueue.jobs (blocked_on, priority desc, ready_at, id)
    where state = 'blocked' and blocked_on is not null;

-- Starts are inserted and summed over the time that counts; nothing is updated in place.
create table pgqueue.limit_starts (
    name text collate "C" not null,
    at timestamptz not null,
    started integer not null
);
create index limit_starts_by_time on pgqueue.limit_starts (name, at);
create index limit_starts_past on pgqueue.limit_starts (at);
comment on table pgqueue.limit_starts is 'Private: starts under a rate limit.';
comment on column pgqueue.limit_starts.name is 'The limit: kind:target.';
comment on column pgqueue.limit_starts.at is 'When.';
comment on column pgqueue.limit_starts.started is 'How many.';

create table pgqueue.limit_waits (
    n bigint generated always as identity primary key,
    name text collate "C" not null,
    next_at timestamptz not null,
    timed boolean not null default false
);
create index limit_waits_timed on pgqueue.limit_waits (next_at) where timed;
create index limit_waits_by_time on pgqueue.limit_waits (next_at);
create index limit_waits_by_name on pgqueue.limit_waits (name, next_at);
comment on table pgqueue.limit_waits is 'Private: limits with parked jobs, and when to look whether they have room.';
comment on column pgqueue.limit_waits.n is 'Order.';
comment on column pgqueue.limit_waits.name is 'The limit: kind:target.';
comment on column pgqueue.limit_waits.next_at is 'When to look.';
comment on column pgqueue.limit_waits.timed is 'Whether there will be room then, as a rate says: workers wake for it.';

-- Who stands for a dedupe key. A row of its own, for it may outlive its job.
create table pgqueue.dedupe_keys (
    task text collate "C" not null,
    dedupe text collate "C" not null,
    job_id bigint not null,
    until timestamptz,
    primary key (task, dedupe)
);
create index dedupe_keys_until on pgqueue.dedupe_keys (until) where until is not null;
create index dedupe_keys_by_job on pgqueue.dedupe_keys (job_id);
comment on table pgqueue.dedupe_keys is 'Private: which job stands for a dedupe key.';
comment on column pgqueue.dedupe_keys.task is 'The task: the scope of dedupe.';
comment on column pgqueue.dedupe_keys.dedupe is 'The dedupe key.';
comment on column pgqueue.dedupe_keys.job_id is 'The job that stands.';
comment on column pgqueue.dedupe_keys.until is 'Until when it stands, whatever becomes of the job; null: while the job lives.';

alter table pgqueue.settings
    add column dedupe_wait interval not null default '5 s' check (dedupe_wait >= '0' and dedupe_wait <= '1 hour');
comment on column pgqueue.settings.dedupe_wait is
    'How long an enqueue waits for an open transaction that holds its dedupe key, before it fails with 55P03. Default 5 seconds.';

alter table pgqueue.housekeeping
    add column unparked bigint not null default 0,
    add column key_cursor text[];
comment on column pgqueue.housekeeping.unparked is 'Jobs found parked with nothing ahead of them, in all; none as a rule.';
comment on column pgqueue.housekeeping.key_cursor is 'Private: queue and key up to which it looked for such jobs.';
