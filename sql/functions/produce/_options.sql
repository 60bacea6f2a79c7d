-- The options of a job, as a producer gives them: checks each by its name.
--
-- Every function that enqueues passes them on as one row of job_options, named as the arguments of enqueue(). Args are
-- checked separately, for enqueue_many() has many args with one set of options. Locks nothing.

create or replace function pgqueue._check_options(p_options pgqueue.job_options)
returns void
language plpgsql
stable
parallel safe
as $$
begin
    if p_options.task is null or octet_length(p_options.task) not between 1 and 128 then
        perform pgqueue._check_name('task', p_options.task);
    end if;
    if num_nonnulls(p_options.depends_on, p_options.run_if, p_options.group_id) > 0 then
        perform pgqueue._check_dependencies(p_options);
    end if;
    if p_options.queue is not null then
        perform pgqueue._check_name('queue', p_options.queue);
    end if;
    if p_options.priority not between -100 and 100 then
        perform pgqueue._refuse(
            'priority must be between -100 and 100', format('It is %s.', p_options.priority),
            'Give priority as a whole number; higher runs first, 0 is the default.'
        );
    end if;
    perform pgqueue._check_times(p_options);
    if p_options.headers is not null and jsonb_typeof(p_options.headers) <> 'object' then
        perform pgqueue._refuse(
            'headers must be a JSON object', format('It is a JSON %s.', jsonb_typeof(p_options.headers)),
            'Give headers as an object, such as {"traceparent": "..."}.'
        );
    end if;
    if pg_column_size(p_options.headers) > 65536 then
        perform pgqueue._refuse(
            'headers must be at most 64 KiB', format('It has %s bytes.', pg_column_size(p_options.headers)),
            'Put data of the job into args; headers are for trace context.'
        );
    end if;
    if p_options.tags is not null and (
        cardinality(p_options.tags) > 100
        or exists (select from unnest(p_options.tags) t (tag) where t.tag is null or octet_length(t.tag) not between 1 and 128)
    ) then
        perform pgqueue._refuse(
            'tags must be at most 100 texts of 1 to 128 bytes', null, 'Give tags as text[] without nulls.'
        );
    end if;
    perform pgqueue._check_retries(p_options);
    if p_options.limit_key is not null then
        perform pgqueue._check_name('limit_key', p_options.limit_key, 512);
    end if;
    if p_options.score in ('NaN', 'Infinity', '-Infinity') then
        perform pgqueue._refuse(
            'score must be finite', format('It is %s.', p_options.score),
            'Give score as a number, or leave it out to order payloads by the time of their enqueue.'
        );
    end if;
    if num_nonnulls(p_options.dedupe, p_options.dedupe_for, p_options.on_conflict, p_options.debounce_max) > 0 then
        perform pgqueue._check_dedupe(p_options);
    end if;
    if p_options.declared is not null then
        perform pgqueue._check_declared(p_options.declared);
    end if;
end
$$;

-- Refuses declared options that no task can have.
create or replace function pgqueue._check_declared(p_declared jsonb)
returns void
language plpgsql
stable
parallel safe
as $$
begin
    if not pgqueue._is_declared(p_declared) then
        perform pgqueue._refuse(
            'declared must be options that a task can declare', format('It is %s.', left(p_declared::text, 200)),
            'Give declared as an object with queue, priority, expires_in (above zero) and accumulate, or some of them, such as {"queue": "mail"}.'
        );
    end if;
end
$$;

-- Not pinned, so that it is inlined: it is called for each row of a load.
create or replace function pgqueue._is_declared(p_declared jsonb)
returns boolean
language sql
stable
parallel safe
as $$
    select case when pg_catalog.jsonb_typeof(p_declared) = 'object' then
        p_declared - '{queue,priority,expires_in,accumulate}'::text[] = '{}'
        and coalesce(pg_catalog.jsonb_typeof(p_declared -> 'queue') = 'string', true)
        and coalesce(pg_catalog.octet_length(p_declared ->> 'queue') between 1 and 128, true)
        and coalesce(p_declared ->> 'priority' ~ '^-?([0-9]{1,2}|100)$', true)
        and coalesce((p_declared ->> 'expires_in')::interval between '1 us' and '9999 years', true)
        and coalesce(pg_catalog.jsonb_typeof(p_declared -> 'accumulate') = 'boolean', true)
    else false end
$$;

-- Refuses wrong dependencies among the options of a job; whether the jobs exist is checked later.
create or replace function pgqueue._check_dependencies(p_options pgqueue.job_options)
returns void
language plpgsql
stable
parallel safe
as $$
begin
    if array_ndims(p_options.depends_on) > 1 or array_position(p_options.depends_on, null) is not null then
        perform pgqueue._refuse(
            'depends_on must be a plain array of job ids without nulls', format('It is %s.', left(p_options.depends_on::text, 200)),
            'Give depends_on as the ids that enqueue() returned.'
        );
    end if;
    if cardinality(p_options.depends_on) > 1000 then
        perform pgqueue._refuse(
            'depends_on may name at most 1000 jobs', format('It names %s.', cardinality(p_options.depends_on)),
            'Depend on a group instead: enqueue the jobs as its members, with group_id, and depend on the group.'
        );
    end if;
    if p_options.run_if not in ('succeeded', 'finished', 'failed') then
        perform pgqueue._refuse(
            'run_if is unknown', format('It is %s.', quote_literal(p_options.run_if)),
            'Give run_if as succeeded (all of depends_on; the default), finished (all of them, in any state) or failed (one of them).'
        );
    end if;
    if p_options.run_if is not null and p_options.depends_on is null then
        perform pgqueue._refuse(
            'run_if was given without depends_on', 'Nothing was enqueued.', 'Give depends_on, to which run_if applies.'
        );
    end if;
    if cardinality(p_options.depends_on) > 0
        and exists (select from pgqueue.effective_tasks t where t.name = p_options.task and t.accumulate)
    then
        perform pgqueue._refuse(
            format('task %s accumulates payloads, and depends_on was given', quote_literal(p_options.task)),
            'Its jobs run together with others of their key.', 'Leave depends_on out.'
        );
    end if;
end
$$;

-- Refuses wrong times and intervals among the options of a job.
create or replace function pgqueue._check_times(p_options pgqueue.job_options)
returns void
language plpgsql
stable
parallel safe
as $$
begin
    if p_options.run_at is not null and p_options.delay is not null then
        perform pgqueue._refuse(
            'run_at and delay were both given', format('run_at is %s, delay is %s.', p_options.run_at, p_options.delay),
            'Give run_at (an instant) or delay (an interval from now), not both.'
        );
    end if;
    if p_options.run_at is not null then
        perform pgqueue._check_run_at(p_options.run_at);
    end if;
    -- Not before our era: most languages have no such dates, so a worker could not read the reply of reserve.
    if p_options.delay is not null and (not isfinite(p_options.delay) or p_options.delay not between '-1000 years' and '9999 years') then
        perform pgqueue._refuse(
            'delay must be a finite interval that ends between the years 1000 and 9999', format('It is %s.', p_options.delay),
            'Give delay as an interval, such as ''2 hours''.'
        );
    end if;
    if p_options.expires_in is not null
        and (not isfinite(p_options.expires_in) or p_options.expires_in <= '0' or p_options.expires_in > '9999 years')
    then
        perform pgqueue._refuse(
            'expires_in must be above zero and finite', format('It is %s.', p_options.expires_in),
            'Give expires_in as an interval counted from run_at, such as ''1 hour'', or leave it out.'
        );
    end if;
    if p_options.timeout is not null and (not isfinite(p_options.timeout) or p_options.timeout <= '0' or p_options.timeout > '7 days') then
        perform pgqueue._refuse(
            'timeout must be above zero and at most seven days', format('It is %s.', p_options.timeout),
            'Give timeout as an interval, such as ''5 min'': how long one attempt may take.'
        );
    end if;
    if p_options.retention is not null and (not isfinite(p_options.retention) or p_options.retention not between '0' and '2 years') then
        perform pgqueue._refuse(
            'retention must be between zero and two years', format('It is %s.', p_options.retention),
            'Give retention as an interval, such as ''30 days''; zero keeps no row in history.'
        );
    end if;
end
$$;

-- Refuses wrong attempts and retries among the options of a job.
create or replace function pgqueue._check_retries(p_options pgqueue.job_options)
returns void
language plpgsql
stable
parallel safe
as $$
begin
    if p_options.max_attempts not between 1 and 100000 then
        perform pgqueue._refuse(
            'max_attempts must be between 1 and 100000', format('It is %s.', p_options.max_attempts),
            'Give max_attempts as the total number of attempts; 1 means that a failure is final.'
        );
    end if;
    if p_options.retry_policy not in ('fixed', 'exponential', 'sidekiq', 'doubling') then
        perform pgqueue._refuse(
            'retry_policy is unknown, or not for a single job', format('It is %s.', quote_literal(p_options.retry_policy)),
            'Give retry_policy as fixed, exponential, sidekiq or doubling; list is an option of the task.'
        );
    end if;
    if p_options.retry_delay is not null and (not isfinite(p_options.retry_delay) or p_options.retry_delay not between '0' and '1 year') then
        perform pgqueue._refuse(
            'retry_delay must be between zero and a year', format('It is %s.', p_options.retry_delay),
            'Give retry_delay as an interval, such as ''5 min''.'
        );
    end if;
    if p_options.retry_queue is not null then
        perform pgqueue._check_name('retry_queue', p_options.retry_queue);
    end if;
    if p_options.key is not null then
        perform pgqueue._check_name('key', p_options.key, 512);
        if p_options.retry_queue is not null then
            perform pgqueue._refuse(
                'key and retry_queue were both given', 'The order of a key holds within one queue.',
                'Leave retry_queue out: a job with a key is retried in its own queue.'
            );
        end if;
    end if;
end
$$;

-- Refuses wrong options of dedupe, each by its name.
create or replace function pgqueue._check_dedupe(p_options pgqueue.job_options)
returns void
language plpgsql
stable
parallel safe
as $$
begin
    if p_options.dedupe is null then
        perform pgqueue._refuse(
            format(
                '%s was given without dedupe',
                case
                    when p_options.dedupe_for is not null then 'dedupe_for'
                    when p_options.on_conflict is not null then 'on_conflict'
                    else 'debounce_max'
                end
            ),
            'Nothing was enqueued.',
            'Give dedupe, the key to which dedupe_for, on_conflict and debounce_max apply, or leave them out.'
        );
    end if;
    perform pgqueue._check_name('dedupe', p_options.dedupe, 512);
    if p_options.dedupe_for is not null and (not isfinite(p_options.dedupe_for) or p_options.dedupe_for <= '0' or p_options.dedupe_for > '2 years') then
        perform pgqueue._refuse(
            'dedupe_for must be above zero and at most two years', format('It is %s.', p_options.dedupe_for),
            'Give dedupe_for as an interval, such as ''1 hour'', or leave it out: the key is then kept until the job ends.'
        );
    end if;
    if p_options.on_conflict not in ('skip', 'replace', 'merge', 'debounce', 'raise') then
        perform pgqueue._refuse(
            'on_conflict is unknown', format('It is %s.', quote_literal(p_options.on_conflict)),
            'Give on_conflict as skip, replace, merge, debounce or raise.'
        );
    end if;
    if p_options.on_conflict = 'debounce' and p_options.run_at is null and p_options.delay is null then
        perform pgqueue._refuse(
            'on_conflict is debounce, and neither delay nor run_at was given', 'Nothing was enqueued.',
            'Give delay: each call moves the job to that time after the call.'
        );
    end if;
    if p_options.debounce_max is not null then
        if p_options.on_conflict is distinct from 'debounce' then
            perform pgqueue._refuse(
                'debounce_max was given, and on_conflict is not debounce',
                format('on_conflict is %s.', coalesce(p_options.on_conflict, 'null')),
                'Leave debounce_max out, or give on_conflict => ''debounce''.'
            );
        end if;
        if not isfinite(p_options.debounce_max) or p_options.debounce_max <= '0' or p_options.debounce_max > '2 years' then
            perform pgqueue._refuse(
                'debounce_max must be above zero and at most two years', format('It is %s.', p_options.debounce_max),
                'Give debounce_max as an interval counted from the enqueue of the job, such as ''10 min''.'
            );
        end if;
    end if;
end
$$;

-- Refuses a job of an accumulating task without a key.
create or replace function pgqueue._refuse_without_key(p_task text)
returns void
language plpgsql
stable
parallel safe
as $$
begin
    perform pgqueue._refuse(
        format('task %s accumulates payloads by key, and key is null', quote_literal(p_task)), 'Nothing was enqueued.',
        'Give key: all due payloads of a key go to one batch.'
    );
end
$$;

-- In seconds, for the text of an interval depends on intervalstyle.
create or replace function pgqueue._job_retry(p_policy text, p_delay interval, p_queue text)
returns jsonb
language sql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select nullif(
        jsonb_strip_nulls(
            jsonb_build_object('policy', p_policy, 'delay', extract(epoch from p_delay), 'queue', p_queue)
        ),
        '{}'
    )
$$;

-- Refuses times that are infinite, before our era or beyond the year 9999.
create or replace function pgqueue._check_run_at(p_run_at timestamptz)
returns void
language plpgsql
stable
parallel safe
as $$
begin
    if p_run_at not between '0002-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00' then
        perform pgqueue._refuse(
            'run_at must be finite and between the years 2 and 9999', format('It is %s.', p_run_at),
            'Give run_at (or delay) nearer to now.'
        );
    end if;
end
$$;

-- Refuses args that are not an object or too large.
create or replace function pgqueue._check_args(p_args jsonb)
returns void
language plpgsql
stable
parallel safe
as $$
declare
    v_max_bytes integer;
begin
    if p_args is null or jsonb_typeof(p_args) <> 'object' then
        perform pgqueue._refuse(
            'args must be a JSON object',
            case when p_args is null then 'It is null.' else format('It is a JSON %s.', jsonb_typeof(p_args)) end,
            'Give args as an object of named arguments, such as {"to": "a@b.c"}.'
        );
    end if;
    -- The size of the datum is a cheap first check. A compressed datum is smaller than its text, so only args that are not
    -- obviously small are written out and measured.
    if pg_column_size(p_args) > 1000 then
        v_max_bytes := coalesce((select s.max_args_bytes from pgqueue.settings s where s.one), 1048576);
        if octet_length(p_args::text) > v_max_bytes then
            perform pgqueue._refuse(
                format('args must be at most %s bytes of JSON', v_max_bytes),
                format('They have %s bytes.', octet_length(p_args::text)),
                'Store the data elsewhere and pass a reference in args, or raise pgqueue.settings.max_args_bytes.'
            );
        end if;
    end if;
end
$$;
