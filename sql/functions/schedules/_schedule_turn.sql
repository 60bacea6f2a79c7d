-- When a schedule is due: by its cron expression or its interval, and which instants a late run makes up for.

create or replace function pgqueue._schedule_turn(
    p_schedule pgqueue.schedules, p_due_at timestamptz, p_now timestamptz, p_is_planned boolean,
    out instants timestamptz[], out next_at timestamptz, out passed_from timestamptz
)
language plpgsql stable parallel safe
as $$
declare
    -- A run that is found later than this was missed: maintenance runs about once a second.
    v_in_time timestamptz := p_now - interval '10 s';
    v_cap constant integer := case when p_schedule.overlap = 'skip' then 1 else p_schedule.catch_up_cap end;
    -- Another rule planned p_due_at: it is unknown since when the present rule holds, so no other run before now is owed.
    v_to constant timestamptz := case when p_is_planned then p_now else p_due_at end;
    v_at timestamptz;
begin
    instants := '{}';
    if p_schedule.expression is not null then
        -- Once for all instants.
        p_schedule.spec := pgqueue._cron_parse(p_schedule.expression);
        p_schedule.expression := null;
    end if;
    next_at := pgqueue._next_instant(p_schedule, p_now);
    if p_due_at is null then
        return;
    end if;

    -- Those that are in time run, or with "all" as many as the cap allows, in order.
    v_at := case
        when p_schedule.catch_up = 'all' or p_due_at >= v_in_time then p_due_at
        else pgqueue._next_instant(p_schedule, v_in_time - interval '1 us')
    end;
    while v_at <= v_to and cardinality(instants) < v_cap loop
        instants := instants || v_at;
        v_at := pgqueue._next_instant(p_schedule, v_at);
    end loop;
    if v_at <= v_to then
        -- There are more than the cap: the latest run.
        instants := '{}';
        v_at := pgqueue._last_instant(p_schedule, p_due_at, v_to);
        while v_at is not null and cardinality(instants) < v_cap loop
            instants := v_at || instants;
            v_at := pgqueue._last_instant(p_schedule, p_due_at, v_at - interval '1 us');
        end loop;
    elsif cardinality(instants) = 0 and p_schedule.catch_up = 'last' then
        instants := array[pgqueue._last_instant(p_schedule, p_due_at, v_to)];
    end if;
    passed_from := case when cardinality(instants) = 0 or instants[1] > p_due_at then p_due_at end;
end
$$;

-- The first instant of a schedule after p_after.
create or replace function pgqueue._next_instant(p_schedule pgqueue.schedules, p_after timestamptz)
returns timestamptz
language plpgsql stable parallel safe
as $$
declare
    v_every constant numeric := extract(epoch from p_schedule.every);
    v_spec constant text[] := case
        when p_schedule.expression is null then p_schedule.spec else pgqueue._cron_parse(p_schedule.expression)
    end;
begin
    if v_spec is not null then
        return pgqueue._cron_next(v_spec, p_after, coalesce(p_schedule.timezone, p_schedule.declared_timezone));
    end if;
    -- In seconds and from the anchor: neither a late run nor a change of the clocks makes it drift.
    return p_schedule.anchor + make_interval(secs => (
        (floor(extract(epoch from p_after - p_schedule.anchor) / v_every) + 1) * v_every
    )::double precision);
end
$$;

-- The last instant that is not after p_to; p_from is one. Null: p_to is before it.
create or replace function pgqueue._last_instant(p_schedule pgqueue.schedules, p_from timestamptz, p_to timestamptz)
returns timestamptz
language plpgsql stable parallel safe
as $$
declare
    v_last timestamptz := p_from;
    v_high timestamptz := p_to;
    v_middle timestamptz;
    v_next timestamptz;
begin
    if p_to < p_from then
        return null;
    end if;
    -- Bisects: either the next instant after the middle is not beyond p_to, or the last one is not after the middle.
    while v_high - v_last > interval '1 s' loop
        v_middle := v_last + (v_high - v_last) / 2;
        v_next := pgqueue._next_instant(p_schedule, v_middle);
        if v_next <= p_to then
            v_last := v_next;
        else
            v_high := v_middle;
        end if;
    end loop;
    v_next := pgqueue._next_instant(p_schedule, v_last);
    return case when v_next <= p_to then v_next else v_last end;
end
$$;

-- Everything on which the instants of a schedule depend, as one text to compare.
create or replace function pgqueue._schedule_rule(p_schedule pgqueue.schedules)
returns text
language sql stable parallel safe
as $$
    -- Numbers, not dates and intervals as text: those look different in every session.
    select coalesce(
        p_schedule.expression, p_schedule.declared_expression,
        'every ' || extract(epoch from p_schedule.every) || ' from ' || extract(epoch from p_schedule.anchor)
    ) || ' in ' || coalesce(p_schedule.timezone, p_schedule.declared_timezone)
$$;

-- The newest row that the clock has reached: after a jump ahead and back, the plan from before the jump holds again.
create or replace function pgqueue._latest_plan(p_schedule text, p_now timestamptz)
returns setof pgqueue.schedule_runs
language sql stable parallel safe rows 1
as $$
    select r.*
    from pgqueue.schedule_runs r
    where r.schedule = p_schedule and r.rule is not null and r.decided_at <= p_now + interval '1 s'
    order by r.n desc
    limit 1
$$;

-- When a schedule is due next. If what was due before has run, it continues from p_now.
create or replace function pgqueue._plan_schedule(p_schedule pgqueue.schedules, p_now timestamptz, p_is_settled boolean)
returns timestamptz
language plpgsql
as $$
declare
    v_next_at timestamptz := pgqueue._next_instant(p_schedule, p_now);
begin
    insert into pgqueue.schedule_runs (schedule, decided_at, outcome, next_at, rule)
    select p_schedule.name, p_now, 'planned', v_next_at, pgqueue._schedule_rule(p_schedule)
    where p_is_settled;
    return v_next_at;
end
$$;
