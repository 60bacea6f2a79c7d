-- resume_worker: takes back quiet_worker. See there.

create or replace function pgqueue.resume_worker(worker text)
returns boolean
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
    select pgqueue._command_worker('resume_worker', resume_worker.worker, null, array['quiet'])
$$;

comment on function pgqueue.resume_worker(text) is
    'Let a worker that was asked to be quiet reserve jobs again. False: there is no such worker, or it was not asked.';
