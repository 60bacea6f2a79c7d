-- stop_worker: ends a worker. See quiet_worker.

create or replace function pgqueue.stop_worker(worker text)
returns boolean
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
    select pgqueue._command_worker('stop_worker', stop_worker.worker, 'stop', array['run', 'quiet'])
$$;

comment on function pgqueue.stop_worker(text) is
    'Let a worker reserve no more jobs and end with the last of its jobs, or after its shutdown timeout, as SIGTERM does. '
    'What supervises it (systemd, Kubernetes, pgqueue worker --processes) may start another. It cannot be taken back. '
    'False: there is no such worker, or it was asked already.';
