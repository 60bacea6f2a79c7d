-- Searches the next instant of a parsed cron expression (see _cron_parse) in a time zone.
--
-- _cron_next handles the time zone: days on which its offset from UTC changes skip or repeat a stretch of local time.
-- _cron_find searches in local time, _cron_day within a month and _cron_time within a day. Reads no table.

create or replace function pgqueue._cron_next(p_spec bytea, p_after timestamptz, p_timezone text)
returns timestamptz
language plpgsql stable parallel safe
as $$
declare
    v_from timestamp := date_trunc('second', p_after at time zone p_timezone) + interval '1 s';
    v_elapsed boolean := get_byte(p_spec, 201) & 2 <> 0;
    v_local timestamp;
    v_at timestamptz;
    v_offset interval;
    v_other interval;
    v_turn timestamptz;
begin
    if p_timezone = 'UTC' then
        return pgqueue._cron_find(p_spec, v_from) at time zone 'UTC';
    end if;

    -- Whether p_after itself is in a doubled stretch of local time. No zone changes its offset twice within a day.
    v_offset := pgqueue._utc_offset(p_after, p_timezone);
    if v_elapsed then
        -- In its first pass: the second one begins again at an earlier local time.
        v_turn := p_after + interval '24 hours';
        v_other := pgqueue._utc_offset(v_turn, p_timezone);
        if v_other < v_offset then
            v_turn := p_after + (v_offset - v_other);
            if pgqueue._utc_offset(v_turn, p_timezone) = v_other then
                v_turn := pgqueue._turn_of_zone(p_after, v_turn, p_timezone);
                v_local := pgqueue._cron_find(p_spec, v_from);
                if v_local < (v_turn at time zone 'UTC') + v_offset then
                    return (v_local - v_offset) at time zone 'UTC';
                end if;
                v_from := v_turn at time zone p_timezone;
            end if;
        end if;
    else
        -- In its second pass: every instant up to its end ran in the first one.
        v_turn := p_after - interval '24 hours';
        v_other := pgqueue._utc_offset(v_turn, p_timezone);
        if v_other > v_offset then
            v_turn := p_after - (v_other - v_offset);
            if pgqueue._utc_offset(v_turn, p_timezone) = v_other then
                v_turn := pgqueue._turn_of_zone(v_turn, p_after, p_timezone);
                v_from := (v_turn at time zone 'UTC') + v_other;
            end if;
        end if;
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
        v_turn := v_at - interval '24 hours';
        v_turn := (v_local - pgqueue._utc_offset(v_turn, p_timezone)) at time zone 'UTC';
        if v_turn < v_at and v_turn > p_after and (v_turn at time zone p_timezone) = v_local then
            return v_turn;
        end if;
        return v_at;
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

-- Goes from month to month with an allowed day, and within the first day by its time. The search ends after 41 years,
-- for 40 is the longest that any day is away (29 February on one weekday, across 2100).
create or replace function pgqueue._cron_find(p_spec bytea, p_from timestamp)
returns timestamp
language plpgsql immutable parallel safe
as $$
declare
    v_months constant integer := 180;
    v_year integer := date_part('year', p_from)::integer;
    v_month integer := date_part('month', p_from)::integer;
    v_day integer := date_part('day', p_from)::integer;
    v_last_year integer := v_year + 41;
    v_next integer;
    v_date date;
    v_time time;
begin
    loop
        v_next := get_byte(p_spec, v_months + v_month);
        if v_next = 255 then
            v_year := v_year + 1;
            v_month := 1;
            v_day := 1;
            if v_year > v_last_year then
                return null;
            end if;
            continue;
        elsif v_next > v_month then
            v_month := v_next;
            v_day := 1;
        end if;

        v_day := pgqueue._cron_day(p_spec, v_year, v_month, v_day);
        if v_day is null then
            v_month := v_month + 1;
            v_day := 1;
            continue;
        end if;
        v_date := make_date(v_year, v_month, v_day);
        v_time := pgqueue._cron_time(p_spec, case when v_date = p_from::date then p_from::time else '00:00' end);
        if v_time is not null then
            return v_date + v_time;
        end if;
        v_day := v_day + 1;
    end loop;
end
$$;

-- The first day of a month from p_day on that a parsed expression allows; null: none.
create or replace function pgqueue._cron_day(p_spec bytea, p_year integer, p_month integer, p_day integer)
returns integer
language plpgsql immutable parallel safe
as $$
declare
    v_days constant integer := 147;
    v_weekdays constant integer := 194;
    v_either_is_enough constant boolean := get_byte(p_spec, 201) & 1 <> 0;
    v_first date := make_date(p_year, p_month, 1);
    v_last integer := date_part('day', v_first + interval '1 month' - interval '1 day')::integer;
    -- The weekday of day 0 of the month, 0 to 6; 2 January 2000 was a Sunday.
    v_weekday_of_0 integer := ((v_first - date '2000-01-02') % 7 + 6) % 7;
    v_day integer := p_day;
    v_by_day integer;
    v_by_weekday integer;
begin
    while v_day <= v_last loop
        v_by_day := get_byte(p_spec, v_days + v_day);
        v_by_weekday := v_day + get_byte(p_spec, v_weekdays + (v_weekday_of_0 + v_day) % 7);
        if v_either_is_enough then
            v_day := least(v_by_day, v_by_weekday);
            exit;
        end if;
        v_day := greatest(v_by_day, v_by_weekday);
        exit when v_by_day = v_by_weekday;
    end loop;
    return case when v_day <= v_last then v_day end;
end
$$;

-- The first time of a day from p_from on that a parsed expression allows; null: none.
create or replace function pgqueue._cron_time(p_spec bytea, p_from time)
returns time
language plpgsql immutable parallel safe
as $$
declare
    v_minutes constant integer := 61;
    v_hours constant integer := 122;
    v_hour integer := date_part('hour', p_from)::integer;
    v_minute integer := date_part('minute', p_from)::integer;
    v_second integer := date_part('second', p_from)::integer;
    v_next integer;
begin
    v_next := get_byte(p_spec, v_hours + v_hour);
    if v_next = v_hour then
        v_next := get_byte(p_spec, v_minutes + v_minute);
        if v_next = v_minute then
            v_next := get_byte(p_spec, v_second);
            if v_next < 255 then
                return make_time(v_hour, v_minute, v_next);
            end if;
            v_next := get_byte(p_spec, v_minutes + v_minute + 1);
        end if;
        if v_next < 255 then
            return make_time(v_hour, v_next, get_byte(p_spec, 0));
        end if;
        v_next := get_byte(p_spec, v_hours + v_hour + 1);
    end if;
    return case when v_next < 255 then make_time(v_next, get_byte(p_spec, v_minutes), get_byte(p_spec, 0)) end;
end
$$;
