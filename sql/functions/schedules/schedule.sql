-- schedule: enqueues a job by the clock.
--
-- Locks and writes one row of schedules, and only when it differs, so that every worker may call it at each start. Does not
-- change an operator's columns (paused_at, expression, timezone). Records the first instant at once, so that it is not missed
-- if maintenance does not run for a while. Before a rule changes, a run that is due by it starts, as a job of the new
-- declaration: a worker of the old one may be gone. The same rule in other words continues as it would have.

create or replace function pgqueue.schedule(
    name text, expression text default null, task text default null, args jsonb default '{}',
    every interval default null, timezone text default 'UTC', catch_up text default 'last',
    overlap text default 'start', jitter interval default null, queue text default null, priority integer default null,
    max_attempts integer default null, expires_in interval default null, headers jsonb default null,
    tags text[] default null, retention interval default null, catch_up_cap integer default 100
)
returns timestamptz
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now timestamptz := pgqueue._clock();
    v_declared jsonb := jsonb_build_object(
        'declared_expression', schedule.expression, 'declared_timezone', schedule.timezone, 'catch_up', schedule.catch_up,
        'catch_up_cap', schedule.catch_up_cap, 'overlap', schedule.overlap, 'jitter', schedule.jitter, 'task', schedule.task,
        'args', schedule.args, 'queue', schedule.queue, 'priority', schedule.priority, 'max_attempts', schedule.max_attempts,
        'expires_in', schedule.expires_in, 'headers', schedule.headers, 'tags', schedule.tags, 'retention', schedule.retention
    );
    v_schedule pgqueue.schedules;
    v_after pgqueue.schedules;
    v_is_written boolean;
    v_is_new boolean;
    v_is_settled boolean := true;
    v_options pgqueue.job_options := jsonb_populate_record(null::pgqueue.job_options, v_declared);
    v_next_at timestamptz;
    v_rule text;
begin
    perform pgqueue._check_name('name', schedule.name);
    -- Not a JSON null for none.
    v_options.headers := schedule.headers;
    perform pgqueue._check_options(v_options);
    perform pgqueue._check_args(schedule.args);
    v_after := jsonb_populate_record(null::pgqueue.schedules, v_declared);
    v_after.name := schedule.name;
    v_after.anchor := v_now;
    v_after.every := schedule.every;
    perform pgqueue._refuse(r.message, r.detail, r.hint)
    from (
        values
            (
                num_nonnulls(v_after.declared_expression, v_after.every) <> 1,
                'a schedule takes either expression or every',
                case when v_after.every is null then 'Neither was given.' else 'Both were given.' end,
                'Give expression (cron, such as ''30 2 * * *'') or every (an interval, such as ''5 min'').'
            ),
            (
                not isfinite(v_after.every) or v_after.every not between '1 s' and '10 years'
                or extract(month from v_after.every) <> 0 or extract(year from v_after.every) <> 0,
                'every must be between one second and ten years, without months', format('It is %s.', v_after.every),
                'Give every in days, hours, minutes and seconds; for calendar months give an expression: ''0 0 1 * *''.'
            ),
            (
                (v_after.catch_up in ('skip', 'last', 'all')) is not true, 'catch_up must be skip, last or all',
                format('It is %s.', coalesce(quote_literal(v_after.catch_up), 'null')),
                'skip: no missed run is made up for; last: the last one is; all: each, at most catch_up_cap.'
            ),
            (
                (v_after.overlap in ('start', 'skip')) is not true, 'overlap must be start or skip',
                format('It is %s.', coalesce(quote_literal(v_after.overlap), 'null')),
                'start: a run starts even if the last one has not ended; skip: it is left out.'
            ),
            (
                not isfinite(v_after.jitter) or v_after.jitter not between '0' and '1 day',
                'jitter must be between zero and one day', format('It is %s.', v_after.jitter), 'Give jitter as an interval, such as ''30 s''.'
            )
    ) r (is_wrong, message, detail, hint)
    where r.is_wrong;
    perform pgqueue._check_range(
        'catch_up_cap', v_after.catch_up_cap, 1, 10000, 'Give the number of missed runs that are made up for at most; 100 is the default.'
    );
    perform pgqueue._check_timezone(v_after.declared_timezone);
    v_after.every := make_interval(secs => extract(epoch from schedule.every)::double precision);
    v_after.spec := case when schedule.expression is not null then pgqueue._cron_parse(schedule.expression) end;
    v_declared := v_declared || jsonb_build_object('every', v_after.every, 'spec', v_after.spec);
    perform pgqueue._refuse(
        'a schedule must have a next time', format('%s never comes.', quote_literal(schedule.expression)),
        'Compare the day of month with the length of the month.'
    )
    where pgqueue._next_instant(v_after, v_now) is null;

    loop
        insert into pgqueue.schedules select v_after.* on conflict (name) do nothing;
        v_is_written := found;
        select s.* into v_schedule from pgqueue.schedules s where s.name = schedule.name for update;
        -- Not where unschedule() has removed it meanwhile.
        exit when found;
    end loop;
    v_is_new := v_is_written;
    if not v_is_new then
        v_after := jsonb_populate_record(v_schedule, v_declared);
        if (v_schedule.catch_up, v_schedule.catch_up_cap) is distinct from (schedule.catch_up, schedule.catch_up_cap)
            or pgqueue._schedule_rule(v_schedule) <> pgqueue._schedule_rule(v_after)
        then
            perform pgqueue._write_options(
                'schedule', schedule.name,
                v_declared - '{declared_expression,declared_timezone,every,spec,catch_up,catch_up_cap,overlap,jitter}'::text[],
                false
            );
            v_is_settled := v_schedule.paused_at is null and pgqueue._settle_schedule(v_schedule);
        end if;
        select w.is_written into v_is_written from pgqueue._write_options('schedule', schedule.name, v_declared, true) w;
        v_schedule := v_after;
    end if;
    perform pgqueue._audit(
        'schedule', jsonb_build_object('name', schedule.name, 'expression', schedule.expression, 'every', schedule.every)
    )
    where v_is_written;

    select l.next_at, l.rule into v_next_at, v_rule from pgqueue._latest_plan(schedule.name, v_now) l;
    -- The plan of one that was removed is no more.
    if (v_is_new or v_rule is distinct from pgqueue._schedule_rule(v_schedule))
        -- An operator's expression may be wrong. maintain reports that; it must not stop a worker's start.
        and v_schedule.expression is null and v_schedule.timezone is null
    then
        -- If a run that was due could not start, or waits for the end of a pause, its plan stays the newest one.
        v_next_at := pgqueue._plan_schedule(v_schedule, v_now, v_is_settled);
    end if;
    return v_next_at;
end
$$;

comment on function pgqueue.schedule is
    'Enqueue a job by the clock, from now on; a call with a known name changes that schedule. Returns when it is due next. '
    'select pgqueue.schedule(''nightly'', ''30 2 * * *'', ''report'', timezone => ''Europe/Berlin''); or every => ''5 min''. '
    'expression: see cron_next(). every: counted from its first declaration, at least a second, days are 24 hours. '
    'catch_up: what happens to missed runs (found more than 10 s late): skip all, run the last one (default), or run all, at most the latest catch_up_cap. '
    'overlap: start (default) another job, or skip the run, while the last one has not ended. jitter: delay each job at random by up to this. '
    'queue, priority, max_attempts, expires_in, headers, tags, retention: as enqueue. A job''s headers carry schedule and scheduled_at. '
    'maintain() enqueues due jobs at most about a second after their time. [worker]';

-- Refuses unknown time zones.
create or replace function pgqueue._check_timezone(p_timezone text)
returns void
language plpgsql
as $$
declare
    v_name text := upper(p_timezone collate "C");
    v_is_known boolean;
begin
    begin
        perform pgqueue._clock() at time zone p_timezone;
        v_is_known := case
            when v_name in ('UTC', 'GMT') then true
            -- Names of zones as well, but PostgreSQL reads the abbreviation: CET has no summer then.
            when v_name in ('CET', 'EET', 'EST', 'HST', 'MET', 'MST', 'WET') then false
            when p_timezone ~ '/' and p_timezone !~ '[0-9]' then true
            -- IST is Israel's or India's time by timezone_abbreviations of the session, and 'UTC+2' is read as POSIX does,
            -- two hours *behind* UTC. Reading the list takes 20 ms or so, but hardly any name comes here.
            else exists (select from pg_timezone_names z where upper(z.name collate "C") = v_name)
        end;
    exception when invalid_parameter_value or invalid_text_representation then
        v_is_known := false;
    end;
    -- A zone is listed with its abbreviation of today: summer or winter.
    perform pgqueue._refuse(
        'timezone must be the name of a time zone',
        format('It is %s.', coalesce(quote_literal(left(p_timezone, 100)), 'null')),
        format(
            'Give a name such as %s, no abbreviation; select name from pg_timezone_names lists them.',
            coalesce(string_agg(n.name, ' or ' order by n.name collate "C"), 'Europe/Berlin')
        )
    )
    from pg_timezone_names n
    where v_is_known is not true
        and n.name in (
            'America/Chicago', 'America/Denver', 'America/Halifax', 'America/Los_Angeles', 'America/New_York',
            'Asia/Hong_Kong', 'Asia/Jakarta', 'Asia/Jerusalem', 'Asia/Karachi', 'Asia/Kolkata', 'Asia/Manila',
            'Asia/Seoul', 'Asia/Shanghai', 'Asia/Tokyo', 'Australia/Adelaide', 'Australia/Perth', 'Australia/Sydney',
            'Europe/Athens', 'Europe/Berlin', 'Europe/Dublin', 'Europe/Lisbon', 'Europe/London', 'Europe/Moscow',
            'Pacific/Auckland', 'Pacific/Honolulu'
        )
        and regexp_replace(n.abbrev collate "C", '[SD]T$', 'T') = regexp_replace(v_name collate "C", '[SD]T$', 'T')
    having v_is_known is not true;
end
$$;
