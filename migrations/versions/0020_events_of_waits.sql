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
-- What blocked jobs wait for.
alter table pgqueue.samples add blocked_by_limit integer, add blocked_by_parents integer;
comment on column pgqueue.samples.blocked_by_limit is 'Of blocked, the jobs at a limit. Null: the row is of before they were told apart.';
comment on column pgqueue.samples.blocked_by_parents is 'Of blocked, the jobs that wait for other jobs to end; the rest is behind a job of its key.';
comment on column pgqueue.samples.blocked is 'Jobs that wait for another job of their key, for a limit, or for jobs that they depend on.';
