-- await_event: a job waits for an event, without a worker. The payload becomes a step: another attempt gets the same one.
--
-- Locks the row of the job and waits for another session's lock on it at most 5 s (55P03). The job
-- and the event each write a row, read the other's, and leave a note. The note of the one that commits last is
-- read when both have committed. The job is in the ready index at its deadline; the event brings it forward.

create or replace function pgqueue.await_event(
    job_id bigint, reservation bigint, step text, event text, timeout interval default null
)
returns table (arrived boolean, payload jsonb)
language plpgsql security definer rows 1
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
#variable_conflict use_column
declare
    v_now timestamptz := pgqueue._clock();
    v_step record;
    v_result jsonb;
    v_until timestamptz;
begin
    perform pgqueue._check_step(await_event.step, null);
    perform pgqueue._check_name('event', await_event.event, 512);
    perform pgqueue._check_delay(coalesce(await_event.timeout, '0'));
    if not pgqueue._lock_held(await_event.job_id, await_event.reservation, true) then
        return;
    end if;
    select s.name, s.result, coalesce(s.result ->> 'event', w.name) as event, w.since, w.until into v_step
    from (values (1)) one (row)
    left join pgqueue.steps s on s.job_id = await_event.job_id and s.name = await_event.step
    left join pgqueue.event_waits w on w.job_id = await_event.job_id and w.step = await_event.step and s.name is null
    order by w.name <> await_event.event desc
    limit 1;
    perform pgqueue._refuse(
        format('step %s is not a wait for an event', quote_literal(await_event.step)),
        'This job has completed a step of that name.', 'Give the wait another name.'
    )
    where v_step.name is not null and (v_step.result ? 'arrived') is not true;
    perform pgqueue._refuse(
        format(
            'step %s waits for event %s, not for %s',
            quote_literal(await_event.step), quote_literal(v_step.event), quote_literal(await_event.event)
        ),
        'This job has begun that wait, perhaps by older code.', 'Give the wait for another event another name of step.'
    )
    where v_step.event <> await_event.event;
    v_result := v_step.result;
    if v_result is null then
        select jsonb_build_object('event', await_event.event, 'arrived', true, 'payload', e.payload) into v_result
        from pgqueue.events e
        where e.name = await_event.event and e.kept_until > coalesce(v_step.since, v_now);
        if not found and v_step.until <= v_now then
            v_result := jsonb_build_object('event', await_event.event, 'arrived', false);
        elsif not found then
            v_until := coalesce(v_step.until, pgqueue._after(v_now, await_event.timeout));
            insert into pgqueue.event_waits (name, job_id, step, until, since)
            values (await_event.event, await_event.job_id, await_event.step, v_until, v_now)
            -- It waited without a timeout, and newer code has one.
            on conflict (name, job_id, step) do update set until = excluded.until where event_waits.until is null;
            perform pgqueue._begin_steps(await_event.job_id);
            perform pgqueue._leave_notes('event', '{null}', '0', await_event.event);
            perform pgqueue._put_back(
                array[await_event.job_id], greatest(coalesce(v_until - v_now, '3650 days'), '0'), true, false
            );
            return query select null::boolean, null::jsonb;
            return;
        end if;
        perform pgqueue._store_step(await_event.job_id, await_event.step, v_result);
        delete from pgqueue.event_waits w
        where w.name = await_event.event and w.job_id = await_event.job_id and w.step = await_event.step;
    end if;
    return query select (v_result ->> 'arrived')::boolean, v_result -> 'payload';
end
$$;

comment on function pgqueue.await_event(bigint, bigint, text, text, interval) is
    'Wait for an event in an executing job, as a step that holds no worker. arrived: true, with its payload; false: timeout has passed; '
    'null: the job is suspended and comes back, as the same attempt: leave the handler. No row: the reservation is no longer held. '
    'select * from pgqueue.await_event(42, 1048577, ''payment'', ''paid:17'', timeout => ''7 days''); [worker]';
