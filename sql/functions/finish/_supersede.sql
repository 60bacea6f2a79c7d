-- Ends a job whose dedupe key another job has taken (on_conflict => supersede), or asks its worker to cancel it.
--
-- It does not wait: the handler's own transaction may have locked the row. Then a note has it checked again until it is free.
create or replace function pgqueue._supersede(p_job_id bigint)
returns void
language plpgsql
as $$
declare
    v_job record;
begin
    select j.id, j.reservation, j.state
    into v_job
    from pgqueue.jobs j
    where j.id = p_job_id
    for update skip locked;
    if v_job.state = 'executing' then
        perform pgqueue._request_cancel(array[p_job_id]);
    elsif found then
        perform pgqueue._finish(array[p_job_id], array[v_job.reservation], false, 'cancelled');
    elsif exists (select from pgqueue.jobs j where j.id = p_job_id) then
        perform pgqueue._leave_notes('superseded', array[p_job_id], '200 ms');
    end if;
end
$$;
