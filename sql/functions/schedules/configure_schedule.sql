-- configure_schedule: sets an operator's expression and time zone, which override the declared ones and survive deploys.
--
-- Locks and updates the row of the schedule, after it enqueued what is due by the old rule, and records its next instant.
-- While the schedule is paused, resume_schedule does both. Unlike an update by hand, it refuses an
-- expression or a zone that cannot run, and leaves a row in the audit.

create or replace function pgqueue.configure_schedule(
    name text, expression text default null, timezone text default null, reset text[] default null
)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_schedule pgqueue.schedules;
    v_is_settled boolean;
begin
    perform pgqueue._check_name('name', configure_schedule.name);
    perform pgqueue._cron_parse(configure_schedule.expression) where configure_schedule.expression is not null;
    perform pgqueue._check_timezone(configure_schedule.timezone) where configure_schedule.timezone is not null;
    select s.* into v_schedule from pgqueue.schedules s where s.name = configure_schedule.name for update;
    v_is_settled := found and v_schedule.paused_at is null and pgqueue._settle_schedule(v_schedule);
    if not pgqueue._configure(
        'schedule', configure_schedule.name,
        jsonb_build_object('expression', configure_schedule.expression, 'timezone', configure_schedule.timezone),
        configure_schedule.reset
    ) then
        return false;
    end if;
    select s.* into v_schedule from pgqueue.schedules s where s.name = configure_schedule.name;
    perform pgqueue._refuse(
        'a schedule must have a next time', format('%s never comes.', quote_literal(v_schedule.expression)),
        'Compare the day of month with the length of the month.'
    )
    where pgqueue._plan_schedule(v_schedule, pgqueue._clock(), v_is_settled) is null;
    return true;
end
$$;

comment on function pgqueue.configure_schedule(text, text, text, text[]) is
    'Run a schedule by another expression or in another time zone, from now on. '
    'select pgqueue.configure_schedule(''nightly'', ''0 4 * * *'', timezone => ''Europe/Berlin''); '
    'An option that is left out keeps its value; reset => ''{expression}'' takes it back to the declared one. '
    'expression: see cron_next(). False: unchanged, or there is no such schedule.';
