-- Marks that make heads not count: of all heads after a step of the clock, of the head of keys after a retry.

create table pgqueue.head_marks (
    reason text not null check (reason in ('clock', 'key')),
    n bigint generated always as identity,
    at timestamptz not null,
    seen_xid xid8,
    primary key (reason, n)
);
comment on table pgqueue.head_marks is 'Private: while a mark stands, heads do not count and claims read from the beginning. Empty but for moments.';
comment on column pgqueue.head_marks.reason is 'clock: the clock stepped back, so no head counts. key: a job with a key has its old id again, so the head of jobs with keys does not count.';
comment on column pgqueue.head_marks.n is 'Number of the mark.';
comment on column pgqueue.head_marks.at is 'When it was written.';
comment on column pgqueue.head_marks.seen_xid is 'All transactions with an earlier xid may have begun before maintain saw the mark; null: it has not seen it yet.';

-- Until now marks were rows of heads. Heads start anew as soon as all transactions of now have ended.
insert into pgqueue.head_marks (reason, at)
select m.reason, clock_timestamp()
from (values ('clock'), ('key')) m (reason)
where exists (select from pgqueue.heads);
delete from pgqueue.heads where head = '-infinity';
