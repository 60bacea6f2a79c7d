-- set_retry_function: a function of the user decides when jobs of a task run again. For the schema's owner alone.
--
-- fail() runs with its owner's rights, and calls the function. A function that another role may replace would give that
-- role those rights. So it must belong to a role that has them anyway, in a schema of such a role (which could drop it and
-- create another in its place): then it never has more rights than its own owner. It must pin its search_path with pg_temp
-- at the end, so that a caller of fail() cannot substitute a table of its own. A security definer function of another role
-- is refused as well: that role could remove the attribute between the check and the call.
-- The name is stored as text and all of this is checked again at each call, for functions can be replaced.
-- Not security definer, granted to no kind of role, and no grant covers the column: an operator cannot set it, nor can a
-- worker declare it. Locks the task's row.

create or replace function pgqueue.set_retry_function(task text, function text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_flaw text;
begin
    perform pgqueue._check_name('task', set_retry_function.task);
    if set_retry_function.function is null then
        update pgqueue.tasks
        set retry_function = null, retry_policy = nullif(retry_policy, 'function')
        where name = set_retry_function.task;
        if found then
            perform pgqueue._audit('set_retry_function', jsonb_build_object('task', set_retry_function.task));
        end if;
        return;
    end if;

    select pgqueue._retry_function_flaw(set_retry_function.function, p.proowner)
    into v_flaw
    from pg_proc p
    where p.pronamespace = 'pgqueue'::regnamespace and p.proname = 'fail';
    if v_flaw is not null then
        perform pgqueue._refuse(
            format('function %s cannot decide on retries', quote_literal(set_retry_function.function)), v_flaw,
            'Give function as the schema-qualified name of one that the owner of pgqueue owns: create function '
            'app.when_to_retry(job jsonb, error jsonb) returns interval ... set search_path = pg_catalog, pg_temp.'
        );
    end if;
    insert into pgqueue.tasks (name, retry_policy, retry_function)
    values (set_retry_function.task, 'function', set_retry_function.function)
    on conflict (name) do update
    set retry_policy = 'function', retry_function = excluded.retry_function;
    perform pgqueue._audit(
        'set_retry_function', jsonb_build_object('task', set_retry_function.task, 'function', set_retry_function.function)
    );
end
$$;

comment on function pgqueue.set_retry_function(text, text) is
    'Let a function decide when failed jobs of a task run again; null: no longer. '
    'function: schema-qualified name of function (job jsonb, error jsonb) returns interval; null means dead. '
    'job is the row of pgqueue.jobs, with retries (so far) and max_attempts filled in; error is what fail was given. '
    'If it raises, or statement_timeout ends it, the job is retried by the default policy, and its errors record why.';

-- Why fail, running as p_owner, must not call this function; null where it may.
create or replace function pgqueue._retry_function_flaw(p_function text, p_owner oid)
returns text
language plpgsql
stable
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
    where n.nspname = v_name[1]
        and p.proname = v_name[2]
        and oidvectortypes(p.proargtypes) = 'jsonb, jsonb';

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

-- The only call of a function by its stored name.
create or replace function pgqueue._ask_retry_function(
    p_function text, p_job_id bigint, p_max_attempts integer, p_error jsonb,
    out delay interval, out flaw text, out canceled boolean
)
returns record
language plpgsql
as $$
declare
    v_name text[];
    v_job jsonb;
begin
    flaw := pgqueue._retry_function_flaw(p_function, quote_ident(current_user)::regrole);
    if flaw is null then
        v_name := parse_ident(p_function);
        select
            to_jsonb(j) - '{ready_at,resumed,grace_given}'::text[]
                || jsonb_build_object('retries', j.attempts - 1, 'max_attempts', p_max_attempts)
        into v_job
        from pgqueue.jobs j
        where j.id = p_job_id;
        begin
            execute format('select %I.%I($1, $2)', v_name[1], v_name[2]) into delay using v_job, p_error;
            if not isfinite(delay) or delay not between '0' and '10 years' then
                flaw := format('It returned %s, which is not between zero and ten years.', delay);
            end if;
        exception when others or assert_failure or query_canceled then
            -- query_canceled too: a statement_timeout, or a worker that waited for 30 s, ends a function that does
            -- not return, and the job is retried all the same.
            flaw := pgqueue.legible(to_jsonb(sqlstate || ': ' || sqlerrm)) #>> '{}';
            canceled := sqlstate = '57014';
        end;
    end if;
    if flaw is not null then
        delay := null;
        flaw := format('retry function %s: %s', p_function, flaw);
    end if;
end
$$;
