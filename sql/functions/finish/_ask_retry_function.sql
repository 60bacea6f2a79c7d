-- A function of the user decides when a failed job runs again. set_retry_function says what it must be, and why.

-- The only call of a function by its stored name. flaw: why its answer does not count. may_ask: no function was canceled yet.
create or replace function pgqueue._ask_retry_function(
    p_attempt pgqueue.failed_attempt, out delay interval, out flaw text, out may_ask boolean
)
language plpgsql
as $$
declare
    v_name text[];
    v_job jsonb;
begin
    may_ask := p_attempt.may_ask;
    flaw := case
        -- A timeout ends one function that does not return; it would not end a second one.
        when not may_ask then 'It was not called, because an earlier one was canceled.'
        else pgqueue._retry_function_flaw(p_attempt.retry_function, quote_ident(current_user)::regrole)
    end;
    if flaw is null then
        v_name := parse_ident(p_attempt.retry_function);
        select
            to_jsonb(j) - '{ready_at,resumed,grace_given,lane_key}'::text[]
                || jsonb_build_object('retries', j.attempts - 1, 'max_attempts', p_attempt.max_attempts)
        into v_job
        from pgqueue.jobs j
        where j.id = p_attempt.job_id;
        begin
            execute format('select %I.%I($1, $2)', v_name[1], v_name[2]) into delay using v_job, p_attempt.error;
            if not isfinite(delay) or delay not between '0' and '10 years' then
                flaw := format('It returned %s, which is not between zero and ten years.', delay);
            end if;
        exception when others or assert_failure or query_canceled then
            -- query_canceled too: a statement_timeout, or a worker that waited for 3 s, ends a function that does
            -- not return, and the job is retried all the same.
            flaw := pgqueue.legible(to_jsonb(sqlstate || ': ' || sqlerrm)) #>> '{}';
            may_ask := sqlstate <> '57014';
        end;
    end if;
    if flaw is not null then
        delay := null;
        flaw := format('retry function %s: %s', p_attempt.retry_function, flaw);
    end if;
end
$$;

-- Why fail, running as p_owner, must not call this function; null where it may.
create or replace function pgqueue._retry_function_flaw(p_function text, p_owner oid)
returns text
language plpgsql stable
as $$
declare
    v_name text[];
    v_function record;
begin
    begin
        v_name := parse_ident(p_function);
    exception when invalid_parameter_value then
        return 'Its name cannot be read.';
    end;
    if cardinality(v_name) <> 2 then
        return 'Its name must be of the form schema.name.';
    end if;

    select
        p.oid, p.proowner, p.prokind, p.proretset, p.prorettype, p.proconfig, n.oid as schema,
        case n.nspowner when 'pg_database_owner'::regrole then d.datdba else n.nspowner end as schema_owner
    into v_function
    from pg_proc p
    join pg_namespace n on n.oid = p.pronamespace
    join pg_database d on d.datname = current_database()
    where n.nspname = v_name[1] and p.proname = v_name[2] and oidvectortypes(p.proargtypes) = 'jsonb, jsonb';

    return case
        when v_function.oid is null then 'There is no such function of (jsonb, jsonb).'
        when v_function.prokind <> 'f' or v_function.proretset or v_function.prorettype <> 'interval'::regtype
            then 'It does not return one interval.'
        when not pg_has_role(v_function.proowner, p_owner, 'usage')
            then format('It is owned by %s, which has not the rights of %s.',
                pg_get_userbyid(v_function.proowner), pg_get_userbyid(p_owner))
        when not pg_has_role(v_function.schema_owner, p_owner, 'usage')
            then format('Its schema is owned by %s, which has not the rights of %s.',
                pg_get_userbyid(v_function.schema_owner), pg_get_userbyid(p_owner))
        when not has_schema_privilege(p_owner, v_function.schema, 'usage')
            or not has_function_privilege(p_owner, v_function.oid, 'execute')
            then format('%s may not execute it.', pg_get_userbyid(p_owner))
        when not exists (
            select from unnest(v_function.proconfig) c (setting) where c.setting ~ '^search_path=(.*, *)?"?pg_temp"?$'
        ) then 'It does not pin its search_path with pg_temp at the end.'
    end;
end
$$;
