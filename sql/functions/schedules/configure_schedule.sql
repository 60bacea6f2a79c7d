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
    v_reset text[] := coalesce(configure_schedule.reset, '{}'::text[]);
    v_before pgqueue.schedules;
    v_after pgqueue.schedules;
    v_is_settled boolean;
    v_now timestamptz := pgqueue._clock();
begin
    perform pgqueue._check_name('name', configure_schedule.name);
    perform pgqueue._check_reset(v_reset, array['expression', 'timezone'], 'configure_schedule');
    if configure_schedule.expression is not null then
        perform pgqueue._cron_parse(configure_schedule.expression);
    end if;
    if configure_schedule.timezone is not null then
        perform pgqueue._check_timezone(configure_schedule.timezone);
    end if;
    select s.* into v_before from pgqueue.schedules s where s.name = configure_schedule.name for update;
    if not found then
        return false;
    end if;
    v_is_settled := v_before.paused_at is null and pgqueue._settle_schedule(v_before);
    update pgqueue.schedules s
    set
        expression = case when 'expression' <> all (v_reset) then coalesce(configure_schedule.expression, s.expression) end,
        timezone = case when 'timezone' <> all (v_reset) then coalesce(configure_schedule.timezone, s.timezone) end
    where s.name = configure_schedule.name
    returning s.* into v_after;
    if not pgqueue._audit_options(
        'configure_schedule', 'name', configure_schedule.name, to_jsonb(v_before), to_jsonb(v_after)
    ) then
        return false;
    end if;
    if pgqueue._next_of_schedule(v_after, v_now) is null then
        perform pgqueue._refuse(
            'a schedule must have a next time', format('%s never comes.', quote_literal(v_after.expression)),
            'Compare the day of month with the length of the month.'
        );
    end if;
    if v_is_settled then
        perform pgqueue._plan_schedule(v_after, v_now);
    end if;
    return true;
end
$$;

comment on function pgqueue.configure_schedule(text, text, text, text[]) is
    'Run a schedule by another expression or in another time zone, from now on. '
    'select pgqueue.configure_schedule(''nightly'', ''0 4 * * *'', timezone => ''Europe/Berlin''); '
    'An option that is left out keeps its value; reset => ''{expression}'' takes it back to the declared one. '
    'expression: see cron_next(). False: unchanged, or there is no such schedule.';
