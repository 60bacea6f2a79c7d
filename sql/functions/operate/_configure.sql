-- The shared parts of configure_queue and configure_task: checks the names in reset, and records the change.

create or replace function pgqueue._check_reset(p_reset text[], p_options text[], p_function text)
returns void
language plpgsql
volatile
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_unknown text;
begin
    select r.name into v_unknown
    from unnest(p_reset) r (name)
    where (r.name = any (p_options)) is not true
    limit 1;
    if found then
        perform pgqueue._refuse(
            'reset names an unknown option', format('It has %s.', coalesce(quote_literal(v_unknown), 'null')),
            format('Give the names of options of %s(), such as ''{%s}''.', p_function, p_options[1])
        );
    end if;
end
$$;

comment on function pgqueue._check_reset(text[], text[], text) is
    'Private: refuses a reset that names something other than these options of a function.';

create or replace function pgqueue._audit_options(p_function text, p_of text, p_name text, p_before jsonb, p_after jsonb)
returns boolean
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_after = p_before then
        return false;
    end if;
    perform pgqueue._audit(
        p_function,
        jsonb_build_object(
            p_of, p_name,
            'before', pgqueue._difference(p_before, p_after),
            'after', pgqueue._difference(p_after, p_before)
        )
    );
    return true;
end
$$;

comment on function pgqueue._audit_options(text, text, text, jsonb, jsonb) is
    'Private: records which options of a queue or task changed; false: none.';

create or replace function pgqueue._difference(p_of jsonb, p_to jsonb)
returns jsonb
language sql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(jsonb_object_agg(o.key, o.value), '{}')
    from jsonb_each(p_of) o
    where o.value is distinct from p_to -> o.key
$$;

comment on function pgqueue._difference(jsonb, jsonb) is 'Private: the fields of one object whose values differ in another.';
