-- sleep_step: a job waits for a time, without a worker. The deadline is a step: another attempt sleeps for the rest.
--
-- Locks the row of the job and waits for another session's lock on it at most 5 s (55P03).

create or replace function pgqueue.sleep_step(job_id bigint, reservation bigint, name text, "for" interval)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_until timestamptz;
begin
    perform pgqueue._check_step(sleep_step.name, null);
    perform pgqueue._check_delay(sleep_step."for");
    if not pgqueue._lock_held(sleep_step.job_id, sleep_step.reservation, true) then
        return null;
    end if;
    select (s.result ->> 'until')::timestamptz into v_until
    from pgqueue.steps s
    where s.job_id = sleep_step.job_id and s.name = sleep_step.name;
    if found and v_until is null then
        perform pgqueue._refuse(
            format('step %s is not a sleep', quote_literal(sleep_step.name)),
            'This job has completed a step of that name.', 'Give the sleep another name.'
        );
    elsif not found then
        v_until := pgqueue._after(v_now, sleep_step."for");
        perform pgqueue._store_step(sleep_step.job_id, sleep_step.name, jsonb_build_object('until', v_until));
    end if;
    perform pgqueue._put_back(array[sleep_step.job_id], v_until - v_now, true, false) where v_until > v_now;
    return v_until <= v_now;
end
$$;

comment on function pgqueue.sleep_step(bigint, bigint, text, interval) is
    'Sleep in an executing job, as a step that holds no worker. True: the time is over, continue. False: the job is suspended, and comes back then: '
    'leave the handler. Null: the reservation is no longer held. select pgqueue.sleep_step(42, 1048577, ''cool down'', ''1 day''); [worker]';
