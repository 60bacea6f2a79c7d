-- enqueue: a producer's one call. Inserts one row into jobs, inside the caller's transaction.
--
-- It locks nothing that another enqueue could wait for. One statement does nearly all: it looks up what task and
-- queue say, inserts the row, and then asks whether the lane is registered and whether somebody who serves the queue
-- is asleep now. Only when one of these asks for more does it go on, for NOTIFY serialises the commits of all who send
-- it. A worker writes that it sleeps *before* its last looks, so the answer may be stale by as long as this
-- transaction stays open, and no longer.
-- Of the time of a call half is spent on starting statements and compiling expressions, which in a transaction of its
-- own each call does anew: so there is one statement, and hardly an expression beside it. `offset 0` keeps the scan of
-- tasks from carrying all columns of that table.
-- Sequential scans are off because the small tables are, while some session holds an old snapshot, small in
-- live rows only. Every table here has an index for its question, so no plan looks expensive to JIT.
-- A job with a dedupe key, or one that depends on others, goes another way: see _enqueue_row. Options other than task and args are checked in _options.

create or replace function pgqueue.enqueue(
    task text,
    args jsonb default '{}',
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
    run_if text default null, group_id bigint default null
)
returns bigint
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    v_run_at timestamptz;
    v_ready_at timestamptz;
    v_now timestamptz := pgqueue._ready_at_unchecked(null);
    v_queue text;
    v_priority smallint;
    v_settled boolean;
    v_retry jsonb;
    v_id bigint;
begin
    -- Nearly every enqueue names a task and args and nothing else: it is not worth a call to check the rest. Args of
    -- that size are small also where they are stored compressed: no limit may be set below what that could hold.
    if octet_length(enqueue.task) between 1 and 128
        and jsonb_typeof(enqueue.args) = 'object'
        and pg_column_size(enqueue.args) <= 1000
        and num_nonnulls(
            enqueue.queue, enqueue.priority, enqueue.run_at, enqueue.delay, enqueue.expires_in, enqueue.timeout,
            enqueue.max_attempts, enqueue.key, enqueue.score, enqueue.dedupe, enqueue.dedupe_for,
            enqueue.on_conflict, enqueue.depends_on, enqueue.run_if, enqueue.group_id, enqueue.headers, enqueue.tags,
            enqueue.retention, enqueue.retry_policy, enqueue.retry_delay, enqueue.retry_queue, enqueue.limit_key,
            enqueue.debounce_max
        ) = 0
    then
        -- Not one condition: the inlined function would be compiled for each call, also the plain one.
        if enqueue.declared is not null then
            perform pgqueue._check_declared(enqueue.declared);
        end if;
    elsif num_nonnulls(enqueue.dedupe, enqueue.depends_on, enqueue.group_id) > 0 then
        return (pgqueue._enqueue_row(
            row(
                enqueue.task, enqueue.args, enqueue.queue, enqueue.priority, enqueue.run_at, enqueue.delay,
                enqueue.expires_in, enqueue.timeout, enqueue.max_attempts, enqueue.key, enqueue.score, enqueue.dedupe,
                enqueue.dedupe_for, enqueue.on_conflict, enqueue.depends_on, enqueue.headers, enqueue.tags,
                enqueue.retention, enqueue.retry_policy, enqueue.retry_delay, enqueue.retry_queue, enqueue.limit_key,
                enqueue.debounce_max, enqueue.declared, enqueue.run_if, enqueue.group_id
            )
        )).job_id;
    else
        perform pgqueue._check_options(
            -- No variable: a row that is declared costs each call, also the plain one.
            row(
                enqueue.task, enqueue.args, enqueue.queue, enqueue.priority, enqueue.run_at, enqueue.delay,
                enqueue.expires_in, enqueue.timeout, enqueue.max_attempts, enqueue.key, enqueue.score, enqueue.dedupe,
                enqueue.dedupe_for, enqueue.on_conflict, enqueue.depends_on, enqueue.headers, enqueue.tags,
                enqueue.retention, enqueue.retry_policy, enqueue.retry_delay, enqueue.retry_queue, enqueue.limit_key,
                enqueue.debounce_max, enqueue.declared, enqueue.run_if, enqueue.group_id
            )
        );
        perform pgqueue._check_args(enqueue.args);
        if num_nonnulls(enqueue.retry_policy, enqueue.retry_delay, enqueue.retry_queue) > 0 then
            v_retry := pgqueue._job_retry(enqueue.retry_policy, enqueue.retry_delay, enqueue.retry_queue);
        end if;
        v_run_at := coalesce(enqueue.run_at, v_now + enqueue.delay);
        if v_run_at > v_now then
            v_ready_at := pgqueue._ready_at_unchecked(v_run_at);
            perform pgqueue._check_run_at(v_run_at);
        end if;
    end if;

    insert into pgqueue.jobs (
        queue, task, args, headers, tags, priority, run_at, ready_at, created_at,
        expires_at, max_attempts, retention, retry, key, score, limit_key, timeout
    )
    select
        coalesce(enqueue.queue, t.queue, enqueue.declared ->> 'queue', 'default'), enqueue.task, enqueue.args, enqueue.headers, enqueue.tags,
        coalesce(
            enqueue.priority, t.priority, (enqueue.declared ->> 'priority')::smallint,
            (select q.priority from pgqueue.queues q
            where q.name = coalesce(enqueue.queue, t.queue, enqueue.declared ->> 'queue', 'default')),
            0
        ),
        coalesce(v_run_at, v_now), coalesce(v_ready_at, v_now), v_now,
        greatest(v_run_at, v_now) + coalesce(enqueue.expires_in, t.expires_in, (enqueue.declared ->> 'expires_in')::interval),
        enqueue.max_attempts, enqueue.retention, v_retry, enqueue.key, enqueue.score, enqueue.limit_key, enqueue.timeout
    from (values (1)) one (row)
    left join (
        select e.queue, e.priority, e.expires_in, e.accumulate from pgqueue.effective_tasks e where e.name = enqueue.task
        offset 0
    ) t on true
    where enqueue.key is not null or coalesce(t.accumulate, (enqueue.declared ->> 'accumulate')::boolean) is not true
    returning
        id, queue, priority,
        exists (select from pgqueue.lanes l where l.queue = jobs.queue and l.priority = jobs.priority)
        and not exists (
            select from pgqueue.idle_workers s where s.queue in (jobs.queue, '') and s.until > jobs.ready_at
        )
        and current_setting('transaction_isolation') = 'read committed'
        -- Else the clock has stepped back, and _register_lane() writes a mark.
        and coalesce((select h.at from pgqueue.horizons h order by h.n desc limit 1) <= jobs.created_at, true)
    into v_id, v_queue, v_priority, v_settled;

    if v_settled then
        return v_id;
    end if;
    if v_id is null then
        perform pgqueue._refuse_without_key(enqueue.task);
    end if;
    perform pgqueue._register_lane(v_queue, v_priority, v_now);
    perform pgqueue._wake(v_queue, coalesce(v_ready_at, v_now), 2, null);
    return v_id;
end
$$;

comment on function pgqueue.enqueue(
    text, jsonb, text, integer, timestamptz, interval, interval, interval, integer, text, numeric, text, interval,
    text, bigint[], jsonb, text[], interval, text, interval, text, text, interval, jsonb,
    text, bigint
) is
    'Enqueue one job in the current transaction and return its id. '
    'select pgqueue.enqueue(''send_email'', ''{"to": "a@b.c"}'', delay => ''2 hours''); '
    'queue, priority, max_attempts, expires_in and retention default to what the task, then the queue, says; '
    'run_at or delay: not before then (a time in the past means now); expires_in: cancelled if not started by then, '
    'counted from run_at; headers: trace context; tags: labels; retention: how long history keeps it (zero: no row). '
    'retry_policy (fixed, exponential, sidekiq or doubling), retry_delay and retry_queue: instead of what the task says; '
    'key: jobs of one queue and key run one at a time, in order; score: order of payloads of an accumulating task; '
    'limit_key: what limits of that kind go by; timeout: how long one try may take. '
    'dedupe: of one task and dedupe there is one job while it lives, or, with dedupe_for, for so long from its enqueue on, '
    'whatever becomes of it; the id is then that of the job that stands. on_conflict says what becomes of that one, while it '
    'waits and was never reserved: skip (nothing; the default), replace (args, headers, run_at and priority are those of this '
    'call), merge (args || these args), debounce (run_at moves out to the one of this call, and no further than debounce_max '
    'after its enqueue, by default ten times the delay), raise (23505, whatever its state). See enqueue_outcome(). '
    'declared: what the code of the producer declares for the task, as JSON (queue, priority, expires_in, accumulate): it '
    'holds where neither the job, nor an operator, nor a worker says otherwise. '
    'depends_on: ids of jobs; it starts when they have ended, as run_if says: succeeded (all of them; should one not, it is '
    'cancelled; the default), finished (whatever became of them) or failed (as soon as one did not succeed; else it is cancelled). '
    'group_id: the group that it joins, see open_group().';
