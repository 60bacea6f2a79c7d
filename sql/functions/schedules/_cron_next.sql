-- Searches the next instant of a parsed cron expression (see _cron_parse) in a time zone.
--
-- _cron_next handles the time zone: days on which its offset from UTC changes skip or repeat a stretch of local time.
-- _cron_find searches in local time. Reads no table.

create or replace function pgqueue._cron_next(p_spec text[], p_after timestamptz, p_timezone text)
returns timestamptz
language plpgsql stable parallel safe
as $$
declare
    v_from timestamp := date_trunc('second', p_after at time zone p_timezone) + interval '1 s';
    v_elapsed boolean := p_spec[8]::boolean;
    v_local timestamp;
    v_at timestamptz;
    v_offset interval;
    v_other interval;
    v_turn timestamptz;
begin
    -- In the first pass of a doubled stretch of local time: the second one begins again at an earlier local time. No zone changes
    -- its offset twice within a day.
    v_offset := pgqueue._utc_offset(p_after, p_timezone);
    v_turn := p_after + (v_offset - pgqueue._utc_offset(p_after + interval '24 hours', p_timezone));
    if v_elapsed and v_turn > p_after and pgqueue._utc_offset(v_turn, p_timezone) <> v_offset then
        v_turn := pgqueue._turn_of_zone(p_after, v_turn, p_timezone);
        v_local := pgqueue._cron_find(p_spec, v_from);
        if v_local < (v_turn at time zone 'UTC') + v_offset then
            return (v_local - v_offset) at time zone 'UTC';
        end if;
        v_from := v_turn at time zone p_timezone;
    end if;

    loop
        v_local := pgqueue._cron_find(p_spec, v_from);
        -- PostgreSQL reads a skipped time as if the jump were yet to come ...
        v_at := v_local at time zone p_timezone;
        if (v_at at time zone p_timezone) <> v_local then
            -- The gap in UTC: where it is a whole day, a day less of a timestamptz would depend on the session's zone.
            v_other := (v_at at time zone p_timezone) - v_local;
            v_turn := pgqueue._turn_of_zone(((v_at at time zone 'UTC') - v_other) at time zone 'UTC', v_at, p_timezone);
            if not v_elapsed then
                return v_turn;
            end if;
            v_from := v_turn at time zone p_timezone;
            continue;
        end if;
        -- ... and a doubled one as its second pass: the first one is a change of offset earlier.
        v_turn := (v_local - pgqueue._utc_offset(v_at - interval '24 hours', p_timezone)) at time zone 'UTC';
        if (v_turn < v_at and (v_turn at time zone p_timezone) = v_local) is not true then
            return v_at;
        elsif v_turn > p_after then
            return v_turn;
        elsif v_elapsed then
            return v_at;
        end if;
        -- It ran in the first pass.
        v_from := v_local + interval '1 s';
    end loop;
end
$$;

-- The second at which a zone's offset from UTC changes, between an instant before and one at or after it.
create or replace function pgqueue._turn_of_zone(p_before timestamptz, p_after timestamptz, p_timezone text)
returns timestamptz
language plpgsql stable parallel safe
as $$
declare
    v_offset interval := pgqueue._utc_offset(p_before, p_timezone);
    v_low bigint := floor(extract(epoch from p_before))::bigint;
    v_high bigint := floor(extract(epoch from p_after))::bigint;
    v_middle timestamptz;
begin
    while v_high - v_low > 1 loop
        v_middle := to_timestamp((v_low + v_high) / 2);
        if pgqueue._utc_offset(v_middle, p_timezone) = v_offset then
            v_low := (v_low + v_high) / 2;
        else
            v_high := (v_low + v_high) / 2;
        end if;
    end loop;
    return to_timestamp(v_high);
end
$$;

-- How far ahead of UTC a time zone is at an instant.
create or replace function pgqueue._utc_offset(p_at timestamptz, p_timezone text)
returns interval
language sql stable parallel safe
as $$
    select (p_at at time zone p_timezone) - (p_at at time zone 'UTC')
$$;

-- The first local time from p_from on that a parsed expression allows; null: none. The first field, from the month down to the
-- second, whose value is not allowed goes to its next one or, where there is none, to the next year, month, day, hour or minute;
-- then it begins again. The search ends after 41 years, for 40 is the longest that any day is away (29 February on one weekday,
-- across 2100).
create or replace function pgqueue._cron_find(p_spec text[], p_from timestamp)
returns timestamp
language plpgsql immutable parallel safe
as $$
declare
    v_units constant text[] := '{year,month,day,hour,minute,second}'::text[];
    v_steps constant interval[] := '{1 year,1 month,1 day,1 hour,1 min,1 s}'::interval[];
    v_either_is_enough constant boolean := p_spec[7]::boolean;
    v_at timestamp := p_from;
    v_field integer := 2;
    v_value integer;
    v_next integer;
    v_by_weekday integer;
begin
    while v_field <= 6 loop
        v_value := date_part(v_units[v_field], v_at)::integer;
        v_next := v_value + coalesce(nullif(strpos(substr(p_spec[7 - v_field], v_value + 1), '1'), 0) - 1, 255);
        if v_field = 3 then
            v_by_weekday := v_value + strpos(substr(p_spec[6], date_part('dow', v_at)::integer + 1), '1') - 1;
            v_next := case when v_either_is_enough then least(v_next, v_by_weekday) else greatest(v_next, v_by_weekday) end;
        end if;
        if v_next = v_value then
            v_field := v_field + 1;
            continue;
        end if;
        -- Never beyond the next year, month, day, hour or minute, also where that has fewer days, or nothing is allowed (255).
        v_at := least(
            date_trunc(v_units[v_field], v_at) + (v_next - v_value) * v_steps[v_field],
            date_trunc(v_units[v_field - 1], v_at) + v_steps[v_field - 1]
        );
        if v_at > p_from + interval '41 years' then
            return null;
        end if;
        v_field := 2;
    end loop;
    return v_at;
end
$$;
