-- snooze: the handler decided that it is too early for the job. Locks rows as complete() does.

create or replace function pgqueue.snooze(job_id bigint, reservation bigint, delay interval)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
begin
    perform pgqueue._check_delay(snooze.delay);
    if not pgqueue._lock_held(snooze.job_id, snooze.reservation, true) then
        return false;
    end if;
    perform pgqueue._put_back(array[snooze.job_id], snooze.delay, true, false);
    return true;
end
$$;

comment on function pgqueue.snooze(bigint, bigint, interval) is
    'Defer a job by delay; the attempt does not count. False when the reservation is no longer held. [worker]';

-- Locks the row of a job for a call from its handler, FOR UPDATE if the call gives the job back. False: the lease is lost.
create or replace function pgqueue._lock_held(p_job_id bigint, p_reservation bigint, p_update boolean)
returns boolean
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
declare
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
begin
    perform pgqueue._check_pairs(array[p_job_id], array[p_reservation]);
    if p_update then
        perform from pgqueue.jobs j
        where j.id = p_job_id and j.reservation = p_reservation and j.state = v_executing
        for update;
    else
        perform from pgqueue.jobs j
        where j.id = p_job_id and j.reservation = p_reservation and j.state = v_executing
        for key share;
    end if;
    return found;
end
$$;
