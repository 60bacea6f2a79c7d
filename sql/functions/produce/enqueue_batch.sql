-- enqueue_batch: N jobs, each with options of its own; a bad one is reported as an outcome, and the others are enqueued.
--
-- Rows of plain options (task, args, queue, priority, key, limit_key: nothing that a cast could refuse) are checked
-- and made into jobs by one query. The others are read one by one, each in an exception block that only reads, and so
-- takes no transaction id. One statement then inserts all jobs without a dedupe key; the others follow (_batch_deduped). Ids grow
-- in the order given.

create or replace function pgqueue.enqueue_batch(jobs jsonb[])
returns table (ord bigint, job_id bigint, outcome text, error jsonb)
language plpgsql security definer rows 100
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := pgqueue._ready_at(null);
    v_plain pgqueue.jobs;
    v_accumulating text[] := array(select t.name from pgqueue.effective_tasks t where t.accumulate);
    v_ids bigint[];
    v_jobs pgqueue.jobs[];
    v_others integer[];
    v_deduped integer[] := '{}'::integer[];
    v_children integer[] := '{}'::integer[];
    v_refs jsonb := '{}'::jsonb;
    v_ref text;
    v_given bigint[];
    v_outcomes text[];
    v_errors jsonb[];
    v_superseded bigint[];
    v_had_until timestamptz[];
    v_detail text;
    v_hint text;
    v_n integer;
begin
    perform pgqueue._refuse(
        'jobs must be an array of JSON objects',
        case when enqueue_batch.jobs is null then 'It is null.' else 'It has more than one dimension.' end,
        'Give jobs as jsonb[], one object of options for each job, such as {"task": "resize", "args": {"id": 1}}.'
    )
    where enqueue_batch.jobs is null or array_ndims(enqueue_batch.jobs) > 1;
    v_plain.created_at := v_now;
    v_plain.run_at := v_now;
    v_plain.ready_at := v_now;
    v_plain.args := '{}';

    -- The options of a plain job have the names of columns.
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
                    and pg_column_size(a.job) <= 1000 and coalesce(jsonb_typeof(a.job -> 'task') = 'string', false)
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
                            and coalesce(octet_length(a.job ->> 'limit_key') between 1 and 512 and right(a.job ->> 'limit_key', 1) <> '*', true)
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
            v_ref := case
                when jsonb_typeof(enqueue_batch.jobs[v_n] -> 'ref') = 'string' then enqueue_batch.jobs[v_n] ->> 'ref'
            end;
            if v_refs ? v_ref then
                perform pgqueue._refuse(
                    format('two jobs of the batch have ref %s', quote_literal(v_ref)), 'Nothing was enqueued for this one.',
                    'Give each job of a call another ref.'
                );
            end if;
            if v_ref is not null then
                -- Null while it may be refused.
                v_refs := v_refs || jsonb_build_object(v_ref, null);
            end if;
            v_jobs[v_n] := pgqueue._batch_job(v_ids[v_n], v_now, enqueue_batch.jobs[v_n], v_refs);
            if v_ref is not null then
                v_refs := v_refs || jsonb_build_object(v_ref, v_ids[v_n]);
            end if;
            if (v_jobs[v_n]).depends_on is not null then
                v_children := v_children || v_n;
            end if;
            if (v_jobs[v_n]).dedupe is null then
                v_outcomes[v_n] := 'inserted';
            else
                v_deduped := v_deduped || v_n;
            end if;
        exception when others then
            get stacked diagnostics v_detail = pg_exception_detail, v_hint = pg_exception_hint;
            v_errors[v_n] := pgqueue._refusal(sqlstate, sqlerrm, v_detail, v_hint);
            if v_errors[v_n] is null then
                raise;
            end if;
        end;
    end loop;

    perform pgqueue._insert_jobs(
        array(
            select v_jobs[o.n] from unnest(v_outcomes) with ordinality o (outcome, n) where o.outcome = 'inserted' order by o.n
        )
    );

    v_given := v_ids;
    if v_deduped <> '{}' then
        select d.ids, d.outcomes, d.errors, d.superseded, d.had_until into v_ids, v_outcomes, v_errors, v_superseded, v_had_until
        from pgqueue._batch_deduped(v_jobs, enqueue_batch.jobs, v_deduped, v_ids, v_outcomes, v_errors) d;
    end if;
    if v_children <> '{}' then
        v_errors := pgqueue._batch_children(v_jobs, v_children, v_given, v_ids, v_outcomes, v_errors);
    end if;
    -- Backwards: of several with one key the first has what had it before the call. A job that was refused gives it back.
    for v_n in reverse coalesce(array_upper(v_superseded, 1), 0)..1 loop
        continue when v_superseded[v_n] is null;
        update pgqueue.dedupe_keys d
        set job_id = v_superseded[v_n], until = v_had_until[v_n]
        where d.job_id = v_ids[v_n] and v_errors[v_n] is not null;
        perform pgqueue._supersede(v_superseded[v_n]) where not found;
    end loop;

    return query
    select r.ord, case when r.error is null then r.id end, case when r.error is null then r.outcome else 'error' end, r.error
    from unnest(v_ids, v_outcomes, v_errors) with ordinality r (id, outcome, error, ord)
    order by r.ord;
end
$$;

comment on function pgqueue.enqueue_batch(jsonb[]) is
    'Enqueue jobs that each have their own options, in the current transaction, and return a row for each in the order given: '
    'its position, the job''s id, and the outcome as of enqueue_outcome(), or error, with sqlstate, message, detail and hint; '
    'then nothing was enqueued for that one, and the others are kept. Each element is an object of options named as the '
    'arguments of enqueue(), times and intervals as text. "ref" names a job for the depends_on of later ones in the call: '
    '{"task": "load", "depends_on": ["a", 17]}. '
    'select * from pgqueue.enqueue_batch(array[''{"task": "resize", "args": {"id": 1}}'', ''{"task": "mail", "delay": "1 hour"}'']::jsonb[]); [producer]';

-- A declared option becomes an option of the job if neither the job nor the database sets it. If declared is not valid, the
-- job stays as it is, for the check to refuse.
create or replace function pgqueue._with_declared(p_job jsonb)
returns jsonb
language sql stable parallel safe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
    select case
        when pgqueue._is_declared(p_job -> 'declared') and (p_job ? 'key' or not p_job -> 'declared' ? 'accumulate') then
            jsonb_strip_nulls(jsonb_build_object(
                'queue', case when t.queue is null then p_job -> 'declared' -> 'queue' end,
                'priority', case when t.priority is null then p_job -> 'declared' -> 'priority' end,
                'expires_in', case when t.expires_in is null then p_job -> 'declared' -> 'expires_in' end
            )) || (p_job - 'declared')
        else p_job
    end
    from (values (1)) one (row)
    left join pgqueue.effective_tasks t on t.name = p_job ->> 'task'
$$;

-- An error that refuses one job, in the form that enqueue_batch returns, by the classes that a bad option raises. Null: it ends
-- the whole call, as a deadlock or a full disk does.
create or replace function pgqueue._refusal(p_sqlstate text, p_message text, p_detail text, p_hint text)
returns jsonb
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select case when left(p_sqlstate, 2) in ('0A', '22', '23', '54', '55') then jsonb_build_object(
        'sqlstate', p_sqlstate, 'message', p_message, 'detail', nullif(p_detail, ''), 'hint', coalesce(
            nullif(p_hint, ''),
            'Give each option as enqueue() takes it: times and intervals as text that PostgreSQL reads, counts as whole numbers.'
        )
    ) end
$$;
