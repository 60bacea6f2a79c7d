-- Heads of lanes: where each lane begins, so that nobody walks what was claimed long ago.

-- Times that are behind us. Inserted, and read newest first.
create table pgqueue.horizons (
    n bigint generated always as identity primary key,
    at timestamptz not null,
    xid xid8 not null
);
comment on table pgqueue.horizons is
    'Private: transactions that had no xid yet at some time, and took one then. What has a later xid makes nothing ready before that time.';
comment on column pgqueue.horizons.n is 'Order.';
comment on column pgqueue.horizons.at is 'The time, read before the xid was taken.';
comment on column pgqueue.horizons.xid is 'The xid.';

-- A row is a fact that stays true, whatever is written after it: rows are inserted, in any order and by anybody, and
-- the newest is read. Rows updated in place would, under an old snapshot, become a chain of versions that each claim
-- walks.
create table pgqueue.heads (
    n bigint generated always as identity,
    at timestamptz not null,
    head timestamptz not null,
    xid xid8 not null,
    idle_since timestamptz,
    newest_id bigint,
    priority smallint not null,
    resumed boolean not null,
    queue text collate "C" not null,
    open_xids xid8[],
    floors timestamptz[],
    primary key (queue, priority, resumed, n)
);
comment on table pgqueue.heads is 'Private: nothing of a lane is ready below its newest head.';
comment on column pgqueue.heads.n is 'Order.';
comment on column pgqueue.heads.at is 'When it was written.';
comment on column pgqueue.heads.head is 'The bound.';
comment on column pgqueue.heads.xid is 'Who wrote it. Of no transaction of this server: the row came with a dump, and counts for nothing.';
comment on column pgqueue.heads.idle_since is 'Since when nothing has been due in the lane; null: something was, or was claimed.';
comment on column pgqueue.heads.newest_id is 'The newest job that there was.';
comment on column pgqueue.heads.priority is 'The priority of the lane.';
comment on column pgqueue.heads.resumed is 'Which part of it: that of jobs that came back, or the other.';
comment on column pgqueue.heads.queue is 'The queue of the lane; empty: the leases, by the time at which they lapse.';
comment on column pgqueue.heads.open_xids is 'Transactions that were open for long and may yet commit something below head. Once one has ended its floor is the head.';
comment on column pgqueue.heads.floors is 'For each of them, the head that it was written down at.';

alter table pgqueue.housekeeping
    add column hidden bigint not null default 0,
    add column hidden_at timestamptz,
    add column hidden_took interval;
comment on column pgqueue.housekeeping.hidden is 'Lanes found with something ready below their heads, in all; none as a rule.';
comment on column pgqueue.housekeeping.hidden_at is 'When it last looked for such.';
comment on column pgqueue.housekeeping.hidden_took is 'How long that took.';
