-- kill_worker: ends the process of a worker at once, with whatever it runs. See quiet_worker.
--
-- Between this and the worker's answer the job may end, and others start: it is for handlers that do not end.

create or replace function pgqueue.kill_worker(worker text default null, job_id bigint default null)
returns text
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
    select pgqueue._refuse(
        'either worker or job_id is needed', format('%s of them are given.', num_nonnulls(worker, job_id)),
        'Give worker, its name, or job_id, a job that it executes.'
    )
    where num_nonnulls(worker, job_id) <> 1;
    select w.name
    from (
        select worker as name
        union all
        select j.reserved_by from pgqueue.jobs j where j.id = kill_worker.job_id and j.state = 'executing'
    ) w
    where w.name is not null and pgqueue._command_worker('kill_worker', w.name, 'kill', array['run', 'quiet', 'stop'])
$$;

comment on function pgqueue.kill_worker(text, bigint) is
    'End the process of a worker at once, or of the worker that executes a job; for a handler that does not end when it is cancelled. Returns the worker''s name; '
    'null: there is no such worker, the job does not execute, or it was asked already. Its supervisor (pgqueue worker --processes) gives its jobs back at once and starts '
    'another process; without one they come back when their leases lapse. Each job that it ran counts one crash (max_crashes of its task), and one that was asked to cancel is cancelled. '
    'A worker whose event loop is blocked does not hear it. select pgqueue.kill_worker(job_id => 17);';
