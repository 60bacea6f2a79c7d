-- stop_worker: ends a worker. See quiet_worker.

create or replace function pgqueue.stop_worker(worker text)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform pgqueue._check_name('worker', stop_worker.worker, 256);
    return pgqueue._command_worker('stop_worker', stop_worker.worker, 'stop', array['run', 'quiet']);
end
$$;

comment on function pgqueue.stop_worker(text) is
    'Let a worker reserve no more jobs and end with the last of its jobs, or after its shutdown timeout, as SIGTERM does. '
    'What supervises it (systemd, Kubernetes, pgqueue worker --processes) may start another. It cannot be taken back. '
    'False: there is no such worker, or it was asked already.';
