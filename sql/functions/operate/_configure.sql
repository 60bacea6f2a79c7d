-- The shared part of configure_queue, configure_task, configure_schedule and declare_task: checks, writes and records options.

-- Null options keep their values; reset names options to set back. False: unchanged.
create or replace function pgqueue._configure(p_of text, p_name text, p_options jsonb, p_reset text[])
returns boolean
language sql
as $$
    select pgqueue._check_name(p_of, p_name);
    select pgqueue._refuse(
        case when p_options ? r.name then 'reset names an option that is given' else 'reset names an unknown option' end,
        format('It has %s.', coalesce(quote_literal(r.name), 'null')),
        format(
            'Give the names of options of configure_%s(), such as ''{%s}'', and give these no value.', p_of,
            (select min(k.name) from jsonb_object_keys(p_options) k (name))
        )
    )
    from unnest(p_reset) r (name)
    where p_options -> r.name is distinct from 'null';
    select pgqueue._refuse(
        'retry_policy cannot be function here', 'Only the owner of the schema may name a function.',
        'Call set_retry_function(task, function) as the owner.'
    )
    where p_options ->> 'retry_policy' = 'function';
    select pgqueue._audit(
        'configure_' || p_of,
        jsonb_build_object(
            case p_of when 'schedule' then 'name' else p_of end, p_name,
            'before', jsonb_object_agg(b.key, b.value), 'after', jsonb_object_agg(b.key, a.value)
        ),
        least(count(*), 1)
    )
    from pgqueue._write_options(
        p_of, p_name,
        jsonb_strip_nulls(p_options) || coalesce((select jsonb_object_agg(r.name, null) from unnest(p_reset) r (name)), '{}'),
        false
    ) w
    cross join jsonb_each(w.before) b
    join jsonb_each(w.after) a on a.key = b.key and a.value <> b.value
$$;

-- Locks the row, inserted where there is none (of a schedule by schedule() alone), and writes the values of these columns;
-- p_if_new: but does not lock a row that has all of them. The names alone of the table and of its columns are in the text of
-- the statements.
create or replace function pgqueue._write_options(
    p_of text, p_name text, p_changes jsonb, p_if_new boolean, out before jsonb, out after jsonb, out is_written boolean
)
language plpgsql
as $$
declare
    v_table constant text := p_of || 's';
    v_constraint text;
    v_option text;
    v_bounds text;
begin
    if p_if_new then
        execute format('select t is distinct from jsonb_populate_record(t, $2) from pgqueue.%I t where t.name = $1', v_table)
        into is_written
        using p_name, p_changes;
    end if;
    is_written := coalesce(is_written, true);
    if not is_written then
        return;
    end if;
    if p_of <> 'schedule' then
        execute format('insert into pgqueue.%I (name) values ($1) on conflict do nothing', v_table) using p_name;
    end if;
    execute format('select to_jsonb(t) from pgqueue.%I t where t.name = $1 for update', v_table) into before using p_name;
    after := before;
    if p_changes <> '{}' then
        execute format(
            'update pgqueue.%1$I t set (%2$s) = (select %2$s from jsonb_populate_record(t, $2)) where t.name = $1 returning to_jsonb(t)',
            v_table, (select string_agg(quote_ident(c.name), ', ') from jsonb_object_keys(p_changes) c (name))
        ) into after using p_name, p_changes;
    end if;
exception when check_violation or numeric_value_out_of_range then
    get stacked diagnostics v_constraint = constraint_name;
    -- The tables check the values, by constraints that are named as their columns are: tasks_declared_priority_check.
    v_option := substring(v_constraint from '^[a-z]+_(?:declared_)?([a-z_]+)_check$');
    v_bounds := pgqueue._bounds_of(v_option);
    perform pgqueue._refuse(
        format('an option of %s %s is out of range', p_of, quote_literal(p_name)),
        coalesce(format('%s must be ' || v_bounds || '.', v_option), sqlerrm),
        case
            when v_bounds is null then format('Compare the option with the comment on its column of pgqueue.%s.', v_table)
            else format('Give the option %s so, or leave it out.', v_option)
        end
    );
end
$$;

-- What the value of an option of a queue or task must be, in words.
create or replace function pgqueue._bounds_of(p_option text)
returns text
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select case
        when p_option = 'priority' then 'from -100 to 100'
        when p_option in ('weight', 'retry_budget') then 'from 1 to 1000000'
        when p_option = 'max_attempts' then 'from 1 to 100000'
        when p_option in ('max_crashes', 'batch_size') then 'from 1 to 1000'
        when p_option = 'retry_policy' then 'fixed, exponential, sidekiq, doubling, or list together with retry_delays'
        when p_option in ('retry_delay', 'retry_cap') then 'from zero to one year'
        when p_option = 'retry_delays' then '1 to 1000 intervals, each from zero to one year'
        when p_option = 'retry_jitter' then 'from 0 to 1'
        when p_option = 'timeout' then 'above zero and at most seven days'
        when p_option = 'expires_in' then 'above zero'
        when starts_with(p_option, 'retention_') then 'from zero to two years'
        when p_option = 'fair_by' then 'limit_key'
        when p_option = 'max_share' then 'above 0 and at most 1'
        when p_option in ('queue', 'retry_queue') then '1 to 128 bytes long'
        when p_option = 'docs' then 'an address that begins with http:// or https://'
        when p_option = 'owner' then '1 to 128 characters long'
    end
$$;
