-- enqueue_many: N jobs of one task with the same options, in one statement, in the order given, all or none.
--
-- The same steps as enqueue, with one insert and one wake-up for all.

create or replace function pgqueue.enqueue_many(
    task text, args jsonb[], queue text default null, priority integer default null,
    run_at timestamptz default null, delay interval default null, expires_in interval default null, timeout interval default null,
    max_attempts integer default null, key text default null, score numeric default null,
    dedupe text default null, dedupe_for interval default null, on_conflict text default null,
    depends_on bigint[] default null, headers jsonb default null, tags text[] default null, retention interval default null,
    retry_policy text default null, retry_delay interval default null, retry_queue text default null,
    limit_key text default null, debounce_max interval default null, declared jsonb default null,
    run_if text default null, group_id bigint default null, retry_cap interval default null, spread interval default null,
    cost integer default null
)
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
as $$
declare
    v_options pgqueue.job_options := row(
        task, '{}'::jsonb, queue, priority, run_at, delay, expires_in, timeout, max_attempts, key, score, dedupe, dedupe_for,
        on_conflict, depends_on, headers, tags, retention, retry_policy, retry_delay, retry_queue, limit_key, debounce_max,
        declared, run_if, group_id, retry_cap, cost
    );
    v_job pgqueue.jobs;
    v_enqueued_by text := pgqueue._enqueued_by();
    v_ids bigint[];
    v_step interval;
begin
    if enqueue_many.dedupe is not null or enqueue_many.args is null then
        perform pgqueue._check_options(v_options);
    end if;
    perform pgqueue._refuse(
        'args must be an array of JSON objects', 'It is null.', 'Give args as jsonb[], one element for each job.'
    )
    where enqueue_many.args is null;
    if not isfinite(enqueue_many.spread) or enqueue_many.spread not between '0' and '1 year' then
        perform pgqueue._refuse(
            'spread must be between zero and a year', format('It is %s.', enqueue_many.spread),
            'Give spread as an interval over which the jobs become due, such as ''10 min''.'
        );
    end if;
    v_step := coalesce(enqueue_many.spread, '0') / greatest(cardinality(enqueue_many.args), 1);
    perform pgqueue._check_args(a.args)
    from unnest(enqueue_many.args) a (args)
    where jsonb_typeof(a.args) is distinct from 'object' or pg_column_size(a.args) > 1000;

    if enqueue_many.dedupe is not null then
        perform pgqueue._refuse(
            'enqueue_many was given one dedupe key for several jobs',
            format('There are %s jobs, and one of a dedupe key at a time.', cardinality(enqueue_many.args)),
            'Give each job its own dedupe with enqueue_batch(), or leave dedupe out.'
        )
        where cardinality(enqueue_many.args) > 1;
        foreach v_options.args in array enqueue_many.args loop
            return query select o.job_id from pgqueue._enqueue_row(v_options) o;
        end loop;
        return;
    end if;

    v_job := pgqueue._checked_job(0, pgqueue._ready_at(null), v_options);
    perform pgqueue._check_run_at(pgqueue._after(v_job.ready_at, enqueue_many.spread));
    select
        w.queue, coalesce(v_job.priority, t.priority, q.priority, 0::smallint),
        case when q.fair_by is not null then pgqueue._lane_of(v_job.limit_key) end,
        coalesce(v_job.expires_at, pgqueue._after(greatest(v_job.run_at, v_job.created_at), t.expires_in))
    into v_job.queue, v_job.priority, v_job.lane_key, v_job.expires_at
    from (values (1)) one (row)
    left join pgqueue.effective_tasks t on t.name = enqueue_many.task
    cross join lateral (select coalesce(v_job.queue, t.queue, 'default') as queue) w
    left join pgqueue.queues q on q.name = w.queue;

    if v_job.depends_on is not null then
        v_ids := array(select nextval('pgqueue.jobs_id_seq') from unnest(enqueue_many.args));
    end if;
    -- Not by _insert_jobs: the rows of 1,000 jobs would be made twice, which takes 10 to 40 % longer.
    return query
    insert into pgqueue.jobs (
        id, queue, task, args, headers, tags, priority, run_at, ready_at, created_at,
        expires_at, max_attempts, retention, retry, key, score, limit_key, lane_key, timeout,
        enqueued_by, state, blocked_on, depends_on, run_if, group_id, cost, offered
    )
    overriding system value
    select
        coalesce(v_ids[a.ord], nextval('pgqueue.jobs_id_seq')), v_job.queue, v_job.task, a.args, v_job.headers, v_job.tags,
        v_job.priority,
        -- A run_at in the past means now.
        case when a.ord > 1 and v_step > '0' then pgqueue._after(v_job.ready_at, (a.ord - 1) * v_step) else v_job.run_at end,
        pgqueue._after(v_job.ready_at, (a.ord - 1) * v_step), v_job.created_at,
        pgqueue._after(v_job.expires_at, (a.ord - 1) * v_step), v_job.max_attempts,
        v_job.retention, v_job.retry, v_job.key, v_job.score, v_job.limit_key, v_job.lane_key, v_job.timeout, v_enqueued_by,
        coalesce(v_job.state, 'waiting'), v_job.blocked_on, v_job.depends_on, v_job.run_if, v_job.group_id, v_job.cost,
        case when a.ord = 1 and coalesce(current_setting('pgqueue.offered', true), '') = ''
            and exists (select from pgqueue.idle_workers i where i.queue in (v_job.queue, '') and i.until > v_job.created_at)
            then set_config('pgqueue.offered', 'announce', true) is not null end
    from unnest(enqueue_many.args) with ordinality a (args, ord)
    order by a.ord
    returning id;
    if v_ids is not null then
        perform pgqueue._add_dependencies(v_ids, v_job.followers);
    elsif found then
        perform pgqueue._register_lane(v_job.queue, v_job.priority, v_job.created_at, array[v_job.lane_key]);
        perform pgqueue._wake(v_job.queue, v_job.ready_at);
        perform pgqueue._wake(v_job.queue, pgqueue._after(v_job.ready_at, v_step)) where v_step > '0';
    end if;
end
$$;

comment on function pgqueue.enqueue_many(
    text, jsonb[], text, integer, timestamptz, interval, interval, interval, integer, text, numeric, text, interval, text,
    bigint[], jsonb, text[], interval, text, interval, text, text, interval, jsonb, text, bigint, interval, interval,
    integer
) is
    e'Enqueue one job for each element of args, with the same options, all or none, and return their ids in order. Options as '
    'of enqueue(). For options of each job''s own, and dedupe keys, see enqueue_batch().\nargs: The arguments of each job.\n'
    'spread: They become due one after the other over that time, evenly, from run_at on.\nselect '
    'pgqueue.enqueue_many(''resize'', array[''{"id": 1}'', ''{"id": 2}'']::jsonb[]); [producer]';
