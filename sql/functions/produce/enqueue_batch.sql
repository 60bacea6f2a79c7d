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
    v_children integer[] := '{}'::integer[];
    v_refs jsonb := '{}'::jsonb;
    v_given bigint[];
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
            v_refs := pgqueue._batch_refs(v_refs, enqueue_batch.jobs[v_n], null);
            v_jobs[v_n] := pgqueue._batch_job(v_ids[v_n], v_now, enqueue_batch.jobs[v_n], v_refs);
            v_refs := pgqueue._batch_refs(v_refs, enqueue_batch.jobs[v_n], v_ids[v_n]);
            if (v_jobs[v_n]).depends_on is not null then
                v_children := v_children || v_n;
            end if;
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

    v_given := v_ids;
    if v_deduped <> '{}' then
        select d.ids, d.outcomes, d.errors
        into v_ids, v_outcomes, v_errors
        from pgqueue._batch_deduped(v_jobs, enqueue_batch.jobs, v_deduped, v_ids, v_outcomes, v_errors) d;
    end if;
    if v_children <> '{}' then
        v_errors := pgqueue._batch_children(v_jobs, v_children, v_given, v_ids, v_outcomes, v_errors);
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
    'arguments of enqueue(), times and intervals as text. "ref" names a job for the depends_on of those after it in the call: '
    '{"task": "load", "depends_on": ["a", 17]}. '
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

create or replace function pgqueue._batch_job(p_id bigint, p_now timestamptz, p_job jsonb, p_refs jsonb)
returns pgqueue.jobs
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_wrong record;
    v_options pgqueue.job_options;
    v_parents bigint[];
    v_job pgqueue.jobs;
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
                'retention', 'retry_policy', 'retry_delay', 'retry_queue', 'limit_key', 'debounce_max', 'run_if', 'ref'
            ) then 'string'
            when o.option in ('priority', 'max_attempts', 'score', 'group_id') then 'number'
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

    v_parents := pgqueue._batch_parents(p_job, p_refs);
    v_options := jsonb_populate_record(
        null::pgqueue.job_options,
        case
            when v_parents is null then p_job
            else jsonb_set(p_job, '{depends_on}', jsonb_path_query_array(p_job, '$.depends_on[*] ? (@.type() != "string")'))
        end
    );
    v_options.args := coalesce(v_options.args, '{}');
    v_job := pgqueue._checked_job(p_id, p_now, v_options);
    if v_parents is not null then
        -- Those of this call are not there yet: they are not to be looked for.
        v_job := pgqueue._as_child(v_job, v_parents || v_options.depends_on, v_options.run_if);
    end if;
    return v_job;
end
$$;

comment on function pgqueue._batch_job(bigint, timestamptz, jsonb, jsonb) is
    'Private: the row of a job given as an object of options; refuses unknown options and wrong types. p_refs: the ids of earlier refs of the call.';

-- Called before a job is read, with null, and after, with its id: a ref without an id is that of a job that was refused.
create or replace function pgqueue._batch_refs(p_refs jsonb, p_job jsonb, p_id bigint)
returns jsonb
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    if jsonb_typeof(p_job) is distinct from 'object' or jsonb_typeof(p_job -> 'ref') is distinct from 'string' then
        return p_refs;
    end if;
    if p_id is null and p_refs ? (p_job ->> 'ref') then
        perform pgqueue._refuse(
            format('two jobs of the batch have ref %s', quote_literal(p_job ->> 'ref')), 'Nothing was enqueued for this one.',
            'Give each job of a call another ref.'
        );
    end if;
    return p_refs || jsonb_build_object(p_job ->> 'ref', p_id);
end
$$;

comment on function pgqueue._batch_refs(jsonb, jsonb, bigint) is 'Private: the refs of a batch and their ids, with that of one more job.';

create or replace function pgqueue._batch_parents(p_job jsonb, p_refs jsonb)
returns bigint[]
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_wrong text;
    v_parents bigint[];
begin
    if jsonb_typeof(p_job -> 'depends_on') is distinct from 'array' then
        return null;
    end if;
    select
        min(r.ref) filter (where p_refs ->> r.ref is null),
        array_agg((p_refs ->> r.ref)::bigint)
    into v_wrong, v_parents
    from (
        select e.value #>> '{}' as ref
        from jsonb_array_elements(p_job -> 'depends_on') e (value)
        where jsonb_typeof(e.value) = 'string'
    ) r;
    if v_wrong is not null then
        perform pgqueue._refuse(
            format('depends_on names ref %s, which no earlier job of the batch has', quote_literal(v_wrong)),
            case when p_refs ? v_wrong then 'The job with that ref was refused.' end,
            'Give the job to wait for before this one, with its ref, or its id as a number.'
        );
    end if;
    return v_parents;
end
$$;

comment on function pgqueue._batch_parents(jsonb, jsonb) is
    'Private: the ids of the earlier jobs of a batch that one depends on; null: none.';

-- A parent with a dedupe key may be another job than its id was given for, or refused: then the child is refused as well.
create or replace function pgqueue._batch_children(
    p_jobs pgqueue.jobs[], p_children integer[], p_given bigint[], p_ids bigint[], p_outcomes text[], p_errors jsonb[]
)
returns jsonb[]
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_errors jsonb[] := p_errors;
    v_parents bigint[];
    v_refused bigint;
    v_children bigint[] := '{}'::bigint[];
    v_n integer;
begin
    foreach v_n in array p_children loop
        continue when p_outcomes[v_n] is distinct from 'inserted' or v_errors[v_n] is not null;
        select array_agg(distinct coalesce(p_ids[g.n], d.id)), min(d.id) filter (where v_errors[g.n] is not null)
        into v_parents, v_refused
        from unnest((p_jobs[v_n]).depends_on) d (id)
        cross join lateral (select array_position(p_given, d.id) as n) g;
        if v_refused is not null then
            delete from pgqueue.jobs j where j.id = p_ids[v_n];
            perform pgqueue._free_dedupe(array[p_ids[v_n]]);
            v_errors[v_n] := pgqueue._batch_error(
                '22023', 'depends_on names a job of the batch that was refused', 'Nothing was enqueued for this one.',
                'See the error of that job.'
            );
            continue;
        end if;
        if v_parents <> (p_jobs[v_n]).depends_on then
            update pgqueue.jobs j set depends_on = v_parents where j.id = p_ids[v_n];
        end if;
        v_children := v_children || p_ids[v_n];
    end loop;
    perform pgqueue._add_dependencies(v_children);
    return v_errors;
end
$$;

comment on function pgqueue._batch_children(
    pgqueue.jobs[], integer[], bigint[], bigint[], text[], jsonb[]
) is 'Private: writes down what the jobs of a batch wait for, and returns the errors, with those of children of refused jobs.';

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
