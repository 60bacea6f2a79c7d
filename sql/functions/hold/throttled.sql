-- throttled: gives a job back whose handler was told to come back later ("429, in 30 s"), and throttles the others too.
--
-- Locks rows as complete() does. A job that has only been throttled for 24 hours fails instead, so that endless refusals use up
-- its attempts: throttled_since holds the time of the first one, until an attempt counts or goes back for another reason.

create or replace function pgqueue.throttled(
    job_id bigint, reservation bigint, delay interval, kind text default null, reason text default null
)
returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
declare
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
    v_now timestamptz := pgqueue._clock();
    v_job record;
    v_kind text;
    v_delay interval;
begin
    perform pgqueue._check_pairs(array[throttled.job_id], array[throttled.reservation]);
    perform pgqueue._check_delay(throttled.delay);
    select j.task, j.limit_key, j.reserved_by, j.throttled_since
    into v_job
    from pgqueue.jobs j
    where j.id = throttled.job_id and j.reservation = throttled.reservation and j.state = v_executing
    for update;
    if not found then
        return null;
    end if;
    perform pgqueue._refuse(
        'kind must be task, or limit_key of a job that has one', format('It is %s.', quote_literal(throttled.kind)),
        'Leave kind out: it is limit_key if the job has one, else task.'
    )
    where coalesce(throttled.kind, 'task') not in ('task', 'limit_key')
        or (throttled.kind = 'limit_key' and v_job.limit_key is null);
    v_delay := least(throttled.delay, (select s.throttle_most from pgqueue.settings s where s.one));
    v_kind := coalesce(throttled.kind, case when v_job.limit_key is null then 'task' else 'limit_key' end);
    perform pgqueue._pause(
        v_kind, case v_kind when 'task' then v_job.task else v_job.limit_key end, 'throttle', pgqueue._after(v_now, v_delay),
        throttled.reason, v_job.reserved_by
    );
    if v_job.throttled_since < pgqueue._after(v_now, '-24 hours') then
        return pgqueue.fail(
            throttled.job_id, throttled.reservation,
            jsonb_build_object(
                'class', 'Throttled',
                'message', concat_ws(': ', 'throttled since ' || v_job.throttled_since, throttled.reason)
            ),
            v_delay
        );
    end if;
    perform pgqueue._put_back(
        array[throttled.job_id], v_delay, true, false, p_throttled_since => coalesce(v_job.throttled_since, v_now)
    );
    return 'throttled';
end
$$;

comment on function pgqueue.throttled(bigint, bigint, interval, text, text) is
    'Give a job back without using an attempt, because a service told its handler to come back after delay, and start nothing of its limit_key before then (of its task if it has none; or as kind says). '
    'Returns throttled. If the job has only been throttled for 24 hours, the attempt fails instead, and the state of fail() is returned. Null: the reservation is no longer held. delay is at most pgqueue.settings.throttle_most. '
    'select pgqueue.throttled(17, 1048577, ''30 s'', reason => ''429''); [worker]';
