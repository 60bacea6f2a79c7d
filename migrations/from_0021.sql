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
    'parents: a new child, with its parents; settle: a job that waits, with what is left of its waiting; ended: the children of a job that ended; retried: the children of a job that was retried; doubtful: a child whose dead or cancelled parent may be on its way back; group: a group; recount: one with members that were retried; cancel: the members of a group that is cancelled; revive: those of one that came back; event: an event; steps: an ended job, with steps to move to history.';
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
