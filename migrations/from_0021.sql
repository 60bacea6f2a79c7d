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
    -- Tables were renamed, and the names that PostgreSQL 18 gives to NOT NULL were not.
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
create index notes_members on pgqueue.notes (id) where kind = 'revive';
comment on column pgqueue.notes.kind is
    'parents: a new child, with its parents; settle: a job that waits, with what is left of its waiting; ended: the children of a job that ended; retried: the children of a job that was retried; doubtful: a child whose dead or cancelled parent may be on its way back; group: a group; recount: one with members that were retried; cancel: the members of a group that is cancelled; revive: those of one that came back; event: an event; steps: an ended job, with steps to move to history; superseded: a job to cancel, as another has its dedupe key.';
comment on column pgqueue.notes.name is 'How the parent ended, or the event.';

-- A job has a cap of its own for its delays, and a delay that grows has one by default.
alter type pgqueue.job_options add attribute retry_cap interval;
comment on column pgqueue.tasks.retry_cap is
    'Longest delay of the policy, before anything random is added; default 1 hour for doubling, 1 day for exponential and sidekiq (or retry_delay, if that is longer), none otherwise.';
comment on column pgqueue.jobs.retry is
    'Options for retries of this job, over those of its task: {"policy": ..., "delay": seconds, "queue": ..., "cap": seconds}; null: those of its task.';
alter table pgqueue.samples add column oldest_stuck_at timestamptz;
comment on column pgqueue.samples.oldest_stuck_at is
    'Since when the oldest job waits for a limit or behind its key, or the oldest one whose task no worker knows; null: there is none.';
comment on column pgqueue.jobs.errors is
    'The last ten errors, oldest first: class, message, traceback, attempt, worker, reserved_at, at, when it failed, and retry_at; policy_error, where the rule that had to say when to retry failed itself.';

-- What stands still: rows are inserted and deleted, never updated, for many workers may throttle one target at a moment.
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
    'What is paused: see pause() and throttle(). The longest end of all rows that match a job counts.';
comment on column pgqueue.pauses.n is 'Order.';
comment on column pgqueue.pauses.kind is 'queue, task or limit_key.';
comment on column pgqueue.pauses.target is
    'The queue, the task or the limit_key; of limit_keys target* for all that begin so.';
comment on column pgqueue.pauses.source is 'operator: pause(). throttle: throttle(), by a handler as a rule. breaker: a breaker.';
comment on column pgqueue.pauses.until is 'When it ends; infinity: with resume().';
comment on column pgqueue.pauses.at is 'When it was written.';
comment on column pgqueue.pauses.reason is 'Why.';
comment on column pgqueue.pauses.by is 'Who: the actor of the audit; of a throttle the worker.';
insert into pgqueue.pauses (kind, target, source, until, at, by)
select 'queue', q.name, 'operator', 'infinity', q.paused_at, session_user from pgqueue.queues q where q.paused_at is not null;
alter table pgqueue.queues drop column paused_at;
alter table pgqueue.jobs add column throttled_since timestamptz;
comment on column pgqueue.jobs.throttled_since is
    'Since when it was only throttled: after a day the next throttle counts as an attempt. Null: it was not, or an attempt has counted since.';
alter table pgqueue.settings
    add column throttle_most interval not null default '1 hour' check (throttle_most between '1 s' and '30 days');
comment on column pgqueue.settings.throttle_most is
    'How long a throttle lasts at most, whatever a handler asks for.';
comment on column pgqueue.jobs.blocked_on is
    'The limit or pause that a blocked job waits for; null: it waits for the job ahead of it in its key.';
comment on column pgqueue.limit_waits.name is 'The limit: kind:target; or pause:kind:target.';

-- Log lines of jobs, and the stacks of handlers.
alter table pgqueue.settings add column retention_logs interval not null default '7 days'
    check (retention_logs between '1 hour' and '2 years');
comment on column pgqueue.settings.retention_logs is 'How long log lines of jobs are kept, from when they were written.';
alter table pgqueue.workers add column stack_of bigint, add column stack_asked_at timestamptz;
alter table pgqueue.workers
    drop constraint workers_command_check,
    add constraint workers_command_check check (command in ('quiet', 'stop', 'kill'));
comment on column pgqueue.workers.command is
    'What an operator asked of it: quiet, stop or kill; null: nothing. See quiet_worker(), stop_worker(), kill_worker().';
comment on column pgqueue.workers.stack_of is 'Private: the job of whose handler an operator wants the stack, until the worker has read that.';
comment on column pgqueue.workers.stack_asked_at is 'Private: when that was asked; it counts for ten seconds.';
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
comment on table pgqueue.job_logs is 'Private: log lines of jobs, for settings.retention_logs. Read job_log() instead.';
comment on column pgqueue.job_logs.n is 'Ascending number of the row.';
comment on column pgqueue.job_logs.job_id is 'The job.';
comment on column pgqueue.job_logs.attempt is 'The attempt in which it was written.';
comment on column pgqueue.job_logs.written_at is 'When it was stored.';
comment on column pgqueue.job_logs.at is 'When the handler wrote it, by the clock of its host.';
comment on column pgqueue.job_logs.level is 'DEBUG to CRITICAL; STACK: a line of the stack of its handler.';
comment on column pgqueue.job_logs.line is 'What it wrote, 1,024 characters at most.';

-- A filter finds errors that differ only in numbers, ids and quoted text.
alter type pgqueue.job_filter add attribute fingerprints text[];
alter type pgqueue.job_filter add attribute tenants text[];
alter type pgqueue.job_filter add attribute enqueued_by text[];

-- The last troubles travel with the heartbeat.
alter table pgqueue.heartbeats add column troubles jsonb;
create index heartbeats_with_troubles on pgqueue.heartbeats (n) where troubles is not null;
comment on column pgqueue.heartbeats.troubles is
    'The last attempts that failed since the heartbeat before, as beat() takes them; null: none did. Read pgqueue.troubles instead.';

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
alter table pgqueue.jobs add column lane_key text collate "C";
comment on column pgqueue.jobs.lane_key is
    'Private: the tenant in whose lane of a fair queue the job takes its turn, after eight digits of its hash. Null: its queue was not fair.';
-- Ready jobs again, in the lanes of tenants in fair queues. Other jobs do not pay for it.
create index jobs_in_lanes on pgqueue.jobs (queue, priority, lane_key, ready_at, id)
    where state in ('waiting', 'failed') and lane_key is not null and not resumed;
alter table pgqueue.lanes add column is_fair boolean not null default false;
comment on column pgqueue.lanes.is_fair is 'Whether tenants take turns in it.';

-- In which lanes of tenants a job may be due: what claims of a fair queue visit. A row says that nothing of its lane is
-- due before due_from, and promises, to whoever makes a job ready before `until`, that the lane is visited. Rows are
-- inserted, and maintenance deletes them: see _tenant_lanes.sql.
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
comment on table pgqueue.tenant_lanes is 'Private: the lanes of tenants that claims of fair queues visit.';
comment on column pgqueue.tenant_lanes.due_from is 'Nothing of the lane is due before.';
comment on column pgqueue.tenant_lanes.until is
    'A transaction that makes a job ready relies on this row until then; afterwards maintenance deletes or renews it.';
comment on column pgqueue.tenant_lanes.priority is 'The priority.';
comment on column pgqueue.tenant_lanes.queue is 'The queue.';
comment on column pgqueue.tenant_lanes.lane_key is
    'The lane: jobs.lane_key. Empty: jobs of this queue and priority that are in no lane, as from before it was fair.';

-- Where the last claim of a worker from a fair queue ended. Inserted, and the newest is read: a row that is updated would
-- become, beside an old snapshot, a chain of versions.
create table pgqueue.turns (
    n bigint generated always as identity,
    at timestamptz not null,
    credit integer not null,
    priority smallint not null,
    worker text not null,
    queue text collate "C" not null,
    lane_key text collate "C" not null,
    primary key (worker, queue, priority, n)
);
comment on table pgqueue.turns is 'Private: from which tenant on the next claim of a worker goes round.';
comment on column pgqueue.turns.n is 'Order: the newest counts.';
comment on column pgqueue.turns.at is 'When.';
comment on column pgqueue.turns.credit is 'How many jobs that tenant may still start in its turn.';
comment on column pgqueue.turns.priority is 'The priority.';
comment on column pgqueue.turns.worker is 'The worker.';
comment on column pgqueue.turns.queue is 'The queue.';
comment on column pgqueue.turns.lane_key is 'The lane of the tenant that was served last.';

create table pgqueue.shares (
    limit_key text collate "C" primary key check (octet_length(limit_key) between 1 and 512),
    weight integer not null check (weight between 1 and 1000)
);
comment on table pgqueue.shares is 'How many jobs a tenant of a fair queue starts in its turn, where it is not one. See set_share().';
comment on column pgqueue.shares.limit_key is
    'The tenant; or a prefix and *: all that begin so, where neither a row of their own nor a longer prefix matches.';
comment on column pgqueue.shares.weight is 'How many jobs.';
comment on column pgqueue.heads.queue is
    'The queue of the lane; empty: the leases, by the time at which they lapse. With a priority above 800, queue and tenant: see _tenant_lanes.sql.';
create type pgqueue.due_lane as (queue text, priority smallint, is_fair boolean, is_limited boolean);
comment on type pgqueue.due_lane is 'Private: a lane in which a job is due; whether tenants take turns in it, and its queue is under a limit.';
