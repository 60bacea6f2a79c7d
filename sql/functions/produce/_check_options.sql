-- The options of a job, as a producer gives them: checks each by its name.
--
-- Every function that enqueues passes them on as one row of job_options, named as the arguments of enqueue(). Args are
-- checked separately, for enqueue_many() has many args with one set of options. Locks nothing.

create or replace function pgqueue._check_options(o pgqueue.job_options)
returns void
language plpgsql stable parallel safe
as $$
declare
    -- What is wrong first: a message, a detail, a hint. An expression of options that are null is not even compiled, and only
    -- the branch that is wrong is formatted.
    v_wrong text[];
begin
    if o.task is null or octet_length(o.task) not between 1 and 128 then
        perform pgqueue._check_name('task', o.task);
    end if;
    if num_nonnulls(o.depends_on, o.run_if) > 0 then
        v_wrong := case
            when array_ndims(o.depends_on) > 1 or array_position(o.depends_on, null) is not null then array[
                'depends_on must be a plain array of job ids without nulls', format('It is %s.', left(o.depends_on::text, 200)),
                'Give depends_on as the ids that enqueue() returned.']
            when cardinality(o.depends_on) > 1000 then array[
                'depends_on may name at most 1000 jobs', format('It names %s.', cardinality(o.depends_on)),
                'Depend on a group instead: enqueue the jobs as its members, with group_id, and depend on the group.']
            when o.run_if not in ('succeeded', 'finished', 'failed') then array[
                'run_if is unknown', format('It is %s.', quote_literal(o.run_if)),
                'Give run_if as succeeded (all of depends_on; the default), finished (all of them, in any state) or failed (one of them).']
            when o.run_if is not null and o.depends_on is null then array[
                'run_if was given without depends_on', 'Nothing was enqueued.', 'Give depends_on, to which run_if applies.']
        end;
    end if;
    if v_wrong is null and num_nonnulls(o.queue, o.priority, o.headers, o.score) > 0 then
        v_wrong := case
            when octet_length(o.queue) not between 1 and 128 then array[
                'queue must be 1 to 128 bytes long', format('It has %s bytes.', octet_length(o.queue)), 'Give another queue.']
            when o.priority not between -100 and 100 then array[
                'priority must be between -100 and 100', format('It is %s.', o.priority),
                'Give priority as a whole number; higher runs first, 0 is the default.']
            when jsonb_typeof(o.headers) <> 'object' then array[
                'headers must be a JSON object', format('It is a JSON %s.', jsonb_typeof(o.headers)),
                'Give headers as an object, such as {"traceparent": "..."}.']
            when pg_column_size(o.headers) > 65536 then array[
                'headers must be at most 64 KiB', format('It has %s bytes.', pg_column_size(o.headers)),
                'Put data of the job into args; headers are for trace context.']
            when o.score in ('NaN', 'Infinity', '-Infinity') then array[
                'score must be finite', format('It is %s.', o.score),
                'Give score as a number, or leave it out to order payloads by the time of their enqueue.']
        end;
    end if;
    if v_wrong is null and num_nonnulls(o.run_at, o.delay, o.expires_in, o.timeout, o.retention) > 0 then
        v_wrong := case
            when o.run_at is not null and o.delay is not null then array[
                'run_at and delay were both given', format('run_at is %s, delay is %s.', o.run_at, o.delay),
                'Give run_at (an instant) or delay (an interval from now), not both.']
            when o.run_at not between '0002-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00' then array[
                'run_at must be finite and between the years 2 and 9999', format('It is %s.', o.run_at),
                'Give run_at (or delay) nearer to now.']
            -- Not before our era: most languages have no such dates, so a worker could not read the reply of reserve.
            when not isfinite(o.delay) or o.delay not between '-1000 years' and '9999 years' then array[
                'delay must be a finite interval that ends between the years 1000 and 9999', format('It is %s.', o.delay),
                'Give delay as an interval, such as ''2 hours''.']
            when not isfinite(o.expires_in) or o.expires_in <= '0' or o.expires_in > '9999 years' then array[
                'expires_in must be above zero and finite', format('It is %s.', o.expires_in),
                'Give expires_in as an interval counted from run_at, such as ''1 hour'', or leave it out.']
            when not isfinite(o.timeout) or o.timeout <= '0' or o.timeout > '7 days' then array[
                'timeout must be above zero and at most seven days', format('It is %s.', o.timeout),
                'Give timeout as an interval, such as ''5 min'': how long one attempt may take.']
            when not isfinite(o.retention) or o.retention not between '0' and '2 years' then array[
                'retention must be between zero and two years', format('It is %s.', o.retention),
                'Give retention as an interval, such as ''30 days''; zero keeps no row in history.']
        end;
    end if;
    if v_wrong is null and num_nonnulls(o.max_attempts, o.retry_policy, o.retry_delay, o.retry_cap, o.retry_queue, o.key, o.limit_key, o.cost) > 0 then
        v_wrong := case
            when o.max_attempts not between 1 and 100000 then array[
                'max_attempts must be between 1 and 100000', format('It is %s.', o.max_attempts),
                'Give max_attempts as the total number of attempts; 1 means that a failure is final.']
            when o.retry_policy not in ('fixed', 'exponential', 'sidekiq', 'doubling') then array[
                'retry_policy is unknown, or not for a single job', format('It is %s.', quote_literal(o.retry_policy)),
                'Give retry_policy as fixed, exponential, sidekiq or doubling; list is an option of the task.']
            when not isfinite(o.retry_delay) or o.retry_delay not between '0' and '1 year' then array[
                'retry_delay must be between zero and a year', format('It is %s.', o.retry_delay),
                'Give retry_delay as an interval, such as ''5 min''.']
            when not isfinite(o.retry_cap) or o.retry_cap not between '0' and '1 year' then array[
                'retry_cap must be between zero and a year', format('It is %s.', o.retry_cap),
                'Give retry_cap as an interval, such as ''1 hour'': the longest delay of the policy.']
            when octet_length(o.retry_queue) not between 1 and 128 then array[
                'retry_queue must be 1 to 128 bytes long', format('It has %s bytes.', octet_length(o.retry_queue)),
                'Give another retry_queue.']
            when octet_length(o.key) not between 1 and 512 then array[
                'key must be 1 to 512 bytes long', format('It has %s bytes.', octet_length(o.key)), 'Give another key.']
            when o.key is not null and o.retry_queue is not null then array[
                'key and retry_queue were both given', 'The order of a key holds within one queue.',
                'Leave retry_queue out: a job with a key is retried in its own queue.']
            when octet_length(o.limit_key) not between 1 and 512 or right(o.limit_key, 1) = '*' then array[
                'limit_key must be 1 to 512 bytes long, and not end in *', format('It has %s bytes.', octet_length(o.limit_key)),
                'Give another limit_key: a name that ends in * stands for all that begin so.']
            when o.cost not between 0 and 1000000000 then array[
                'cost must be between 0 and 1000000000', format('It is %s.', o.cost),
                'Give cost as the number of units that a start takes of its limits; 1 is the default.']
        end;
    end if;
    if v_wrong is null and num_nonnulls(o.dedupe, o.dedupe_for, o.on_conflict, o.debounce_max) > 0 then
        v_wrong := case
            when o.dedupe is null and num_nonnulls(o.dedupe_for, o.on_conflict, o.debounce_max) > 0 then array[
                case
                    when o.dedupe_for is not null then 'dedupe_for'
                    when o.on_conflict is not null then 'on_conflict'
                    else 'debounce_max'
                end || ' was given without dedupe', 'Nothing was enqueued.',
                'Give dedupe, the key to which dedupe_for, on_conflict and debounce_max apply, or leave them out.']
            when octet_length(o.dedupe) not between 1 and 512 then array[
                'dedupe must be 1 to 512 bytes long', format('It has %s bytes.', octet_length(o.dedupe)), 'Give another dedupe.']
            when not isfinite(o.dedupe_for) or o.dedupe_for <= '0' or o.dedupe_for > '2 years' then array[
                'dedupe_for must be above zero and at most two years', format('It is %s.', o.dedupe_for),
                'Give dedupe_for as an interval, such as ''1 hour'', or leave it out: the key is then kept until the job ends.']
            when o.on_conflict not in ('skip', 'replace', 'merge', 'debounce', 'supersede', 'raise') then array[
                'on_conflict is unknown', format('It is %s.', quote_literal(o.on_conflict)),
                'Give on_conflict as skip, replace, merge, debounce, supersede or raise.']
            when o.on_conflict = 'debounce' and o.run_at is null and o.delay is null then array[
                'on_conflict is debounce, and neither delay nor run_at was given', 'Nothing was enqueued.',
                'Give delay: each call moves the job to that time after the call.']
            when o.debounce_max is not null and o.on_conflict is distinct from 'debounce' then array[
                'debounce_max was given, and on_conflict is not debounce',
                format('on_conflict is %s.', coalesce(o.on_conflict, 'null')),
                'Leave debounce_max out, or give on_conflict => ''debounce''.']
            when not isfinite(o.debounce_max) or o.debounce_max <= '0' or o.debounce_max > '2 years' then array[
                'debounce_max must be above zero and at most two years', format('It is %s.', o.debounce_max),
                'Give debounce_max as an interval counted from the enqueue of the job, such as ''10 min''.']
        end;
    end if;
    if v_wrong is null and o.tags is not null and (
        cardinality(o.tags) > 100
        or exists (select from unnest(o.tags) t (tag) where t.tag is null or octet_length(t.tag) not between 1 and 128)
    ) then
        v_wrong := array['tags must be at most 100 texts of 1 to 128 bytes', null, 'Give tags as text[] without nulls.'];
    end if;
    if v_wrong is null and cardinality(o.depends_on) > 0
        and exists (select from pgqueue.effective_tasks t where t.name = o.task and t.accumulate)
    then
        v_wrong := array[
            format('task %s accumulates payloads, and depends_on was given', quote_literal(o.task)),
            'Its jobs run together with others of their key.', 'Leave depends_on out.'];
    end if;
    if v_wrong is not null then
        perform pgqueue._refuse(v_wrong[1], v_wrong[2], v_wrong[3]);
    end if;
    if o.declared is not null then
        perform pgqueue._check_declared(o.declared);
    end if;
end
$$;

-- Refuses declared options that no task can have.
create or replace function pgqueue._check_declared(p_declared jsonb)
returns void
language plpgsql stable parallel safe
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
language sql stable parallel safe
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

-- Refuses a job of an accumulating task without a key.
create or replace function pgqueue._refuse_without_key(p_task text)
returns void
language plpgsql stable parallel safe
as $$
begin
    perform pgqueue._refuse(
        format('task %s accumulates payloads by key, and key is null', quote_literal(p_task)), 'Nothing was enqueued.',
        'Give key: all due payloads of a key go to one batch.'
    );
end
$$;

-- In seconds, for the text of an interval depends on intervalstyle.
create or replace function pgqueue._job_retry(p_policy text, p_delay interval, p_queue text, p_cap interval)
returns jsonb
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select jsonb_strip_nulls(
        jsonb_build_object(
            'policy', p_policy, 'delay', extract(epoch from p_delay), 'queue', p_queue, 'cap', extract(epoch from p_cap)
        )
    )
$$;

-- Refuses times that are infinite, before our era or beyond the year 9999.
create or replace function pgqueue._check_run_at(p_run_at timestamptz)
returns void
language plpgsql stable parallel safe
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
language plpgsql stable parallel safe
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
