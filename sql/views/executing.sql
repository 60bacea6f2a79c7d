-- executing: the jobs that execute now. all_jobs would plan every partition of history for them, in which none is. From the head of
-- the leases on: an old snapshot keeps the entries of all that executed since.

create or replace view pgqueue.executing as
select
    j.id, j.queue, j.task, j.key, j.limit_key, j.attempts, j.reserved_at, j.reserved_by, j.lease_expires_at, j.progress, j.leader
from pgqueue._executing_jobs() j;

comment on view pgqueue.executing is
    'The jobs that execute now. select id, task, now() - reserved_at from pgqueue.executing order by reserved_at limit 20;';
comment on column pgqueue.executing.id is 'The id that enqueue returned.';
comment on column pgqueue.executing.queue is 'Its queue.';
comment on column pgqueue.executing.task is 'Its task.';
comment on column pgqueue.executing.key is 'The key: jobs of one queue and key run one at a time, in order.';
comment on column pgqueue.executing.limit_key is 'The value to which limits of the kind limit_key apply.';
comment on column pgqueue.executing.attempts is 'Attempts so far, including the current one.';
comment on column pgqueue.executing.reserved_at is 'When it was reserved.';
comment on column pgqueue.executing.reserved_by is 'The worker that holds it.';
comment on column pgqueue.executing.lease_expires_at is 'When that reservation ends, unless extended.';
comment on column pgqueue.executing.progress is 'The progress that its handler last reported: done, total and note.';
comment on column pgqueue.executing.leader is 'The job whose handler runs it in a batch: they take one slot together. Null or its own id: it takes one.';
