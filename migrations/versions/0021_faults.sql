-- The mended faults, one section each.
comment on column pgqueue.jobs.retry is
    'Options for retries of this job, over those of its task: {"policy": ..., "delay": seconds, "queue": ...}; null: those of its task.';

-- Under a publication for all tables PostgreSQL refuses to update or delete rows of a table that has no key. A key would
-- cost each insert an index entry; the whole row as identity costs only updates and deletes, which are rare here. It is
-- not inherited: each partition has its own.
alter table pgqueue.lanes replica identity full;
alter table pgqueue.lease_promises replica identity full;
alter table pgqueue.limit_starts replica identity full;
do $$
declare
    v_table regclass;
begin
    for v_table in select t.relid from pg_partition_tree('pgqueue.history') t loop
        execute format('alter table %s replica identity full', v_table);
    end loop;
end
$$;

-- Operators write this column themselves. IST is another zone in another session; _check_timezone says more.
alter table pgqueue.schedules add constraint schedules_timezone_check check (
    timezone !~ '^[A-Za-z]{1,5}$'
    or upper(timezone collate "C") in
        ('UTC', 'GMT', 'CUBA', 'EGYPT', 'EIRE', 'GB', 'IRAN', 'JAPAN', 'LIBYA', 'NZ', 'PRC', 'ROC', 'ROK', 'UCT', 'ZULU')
);
-- One reader finds jobs by a filter, and reads the dead and the cancelled of all queues in the order of their ids.
drop type pgqueue.bulk_row;
create type pgqueue.found_job as (id bigint, granularity "char", kept_until timestamptz, is_asked_to_stop boolean);
comment on type pgqueue.found_job is 'Private: a job that fits a filter; granularity and kept_until lead to the partition of an ended one.';
create index history_unfinished_by_id on pgqueue.history (state, id) include (queue) where state <> 'succeeded';

-- A role may be renamed, and its name be given to another: the oid tells. A role with no right on the schema any more is
-- another one than was granted.
alter table pgqueue.grants add column role_oid oid;
comment on column pgqueue.grants.role_oid is 'Its oid: a role that was renamed keeps its rights, and a new one with an old name gets none.';
update pgqueue.grants g
set role_oid = r.oid
from pg_roles r
where r.rolname = g.role
    and exists (
        select from pg_namespace n, aclexplode(n.nspacl) a where n.nspname = 'pgqueue' and a.grantee = r.oid
    );
-- A batch that has a step stands still, and the payloads that came later wait for it.
create index jobs_key_stepped on pgqueue.jobs (queue, key) where key is not null and has_steps;
comment on column pgqueue.jobs.leader is
    'For a job in a batch of an accumulating task: the job that stands for all payloads of its key; on that one its own id, while it executes.';

alter table pgqueue.settings
    add column retention_audit interval not null default '90 days'
    check (retention_audit between '1 day' and '100 years');
comment on column pgqueue.settings.retention_audit is
    'How long the audit is kept. Not for operators, whose actions it records: the owner of the schema sets it.';
comment on table pgqueue.audit is
    'What operators did, by the functions that they called; kept for settings.retention_audit. select * from pgqueue.audit order by n desc limit 20;';
-- enqueue() offers a job to an idle worker, and its transaction hands it off when it commits.
alter table pgqueue.jobs add offered boolean;
comment on column pgqueue.jobs.offered is
    'Private: whether its enqueue saw an idle worker: then _hand_off() reads the job again when that transaction commits. Null: it was not asked.';
-- An idle worker asks what was handed to it and never arrived. Jobs that were not offered are not in it.
create index jobs_offered on pgqueue.jobs (reserved_by, reserved_at)
    where state = 'executing' and offered and key is null and limit_key is null;

comment on column pgqueue.maintenance_runs.gap_at is
    'When the last gap of more than 8 s in maintenance ended: a lease that could not be extended in the gap gets a grace period.';

-- A copy of a database begins without the workers of the original.
alter table pgqueue.workers add database oid;
comment on column pgqueue.workers.database is
    'The oid of the database in which it registered: in a copy of that, its row does not count. Null: of before this was recorded.';

-- Large queues are counted whole, each in its turn, by indexes alone. The condition is written so that no other statement
-- fits it: one that looks for a failed job by its id would read all of this index while it seems small.
create index jobs_failed on pgqueue.jobs (queue) where case when state = 'failed' then true else false end;
alter table pgqueue.samples add column is_large boolean not null default false, add column counted_at timestamptz;
comment on column pgqueue.samples.is_large is 'Whether the queue has too many jobs to be counted in each sample.';
comment on column pgqueue.samples.counted_at is 'When the numbers were counted, save executing and oldest_due_at; null: never whole yet.';
comment on column pgqueue.samples.counted_to is 'Where counting stopped: a number as high as this means at least that many. Null: the numbers were exact at counted_at.';

comment on column pgqueue.notes.kind is 'c: a new child, with its parents; w: a job that waits, with what is left of its waiting; p: the children of a job that ended; r: the children of a job that was retried; d: a child whose dead or cancelled parent may be on its way back; g: a group; m: the members of a group that is cancelled; b: those of one that came back; e: an event; s: an ended job, with steps to move to history.';
-- What did not succeed leaves a trace also where history keeps nothing: a child that is being enqueued must not run for it.
create table pgqueue.traces (
    id bigint primary key,
    state text not null,
    open text[]
);
comment on table pgqueue.traces is
    'Private: a job that did not succeed, and of which history keeps nothing, for as long as a transaction of its time is open.';
comment on column pgqueue.traces.id is 'The job.';
comment on column pgqueue.traces.state is 'How it ended: dead, cancelled or deleted.';
comment on column pgqueue.traces.open is 'The virtual ids of the transactions that were open when maintain first met it; null: not yet.';
-- A rule costs those whom it touches: what a claim finds of it.
-- How many execute under a limit_key. Other jobs do not pay for it.
create index jobs_limit_key on pgqueue.jobs (limit_key, lease_expires_at) where state = 'executing' and limit_key is not null;
-- The limits of all values that begin so are looked up apart from those of one value.
create index limits_prefix on pgqueue.limits (length(target) desc) where kind = 'limit_key' and right(target, 1) = '*';

create type pgqueue.candidate as (
    row_ctid tid, id bigint, queue text, task text, key text, limit_key text, is_expired boolean, is_limited boolean
);
comment on type pgqueue.candidate is 'Private: a job that a claim has locked, with what decides whether it may start: see _find.';
create type pgqueue.touched_limit as (
    name text, kind text, target text, max_executing integer, rate integer, per interval, wanted integer
);
comment on type pgqueue.touched_limit is 'Private: a limit that jobs of a claim are under: see _within_limits.';

create type pgqueue.claimed_job as (
    id bigint, task text, args jsonb, headers jsonb, queue text, key text, priority integer, attempt integer,
    max_attempts integer, reservation bigint, run_at timestamptz, created_at timestamptz, lease_expires_at timestamptz,
    leader bigint, score numeric, timeout interval, losses integer, crashes integer, store_result boolean
);
comment on type pgqueue.claimed_job is 'Private: a row of reserve().';
create type pgqueue.start as (row_ctid tid, kind text, slot integer, opens boolean);
comment on type pgqueue.start is
    'Private: a job that a claim starts one by one: plain, keyed, or gather (with the other payloads of its key); opens: it is the first in its slot.';
drop type pgqueue.verdict, pgqueue.open_batch;
create type pgqueue.turn as (queue text, slots integer[]);
comment on type pgqueue.turn is 'Private: a queue that slots of a claim drew, and these slots.';
create type pgqueue.draw as (
    turns pgqueue.turn[], among text[], undrawn integer[], jobs pgqueue.claimed_job[], filled pgqueue.turn[]
);
comment on type pgqueue.draw is 'Private: what slots of a claim drew, and what became of it: see _next_turn.';
