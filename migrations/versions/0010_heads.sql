-- Heads as a pair of time and id.

alter table pgqueue.heads
    add column head_id bigint not null default 0,
    add column floor_ids bigint[];
comment on table pgqueue.heads is 'Private: nothing of a sub-lane is ready below its newest head, a pair of time and id.';
comment on column pgqueue.heads.head is 'The time of the head.';
comment on column pgqueue.heads.head_id is 'The id of the head: within that time nothing below it is ready.';
comment on column pgqueue.heads.floors is 'For each of open_xids, the time of the head that it must not lose.';
comment on column pgqueue.heads.floor_ids is 'The ids that go with floors.';
comment on column pgqueue.heads.resumed is 'Which sub-lane: that of jobs that came back, or the ordinary one.';
comment on column pgqueue.heads.open_xids is 'Transactions that were open for long and may yet commit something below the head. Once one has ended, its floor is the head.';

-- Rows of the last release have no floor_ids: an id of null would make their floors void.
delete from pgqueue.heads;

-- The leases of one claim share their time.
drop index pgqueue.jobs_lease;
create index jobs_lease on pgqueue.jobs (lease_expires_at, id, queue, task, limit_key) where state = 'executing';

-- Jobs with keys have a head as well, by id.
alter table pgqueue.horizons add column newest_id bigint;
comment on column pgqueue.horizons.newest_id is 'The newest id that a job had been given, read at the same time; null: unknown.';
-- jobs_key_executing keeps a key from running twice; this finds the one that runs, from an id on.
create index jobs_key_running on pgqueue.jobs (queue, key, id)
    where state = 'executing' and key is not null and (leader is null or leader = id);

create type pgqueue.sub_lane as (queue text, priority smallint, resumed boolean);
comment on type pgqueue.sub_lane is 'Private: a lane''s ordinary part, or that of jobs that came back.';
create type pgqueue.verdict as (row_ctid tid, kind text, slot integer, ahead bigint, limit_name text);
comment on type pgqueue.verdict is 'Private: what a claim does with a candidate: see _order.';
create type pgqueue.open_batch as (task text, slot integer, capacity integer);
comment on type pgqueue.open_batch is 'Private: a batch of an accumulating task that a claim has begun, and how many more keys it may hold.';
