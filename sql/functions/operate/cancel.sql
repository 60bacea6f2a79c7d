-- cancel: cancels a job that does not run, and asks a running one to stop.
--
-- Locks the job's row; waits for another lock at most 5 s (55P03). Notifies the worker that holds the job; extend
-- reports it too. The job then ends as cancelled, unless it succeeds first.

create or replace function pgqueue.cancel(job_id bigint)
returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
declare
    v_job record;
begin
    select j.id, j.reservation, j.state, j.task = '@group' as is_group into v_job
    from pgqueue.jobs j
    where j.id = cancel.job_id
    for update;
    if not found then
        return null;
    end if;
    if v_job.state = 'executing' then
        perform pgqueue._request_cancel(array[v_job.id]);
    elsif v_job.is_group then
        perform pgqueue._cancel_groups(array[v_job.id]);
        perform pgqueue._cancel_members(v_job.id) where not pgqueue._old_snapshot();
        perform pgqueue._look_at_groups(array[v_job.id]) where not pgqueue._old_snapshot();
    else
        perform pgqueue._finish(array[v_job.id], array[v_job.reservation], false, 'cancelled');
    end if;
    perform pgqueue._audit('cancel', jsonb_build_object('job_id', v_job.id));
    return case when exists (select from pgqueue.jobs j where j.id = v_job.id) then 'requested' else 'cancelled' end;
end
$$;

comment on function pgqueue.cancel(bigint) is
    'Cancel a job. Returns cancelled; requested for an executing job, whose worker is asked to stop it; or null: there is no such live job. '
    'A group is cancelled with its members: requested, until they have ended.';
