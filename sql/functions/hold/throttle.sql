-- throttle: a pause (see pause), for a service answered "429, in 30 s". A worker calls throttled(), which gives the job back too.

create or replace function pgqueue.throttle(kind text, target text, delay interval, reason text default null)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgqueue._check_delay(throttle.delay);
    return case when throttle.delay > '0' then pgqueue._pause(
        throttle.kind, throttle.target, 'throttle',
        pgqueue._after(pgqueue._clock(), least(throttle.delay, (select s.throttle_most from pgqueue.settings s where s.one))),
        throttle.reason, null
    ) else false end;
end
$$;

comment on function pgqueue.throttle(text, text, interval, text) is
    'Start nothing of a task, a limit_key (target* for each that begins with target) or a queue for a time, at most pgqueue.settings.throttle_most. The longest throttle counts. resume() with the source throttle ends it. '
    'False: it was throttled for at least as long already. select pgqueue.throttle(''limit_key'', ''api.example.com'', ''30 s'', ''429''); [worker]';
