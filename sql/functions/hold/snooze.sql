-- snooze: the handler decided that it is too early. The job comes back after delay, and the attempt does not count.
--
-- Locks the row of the job and waits for another session's lock on it at most 5 s (55P03), and as long for each member of
-- its batch.

create or replace function pgqueue.snooze(job_id bigint, reservation bigint, delay interval)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
declare
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
begin
    perform pgqueue._check_pairs(array[snooze.job_id], array[snooze.reservation]);
    perform pgqueue._check_delay(snooze.delay);
    perform
    from pgqueue.jobs j
    where j.id = snooze.job_id and j.reservation = snooze.reservation and j.state = v_executing
    for update;
    if not found then
        return false;
    end if;
    perform pgqueue._put_back(array[snooze.job_id], snooze.delay, true, false);
    return true;
end
$$;

comment on function pgqueue.snooze(bigint, bigint, interval) is
    'Defer a job by delay; the attempt does not count. False when the reservation is no longer held.';
