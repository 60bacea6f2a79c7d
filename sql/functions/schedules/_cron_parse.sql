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
-- Each table but that of weekdays ends with one more byte, 255.
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
    -- The first byte of the table of each field, and the last value that it is made from.
    v_starts constant integer[] := '{0,61,122,147,180,194}'::integer[];
    v_ends constant integer[] := '{59,59,23,31,12,13}'::integer[];
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

    for v_field in 1..6 loop
        v_mask := pgqueue._cron_field(v_fields[v_field], v_field);
        v_next := 255;
        for v_value in reverse v_ends[v_field]..0 loop
            if v_mask & (1::bigint << v_value) <> 0 then
                v_next := v_value;
            end if;
            if v_field < 6 then
                v_spec := set_byte(v_spec, v_starts[v_field] + v_value, v_next);
            elsif v_value < 7 then
                v_spec := set_byte(v_spec, v_starts[v_field] + v_value, v_next - v_value);
            end if;
        end loop;
    end loop;
    return set_byte(
        v_spec, 201,
        case when left(v_fields[4], 1) <> '*' and left(v_fields[6], 1) <> '*' then 1 else 0 end
        + case when left(v_fields[2], 1) = '*' or left(v_fields[3], 1) = '*' then 2 else 0 end
    );
end
$$;

-- The allowed values of one field (1 second to 6 day of week) as bits; refuses wrong ones by the field's name. Weekdays are
-- those of two weeks, so that the next allowed one after a Saturday is found.
create or replace function pgqueue._cron_field(p_text text, p_field integer)
returns bigint
language plpgsql stable parallel safe
as $$
declare
    v_least constant integer := (array[0, 0, 0, 1, 1, 0])[p_field];
    v_most constant integer := (array[59, 59, 23, 31, 12, 7])[p_field];
    v_names constant text[] := case p_field
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
        v_from := case
            when v_parts[1] is not null then v_least
            when v_parts[2] ~ '^[0-9]' then v_parts[2]::integer
            else array_position(v_names, v_parts[2]) - 1
        end;
        v_to := case
            when v_parts[3] = 'sun' and p_field = 6 then 7
            when v_parts[3] ~ '^[0-9]' then v_parts[3]::integer
            when v_parts[3] is not null then array_position(v_names, v_parts[3]) - 1
            when v_parts[1] is not null or v_parts[4] is not null then v_most
            else v_from
        end;
        v_step := coalesce(v_parts[4]::integer, 1);
        if v_from is null or v_to is null or v_from < v_least or v_to > v_most or v_from > v_to
            or v_step not between 1 and (array[60, 60, 24, 31, 12, 7])[p_field]
        then
            perform pgqueue._refuse(
                format('the %s of a cron expression must be %s to %s%s',
                    (array['second', 'minute', 'hour', 'day of month', 'month', 'day of week'])[p_field],
                    v_least, v_most,
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
    if p_field = 6 then
        -- Bit 7 is Sunday as well as bit 0.
        v_mask := (v_mask | (v_mask >> 7)) & 127;
        v_mask := v_mask | (v_mask << 7);
    end if;
    return v_mask;
end
$$;
