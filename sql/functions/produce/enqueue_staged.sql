-- enqueue_staged: enqueues a job for each row that was copied into pgqueue_staged, all or none, in the order of the rows.
--
-- One statement inserts the plain rows, which need no further check, and joins the options of task and queue. Only other
-- rows (large args, retries, dedupe keys, mistakes) are read one by one; then all get their ids first, so that jobs of one
-- key keep the order of the rows. Rows with a dedupe key come last, in the order of their keys, so that two loads cannot
-- deadlock. One exception block names the refused row: one for each would be a subtransaction for each row.
-- Each load is planned again, for the table has another size each time.

create or replace function pgqueue.enqueue_staged()
returns table (outcome text, jobs bigint)
language plpgsql security definer rows 5
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_custom_plan set jit = off
set client_min_messages = warning
as $$
declare
    v_now timestamptz := pgqueue._ready_at(null);
    v_accumulating text[] := array(select t.name from pgqueue.effective_tasks t where t.accumulate);
    v_rows bigint := 0::bigint;
    v_plain bigint;
    v_has_costs boolean;
    v_lane record;
    v_outcomes jsonb;
    v_enqueued_by text := pgqueue._enqueued_by();
begin
    if pgqueue._is_staged() then
        select
            count(*), max(s.cost) is not null, count(*) filter (where pgqueue._is_plain(v_accumulating, s))
        into v_rows, v_has_costs, v_plain
        from pg_temp.pgqueue_staged s;
    end if;
    -- The rows end with the transaction. If each statement commits by itself, none is left by now: report that.
    perform pgqueue._refuse(
        'nothing is staged in this transaction', 'pgqueue_staged has no rows, or does not exist.',
        'Call pgqueue.stage(), copy rows into pgqueue_staged, then call pgqueue.enqueue_staged(), in one transaction.'
    )
    where v_rows = 0;
    if v_plain < v_rows then
        update pg_temp.pgqueue_staged s
        set id = nextval('pgqueue.jobs_id_seq'), is_plain = pgqueue._is_plain(v_accumulating, s);
    end if;

    perform nextval('pgqueue.costs'::regclass) where v_has_costs and not pgqueue._has_costs();
    for v_lane in
        -- The subquery numbers the rows in their order, whatever a join does to it.
        with added as (
            insert into pgqueue.jobs (
                id, queue, task, args, priority, run_at, ready_at, created_at, expires_at, key, score, limit_key, lane_key,
                headers, max_attempts, cost, enqueued_by, offered
            )
            overriding system value
            select
                s.job_id, coalesce(s.queue, t.queue, s.declared ->> 'queue', 'default'), s.task, coalesce(s.args, '{}'),
                coalesce(s.priority, t.priority, (s.declared ->> 'priority')::integer, q.priority, 0), coalesce(s.run_at, pgqueue._after(v_now, s.delay), v_now),
                greatest(s.run_at, pgqueue._after(v_now, s.delay), v_now), v_now,
                pgqueue._after(
                    greatest(s.run_at, pgqueue._after(v_now, s.delay), v_now),
                    coalesce(s.expires_in, t.expires_in, (s.declared ->> 'expires_in')::interval)
                ),
                s.key, s.score, s.limit_key, case when q.fair_by is not null then pgqueue._lane_of(s.limit_key) end,
                s.headers, s.max_attempts, s.cost, v_enqueued_by,
                case when s.n = 1 and coalesce(current_setting('pgqueue.offered', true), '') = ''
                    and exists (select from pgqueue.idle_workers i where i.until > v_now)
                    then set_config('pgqueue.offered', 'announce', true) is not null end
            from (
                select
                    coalesce(p.id, nextval('pgqueue.jobs_id_seq')) as job_id,
                    p.queue, p.task, p.args, p.priority, p.run_at, p.delay, p.expires_in, p.key, p.score, p.limit_key,
                    p.headers, p.max_attempts, p.cost, p.declared, row_number() over () as n
                from pg_temp.pgqueue_staged p
                where p.is_plain is not false
            ) s
            left join pgqueue.effective_tasks t on t.name = s.task
            left join pgqueue.queues q on q.name = coalesce(s.queue, t.queue, s.declared ->> 'queue', 'default')
            returning queue, priority, ready_at, lane_key
        )
        select l.queue, l.priority, min(l.ready_at) as ready_at, array_agg(l.lane_key) as lane_keys
        from (
            select a.queue, a.priority, a.lane_key, min(a.ready_at) as ready_at
            from added a
            group by a.queue, a.priority, a.lane_key
        ) l
        group by l.queue, l.priority
        order by l.queue, l.priority
    loop
        perform pgqueue._register_lane(v_lane.queue, v_lane.priority, v_now, v_lane.lane_keys);
        perform pgqueue._wake(v_lane.queue, v_lane.ready_at);
    end loop;

    v_outcomes := case when v_plain < v_rows then pgqueue._enqueue_staged_others(v_now) else '{}' end;
    truncate pg_temp.pgqueue_staged;

    v_outcomes := v_outcomes || jsonb_build_object('inserted', v_plain + coalesce((v_outcomes ->> 'inserted')::bigint, 0));
    return query
    select o.outcome, o.jobs::bigint
    from jsonb_each_text(v_outcomes) o (outcome, jobs)
    where o.jobs <> '0'
    order by o.outcome;
end
$$;

comment on function pgqueue.enqueue_staged() is
    'Enqueue what was copied into pgqueue_staged since stage(), in the order of the rows, all or none, and return how many '
    'jobs had which outcome, as of enqueue_outcome(). An error names the row, the first being 1. '
    'Call it in the transaction of stage(). select * from pgqueue.enqueue_staged(); [producer]';

-- Not pinned, so that it is inlined: it is called for each row. Polymorphic, for each session has a type of its own for the rows.
create or replace function pgqueue._is_plain(p_accumulating text[], s anyelement)
returns boolean
language sql stable parallel safe
as $$
    select coalesce(
        pg_catalog.num_nonnulls(
            s.timeout, s.dedupe, s.dedupe_for, s.on_conflict, s.depends_on, s.tags, s.retention, s.retry_policy, s.retry_delay,
            s.retry_cap, s.retry_queue, s.debounce_max, s.run_if, s.group_id, nullif(s.cost between 0 and 1000000000, true)
        ) = 0
        and pg_catalog.octet_length(s.task) between 1 and 128
        and (s.args is null or pg_catalog.pg_column_size(s.args) <= 1000)
        and (s.args is null or pg_catalog.jsonb_typeof(s.args) = 'object')
        and (s.key is null or pg_catalog.octet_length(s.key) between 1 and 512)
        and (s.key is not null or s.task <> all (p_accumulating))
        and (s.queue is null or pg_catalog.octet_length(s.queue) between 1 and 128)
        and (s.priority is null or s.priority between -100 and 100)
        and (s.run_at is null or s.delay is null)
        and (s.run_at is null or s.run_at between '0002-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00')
        and (s.delay is null or s.delay between '0' and '1000 years')
        and (s.expires_in is null or s.expires_in between '1 us' and '1000 years')
        and (s.limit_key is null or (pg_catalog.octet_length(s.limit_key) between 1 and 512 and pg_catalog.right(s.limit_key, 1) <> '*'))
        and (s.headers is null or pg_catalog.jsonb_typeof(s.headers) = 'object')
        and (s.headers is null or pg_catalog.pg_column_size(s.headers) <= 1000)
        and (s.max_attempts is null or s.max_attempts between 1 and 100000)
        and (s.declared is null or (pgqueue._is_declared(s.declared) and (s.key is not null or not s.declared ? 'accumulate')))
        and (s.score is null or s.score not in ('NaN', 'Infinity', '-Infinity')),
        false
    )
$$;

-- Enqueues the staged jobs that are not plain, one by one, and returns how many had which outcome.
create or replace function pgqueue._enqueue_staged_others(p_now timestamptz)
returns jsonb
language plpgsql
as $$
declare
    v_deadline constant timestamptz := pgqueue._dedupe_deadline();
    v_row record;
    v_options pgqueue.job_options;
    v_job pgqueue.jobs;
    v_jobs pgqueue.jobs[] := '{}'::pgqueue.jobs[];
    v_children bigint[] := '{}'::bigint[];
    v_traceless bigint[] := '{}'::bigint[];
    v_id bigint;
    v_superseded bigint;
    v_outcome text;
    v_outcomes jsonb := '{}'::jsonb;
    v_wrong text[];
    v_detail text;
    v_hint text;
begin
    for v_row in
        select n.*
        from (select row_number() over (order by s.id) as n, s.* from pg_temp.pgqueue_staged s) n
        where not n.is_plain
        order by n.dedupe is not null, case when n.dedupe is not null then n.task end collate "C", n.dedupe collate "C", n.n
    loop
        v_options := row(
            v_row.task, coalesce(v_row.args, '{}'), v_row.queue, v_row.priority, v_row.run_at, v_row.delay, v_row.expires_in,
            v_row.timeout, v_row.max_attempts, v_row.key, v_row.score, v_row.dedupe, v_row.dedupe_for,
            v_row.on_conflict, v_row.depends_on, v_row.headers, v_row.tags, v_row.retention, v_row.retry_policy,
            v_row.retry_delay, v_row.retry_queue, v_row.limit_key, v_row.debounce_max, v_row.declared,
            v_row.run_if, v_row.group_id, v_row.retry_cap, v_row.cost
        );
        v_job := pgqueue._checked_job(v_row.id, p_now, v_options);
        v_outcome := 'inserted';
        v_traceless := v_traceless || v_job.followers;
        if v_job.dedupe is null then
            v_jobs := v_jobs || v_job;
        else
            select d.job_id, d.outcome, d.superseded into v_id, v_outcome, v_superseded
            from pgqueue._dedupe(v_job, v_row.dedupe_for, v_row.on_conflict, v_row.debounce_max, v_deadline) d;
            perform pgqueue._supersede(v_superseded) where v_superseded is not null;
            if v_outcome = 'refused' then
                v_wrong := pgqueue._dedupe_refusal(v_job, v_id);
                perform pgqueue._refuse(v_wrong[1], v_wrong[2], v_wrong[3], v_wrong[4]);
            end if;
        end if;
        v_outcomes := v_outcomes || jsonb_build_object(v_outcome, coalesce((v_outcomes ->> v_outcome)::bigint, 0) + 1);
        if v_job.depends_on is not null and v_outcome in ('inserted', 'superseded') then
            v_children := v_children || v_job.id;
        end if;
        if greatest(cardinality(v_jobs), cardinality(v_children)) = 1000 then
            perform pgqueue._insert_jobs(v_jobs);
            perform pgqueue._add_dependencies(v_children, v_traceless);
            v_jobs := '{}';
            v_children := '{}';
            v_traceless := '{}';
        end if;
    end loop;
    perform pgqueue._insert_jobs(v_jobs);
    perform pgqueue._add_dependencies(v_children, v_traceless);
    return v_outcomes;
exception when others then
    if pgqueue._refusal(sqlstate, sqlerrm, null, null) is null then
        raise;
    end if;
    get stacked diagnostics v_detail = pg_exception_detail, v_hint = pg_exception_hint;
    v_wrong := case
        when sqlstate = '55P03' then pgqueue._dedupe_refusal(v_job, null) else array[sqlerrm, v_detail, v_hint, sqlstate]
    end;
    perform pgqueue._refuse(format('row %s of the load: %s', v_row.n, v_wrong[1]), v_wrong[2], v_wrong[3], v_wrong[4]);
end
$$;
