-- set_retry_function: a function of the user decides when jobs of a task run again. For the schema's owner alone.
--
-- fail() runs with its owner's rights, and calls the function. A function that another role may replace would give that role
-- those rights. So it must belong to a role that has them anyway, in a schema of such a role (which could drop it and create
-- another in its place): then it never has more rights than its own owner. It must pin its search_path with pg_temp at the end,
-- so that a caller of fail() cannot substitute its own table. A security definer function of another role is refused as well:
-- that role could remove the attribute between the check and the call. The name is stored as text and all of this is checked
-- again at each call, for functions can be replaced. Not security definer, granted to no kind of role, and no grant covers the
-- column: an operator cannot set it, nor can a worker declare it. Locks the task's row.

create or replace function pgqueue.set_retry_function(task text, function text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgqueue._check_name('task', set_retry_function.task);
    if set_retry_function.function is null then
        update pgqueue.tasks
        set retry_function = null, retry_policy = nullif(retry_policy, 'function')
        where name = set_retry_function.task;
    else
        perform pgqueue._refuse(
            format('function %s cannot decide on retries', quote_literal(set_retry_function.function)), f.flaw,
            'Give function as the schema-qualified name of one that the owner of pgqueue owns: create function '
            'app.when_to_retry(job jsonb, error jsonb) returns interval ... set search_path = pg_catalog, pg_temp.'
        )
        from pg_proc p
        cross join lateral (select pgqueue._retry_function_flaw(set_retry_function.function, p.proowner) as flaw) f
        where p.pronamespace = 'pgqueue'::regnamespace and p.proname = 'fail' and f.flaw is not null;
        insert into pgqueue.tasks (name, retry_policy, retry_function)
        values (set_retry_function.task, 'function', set_retry_function.function)
        on conflict (name) do update
        set retry_policy = 'function', retry_function = excluded.retry_function;
    end if;
    perform pgqueue._audit('set_retry_function', jsonb_build_object('task', task, 'function', function)) where found;
end
$$;

comment on function pgqueue.set_retry_function(text, text) is
    'Let a function decide when failed jobs of a task run again; null: no longer. '
    'function: schema-qualified name of function (job jsonb, error jsonb) returns interval; null means dead. '
    'job is the row of pgqueue.jobs, with retries (so far) and max_attempts filled in; error is what fail was given. '
    'If it raises, or statement_timeout ends it, the job is retried by the default policy, and its errors record why.';
