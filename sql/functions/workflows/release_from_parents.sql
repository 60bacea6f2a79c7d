-- release_from_parents: an operator lets a job start without waiting for the jobs that it depends on.
--
-- Locks the row of the job and waits for another session's lock on it at most 5 s (55P03).

create or replace function pgqueue.release_from_parents(job_id bigint)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
begin
    perform from pgqueue.jobs j where j.id = release_from_parents.job_id and j.blocked_on = '@parents' for update;
    perform pgqueue._release_children(array[release_from_parents.job_id], true) where found;
    return pgqueue._audit('release_from_parents', jsonb_build_object('job_id', release_from_parents.job_id), found::integer);
end
$$;

comment on function pgqueue.release_from_parents(bigint) is
    'Let a job start without waiting for the jobs that it depends on: at its run_at, or now. False: it waits for none.';
