-- Jobs as rows: from the options of a producer to a row of jobs, checked, and from such rows into the queue.
--
-- A row gets its id before it is inserted, so that its dedupe key can name it. _insert_jobs takes such rows. Four other statements
-- insert jobs, for to make a row first costs more: enqueue, the plain call; enqueue_many, one row many times; enqueue_staged,
-- rows of a table of any size; and _requeue, rows that come back from history with all that they had.

-- p_parents: of the jobs on which it depends those that are not inserted yet, so they are not searched for.
create or replace function pgqueue._checked_job(
    p_id bigint, p_now timestamptz, o pgqueue.job_options, p_parents bigint[] default '{}'
)
returns pgqueue.jobs
language plpgsql
as $$
declare
    v_job pgqueue.jobs;
    v_task record;
    v_parents bigint[];
begin
    perform pgqueue._check_options(o);
    perform pgqueue._check_args(o.args);
    if o.key is null or o.declared is not null then
        select t.queue, t.priority, t.expires_in, t.accumulate into v_task
        from (values (1)) one (row)
        left join pgqueue.effective_tasks t on t.name = o.task;
        if o.key is null and coalesce(v_task.accumulate, (o.declared ->> 'accumulate')::boolean) then
            perform pgqueue._refuse_without_key(o.task);
        end if;
    end if;
    if o.declared is not null then
        o.queue := coalesce(o.queue, v_task.queue, o.declared ->> 'queue');
        o.priority := coalesce(o.priority, v_task.priority, (o.declared ->> 'priority')::integer);
        o.expires_in := coalesce(o.expires_in, v_task.expires_in, (o.declared ->> 'expires_in')::interval);
    end if;

    v_job.id := p_id;
    v_job.created_at := p_now;
    v_job.run_at := coalesce(o.run_at, pgqueue._after(p_now, o.delay), p_now);
    v_job.ready_at := p_now;
    if v_job.run_at > p_now then
        v_job.ready_at := pgqueue._ready_at_unchecked(v_job.run_at);
        perform pgqueue._check_run_at(v_job.run_at);
    end if;
    v_job.expires_at := pgqueue._after(greatest(v_job.run_at, p_now), o.expires_in);
    v_job.task := o.task;
    v_job.args := o.args;
    v_job.queue := o.queue;
    v_job.priority := o.priority::smallint;
    v_job.max_attempts := o.max_attempts;
    v_job.key := o.key;
    v_job.score := o.score;
    v_job.dedupe := o.dedupe;
    v_job.headers := o.headers;
    v_job.tags := o.tags;
    v_job.retention := o.retention;
    v_job.limit_key := o.limit_key;
    v_job.timeout := o.timeout;
    v_job.cost := o.cost;
    if o.cost is not null then
        perform nextval('pgqueue.costs'::regclass) where not pgqueue._has_costs();
    end if;
    if o.group_id is not null then
        -- First: it may wait for a lock, and parents may end meanwhile.
        v_job.group_id := pgqueue._join_group(o.group_id);
    end if;
    if cardinality(o.depends_on) > 0 then
        v_parents := array(select p.id from unnest(o.depends_on) p (id) where p.id <> all (p_parents));
        if v_parents <> '{}' then
            -- For _add_dependencies. They go nowhere else: a new job has no followers.
            v_job.followers := pgqueue._refuse_unknown_parents(v_parents);
            if v_job.group_id is not null then
                perform pgqueue._refuse_circle(null, v_job.group_id, v_parents);
            end if;
        end if;
        v_job.depends_on := array(select distinct p.id from unnest(o.depends_on) p (id) order by p.id);
        v_job.run_if := coalesce(o.run_if, 'succeeded');
        v_job.state := 'blocked';
        v_job.blocked_on := '@parents';
    end if;
    if num_nonnulls(o.retry_policy, o.retry_delay, o.retry_queue, o.retry_cap) > 0 then
        v_job.retry := pgqueue._job_retry(o.retry_policy, o.retry_delay, o.retry_queue, o.retry_cap);
    end if;
    return v_job;
end
$$;

-- Inserts jobs in one statement, with the options of their tasks and queues, registers their lanes and wakes each queue
-- once. Children need _add_dependencies() next.
create or replace function pgqueue._insert_jobs(p_jobs pgqueue.jobs[])
returns void
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_enqueued_by text := pgqueue._enqueued_by();
    v_lane record;
begin
    for v_lane in
        with added as (
            insert into pgqueue.jobs (
                id, queue, task, args, headers, tags, priority, run_at, ready_at, created_at,
                expires_at, max_attempts, retention, retry, key, score, limit_key, lane_key, dedupe,
                timeout, enqueued_by,
                state, blocked_on, depends_on, run_if, group_id, cost, offered
            )
            overriding system value
            select
                n.id, w.queue, n.task, n.args, n.headers, n.tags,
                coalesce(n.priority, t.priority, q.priority, 0), n.run_at, n.ready_at, n.created_at,
                coalesce(n.expires_at, pgqueue._after(greatest(n.run_at, n.created_at), t.expires_in)),
                n.max_attempts, n.retention, n.retry, n.key, n.score, n.limit_key,
                case when q.fair_by is not null then pgqueue._lane_of(n.limit_key) end, n.dedupe,
                n.timeout, coalesce(n.enqueued_by, v_enqueued_by),
                coalesce(n.state, 'waiting'), n.blocked_on, n.depends_on, n.run_if, n.group_id, n.cost,
                case when n.ordinality = 1 and coalesce(current_setting('pgqueue.offered', true), '') = ''
                    and exists (select from pgqueue.idle_workers i where i.queue in (n.queue, '') and i.until > n.created_at)
                    then set_config('pgqueue.offered', 'announce', true) is not null end
            from unnest(p_jobs) with ordinality n
            left join pgqueue.effective_tasks t on t.name = n.task
            cross join lateral (select coalesce(n.queue, t.queue, 'default') as queue) w
            left join pgqueue.queues q on q.name = w.queue
            returning queue, priority, ready_at, created_at, blocked_on, lane_key
        )
        select
            a.queue, a.priority, min(a.ready_at) as ready_at, min(a.created_at) as created_at,
            min(a.ready_at) filter (where a.ready_at > a.created_at) as due_at,
            array_agg(distinct a.lane_key) as lane_keys
        from added a
        where a.blocked_on is null
        group by a.queue, a.priority
        order by a.queue, a.priority
    loop
        perform pgqueue._register_lane(v_lane.queue, v_lane.priority, v_lane.created_at, v_lane.lane_keys);
        perform pgqueue._wake(v_lane.queue, v_lane.ready_at);
        perform pgqueue._wake(v_lane.queue, v_lane.due_at) where v_lane.due_at > v_lane.ready_at;
    end loop;
end
$$;
