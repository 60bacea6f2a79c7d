-- Ends a job whose dedupe key another job has taken (on_conflict => supersede), or asks its worker to cancel it.
--
-- It does not wait: the handler's own transaction may have locked the row. Then a note is the request: extend() reports it, and what
-- ends the attempt looks for it under the lock of the row (_put_back, _decide_retry). An attempt that ends before it is committed
-- does not see it: so it has the job checked again until the row is free.
create or replace function pgqueue._supersede(p_job_id bigint, p_again boolean default false)
returns void
language plpgsql
as $$
declare
    v_job record;
begin
    select j.reservation, j.state into v_job from pgqueue.jobs j where j.id = p_job_id for update skip locked;
    if v_job.state = 'executing' then
        perform pgqueue._request_cancel(array[p_job_id]);
    elsif found then
        perform pgqueue._finish(array[p_job_id], array[v_job.reservation], false, 'cancelled');
    elsif exists (select from pgqueue.jobs j where j.id = p_job_id) then
        perform pgqueue._leave_notes('superseded', array[p_job_id], '200 ms');
        perform pg_notify(pgqueue._channel(j.reserved_by), 'cancel')
        from pgqueue.jobs j
        -- Once for each claim: the worker extends all of its leases then.
        where j.id = p_job_id and j.state = 'executing' and pgqueue._may_notify()
            and (not p_again or j.reserved_at > pgqueue._clock() - interval '2 s');
    end if;
end
$$;
