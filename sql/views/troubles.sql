-- troubles: what went wrong lately, attempt by attempt, as workers report it with their heartbeats.

create or replace view pgqueue.troubles as
select
    b.n, b.at - (t.entry ->> 'ago')::double precision * interval '1 s' as at, nullif(b.worker, '') as worker, (t.entry ->> 'job_id')::bigint as job_id,
    t.entry ->> 'queue' as queue, t.entry ->> 'task' as task, (t.entry ->> 'attempt')::integer as attempt,
    t.entry ->> 'state' as state, t.entry ->> 'class' as class, t.entry ->> 'line' as line
from pgqueue.heartbeats b
cross join lateral jsonb_array_elements(b.troubles) t (entry)
where b.troubles is not null;

comment on view pgqueue.troubles is
    'The attempts that failed within an hour, as workers reported them: of each heartbeat the last 20. select * from pgqueue.troubles order by n desc limit 20;';
comment on column pgqueue.troubles.n is 'The number of the heartbeat, ascending: order by it, newest first, and with a limit.';
comment on column pgqueue.troubles.at is 'When the attempt ended.';
comment on column pgqueue.troubles.worker is 'The worker that ran it; null: it has ended since.';
comment on column pgqueue.troubles.job_id is 'The job.';
comment on column pgqueue.troubles.queue is 'Its queue.';
comment on column pgqueue.troubles.task is 'Its task.';
comment on column pgqueue.troubles.attempt is 'Which attempt it was.';
comment on column pgqueue.troubles.state is 'The state of the job after it: failed (it runs again), dead or cancelled; lost: its lease was over.';
comment on column pgqueue.troubles.class is 'The class of the error.';
comment on column pgqueue.troubles.line is 'The first line of the error.';
