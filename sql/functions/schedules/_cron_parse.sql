-- Parses a cron expression into eight texts, in which a search (see _cron_next) finds the next allowed values.
--
-- 1 to 6  second, minute, hour, day of month, month, day of week: a 1 for each value from 0 on that is allowed, else a 0
-- 7       true: neither day of month nor day of week begins with *: either is enough, as in cron
-- 8       true: minute or hour begins with *; when clocks change, the schedule goes by elapsed time: it also runs in both
--         passes of a repeated hour
-- Reads no table of the database. A refusal names the field that is wrong.

create or replace function pgqueue._cron_parse(p_expression text)
returns text[]
language plpgsql stable parallel safe
as $$
declare
    -- In the database's own order of letters a Turkish one makes no mon-fri of MON-FRI.
    v_text text := lower(regexp_replace(btrim(p_expression, E' \t\r\n'), e'\\s+', ' ', 'g') collate "C");
    v_fields text[];
begin
    v_text := coalesce(
        jsonb_build_object(
            '@hourly', '0 * * * *', '@daily', '0 0 * * *', '@midnight', '0 0 * * *', '@weekly', '0 0 * * 0',
            '@monthly', '0 0 1 * *', '@yearly', '0 0 1 1 *', '@annually', '0 0 1 1 *'
        ) ->> v_text,
        v_text
    );
    v_fields := string_to_array(v_text, ' ');
    v_fields := case when cardinality(v_fields) = 5 then array_prepend('0', v_fields) else v_fields end;
    perform pgqueue._refuse(
        'a cron expression has five fields, or six with seconds first',
        case
            when p_expression is null then 'It is null.'
            when octet_length(p_expression) > 1000 then format('It has %s bytes; 1000 are allowed.', octet_length(p_expression))
            else format('%s has %s.', quote_literal(left(p_expression, 100)), cardinality(v_fields))
        end,
        'Give minute, hour, day of month, month and day of week, such as ''30 2 * * mon-fri'', or one of '
        '@hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually.'
    )
    where v_fields is null or cardinality(v_fields) <> 6 or octet_length(p_expression) > 1000;

    return array(
        select pgqueue._cron_field(f.field, f.n::integer) from unnest(v_fields) with ordinality f (field, n) order by f.n
    ) || array[
        (left(v_fields[4], 1) <> '*' and left(v_fields[6], 1) <> '*')::text,
        (left(v_fields[2], 1) = '*' or left(v_fields[3], 1) = '*')::text
    ];
end
$$;

-- The allowed values of one field (1 second to 6 day of week); refuses wrong ones by the field's name. Weekdays are those of two
-- weeks, so that the next allowed one after a Saturday is found.
create or replace function pgqueue._cron_field(p_text text, p_field integer)
returns text
language plpgsql stable parallel safe
as $$
declare
    v_least constant integer := (array[0, 0, 0, 1, 1, 0])[p_field];
    v_most constant integer := (array[59, 59, 23, 31, 12, 7])[p_field];
    v_names constant text[] := case p_field
        when 5 then '{"",jan,feb,mar,apr,may,jun,jul,aug,sep,oct,nov,dec}'::text[]
        when 6 then '{sun,mon,tue,wed,thu,fri,sat}'::text[]
    end;
    v_mask text := repeat('0', v_most + 1);
    v_item text;
    v_parts text[];
    v_from integer;
    v_to integer;
    v_step integer;
begin
    foreach v_item in array string_to_array(p_text, ',') loop
        v_parts := regexp_match(v_item, e'^(?:(\\*)|([0-9]{1,4}|[a-z]{3})(?:-([0-9]{1,4}|[a-z]{3}))?)(?:/([0-9]{1,4}))?$');
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
        perform pgqueue._refuse(
            format('the %s of a cron expression must be %s to %s%s',
                (array['second', 'minute', 'hour', 'day of month', 'month', 'day of week'])[p_field],
                v_least, v_most,
                case p_field when 5 then ' or jan to dec' when 6 then ' or sun to sat (0 and 7 are Sunday)' else '' end),
            case when v_item = p_text then format('It is %s.', quote_literal(left(v_item, 100)))
                else format('%s in %s.', quote_literal(left(v_item, 100)), quote_literal(left(p_text, 100))) end,
            'Give *, a value, a range a-b (a not above b), each with a step /n of at least 1 and at most the '
            'number of the field''s values, or a list of these.'
        )
        where v_from is null or v_to is null or v_from < v_least or v_to > v_most or v_from > v_to
            or v_step not between 1 and (array[60, 60, 24, 31, 12, 7])[p_field];
        for v_value in v_from..v_to by v_step loop
            v_mask := overlay(v_mask placing '1' from v_value + 1);
        end loop;
    end loop;
    if p_field = 6 then
        -- 7 is Sunday as well as 0.
        v_mask := repeat(case when v_mask ~ '^1|1$' then '1' else '0' end || substr(v_mask, 2, 6), 2);
    end if;
    return v_mask;
end
$$;
