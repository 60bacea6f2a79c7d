-- A database at the last revision of before the first release becomes one at 0001. What is changed in 0001_the_queue.sql
-- until the first release is changed here as well; tests/catalog/test_folding.py compares the two.

do $$
declare
    v_rename text;
begin
    update pgqueue.alembic_version set version_num = '0001' where version_num = '0021';
    if not found then
        raise 'the database is not at revision 0021';
    end if;
    alter table pgqueue.maintenance_runs rename column unparked to unblocked;
    alter table pgqueue.maintenance_runs rename column prolonged to grace_periods;
    -- Tables and columns were renamed, and the names that PostgreSQL 18 gives to NOT NULL were not.
    for v_rename in
        select format('alter table %s rename constraint %I to %I', k.conrelid::regclass, k.conname, n.name)
        from pg_constraint k
        join pg_class c on c.oid = k.conrelid
        join pg_attribute a on a.attrelid = k.conrelid and a.attnum = k.conkey[1]
        cross join lateral (select format('%s_%s_not_null', c.relname, a.attname) as name) n
        where k.connamespace = 'pgqueue'::regnamespace and k.contype = 'n' and k.coninhcount = 0 and k.conname <> n.name
    loop
        execute v_rename;
    end loop;
end
$$;

-- A letter became a word.
drop index pgqueue.notes_members;
alter table pgqueue.notes alter kind type text using case
    when name = 'back' then 'recount'
    else ('{"c": "parents", "w": "settle", "p": "ended", "r": "retried", "d": "doubtful", "g": "group", "m": "cancel",'
        ' "b": "revive", "e": "event", "s": "steps"}'::jsonb) ->> kind::text
end;
create index notes_by_id on pgqueue.notes (id) where kind in ('revive', 'superseded');
comment on column pgqueue.notes.kind is
    'parents: a new child and its parents. settle: a job that waits, and what it still waits for. ended: the children of a job that ended. retried: the children of a job that was retried. doubtful: a child whose dead or cancelled parent may come back. group: a group. recount: a group with members that were retried. cancel: the members of a group that is cancelled. revive: the members of a group that came back. event: an event. steps: an ended job, whose steps move to history. superseded: a job to cancel, because another one has its dedupe key.';
comment on column pgqueue.notes.name is 'How the parent ended, or the name of the event.';

-- A job has a cap of its own for its delays, and a delay that grows has one by default.
alter type pgqueue.job_options add attribute retry_cap interval;
comment on column pgqueue.tasks.retry_cap is
    'The longest delay of the policy, before a random part is added. Default: 1 hour for doubling; 1 day for exponential and sidekiq, or retry_delay if that is longer; none otherwise.';
comment on column pgqueue.jobs.retry is
    'Options for the retries of this job, which override those of its task: {"policy": ..., "delay": seconds, "queue": ..., "cap": seconds}; null: those of its task.';
alter table pgqueue.samples add column oldest_stuck_at timestamptz, add column is_ready_kept boolean not null default false;
create index samples_by_queue on pgqueue.samples (queue, span, at);
comment on column pgqueue.samples.oldest_stuck_at is
    'Since when the oldest job has waited for a limit or behind its key, or the oldest one whose task no worker knows; null: there is none.';
comment on column pgqueue.samples.is_ready_kept is
    'Whether waiting, due, scheduled and failed are of counted_at, too; otherwise of at: only blocked or dead jobs were too many.';
comment on column pgqueue.jobs.errors is
    'The last ten errors, oldest first: class, message, traceback, attempt, worker, reserved_at, at (when it failed) and retry_at; and policy_error, if the rule that decides about the retry failed itself.';

-- Pauses: rows are inserted and deleted, never updated, because many workers may throttle one target at the same time.
create table pgqueue.pauses (
    n bigint generated always as identity primary key,
    kind text not null check (kind in ('queue', 'task', 'limit_key')),
    target text collate "C" not null check (octet_length(target) between 1 and 512),
    source text not null check (source in ('operator', 'throttle', 'breaker')),
    until timestamptz not null,
    at timestamptz not null,
    reason text,
    by text not null
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
insert into pgqueue.pauses (kind, target, source, until, at, by)
select 'queue', q.name, 'operator', 'infinity', q.paused_at, session_user from pgqueue.queues q where q.paused_at is not null;
alter table pgqueue.queues drop column paused_at;
alter table pgqueue.jobs add column throttled_since timestamptz;
comment on column pgqueue.jobs.throttled_since is
    'Since when the job has only been throttled; after a day the next throttle counts as an attempt. Null: it was not throttled, or an attempt has counted, or gone back for another reason, since.';
alter table pgqueue.settings
    add column throttle_most interval not null default '1 hour' check (throttle_most between '1 s' and '30 days');
comment on column pgqueue.settings.throttle_most is
    'How long a throttle lasts at most, even if a handler asks for more.';
comment on column pgqueue.jobs.blocked_on is
    'The limit or pause for which a blocked job waits; null: it waits for the job ahead of it in its key.';
comment on column pgqueue.limit_waits.name is 'The limit, as kind:target; for a pause, pause:kind:target.';

-- Log lines of jobs, and the stacks of handlers.
alter table pgqueue.settings add column retention_logs interval not null default '7 days'
    check (retention_logs between '1 hour' and '2 years');
comment on column pgqueue.settings.retention_logs is 'How long a log line of a job is kept after it was written.';
alter table pgqueue.workers add column stack_of bigint, add column stack_asked_at timestamptz;
alter table pgqueue.workers
    drop constraint workers_command_check,
    add constraint workers_command_check check (command in ('quiet', 'stop', 'kill'));
comment on column pgqueue.workers.command is
    'The command that an operator gave it: quiet, stop or kill; null: none. See quiet_worker(), stop_worker() and kill_worker().';
comment on column pgqueue.workers.stack_of is
    'Private: the job whose handler''s stack an operator asked for, until the worker has read that.';
comment on column pgqueue.workers.stack_asked_at is
    'Private: when the stack was asked for; the request is valid for ten seconds.';
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

-- A filter finds errors that differ only in numbers, ids and quoted text.
alter type pgqueue.job_filter add attribute fingerprints text[];
alter type pgqueue.job_filter add attribute tenants text[];
alter type pgqueue.job_filter add attribute enqueued_by text[];
alter type pgqueue.job_filter add attribute retries bigint[];

-- The last troubles travel with the heartbeat.
alter table pgqueue.heartbeats add column troubles jsonb;
create index heartbeats_with_troubles on pgqueue.heartbeats (n) where troubles is not null;
comment on column pgqueue.heartbeats.troubles is
    'The last attempts that failed since the heartbeat before, as beat() takes them; null: none did. Read pgqueue.troubles instead.';
alter table pgqueue.heartbeats add column report_id bigint;
create unique index heartbeats_by_report on pgqueue.heartbeats (worker, report_id) where report_id is not null;
comment on column pgqueue.heartbeats.report_id is 'The id of the report that came with it, for one that is sent again.';

-- What became of the jobs of a bulk retry.
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

-- Fair queues.
alter table pgqueue.queues add column fair_by text collate "C" check (fair_by = 'limit_key');
comment on column pgqueue.queues.fair_by is
    'limit_key: among the due jobs of one priority tenants take turns, which are the values of limit_key, each by its share (see set_share). Null: jobs start in the order of their times.';
alter table pgqueue.queues add column max_share double precision check (max_share > 0 and max_share <= 1);
comment on column pgqueue.queues.max_share is
    'The part of a worker''s slots, rounded down and at least one, that one tenant of a fair queue may have: of ten slots 0.9 keeps one for all others. Null: a tenant may have all of them.';
alter table pgqueue.jobs add column lane_key text collate "C";
comment on column pgqueue.jobs.lane_key is
    'Private: the tenant in whose lane of a fair queue the job takes its turn, after eight digits of its hash. Null: its queue was not fair.';
-- Ready jobs again, in the lanes of tenants in fair queues. Other jobs do not pay for it.
create index jobs_in_lanes on pgqueue.jobs (queue, priority, lane_key, ready_at, id)
    where state in ('waiting', 'failed') and lane_key is not null and not resumed;
-- Jobs with a limit_key are handed off as well.
alter index pgqueue.jobs_parked rename to jobs_blocked;
drop index pgqueue.jobs_offered;
create index jobs_offered on pgqueue.jobs (reserved_by, reserved_at)
    where state = 'executing' and offered and key is null;
alter table pgqueue.lanes add column is_fair boolean not null default false;
comment on column pgqueue.lanes.is_fair is 'Whether tenants take turns in it.';

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
comment on column pgqueue.heads.queue is
    'The queue of the lane; empty: the leases, by the time at which they lapse. With a priority above 800, queue and tenant: see _lane_of.';
create type pgqueue.due_lane as (
    queue text, priority smallint, is_fair boolean, is_limited boolean, resumed boolean, head timestamptz, head_id bigint
);
comment on type pgqueue.due_lane is
    'Private: a lane in which a job is due; whether tenants take turns in it, its queue is under a limit, and these jobs came back at once; its head.';

create type pgqueue.tenant_turn as (
    lane_key text, credit integer, began text, has_shares boolean, is_shared boolean, has_rules boolean, heads text
);
comment on type pgqueue.tenant_turn is
    'Private: where the last claim of a worker from a fair queue ended, and what its next claims ask of each lane: see _find_in_turn.';
comment on type pgqueue.candidate is
    'Private: a job that a claim has locked, with what decides whether it may start: see _find_due.';

-- Comments were edited.
comment on type pgqueue.job_state is
    'waiting: due once its time has come. executing: reserved by a worker. failed: to be retried. blocked: it waits for another job or for a limit. Final: succeeded, dead (out of attempts), cancelled.';
comment on column pgqueue.settings.retention_cancelled is 'How long a cancelled job stays in history, in the same way.';
comment on column pgqueue.settings.retention_dead is 'How long a dead job stays in history, in the same way.';
comment on column pgqueue.settings.retention_parents is
    'How long history keeps a job that others waited for, at least.';
comment on column pgqueue.settings.retention_audit is
    'How long a row of the audit is kept. Only the owner of the schema may set it, because the audit records what operators do.';
comment on table pgqueue.queues is
    'The options that operators set for a queue; they take effect at once. A queue without a row has the defaults.';
comment on column pgqueue.queues.priority is
    'The priority of jobs for which neither the enqueue nor the task gives one.';
comment on column pgqueue.queues.retention_cancelled is
    'How long history keeps cancelled jobs of this queue; null: as settings says.';
comment on column pgqueue.queues.retention_dead is
    'How long history keeps dead jobs of this queue; null: as settings says.';
comment on column pgqueue.queues.weight is
    'The share of this queue in the claims of workers that are given no weights; a queue without one has 1.';
comment on column pgqueue.queues.retry_budget is
    'How many failed jobs of this queue may become due in one second; more are deferred to the next second with capacity. Null: no limit.';
comment on table pgqueue.tasks is
    'The options of a task. Code declares the declared_* columns when a worker starts. An operator sets the others, which override them, survive deploys and take effect at once.';
comment on column pgqueue.tasks.queue is 'The queue of jobs that are enqueued without one.';
comment on column pgqueue.tasks.priority is
    'The priority of jobs that are enqueued without one, -100 to 100; higher runs first.';
comment on column pgqueue.tasks.max_attempts is 'How many attempts a job has before it is dead; default 11.';
comment on column pgqueue.tasks.retry_policy is
    'How the delay after a failure is computed, with n retries so far. fixed: retry_delay. exponential (default): retry_delay + n^5 s. sidekiq: retry_delay (15 s) + n^4 s + up to 30 * (n + 1) s at random. doubling: a random part of retry_delay * 2^n. list: retry_delays one after the other. function: retry_function decides.';
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
comment on column pgqueue.tasks.retry_delays is
    'The delays of the policy list, one for each retry; further retries use the last one.';
comment on column pgqueue.tasks.retry_queue is 'The queue to which a failed job moves; null: it stays in its queue.';
comment on column pgqueue.tasks.retry_function is
    'The function that the policy function calls. Only the owner of the schema sets it, with set_retry_function(); code cannot declare it.';
comment on column pgqueue.tasks.accumulate is
    'Whether all due payloads of a key are handled in one batch; default false.';
comment on column pgqueue.tasks.batch_size is
    'For an accumulating task: how many keys are handled in one call of the handler; default 1.';
comment on column pgqueue.tasks.timeout is 'How long one attempt may take; null: no limit.';
comment on column pgqueue.tasks.max_crashes is
    'How many workers may die while they run a job before the job is dead; default 3.';
comment on column pgqueue.tasks.declared_docs is
    'The address of the documentation of the task, such as a runbook, as declared by the code.';
comment on column pgqueue.tasks.declared_owner is 'Who is responsible for the task, as declared by the code.';
comment on table pgqueue.limits is
    'How many jobs may execute at the same time, and start within a time, over the whole fleet. A change takes effect at once.';
comment on column pgqueue.limits.kind is
    'queue, task, key (all keys that begin with target, together) or limit_key (each value by itself; target* for all values that begin with target).';
comment on column pgqueue.limits.max_executing is 'How many jobs may execute at the same time; null: no such limit.';
comment on column pgqueue.limits.rate is
    'How many jobs may start in any period of the length per; null: no such limit.';
comment on column pgqueue.limits.per is 'The length of the period for rate.';
-- The jump tables of a parsed expression became texts of the allowed values: an allowed value is the next one of itself.
create function pgqueue._allowed_values(p_spec bytea)
returns text[]
language sql immutable strict
set search_path = pg_catalog, pg_temp
as $$
    select array_agg(f.mask order by f.n)
        || array[(get_byte(p_spec, 201) & 1 <> 0)::text, (get_byte(p_spec, 201) & 2 <> 0)::text]
    from (
        select
            k.n,
            string_agg(
                case
                    when k.n < 6 then (get_byte(p_spec, k.start + v) = v)::integer
                    else (get_byte(p_spec, k.start + v % 7) = 0)::integer
                end::text,
                '' order by v
            ) as mask
        from (values (1, 0, 59), (2, 61, 59), (3, 122, 23), (4, 147, 31), (5, 180, 12), (6, 194, 13)) k (n, start, most)
        cross join lateral generate_series(0, k.most) v
        group by k.n
    ) f
$$;
alter table pgqueue.schedules alter spec type text[] using pgqueue._allowed_values(spec);
drop function pgqueue._allowed_values(bytea);
comment on table pgqueue.schedules is
    'Schedules, which enqueue jobs by the clock. An operator sets paused_at, expression and timezone, which survive deploys and take effect within a second. The other columns are as schedule() last wrote them. Read pgqueue.effective_schedules.';
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
comment on column pgqueue.schedules.headers is
    'Headers of its jobs, in addition to schedule and scheduled_at, which each of them has.';
comment on column pgqueue.schedules.tags is 'The tags of its jobs.';
comment on column pgqueue.schedules.retention is
    'How long history keeps its jobs; null: as the task says, then the queue, then settings.';
comment on table pgqueue.jobs is 'Live jobs. Read pgqueue.all_jobs instead, and write through the functions.';
comment on column pgqueue.jobs.id is 'The id that enqueue() returned; ids grow with time.';
comment on column pgqueue.jobs.reservation is
    'The fencing token: it grows with every claim of this job and is never reused. complete(), fail(), extend(), release() and snooze() take it.';
comment on column pgqueue.jobs.run_at is 'When the job is to run, as its producer asked.';
comment on column pgqueue.jobs.ready_at is
    'Private: its position in the ready index: the time from which reserve() may return the job.';
comment on column pgqueue.jobs.expires_at is
    'The job is cancelled if it has not started by then. Null: it never expires.';
comment on column pgqueue.jobs.lease_expires_at is 'Until when the reservation holds, unless it is extended.';
comment on column pgqueue.jobs.lease is 'The length of the lease, as last given to reserve() or extend().';
comment on column pgqueue.jobs.retention is
    'How long history keeps this job; null: as its task says, then its queue, then settings.';
comment on column pgqueue.jobs.attempts is
    'The attempts so far, including the one under way. A release, a snooze and a lapsed lease do not use one.';
comment on column pgqueue.jobs.max_attempts is 'How many attempts it has before it is dead; null: as its task says.';
comment on column pgqueue.jobs.priority is 'The priority, -100 to 100; higher runs first.';
comment on column pgqueue.jobs.resumed is
    'Private: whether the job came back (released, lease lapsed, retried by hand); such jobs are read before the others of their lane.';
comment on column pgqueue.jobs.grace_given is
    'Private: whether this reservation has had its grace period after a gap in maintenance.';
comment on column pgqueue.jobs.task is 'The task: the named function that a worker runs.';
comment on column pgqueue.jobs.key is
    'The key: jobs of one queue and key run one at a time, in the order of their ids.';
comment on column pgqueue.jobs.reserved_by is 'The worker that holds the job, or held it last.';
comment on column pgqueue.jobs.args is 'The arguments of the task, a JSON object.';
comment on column pgqueue.jobs.headers is 'Metadata besides args, such as a trace context and what middleware adds.';
comment on column pgqueue.jobs.leader is
    'For a job in a batch of an accumulating task: the job that represents all payloads of its key; the leader has its own id here while it executes.';
comment on column pgqueue.jobs.followers is 'For a leader: the jobs with the other payloads of its key in this batch.';
comment on column pgqueue.jobs.score is
    'The order of a payload within the batch of an accumulating task; null: by the time of its enqueue.';
comment on column pgqueue.jobs.limit_key is 'The value to which limits of the kind limit_key apply.';
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
comment on column pgqueue.jobs.offered is
    'Private: whether its enqueue saw an idle worker; then _hand_off() reads the job again when that transaction commits. Null: it did not look.';
comment on table pgqueue.history is 'Finished jobs, until their retention ends. Read pgqueue.all_jobs instead.';
comment on column pgqueue.history.reservation is
    'Its last reservation; if the job is retried, the next one is counted from it.';
comment on column pgqueue.history.run_at is 'When it was to run, as its producer asked.';
comment on column pgqueue.history.kept_until is 'When its retention ends.';
comment on table pgqueue.history_days is 'Private: rows kept up to 8 days, one partition for each day on which their retention ends.';
comment on table pgqueue.history_months is 'Private: rows kept longer, one partition for each month in which their retention ends.';
comment on column pgqueue.history.retention is
    'How long history keeps it, if the job itself says so; null: its task, queue or settings say so.';
comment on column pgqueue.history.attempts is 'How many attempts it used.';
comment on column pgqueue.history.max_attempts is 'How many attempts it had, if the job itself said so.';
comment on column pgqueue.history.granularity is 'Private: d or m, for the partition of a day or of a month.';
comment on column pgqueue.history.key is 'Its key.';
comment on column pgqueue.history.args is 'The arguments of the task.';
comment on column pgqueue.history.headers is
    'Metadata besides args, such as a trace context and what middleware added.';
comment on column pgqueue.history.result is 'The result that complete() was given.';
comment on column pgqueue.history.retry is 'The options for retries of the job itself.';
comment on column pgqueue.history.score is 'Its order within the batch of an accumulating task.';
comment on column pgqueue.history.limit_key is 'The value to which limits of the kind limit_key applied.';
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
comment on column pgqueue.lanes.seen_at is
    'When the lane was last seen in use; a lane that has been empty for an hour is dropped.';
comment on table pgqueue.heads is
    'Private: low-water marks. No job of a sub-lane is ready below its newest head, a pair of a time and an id.';
comment on column pgqueue.heads.n is 'The order in which rows were written.';
comment on column pgqueue.heads.at is 'When the row was written.';
comment on column pgqueue.heads.xid is
    'The transaction that wrote the row. If this server has no such transaction, the row came with a dump and does not count.';
comment on column pgqueue.heads.idle_since is 'Since when no job of the lane has been due or claimed; null: one has.';
comment on column pgqueue.heads.newest_id is 'The newest job at that time.';
comment on column pgqueue.heads.resumed is 'Which sub-lane: the one of jobs that came back, or the ordinary one.';
comment on column pgqueue.heads.open_xids is
    'Transactions that have been open for long and may still commit jobs below the head. Once one of them has ended, its fallback becomes the head.';
comment on column pgqueue.heads.fallback_heads is
    'Fallbacks: for each of open_xids, the time to which the head falls back when that transaction ends.';
comment on column pgqueue.heads.head_id is
    'The id of the head: of the jobs of exactly that time, none with a lower id is ready.';
comment on table pgqueue.head_marks is
    'Private: while there is a row, heads do not count, and claims read from the beginning. Usually empty.';
comment on column pgqueue.head_marks.reason is
    'clock: the clock stepped back, so no head counts. key: a job with a key got its old id again, so the head of jobs with keys does not count.';
comment on column pgqueue.head_marks.n is 'The order in which rows were written.';
comment on column pgqueue.head_marks.at is 'When the row was written; of a key, once maintain() has seen it: when it first did.';
comment on column pgqueue.head_marks.seen_xid is
    'All transactions with an earlier xid may have begun before maintain() saw the row; null: it has not seen it yet.';
comment on table pgqueue.horizons is
    'Private: safe points: a time, and a transaction that took its xid after it. A transaction with a later xid makes no job ready before that time.';
comment on column pgqueue.horizons.n is 'The order in which rows were written.';
comment on column pgqueue.horizons.newest_id is 'The newest id that a job had at that time; null: unknown.';
comment on table pgqueue.lease_promises is
    'Private: leases that extend() granted while another session had locked the row of the job, so that they could not be written there.';
comment on column pgqueue.lease_promises.reservation is
    'The reservation that asked for it. When the job gets another reservation, the row is void.';
comment on column pgqueue.lease_promises.lease is 'The length of the lease.';
comment on table pgqueue.key_notes is
    'Private: keys of which the next maintain() or idle reserve() is to release the next job, once no claim blocks jobs behind job_id.';
comment on column pgqueue.key_notes.n is 'The order in which rows were written.';
comment on column pgqueue.key_notes.job_id is
    'The job that left its position while a claim was blocking others behind it; null: there is none.';
comment on column pgqueue.key_notes.next_at is 'When to check it.';
comment on table pgqueue.dedupe_keys is 'Private: which job holds a dedupe key.';
comment on column pgqueue.dedupe_keys.task is 'The task; dedupe keys of two tasks are independent.';
comment on column pgqueue.dedupe_keys.job_id is 'The job that holds the key.';
comment on column pgqueue.dedupe_keys.until is
    'Until when it holds the key, even if the job has ended; null: as long as the job lives.';
comment on column pgqueue.limit_starts.at is 'When the jobs started.';
comment on column pgqueue.limit_starts.started is 'How many jobs started.';
comment on column pgqueue.limit_waits.n is 'The order in which rows were written.';
comment on column pgqueue.limit_waits.next_at is 'When to check it.';
comment on column pgqueue.limit_waits.timed is
    'Whether a rate will have capacity at that time: then workers wake for it.';
comment on table pgqueue.retry_bookings is
    'Private: how many retries become due in which second, for queues with a retry_budget.';
comment on column pgqueue.retry_bookings.n is
    'The order in which rows were written; of the rows for one second, the newest counts.';
comment on column pgqueue.retry_bookings.second is 'The beginning of the second.';
comment on column pgqueue.retry_bookings.full_until is
    'All seconds from this one until that time have no capacity left; null: not known.';
comment on column pgqueue.retry_bookings.booked is 'How many retries are booked for it.';
comment on table pgqueue.schedule_runs is
    'The outcome of each instant of each schedule, kept for a week. Read pgqueue.schedule_history instead.';
comment on column pgqueue.schedule_runs.n is 'The order in which rows were written.';
comment on column pgqueue.schedule_runs.at is 'The instant at which the schedule was due; null: the row is about none.';
comment on column pgqueue.schedule_runs.decided_at is 'When the row was written.';
comment on column pgqueue.schedule_runs.outcome is
    'enqueued; overlap: skipped, because the previous job was live; planned: nothing was due, but next_at was set, or missed runs were skipped; manual: run_schedule_now(); error.';
comment on column pgqueue.schedule_runs.job_id is 'The job that was enqueued.';
comment on column pgqueue.schedule_runs.passed_from is
    'The first of the missed instants that were skipped, as catch_up says.';
comment on column pgqueue.schedule_runs.retry_at is 'After an error: when the schedule is tried again.';
comment on column pgqueue.schedule_runs.rule is
    'Private: the rule from which next_at was computed; if the schedule has another rule, it is computed anew. Null: next_at does not count.';
comment on column pgqueue.schedule_runs.error is 'The error.';
comment on table pgqueue.dependencies is
    'Private: a job, and one that waits for it. The row is deleted when the job succeeds; otherwise it stays until the waiting job starts or is gone.';
comment on column pgqueue.dependencies.parent is 'The job for which the child waits.';
comment on column pgqueue.dependencies.traceless is
    'Whether a parent that is found nowhere has succeeded, because history does not keep such jobs.';
comment on table pgqueue.traces is
    'Private: a job that did not succeed and that history does not keep, for as long as a transaction of its time is open.';
comment on column pgqueue.traces.open is
    'The virtual ids of the transactions that were open when maintain() first saw the row; null: it has not seen it yet.';
comment on table pgqueue.events is 'Events that were emitted, until their retention ends.';
comment on column pgqueue.events.payload is 'The payload that emit_event() was given.';
comment on column pgqueue.event_waits.until is 'When the job continues without the event; null: never.';
comment on column pgqueue.event_waits.since is 'When the job began to wait.';
comment on table pgqueue.notes is 'Private: a job or group to check again in a later transaction.';
comment on column pgqueue.notes.n is 'The order in which rows were written.';
comment on column pgqueue.notes.after is 'The children up to this id are done.';
comment on column pgqueue.notes.xid is 'The transaction that left the note, which cannot see concurrent transactions.';
comment on table pgqueue.workers is
    'Registered workers. A row is written at start and end only; heartbeats say whether a worker is alive.';
comment on column pgqueue.workers.channel is 'The NOTIFY channel of this worker alone.';
comment on column pgqueue.workers.queues is 'The queues that it serves; null: all.';
comment on column pgqueue.workers.info is 'What it reports about itself, such as host, pid, version and concurrency.';
comment on column pgqueue.workers.commanded_at is 'When the command was given.';
comment on column pgqueue.workers.obeyed_at is
    'When the worker reported that it follows the command; null: it has not yet.';
comment on column pgqueue.workers.database is
    'The oid of the database in which the worker registered: in a copy of that database the row does not count. Null: the row was written before this was recorded.';
alter table pgqueue.workers add column server_started_at timestamptz;
comment on column pgqueue.workers.server_started_at is
    'When the server started in which the worker registered. After a failover or a restart, and in a copy, the worker does not count as alive until it has registered again. Null: the row was written before this was recorded.';
comment on column pgqueue.heartbeats.n is 'The order in which heartbeats arrived.';
comment on column pgqueue.heartbeats.at is 'When the heartbeat arrived.';
comment on column pgqueue.heartbeats.memory is
    'The resident memory of the worker''s process in bytes; null: it did not report it.';
comment on table pgqueue.worker_reports is
    'Private: what workers have counted since their last heartbeat, until the next sample includes it.';
comment on column pgqueue.worker_reports.n is 'The order in which reports arrived.';
comment on column pgqueue.worker_reports.report is 'The report that it gave to beat().';
comment on table pgqueue.idle_workers is 'Private: idle registrations, of workers that wait for NOTIFY.';
comment on column pgqueue.idle_workers.queue is 'A queue that it serves; empty: all queues.';
comment on column pgqueue.idle_workers.until is 'Until when it counts as idle; it polls by itself before that.';
comment on column pgqueue.idle_workers.handoff_channel is
    'The channel on which it receives jobs that enqueue() reserves for it; null: it receives none.';
comment on table pgqueue.maintenance_runs is 'Private: runs of maintain(). Read stats() instead.';
comment on column pgqueue.maintenance_runs.n is 'The order of the runs.';
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
comment on sequence pgqueue.step_under_way is 'Private: the number of the step that maintain() runs; 0: none.';
comment on table pgqueue.samples is
    'The numbers of each queue, written every 10 s by maintain(), for pages, monitors and stats(recent => true). A queue without a row at a time was empty; the queue '''' stands for all queues. select at, due, ended from pgqueue.samples where queue = ''mail'' and span = 10 order by at desc limit 360;';
comment on column pgqueue.samples.n is 'The order in which rows were written.';
comment on column pgqueue.samples.at is 'When the sample was taken; for a row of 600 s, when that time ended.';
comment on column pgqueue.samples.span is
    'How many seconds the row stands for: 10 (kept for a day), or 600 (kept for 90 days).';
comment on column pgqueue.samples.due is 'Waiting and failed jobs that may start now.';
comment on column pgqueue.samples.scheduled is 'Waiting and failed jobs that may not start yet.';
comment on column pgqueue.samples.failed is 'Jobs in the state failed, which will be retried.';
comment on column pgqueue.samples.oldest_due_at is
    'Since when the oldest due job may start; for a row of 600 s, in the sample with the greatest lag.';
comment on column pgqueue.samples.ended is
    'What started and ended since the previous row, as workers reported it: for each task, the attempts that started (workers of 0.1.0 do not report them), the jobs by outcome (succeeded, failed, dead, cancelled, snoozed, lost), and run and wait: sum and max in seconds, and a histogram with buckets up to 0.001, 0.004, 0.016, 0.064, 0.25, 1, 4, 16, 60, 300, 3600 s and more. Null: nothing.';
comment on column pgqueue.samples.blocked_by_limit is
    'How many of the blocked jobs wait for a limit. Null: the row was written before this was recorded.';
comment on column pgqueue.samples.blocked_by_parents is
    'How many of the blocked jobs wait for other jobs to end; the others wait behind a job of their key.';
comment on column pgqueue.samples.counted_at is
    'When the numbers were counted, except executing and oldest_due_at; null: they have not been counted in full yet.';
comment on table pgqueue.grants is
    'The rights that grant_access() gave; they are granted again whenever the functions are reloaded.';
comment on column pgqueue.grants.role_oid is
    'The oid of the role: a role that was renamed keeps its rights, and a new role with an old name gets none.';
alter table pgqueue.grants add column recorded_in oid;
comment on column pgqueue.grants.recorded_in is
    'Private: the oid that this table had when role_oid was recorded. In a restored dump it is another one, and roles go by their names.';
comment on table pgqueue.audit is
    'The actions of operators, one row for each function that they called; kept for settings.retention_audit. select * from pgqueue.audit order by n desc limit 20;';
comment on column pgqueue.audit.n is 'The order of the actions.';
comment on column pgqueue.audit.at is 'When the function was called.';
comment on column pgqueue.audit.actor is
    'Who called it: the setting pgqueue.actor, which a page or a script sets to the person that uses it; else the role that logged in.';
comment on column pgqueue.audit.filter is 'The arguments; of many job_ids, the first hundred.';
comment on column pgqueue.audit.changed is 'How many jobs or rows it changed.';
comment on column pgqueue.audit.via is 'The program: the setting pgqueue.via, else application_name.';
comment on table pgqueue.releases is
    'The versions of the functions that were loaded, newest last. A worker reads it when it starts.';
comment on column pgqueue.releases.n is 'The order in which they were loaded.';
comment on column pgqueue.releases.revision is 'The revision of the tables.';
comment on column pgqueue.releases.version is 'The version of the Python package that loaded them.';
comment on column pgqueue.releases.installed_at is 'When they were loaded.';
comment on type pgqueue.job_options is 'Private: the options of a job, as enqueue() takes them.';
comment on type pgqueue.job_filter is 'Private: the filter of search(), parsed.';
comment on type pgqueue.found_job is
    'Private: a job that matches a filter; granularity and kept_until lead to the partition of an ended one.';
comment on type pgqueue.sub_lane is 'Private: the ordinary jobs of a lane, or those that came back.';
comment on type pgqueue.start is
    'Private: a job that a claim starts by itself: plain, keyed, or gather (with the other payloads of its key). opens: it is the first in its slot.';
comment on type pgqueue.turn is 'Private: a queue that slots of a claim drew, and the numbers of these slots.';
comment on type pgqueue.draw is
    'Private: which queues the slots of a claim drew, and with which result: see _next_turn.';
comment on type pgqueue.failure is
    'Private: a failed attempt as its worker reports it, with the arguments of fail(); n: its position in the call.';
comment on type pgqueue.failed_attempt is
    'Private: a failure with the retry options of its job and task, and with the outcome: state, and ready_at if the job is retried.';
comment on type pgqueue.ended_job is 'Private: a job that ended, with what other jobs may wait for: see _follow_ends.';
comment on type pgqueue.end_report is 'Private: what exchange() reports about a job that ended: see _end_jobs.';

-- Limits count units, and a rate may be a bucket.
alter table pgqueue.limits drop constraint limits_rate_check;
alter table pgqueue.limits drop constraint limits_check;
alter table pgqueue.limits add column max_cost integer check (max_cost between 1 and 1000000000);
alter table pgqueue.limits add column burst integer check (burst between 1 and 1000000000);
alter table pgqueue.limits add constraint limits_rate_check check (rate between 1 and 1000000000);
alter table pgqueue.limits add column breaks boolean;
alter table pgqueue.limits add column set_at timestamptz;
alter table pgqueue.limits add column n bigint generated always as identity;
alter table pgqueue.limits add constraint limits_check check (num_nonnulls(max_executing, rate, max_cost, breaks) > 0);
alter table pgqueue.limits add constraint limits_check2 check (burst is null or rate is not null);
comment on column pgqueue.limits.rate is
    'How many units may start in any period of the length per; each job is as many units as its cost, 1 by default. Null: no such limit.';
comment on column pgqueue.limits.max_cost is 'How many units of jobs may execute at the same time; null: no such limit.';
comment on column pgqueue.limits.burst is
    'The size of a bucket of units, which is filled at the rate; null: the rate holds for any period.';
comment on column pgqueue.limits.breaks is
    'Whether a breaker is set for the same kind and target; null: none is. Ends read this row anyway.';
comment on column pgqueue.limits.set_at is
    'When set_limit() changed it last: workers give back what they have claimed before and not started.';
comment on column pgqueue.limits.n is 'Private: its sequence says whether there ever was a limit: see _ruled_tasks.';
alter table pgqueue.jobs set (
    fillfactor = 50, autovacuum_vacuum_insert_threshold = 100000, autovacuum_vacuum_insert_scale_factor = 0
);
alter table pgqueue.jobs add column cost integer;
comment on column pgqueue.jobs.cost is 'How many units of its limits a start takes; null: 1.';
alter table pgqueue.history add column cost integer;
comment on column pgqueue.history.cost is 'How many units of its limits a start took; null: 1.';
comment on column pgqueue.limit_starts.started is 'How many units started, or what spent() added or gave back.';
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
alter type pgqueue.job_options add attribute cost integer;
alter type pgqueue.touched_limit
    add attribute max_cost integer, add attribute burst integer, add attribute units bigint, add attribute waiting smallint;

-- Breakers.
alter table pgqueue.pauses add column half_open_at timestamptz;
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
alter type pgqueue.failed_attempt add attribute reserved_at timestamptz;
alter type pgqueue.ended_job add attribute reserved_at timestamptz;
-- Where there are many lanes, claims go round those that have something due, and empty ones leave soon.
alter table pgqueue.lanes
    drop column seen_at,
    add column due_from timestamptz not null default '-infinity',
    add column until timestamptz not null default clock_timestamp() + interval '1 hour',
    add column turn double precision not null default random();
alter table pgqueue.lanes alter column until drop default;
alter table pgqueue.lanes set (fillfactor = 70);
create index lanes_in_turn on pgqueue.lanes (priority, turn) where due_from = '-infinity';
create index lanes_later on pgqueue.lanes (due_from) where due_from > '-infinity';
comment on column pgqueue.lanes.due_from is
    'Where there are more than 64 rows, claims visit the lane from then on; it holds nothing that is due before.';
comment on column pgqueue.lanes.until is
    'Who makes a job ready before then, and not before due_from, relies on this row; later, a row is inserted. It stays until all those transactions have ended.';
comment on column pgqueue.lanes.turn is
    'Where there are more than 64 rows, claims visit the lanes of a priority in this order, from where the last one ended.';
alter table pgqueue.maintenance_runs add column due_lanes integer;
comment on column pgqueue.maintenance_runs.due_lanes is
    'Where there are more than 64 lanes, how many of them claims go round, up to 10,000. Null: claims visit each.';
alter table pgqueue.maintenance_runs add column busy_lanes text[];
comment on column pgqueue.maintenance_runs.busy_lanes is
    'In fair queues the tenants that execute more than their part, and come after all others: the length of the name of the queue, that name, and the lane.';
create index queues_weighted on pgqueue.queues (name) where weight <> 1;
create index queues_kept on pgqueue.queues (name)
    where num_nonnulls(retention_succeeded, retention_cancelled, retention_dead) > 0;
create index tasks_kept on pgqueue.tasks (name)
    where num_nonnulls(
        retention_succeeded, retention_cancelled, retention_dead,
        declared_retention_succeeded, declared_retention_cancelled, declared_retention_dead
    ) > 0;
create type pgqueue.lane_round as (lanes pgqueue.due_lane[], turn text, is_drawn boolean, is_whole boolean);
comment on type pgqueue.lane_round is 'Private: the lanes that a claim visits where there are many: see _next_lanes.';
alter type pgqueue.draw add attribute share integer, add attribute round pgqueue.lane_round;
create type pgqueue.rule as (
    name text, kind text, target text, max_executing integer, rate integer, per interval, max_cost integer, burst integer,
    until timestamptz, rule text
);
comment on type pgqueue.rule is 'Private: a limit, a pause or a half-open breaker that a job is under: see _rules_of.';
