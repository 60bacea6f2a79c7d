-- cron_next: the next instant of a cron expression, for people and tests; schedules use its private parts. Reads no
-- table and locks nothing.
--
-- The rules are vixie cron's, as Debian has it. Five fields, or six with seconds first; lists, ranges, steps, names;
-- 7 is Sunday. Where day-of-month and day-of-week are both restricted, either is enough; a field that begins with *
-- (also */2) counts as not restricted, and then both must fit. Where minute or hour begins with *, the expression
-- runs on elapsed time: a doubled hour twice, a skipped one not at all. Any other runs by the wall clock: what falls
-- into a skipped stretch runs once, at the jump; what falls into a doubled one, at its first pass only.
-- Beyond vixie: a/n is a to the end of the field by n, a range may end in sun. Stricter: a step may not be above the
-- number of the field's values (*/90 is not every 90 minutes). Not here: L, W, #, ?, @reboot.
--
-- It is parsed once into 202 bytes of jump tables, "the smallest allowed value from here on", so that searching is
-- a few lookups a field and one turn for each month without a fitting day. The search ends after 41 years, for 40
-- is the longest that any day is away (29 February on one weekday, across 2100): beyond them means never.

create or replace function pgqueue.cron_next(expression text, after timestamptz, timezone text default 'UTC')
returns timestamptz
language plpgsql
stable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    if cron_next.after is null
        or cron_next.after not between '0002-01-01 00:00:00+00' and '9900-01-01 00:00:00+00'
    then
        perform pgqueue._refuse(
            'after must be an instant between the years 2 and 9900',
            format('It is %s.', coalesce(cron_next.after::text, 'null')), 'Give after as a timestamptz.'
        );
    end if;
    if cron_next.timezone is null then
        perform pgqueue._refuse('timezone must not be null', null, 'Give the name of a time zone, such as Europe/Berlin.');
    end if;
    return pgqueue._cron_next(pgqueue._cron_parse(cron_next.expression), cron_next.after, cron_next.timezone);
end
$$;

comment on function pgqueue.cron_next(text, timestamptz, text) is
    'The first instant after "after" at which a cron expression is due; null: never. '
    'select pgqueue.cron_next(''30 2 * * mon-fri'', now(), ''Europe/Berlin''); '
    'Fields: [second 0-59] minute 0-59, hour 0-23, day of month 1-31, month 1-12 or jan-dec, day of week 0-7 or sun-sat; '
    'or @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually. A time that is skipped in spring runs at the jump, '
    'one that is doubled in autumn once; with * as minute or hour it runs on elapsed time.';

-- The tables of a parsed expression, by their first byte: second 0, minute 61, hour 122, day of month 147, month 180:
-- at a value, the smallest allowed one that is not below it (255: none); day of week 194: days until the next allowed
-- one; 201: 1 = either day is enough, 2 = runs on elapsed time.
create or replace function pgqueue._cron_parse(p_expression text)
returns bytea
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_text text := lower(regexp_replace(btrim(p_expression, E' \t\r\n'), '\s+', ' ', 'g'));
    v_fields text[];
    v_spec bytea := decode(repeat('ff', 202), 'hex');
    v_starts integer[] := '{0,61,122,147,180}'::integer[];
    v_ends integer[] := '{59,59,23,31,12}'::integer[];
    v_mask bigint;
    v_next integer;
begin
    v_text := case v_text
        when '@hourly' then '0 * * * *'
        when '@daily' then '0 0 * * *'
        when '@midnight' then '0 0 * * *'
        when '@weekly' then '0 0 * * 0'
        when '@monthly' then '0 0 1 * *'
        when '@yearly' then '0 0 1 1 *'
        when '@annually' then '0 0 1 1 *'
        else v_text
    end;
    v_fields := string_to_array(v_text, ' ');
    if cardinality(v_fields) = 5 then
        v_fields := array_prepend('0', v_fields);
    end if;
    if v_fields is null or cardinality(v_fields) <> 6 or octet_length(p_expression) > 1000 then
        perform pgqueue._refuse(
            'a cron expression has five fields, or six with seconds first',
            case when p_expression is null then 'It is null.'
                else format('%s has %s.', quote_literal(left(p_expression, 100)), cardinality(v_fields)) end,
            'Give minute, hour, day of month, month and day of week, such as ''30 2 * * mon-fri'', or one of '
            '@hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually.'
        );
    end if;

    for v_field in 1..5 loop
        v_mask := pgqueue._cron_field(v_fields[v_field], v_field);
        v_next := 255;
        for v_value in reverse v_ends[v_field]..0 loop
            if v_mask & (1::bigint << v_value) <> 0 then
                v_next := v_value;
            end if;
            v_spec := set_byte(v_spec, v_starts[v_field] + v_value, v_next);
        end loop;
    end loop;

    v_mask := pgqueue._cron_field(v_fields[6], 6);
    v_mask := (v_mask | (v_mask >> 7)) & 127;
    v_mask := v_mask | (v_mask << 7);
    v_next := 255;
    for v_value in reverse 13..0 loop
        if v_mask & (1::bigint << v_value) <> 0 then
            v_next := v_value;
        end if;
        if v_value < 7 then
            v_spec := set_byte(v_spec, 194 + v_value, v_next - v_value);
        end if;
    end loop;

    return set_byte(
        v_spec, 201,
        case when left(v_fields[4], 1) <> '*' and left(v_fields[6], 1) <> '*' then 1 else 0 end
        + case when left(v_fields[2], 1) = '*' or left(v_fields[3], 1) = '*' then 2 else 0 end
    );
end
$$;

comment on function pgqueue._cron_parse(text) is 'Private: a cron expression as jump tables; refuses wrong ones.';

create or replace function pgqueue._cron_field(p_text text, p_field integer)
returns bigint
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_min integer := (array[0, 0, 0, 1, 1, 0])[p_field];
    v_max integer := (array[59, 59, 23, 31, 12, 7])[p_field];
    v_names text[] := case p_field
        when 5 then '{"",jan,feb,mar,apr,may,jun,jul,aug,sep,oct,nov,dec}'::text[]
        when 6 then '{sun,mon,tue,wed,thu,fri,sat}'::text[]
    end;
    v_mask bigint := 0::bigint;
    v_item text;
    v_parts text[];
    v_from integer;
    v_to integer;
    v_step integer;
begin
    foreach v_item in array string_to_array(p_text, ',') loop
        v_parts := regexp_match(
            v_item, '^(?:(\*)|([0-9]{1,4}|[a-z]{3})(?:-([0-9]{1,4}|[a-z]{3}))?)(?:/([0-9]{1,4}))?$'
        );
        v_from := case when v_parts[1] is not null then v_min else pgqueue._cron_value(v_parts[2], v_names) end;
        v_to := case
            when v_parts[3] = 'sun' and p_field = 6 then 7
            when v_parts[3] is not null then pgqueue._cron_value(v_parts[3], v_names)
            when v_parts[1] is not null or v_parts[4] is not null then v_max
            else v_from
        end;
        v_step := coalesce(v_parts[4]::integer, 1);
        if v_from is null or v_to is null or v_from < v_min or v_to > v_max or v_from > v_to
            or v_step not between 1 and (array[60, 60, 24, 31, 12, 7])[p_field]
        then
            perform pgqueue._refuse(
                format('the %s of a cron expression must be %s to %s%s',
                    (array['second', 'minute', 'hour', 'day of month', 'month', 'day of week'])[p_field],
                    v_min, v_max,
                    case p_field when 5 then ' or jan to dec' when 6 then ' or sun to sat (0 and 7 are Sunday)' else '' end),
                case when v_item = p_text then format('It is %s.', quote_literal(left(v_item, 100)))
                    else format('%s in %s.', quote_literal(left(v_item, 100)), quote_literal(left(p_text, 100))) end,
                'Give *, a value, a range a-b (a not above b), each with a step /n of at least 1 and at most the '
                'number of the field''s values, or a list of these.'
            );
        end if;
        for v_value in v_from..v_to by v_step loop
            v_mask := v_mask | (1::bigint << v_value);
        end loop;
    end loop;
    return v_mask;
end
$$;

comment on function pgqueue._cron_field(text, integer) is
    'Private: the allowed values of one field (1 second to 6 day of week) as bits; refuses wrong ones by the field''s name.';

create or replace function pgqueue._cron_value(p_text text, p_names text[])
returns integer
language sql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select case when p_text ~ '^[0-9]' then p_text::integer else array_position(p_names, p_text) - 1 end
$$;

comment on function pgqueue._cron_value(text, text[]) is 'Private: a number or a name as a number; null: neither.';

create or replace function pgqueue._cron_next(p_spec bytea, p_after timestamptz, p_timezone text)
returns timestamptz
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
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

    -- Is "after" itself in a doubled stretch of local time? No zone turns twice within a day.
    v_offset := (p_after at time zone p_timezone) - (p_after at time zone 'UTC');
    if v_elapsed then
        -- In its first pass: the second one begins again at an earlier local time.
        v_turn := p_after + interval '24 hours';
        v_other := (v_turn at time zone p_timezone) - (v_turn at time zone 'UTC');
        if v_other < v_offset then
            v_turn := p_after + (v_offset - v_other);
            if (v_turn at time zone p_timezone) - (v_turn at time zone 'UTC') = v_other then
                v_turn := pgqueue._turn_of_zone(p_after, v_turn, p_timezone);
                v_local := pgqueue._cron_find(p_spec, v_from);
                if v_local < (v_turn at time zone 'UTC') + v_offset then
                    return (v_local - v_offset) at time zone 'UTC';
                end if;
                v_from := v_turn at time zone p_timezone;
            end if;
        end if;
    else
        -- In its second pass: everything up to its end had its run in the first one.
        v_turn := p_after - interval '24 hours';
        v_other := (v_turn at time zone p_timezone) - (v_turn at time zone 'UTC');
        if v_other > v_offset then
            v_turn := p_after - (v_other - v_offset);
            if (v_turn at time zone p_timezone) - (v_turn at time zone 'UTC') = v_other then
                v_turn := pgqueue._turn_of_zone(v_turn, p_after, p_timezone);
                v_from := (v_turn at time zone 'UTC') + v_other;
            end if;
        end if;
    end if;

    loop
        v_local := pgqueue._cron_find(p_spec, v_from);
        -- PostgreSQL reads a doubled time as its second pass, and a skipped one as if the jump were yet to come.
        v_at := v_local at time zone p_timezone;
        if (v_at at time zone p_timezone) <> v_local then
            -- The gap in UTC: where it is a whole day, a day less of a timestamptz would depend on the session's zone.
            v_other := (v_at at time zone p_timezone) - v_local;
            v_turn := pgqueue._turn_of_zone(
                ((v_at at time zone 'UTC') - v_other) at time zone 'UTC', v_at, p_timezone
            );
            if not v_elapsed then
                return v_turn;
            end if;
            v_from := v_turn at time zone p_timezone;
            continue;
        end if;
        v_turn := v_at - interval '24 hours';
        v_turn := (v_local - ((v_turn at time zone p_timezone) - (v_turn at time zone 'UTC'))) at time zone 'UTC';
        if v_turn < v_at and v_turn > p_after and (v_turn at time zone p_timezone) = v_local then
            return v_turn;
        end if;
        return v_at;
    end loop;
end
$$;

comment on function pgqueue._cron_next(bytea, timestamptz, text) is
    'Private: the first instant after p_after at which a parsed expression is due in a time zone; null: never.';

create or replace function pgqueue._turn_of_zone(p_before timestamptz, p_after timestamptz, p_timezone text)
returns timestamptz
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_offset interval := (p_before at time zone p_timezone) - (p_before at time zone 'UTC');
    v_low bigint := floor(extract(epoch from p_before))::bigint;
    v_high bigint := floor(extract(epoch from p_after))::bigint;
    v_middle timestamptz;
begin
    while v_high - v_low > 1 loop
        v_middle := to_timestamp((v_low + v_high) / 2);
        if (v_middle at time zone p_timezone) - (v_middle at time zone 'UTC') = v_offset then
            v_low := (v_low + v_high) / 2;
        else
            v_high := (v_low + v_high) / 2;
        end if;
    end loop;
    return to_timestamp(v_high);
end
$$;

comment on function pgqueue._turn_of_zone(timestamptz, timestamptz, text) is
    'Private: the second at which a zone''s offset from UTC changes, between an instant before and one at or after it.';

create or replace function pgqueue._cron_find(p_spec bytea, p_from timestamp)
returns timestamp
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_start date := p_from::date;
    v_year integer := date_part('year', p_from)::integer;
    v_month integer := date_part('month', p_from)::integer;
    v_day integer := date_part('day', p_from)::integer;
    v_last_year integer := v_year + 41;
    v_first date;
    v_weekday integer;
    v_next integer;
    v_hour integer;
    v_minute integer;
    v_second integer;
begin
    loop
        v_next := get_byte(p_spec, 180 + v_month);
        if v_next <> v_month then
            v_day := 1;
            v_month := v_next;
            if v_next = 255 then
                v_month := 1;
                v_year := v_year + 1;
                if v_year > v_last_year then
                    return null;
                end if;
                continue;
            end if;
        end if;

        -- The first allowed day of this month from v_day on; 2 January 2000 was a Sunday.
        v_first := make_date(v_year, v_month, 1);
        v_weekday := ((v_first - date '2000-01-02') % 7 + 6 + v_day) % 7;
        if get_byte(p_spec, 201) & 1 <> 0 then
            v_day := least(get_byte(p_spec, 147 + v_day), v_day + get_byte(p_spec, 194 + v_weekday));
        else
            loop
                v_next := get_byte(p_spec, 147 + v_day);
                exit when v_next = 255;
                v_weekday := (v_weekday + v_next - v_day) % 7;
                v_day := v_next;
                v_next := get_byte(p_spec, 194 + v_weekday);
                exit when v_next = 0;
                v_day := v_day + v_next;
                v_weekday := (v_weekday + v_next) % 7;
                exit when v_day > 31;
            end loop;
            if v_next = 255 then
                v_day := 32;
            end if;
        end if;
        if v_day > 28 and (v_first + (v_day - 1) >= (v_first + interval '1 month')::date or v_day > 31) then
            v_month := v_month + 1;
            v_day := 1;
            continue;
        end if;

        if v_first + (v_day - 1) > v_start then
            return (v_first + (v_day - 1)) + make_time(get_byte(p_spec, 122), get_byte(p_spec, 61), get_byte(p_spec, 0));
        end if;

        -- What is left of the first day.
        v_hour := date_part('hour', p_from)::integer;
        v_minute := date_part('minute', p_from)::integer;
        v_second := date_part('second', p_from)::integer;
        v_next := get_byte(p_spec, 122 + v_hour);
        if v_next = v_hour then
            v_next := get_byte(p_spec, 61 + v_minute);
            if v_next = v_minute then
                v_next := get_byte(p_spec, v_second);
                if v_next < 255 then
                    return v_start + make_time(v_hour, v_minute, v_next);
                end if;
                v_next := get_byte(p_spec, 62 + v_minute);
            end if;
            if v_next < 255 then
                return v_start + make_time(v_hour, v_next, get_byte(p_spec, 0));
            end if;
            v_next := get_byte(p_spec, 123 + v_hour);
        end if;
        if v_next < 255 then
            return v_start + make_time(v_next, get_byte(p_spec, 61), get_byte(p_spec, 0));
        end if;
        v_day := v_day + 1;
    end loop;
end
$$;

comment on function pgqueue._cron_find(bytea, timestamp) is
    'Private: the first local time from p_from on that a parsed expression allows; null: none within 41 years.';
