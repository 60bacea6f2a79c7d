-- enqueue_batch: n jobs, each with options of its own; a bad one is an outcome and spoils none of the others.
--
-- Rows of plain options (task, args, queue, priority, key, limit_key: nothing that a cast could refuse) are checked
-- and made into jobs by one query. The others are read one by one, each in an exception block that only reads, and so
-- takes no transaction id. All that have no dedupe key are then inserted by one statement, with one wake-up for each
-- queue. Those that have one follow in the order of their keys, whatever the order given, so that two batches cannot
-- deadlock; ids nevertheless grow in the order given. They share one wait of dedupe_wait. One exception block stands
-- round all of them; only when one is refused, each gets its own.

create or replace function pgqueue.enqueue_batch(jobs jsonb[])
returns table (ord bigint, job_id bigint, outcome text, error jsonb)
language plpgsql
volatile
parallel unsafe
security definer
rows 100
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    -- What a bad option raises. Anything else (a deadlock, a full disk) is the caller's.
    v_refusals constant text[] := '{0A,22,23,54,55}'::text[];
    v_now timestamptz := pgqueue._ready_at(null);
    v_plain pgqueue.jobs;
    v_accumulating text[];
    v_ids bigint[];
    v_jobs pgqueue.jobs[];
    v_others integer[];
    v_deduped integer[] := '{}'::integer[];
    v_outcomes text[];
    v_errors jsonb[];
    v_detail text;
    v_hint text;
    v_n integer;
begin
    if enqueue_batch.jobs is null or array_ndims(enqueue_batch.jobs) > 1 then
        perform pgqueue._refuse(
            'jobs must be an array of JSON objects',
            case when enqueue_batch.jobs is null then 'It is null.' else 'It has more than one dimension.' end,
            'Give jobs as jsonb[], one object of options for each job, such as {"task": "resize", "args": {"id": 1}}.'
        );
    end if;
    if cardinality(enqueue_batch.jobs) = 0 then
        return;
    end if;
    v_plain.created_at := v_now;
    v_plain.run_at := v_now;
    v_plain.ready_at := v_now;
    v_plain.args := '{}';
    v_accumulating := array(select t.name from pgqueue.effective_tasks t where t.accumulate);

    -- Ids in the order given, also for what turns out bad or skipped. The options of a plain job have the names of
    -- columns.
    select
        array_agg(r.id order by r.ord),
        array_agg(
            case when r.is_plain then jsonb_populate_record(v_plain, jsonb_set(r.job, '{id}', to_jsonb(r.id))) end
            order by r.ord
        ),
        coalesce(array_agg(r.ord::integer order by r.ord) filter (where not r.is_plain), '{}'),
        array_agg(case when r.is_plain then 'inserted' end order by r.ord),
        array_agg(null::jsonb)
    into v_ids, v_jobs, v_others, v_outcomes, v_errors
    from (
        select
            a.job, a.ord, nextval('pgqueue.jobs_id_seq') as id,
            case
                when jsonb_typeof(a.job) = 'object' then
                    a.job - '{task,args,queue,priority,key,limit_key}'::text[] = '{}'
                    and pg_column_size(a.job) <= 1000
                    and coalesce(jsonb_typeof(a.job -> 'task') = 'string', false)
                    and octet_length(a.job ->> 'task') between 1 and 128
                    and coalesce(jsonb_typeof(a.job -> 'args') = 'object', true)
                    and (a.job ? 'key' or a.job ->> 'task' <> all (v_accumulating))
                    and (
                        a.job - '{task,args}'::text[] = '{}'
                        or (
                            coalesce(jsonb_typeof(a.job -> 'queue') = 'string', true)
                            and coalesce(octet_length(a.job ->> 'queue') between 1 and 128, true)
                            and coalesce(jsonb_typeof(a.job -> 'priority') = 'number', true)
                            and coalesce(a.job ->> 'priority' ~ '^-?([0-9]{1,2}|100)$', true)
                            and coalesce(jsonb_typeof(a.job -> 'key') = 'string', true)
                            and coalesce(octet_length(a.job ->> 'key') between 1 and 512, true)
                            and coalesce(jsonb_typeof(a.job -> 'limit_key') = 'string', true)
                            and coalesce(octet_length(a.job ->> 'limit_key') between 1 and 512, true)
                        )
                    )
                else false
            end as is_plain
        from (
            select
                case when jsonb_typeof(g.job) = 'object' and g.job ? 'declared' then pgqueue._with_declared(g.job) else g.job end as job,
                g.ord
            from unnest(enqueue_batch.jobs) with ordinality g (job, ord)
        ) a
        order by a.ord
    ) r;

    foreach v_n in array v_others loop
        begin
            v_jobs[v_n] := pgqueue._batch_job(v_ids[v_n], v_now, enqueue_batch.jobs[v_n]);
            if (v_jobs[v_n]).dedupe is null then
                v_outcomes[v_n] := 'inserted';
            else
                v_deduped := v_deduped || v_n;
            end if;
        exception when others then
            if left(sqlstate, 2) <> all (v_refusals) then
                raise;
            end if;
            get stacked diagnostics v_detail = pg_exception_detail, v_hint = pg_exception_hint;
            v_errors[v_n] := pgqueue._batch_error(sqlstate, sqlerrm, v_detail, v_hint);
        end;
    end loop;

    perform pgqueue._insert_jobs(
        (
            select array_agg(j.job order by j.n)
            from (
                select o.n, v_jobs[o.n] as job
                from unnest(v_outcomes) with ordinality o (outcome, n)
                where o.outcome = 'inserted'
            ) j
        )
    );

    if v_deduped <> '{}' then
        select d.ids, d.outcomes, d.errors
        into v_ids, v_outcomes, v_errors
        from pgqueue._batch_deduped(v_jobs, enqueue_batch.jobs, v_deduped, v_ids, v_outcomes, v_errors) d;
    end if;

    return query
    select
        r.ord,
        case when r.error is null then r.id end,
        case when r.error is null then r.outcome else 'error' end,
        r.error
    from unnest(v_ids, v_outcomes, v_errors) with ordinality r (id, outcome, error, ord)
    order by r.ord;
end
$$;

comment on function pgqueue.enqueue_batch(jsonb[]) is
    'Enqueue jobs that each have options of their own, in the current transaction, and answer for each in the order given: '
    'its place, the job''s id, and the outcome as of enqueue_outcome(), or error, with sqlstate, message, detail and hint; '
    'then nothing was enqueued for that one, and the others stand. Each element is an object of options named as the '
    'arguments of enqueue(), times and intervals as text. '
    'select * from pgqueue.enqueue_batch(array[''{"task": "resize", "args": {"id": 1}}'', ''{"task": "mail", "delay": "1 hour"}'']::jsonb[]);';

-- What neither the job nor the database says becomes an option of the job; what is left to check stays as it is.
create or replace function pgqueue._with_declared(p_job jsonb)
returns jsonb
language sql
stable
parallel safe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
    select case
        when pgqueue._is_declared(p_job -> 'declared') and (p_job ? 'key' or not p_job -> 'declared' ? 'accumulate') then
            jsonb_strip_nulls(
                jsonb_build_object(
                    'queue', case when t.queue is null then p_job -> 'declared' -> 'queue' end,
                    'priority', case when t.priority is null then p_job -> 'declared' -> 'priority' end,
                    'expires_in', case when t.expires_in is null then p_job -> 'declared' -> 'expires_in' end
                )
            ) || (p_job - 'declared')
        else p_job
    end
    from (values (1)) one (row)
    left join pgqueue.effective_tasks t on t.name = p_job ->> 'task'
$$;

comment on function pgqueue._with_declared(jsonb) is
    'Private: a job of a batch with what its code declares written out, where neither an operator nor a worker says otherwise.';

-- p_deduped: the numbers of the jobs that have dedupe keys. They take the keys in one order, and share one wait.
create or replace function pgqueue._batch_deduped(
    p_jobs pgqueue.jobs[], p_given jsonb[], p_deduped integer[],
    inout ids bigint[], inout outcomes text[], inout errors jsonb[]
)
returns record
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_refusals constant text[] := '{0A,22,23,54,55}'::text[];
    v_deduped integer[];
    v_deadline timestamptz;
    v_done record;
    v_detail text;
    v_hint text;
    v_one_by_one boolean := false;
    v_n integer;
begin
    v_deadline := pgqueue._dedupe_deadline();
    v_deduped := array(
        select d.n
        from unnest(p_deduped) d (n)
        order by (p_jobs[d.n]).task, (p_jobs[d.n]).dedupe, d.n
    );
    begin
        foreach v_n in array v_deduped loop
            select d.job_id, d.outcome into v_done
            from pgqueue._dedupe(
                p_jobs[v_n],
                (p_given[v_n] ->> 'dedupe_for')::interval,
                p_given[v_n] ->> 'on_conflict',
                (p_given[v_n] ->> 'debounce_max')::interval,
                v_deadline
            ) d;
            ids[v_n] := v_done.job_id;
            outcomes[v_n] := v_done.outcome;
            if outcomes[v_n] = 'refused' then
                begin
                    perform pgqueue._refuse_duplicate((p_jobs[v_n]).task, (p_jobs[v_n]).dedupe, ids[v_n]);
                exception when unique_violation then
                    get stacked diagnostics v_detail = pg_exception_detail, v_hint = pg_exception_hint;
                    errors[v_n] := pgqueue._batch_error(sqlstate, sqlerrm, v_detail, v_hint);
                end;
            end if;
        end loop;
    exception when others then
        if left(sqlstate, 2) <> all (v_refusals) then
            raise;
        end if;
        v_one_by_one := true;
    end;

    if v_one_by_one then
        foreach v_n in array v_deduped loop
            errors[v_n] := null;
            begin
                select d.job_id, d.outcome into v_done
                from pgqueue._enqueue_deduped(
                    p_jobs[v_n],
                    (p_given[v_n] ->> 'dedupe_for')::interval,
                    p_given[v_n] ->> 'on_conflict',
                    (p_given[v_n] ->> 'debounce_max')::interval,
                    v_deadline
                ) d;
                ids[v_n] := v_done.job_id;
                outcomes[v_n] := v_done.outcome;
            exception when others then
                if left(sqlstate, 2) <> all (v_refusals) then
                    raise;
                end if;
                get stacked diagnostics v_detail = pg_exception_detail, v_hint = pg_exception_hint;
                errors[v_n] := pgqueue._batch_error(sqlstate, sqlerrm, v_detail, v_hint);
            end;
        end loop;
    end if;
end
$$;

comment on function pgqueue._batch_deduped(
    pgqueue.jobs[], jsonb[], integer[], bigint[], text[], jsonb[]
) is 'Private: enqueues those jobs of a batch that have dedupe keys, and says in ids, outcomes and errors what became of each.';

create or replace function pgqueue._batch_job(p_id bigint, p_now timestamptz, p_job jsonb)
returns pgqueue.jobs
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_wrong record;
    v_options pgqueue.job_options;
begin
    if jsonb_typeof(p_job) is distinct from 'object' then
        perform pgqueue._refuse(
            'a job of a batch must be a JSON object',
            case when p_job is null then 'It is null.' else format('It is a JSON %s.', jsonb_typeof(p_job)) end,
            'Give each job as an object of options, such as {"task": "resize", "args": {"id": 1}}.'
        );
    end if;

    select o.option, t.type, jsonb_typeof(o.value) as found
    into v_wrong
    from jsonb_each(p_job) o (option, value)
    cross join lateral (
        select case
            when o.option in (
                'task', 'queue', 'run_at', 'delay', 'expires_in', 'timeout', 'key', 'dedupe', 'dedupe_for', 'on_conflict',
                'retention', 'retry_policy', 'retry_delay', 'retry_queue', 'limit_key', 'debounce_max'
            ) then 'string'
            when o.option in ('priority', 'max_attempts', 'score') then 'number'
            when o.option in ('args', 'headers', 'declared') then 'object'
            when o.option in ('depends_on', 'tags') then 'array'
        end as type
    ) t
    where t.type is null or jsonb_typeof(o.value) not in (t.type, 'null')
    order by o.option
    limit 1;
    if v_wrong.option is not null and v_wrong.type is null then
        perform pgqueue._refuse(
            format('there is no option %s', quote_literal(v_wrong.option)), 'Nothing was enqueued for this job.',
            'Name the options of a job as the arguments of enqueue().'
        );
    elsif v_wrong.option is not null then
        perform pgqueue._refuse(
            format('%s must be a JSON %s', v_wrong.option, v_wrong.type), format('It is a JSON %s.', v_wrong.found),
            format('Give %s as a JSON %s; times and intervals are text.', v_wrong.option, v_wrong.type)
        );
    end if;

    v_options := jsonb_populate_record(null::pgqueue.job_options, p_job);
    v_options.args := coalesce(v_options.args, '{}');
    return pgqueue._checked_job(p_id, p_now, v_options);
end
$$;

comment on function pgqueue._batch_job(bigint, timestamptz, jsonb) is
    'Private: the row of a job given as an object of options; refuses unknown options and wrong types.';

create or replace function pgqueue._batch_error(p_sqlstate text, p_message text, p_detail text, p_hint text)
returns jsonb
language sql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select jsonb_build_object(
        'sqlstate', p_sqlstate,
        'message', p_message,
        'detail', nullif(p_detail, ''),
        'hint', coalesce(
            nullif(p_hint, ''),
            'Give each option as enqueue() takes it: times and intervals as text that PostgreSQL reads, counts as whole numbers.'
        )
    )
$$;

comment on function pgqueue._batch_error(text, text, text, text) is 'Private: an error as enqueue_batch answers it.';
