-- Parses a cron expression into 202 bytes: a jump table for each field, and flags. A search (see _cron_search.sql) then
-- needs a few lookups.
--
-- from byte  field         what stands there
-- 0          second        for each value from 0 on: the smallest allowed value that is not below it; 255: none
-- 61         minute        likewise
-- 122        hour          likewise
-- 147        day of month  likewise
-- 180        month         likewise
-- 194        day of week   for each weekday (0 is Sunday): the days until the next allowed one, 0 if it is allowed itself
-- 201        flags         1: neither day of month nor day of week begins with *: either is enough, as in cron
--                          2: minute or hour begins with *; when clocks change, the schedule goes by elapsed time: it
--                             also runs in both passes of a repeated hour
-- Each table but that of weekdays ends with one more byte, 255: a search from the largest value plus 1 finds none.
-- Reads no table of the database. A refusal names the field that is wrong.

create or replace function pgqueue._cron_parse(p_expression text)
returns bytea
language plpgsql stable parallel safe
as $$
declare
    -- In the database's own order of letters a Turkish one makes no mon-fri of MON-FRI.
    v_text text := lower(regexp_replace(btrim(p_expression, E' \t\r\n'), '\s+', ' ', 'g') collate "C");
    v_fields text[];
    v_spec bytea := decode(repeat('ff', 202), 'hex');
    -- For second, minute, hour, day of month, month: the first byte of its table, and its last value.
    v_starts integer[] := '{0,61,122,147,180}'::integer[];
    v_ends integer[] := '{59,59,23,31,12}'::integer[];
    v_mask bigint;
    v_next integer;
begin
    v_text := coalesce(
        jsonb_build_object(
            '@hourly', '0 * * * *', '@daily', '0 0 * * *', '@midnight', '0 0 * * *', '@weekly', '0 0 * * 0',
            '@monthly', '0 0 1 * *', '@yearly', '0 0 1 1 *', '@annually', '0 0 1 1 *'
        ) ->> v_text,
        v_text
    );
    v_fields := string_to_array(v_text, ' ');
    if cardinality(v_fields) = 5 then
        v_fields := array_prepend('0', v_fields);
    end if;
    if v_fields is null or cardinality(v_fields) <> 6 or octet_length(p_expression) > 1000 then
        perform pgqueue._refuse(
            'a cron expression has five fields, or six with seconds first',
            case
                when p_expression is null then 'It is null.'
                when octet_length(p_expression) > 1000 then format('It has %s bytes; 1000 are allowed.', octet_length(p_expression))
                else format('%s has %s.', quote_literal(left(p_expression, 100)), cardinality(v_fields))
            end,
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

    -- Bit 7, which is Sunday as well, goes to bit 0. Then two weeks in one mask, so that the search for the next allowed
    -- weekday continues past Saturday.
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

-- The allowed values of one field (1 second to 6 day of week) as bits; refuses wrong ones by the field's name.
create or replace function pgqueue._cron_field(p_text text, p_field integer)
returns bigint
language plpgsql stable parallel safe
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
            v_item, e'^(?:(\\*)|([0-9]{1,4}|[a-z]{3})(?:-([0-9]{1,4}|[a-z]{3}))?)(?:/([0-9]{1,4}))?$'
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

-- A number or a name as a number; null: neither.
create or replace function pgqueue._cron_value(p_text text, p_names text[])
returns integer
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select case when p_text ~ '^[0-9]' then p_text::integer else array_position(p_names, p_text) - 1 end
$$;
