-- One job of enqueue_batch: its row, the earlier jobs that it names by their refs, and the jobs that it depends on.

-- p_refs: the ids of the earlier jobs that have refs; one whose id is null was refused.
create or replace function pgqueue._batch_job(p_id bigint, p_now timestamptz, p_job jsonb, p_refs jsonb)
returns pgqueue.jobs
language plpgsql
as $$
declare
    v_wrong record;
    v_wrong_ref text;
    v_options pgqueue.job_options;
    v_parents bigint[] := '{}'::bigint[];
begin
    if jsonb_typeof(p_job) is distinct from 'object' then
        perform pgqueue._refuse(
            'a job of a batch must be a JSON object',
            case when p_job is null then 'It is null.' else format('It is a JSON %s.', jsonb_typeof(p_job)) end,
            'Give each job as an object of options, such as {"task": "resize", "args": {"id": 1}}.'
        );
    end if;

    select o.option, t.type, jsonb_typeof(o.value) as found into v_wrong
    from jsonb_each(p_job) o (option, value)
    cross join lateral (
        select case
            when o.option in (
                'task', 'queue', 'run_at', 'delay', 'expires_in', 'timeout', 'key', 'dedupe', 'dedupe_for', 'on_conflict',
                'retention', 'retry_policy', 'retry_delay', 'retry_cap', 'retry_queue', 'limit_key', 'debounce_max', 'run_if', 'ref'
            ) then 'string'
            when o.option in ('priority', 'max_attempts', 'score', 'group_id', 'cost') then 'number'
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

    if jsonb_typeof(p_job -> 'depends_on') = 'array' then
        select min(r.ref) filter (where r.id is null), coalesce(array_agg(r.id), '{}') into v_wrong_ref, v_parents
        from (
            select e.value #>> '{}' as ref, (p_refs ->> (e.value #>> '{}'))::bigint as id
            from jsonb_array_elements(p_job -> 'depends_on') e (value)
            where jsonb_typeof(e.value) = 'string'
        ) r;
    end if;
    if v_wrong_ref is not null then
        perform pgqueue._refuse(
            format('depends_on names ref %s, which no earlier job of the batch has', quote_literal(v_wrong_ref)),
            case when p_refs ? v_wrong_ref then 'The job with that ref was refused.' end,
            'Give the job to wait for before this one, with its ref, or its id as a number.'
        );
    end if;
    v_options := jsonb_populate_record(
        null::pgqueue.job_options,
        case
            when v_parents = '{}' then p_job
            else jsonb_set(p_job, '{depends_on}', jsonb_path_query_array(p_job, '$.depends_on[*] ? (@.type() != "string")'))
        end
    );
    v_options.args := coalesce(v_options.args, '{}');
    v_options.depends_on := v_options.depends_on || nullif(v_parents, '{}');
    return pgqueue._checked_job(p_id, p_now, v_options, v_parents);
end
$$;

-- If a parent has a dedupe key, its id may be that of an older job. If it was refused, its child is refused as well.
-- Jobs of the call may wait for a group of the call: their dependencies are not recorded yet. See _circle. One walk for each
-- group: one for each job would read a long chain as many times as it has followers.
create or replace function pgqueue._batch_children(
    p_jobs pgqueue.jobs[], p_children integer[], p_given bigint[], p_ids bigint[], p_outcomes text[], p_errors jsonb[]
)
returns jsonb[]
language plpgsql
as $$
declare
    v_group bigint;
    v_behind bigint[];
    v_message text;
    v_detail text;
    v_hint text;
    v_circles jsonb[] := '{}'::jsonb[];
    v_parents bigint[];
    v_refused bigint;
    v_children bigint[] := '{}'::bigint[];
    v_n integer;
begin
    for v_group in
        select distinct u.group_id from unnest(p_jobs) u where u.group_id is not null and u.depends_on is not null
    loop
        -- What the jobs name, except for jobs that the call inserts.
        v_behind := array(
            select distinct coalesce(w.id, d.id)
            from unnest(p_jobs) u
            cross join lateral unnest(u.depends_on) d (id)
            left join unnest(p_given, p_ids) w (given, id) on w.given = d.id
            where w.given is null or w.id <> w.given
        );
        begin
            perform pgqueue._refuse_circle(null, v_group, v_behind);
            continue;
        exception when invalid_parameter_value then
            get stacked diagnostics
                v_message = message_text, v_detail = pg_exception_detail, v_hint = pg_exception_hint;
        end;
        v_behind := array(
            select b.id from unnest(v_behind) b (id) where pgqueue._circle(null, v_group, array[b.id]) is not null
        );
        -- In the order of the call, in which each job names earlier ones.
        foreach v_n in array p_children loop
            continue when not v_behind && array(
                select coalesce(p_ids[array_position(p_given, d.id)], d.id) from unnest((p_jobs[v_n]).depends_on) d (id)
            );
            if (p_jobs[v_n]).group_id = v_group then
                v_circles[v_n] := pgqueue._refusal('22023', v_message, v_detail, v_hint);
            elsif p_ids[v_n] = p_given[v_n] then
                v_behind := v_behind || p_ids[v_n];
            end if;
        end loop;
    end loop;

    foreach v_n in array p_children loop
        continue when p_outcomes[v_n] not in ('inserted', 'superseded') or p_errors[v_n] is not null;
        select array_agg(distinct coalesce(p_ids[g.n], d.id)), min(d.id) filter (where p_errors[g.n] is not null)
        into v_parents, v_refused
        from unnest((p_jobs[v_n]).depends_on) d (id)
        cross join lateral (select array_position(p_given, d.id) as n) g;
        p_errors[v_n] := case
            when v_refused is null then v_circles[v_n]
            else pgqueue._refusal(
                '22023', 'depends_on names a job of the batch that was refused', 'Nothing was enqueued for this one.',
                'See the error of that job.'
            )
        end;
        if p_errors[v_n] is not null then
            delete from pgqueue.jobs j where j.id = p_ids[v_n];
            perform pgqueue._free_dedupe(array[p_ids[v_n]]) where p_outcomes[v_n] = 'inserted';
            -- Nor for those of its dedupe key.
            p_errors := array(
                select case when e.id = p_ids[v_n] then coalesce(e.error, p_errors[v_n]) else e.error end
                from unnest(p_errors, p_ids) with ordinality e (error, id, n) order by e.n
            );
            continue;
        end if;
        if v_parents <> (p_jobs[v_n]).depends_on then
            update pgqueue.jobs j set depends_on = v_parents where j.id = p_ids[v_n];
        end if;
        v_children := v_children || p_ids[v_n];
    end loop;
    perform pgqueue._add_dependencies(
        v_children, array(select distinct t.id from unnest(p_jobs) u cross join lateral unnest(u.followers) t (id))
    );
    return p_errors;
end
$$;
