-- enqueue_many: N jobs of one task with the same options, in one statement, in the order given, all or none.
--
-- The same steps as enqueue, with one insert and one wake-up for all. With a dedupe key there can be one job only, for all
-- would have the same key.

create or replace function pgqueue.enqueue_many(
    task text,
    args jsonb[],
    queue text default null,
    priority integer default null,
    run_at timestamptz default null,
    delay interval default null,
    expires_in interval default null,
    timeout interval default null,
    max_attempts integer default null,
    key text default null,
    score numeric default null,
    dedupe text default null,
    dedupe_for interval default null,
    on_conflict text default null,
    depends_on bigint[] default null,
    headers jsonb default null,
    tags text[] default null,
    retention interval default null,
    retry_policy text default null,
    retry_delay interval default null,
    retry_queue text default null,
    limit_key text default null,
    debounce_max interval default null,
    declared jsonb default null,
    run_if text default null,
    group_id bigint default null
)
returns setof bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := pgqueue._ready_at(null);
    v_run_at timestamptz := coalesce(enqueue_many.run_at, v_now);
    v_ready_at timestamptz := v_now;
    v_queue text;
    v_priority smallint;
    v_expires_in interval;
    v_accumulate boolean;
    v_options pgqueue.job_options;
    v_retry jsonb;
    v_enqueued_by text := pgqueue._enqueued_by();
begin
    v_options := row(
        enqueue_many.task, null::jsonb, enqueue_many.queue, enqueue_many.priority, enqueue_many.run_at,
        enqueue_many.delay, enqueue_many.expires_in, enqueue_many.timeout, enqueue_many.max_attempts,
        enqueue_many.key, enqueue_many.score, enqueue_many.dedupe, enqueue_many.dedupe_for, enqueue_many.on_conflict,
        enqueue_many.depends_on, enqueue_many.headers, enqueue_many.tags, enqueue_many.retention,
        enqueue_many.retry_policy, enqueue_many.retry_delay, enqueue_many.retry_queue, enqueue_many.limit_key,
        enqueue_many.debounce_max, enqueue_many.declared,
        enqueue_many.run_if, enqueue_many.group_id
    );
    perform pgqueue._check_options(v_options);
    v_retry := pgqueue._job_retry(enqueue_many.retry_policy, enqueue_many.retry_delay, enqueue_many.retry_queue);
    if enqueue_many.args is null then
        perform pgqueue._refuse(
            'args must be an array of JSON objects', 'It is null.', 'Give args as jsonb[], one element for each job.'
        );
    end if;
    perform pgqueue._check_args(a.args)
    from unnest(enqueue_many.args) a (args)
    where jsonb_typeof(a.args) is distinct from 'object' or pg_column_size(a.args) > 1000;

    if enqueue_many.dedupe is not null then
        if cardinality(enqueue_many.args) > 1 then
            perform pgqueue._refuse(
                'enqueue_many was given one dedupe key for several jobs',
                format('There are %s jobs, and one of a dedupe key at a time.', cardinality(enqueue_many.args)),
                'Give each job a dedupe of its own with enqueue_batch(), or leave dedupe out.'
            );
        end if;
        if cardinality(enqueue_many.args) = 1 then
            v_options.args := (select a.args from unnest(enqueue_many.args) a (args));
            return query select o.job_id from pgqueue._enqueue_row(v_options) o;
        end if;
        return;
    end if;

    if num_nonnulls(enqueue_many.depends_on, enqueue_many.group_id) > 0 then
        return query select n.id from pgqueue._enqueue_rows(v_options, enqueue_many.args) n (id);
        return;
    end if;

    if enqueue_many.delay is not null then
        v_run_at := pgqueue._after(v_now, enqueue_many.delay);
    end if;
    if v_run_at > v_now then
        v_ready_at := pgqueue._ready_at(v_run_at);
        perform pgqueue._check_run_at(v_run_at);
    end if;

    select
        w.queue,
        p.priority,
        coalesce(enqueue_many.expires_in, t.expires_in, (enqueue_many.declared ->> 'expires_in')::interval),
        coalesce(t.accumulate, (enqueue_many.declared ->> 'accumulate')::boolean)
    into v_queue, v_priority, v_expires_in, v_accumulate
    from (values (1)) one (row)
    left join pgqueue.effective_tasks t on t.name = enqueue_many.task
    cross join lateral (
        select coalesce(enqueue_many.queue, t.queue, enqueue_many.declared ->> 'queue', 'default') as queue
    ) w
    left join pgqueue.queues q on q.name = w.queue
    cross join lateral (
        select coalesce(
            enqueue_many.priority, t.priority, (enqueue_many.declared ->> 'priority')::integer, q.priority, 0
        )::smallint as priority
    ) p;

    if v_accumulate and enqueue_many.key is null then
        perform pgqueue._refuse_without_key(enqueue_many.task);
    end if;

    return query
    insert into pgqueue.jobs (
        queue, task, args, headers, tags, priority, run_at, ready_at, created_at,
        expires_at, max_attempts, retention, retry, key, score, limit_key, timeout,
        enqueued_by
    )
    select
        v_queue, enqueue_many.task, a.args, enqueue_many.headers, enqueue_many.tags, v_priority, v_run_at, v_ready_at,
        v_now, pgqueue._after(greatest(v_run_at, v_now), v_expires_in), enqueue_many.max_attempts, enqueue_many.retention,
        v_retry, enqueue_many.key, enqueue_many.score, enqueue_many.limit_key, enqueue_many.timeout,
        v_enqueued_by
    from unnest(enqueue_many.args) with ordinality a (args, ord)
    order by a.ord
    returning id;

    if found then
        perform pgqueue._register_lane(v_queue, v_priority, v_now);
        perform pgqueue._wake(v_queue, v_ready_at, 2, null);
    end if;
end
$$;

comment on function pgqueue.enqueue_many(
    text, jsonb[], text, integer, timestamptz, interval, interval, interval, integer, text, numeric, text, interval,
    text, bigint[], jsonb, text[], interval, text, interval, text, text, interval, jsonb,
    text, bigint
) is
    'Enqueue one job for each element of args, with the same options, all or none, and return their ids in order. '
    'select pgqueue.enqueue_many(''resize'', array[''{"id": 1}'', ''{"id": 2}'']::jsonb[]); Options as enqueue. '
    'For options of each job''s own, and dedupe keys, see enqueue_batch().';
