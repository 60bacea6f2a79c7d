-- enqueue: inserts one job, inside the caller's transaction.
--
-- It locks nothing that another enqueue could wait for. One statement does nearly all: it reads the options of task and
-- queue, inserts the row, and then checks whether the lane is registered and whether a worker of the queue is idle. Only if
-- one of these requires more does it continue, for NOTIFY serialises the commits of all sessions that send it. A worker
-- registers as idle *before* its last polls, so the answer is stale by at most the time that this transaction stays open.
-- Half of the time of a call is spent on starting statements and compiling expressions, which each transaction repeats: so
-- there is one statement, and hardly an expression beside it. `offset 0` keeps the scan of tasks from carrying all columns
-- of that table. The view effective_tasks would cost the first call of a session 7 % more: it reads how the view is made.
-- Sequential scans are off because beside an old snapshot the small tables are small in live rows only. No plan here is
-- expensive enough for JIT.

create or replace function pgqueue.enqueue(
    task text, args jsonb default '{}', queue text default null, priority integer default null,
    run_at timestamptz default null, delay interval default null, expires_in interval default null,
    timeout interval default null, max_attempts integer default null, key text default null, score numeric default null,
    dedupe text default null, dedupe_for interval default null, on_conflict text default null,
    depends_on bigint[] default null, headers jsonb default null, tags text[] default null,
    retention interval default null, retry_policy text default null, retry_delay interval default null,
    retry_queue text default null, limit_key text default null, debounce_max interval default null,
    declared jsonb default null, run_if text default null, group_id bigint default null, retry_cap interval default null, cost integer default null
)
returns bigint
language plpgsql security definer
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
    v_is_known boolean;
    v_wakes boolean;
    v_retry jsonb;
    v_lane_key text;
    v_id bigint;
begin
    -- Nearly every enqueue gives task and args only: skip the call that checks the other options. Args of that size are
    -- small even if they are compressed: max_args_bytes cannot be set below what they could expand to.
    if octet_length(enqueue.task) between 1 and 128 and jsonb_typeof(enqueue.args) = 'object'
        and pg_column_size(enqueue.args) <= 1000
        and num_nonnulls(
            queue, priority, run_at, delay, expires_in, timeout, max_attempts, key, score, dedupe, dedupe_for, on_conflict,
            depends_on, run_if, group_id, headers, tags, retention, retry_policy, retry_delay, retry_queue, limit_key,
            debounce_max, retry_cap, cost
        ) = 0
    then
        -- Not one condition: the inlined function would be compiled for each call, also for a plain one.
        if enqueue.declared is not null then
            perform pgqueue._check_declared(enqueue.declared);
        end if;
    else
        -- Within, for a declared row costs each call that comes by, also a plain one.
        declare
            v_options constant pgqueue.job_options := row(
                task, args, queue, priority, run_at, delay, expires_in, timeout, max_attempts, key, score, dedupe, dedupe_for,
                on_conflict, depends_on, headers, tags, retention, retry_policy, retry_delay, retry_queue, limit_key,
                debounce_max, declared, run_if, group_id, retry_cap, cost
            );
        begin
            if num_nonnulls(enqueue.dedupe, enqueue.depends_on, enqueue.group_id) > 0 then
                return (pgqueue._enqueue_row(v_options)).job_id;
            end if;
            perform pgqueue._check_options(v_options);
        end;
        perform pgqueue._check_args(enqueue.args);
        if enqueue.cost is not null then
            perform nextval('pgqueue.costs'::regclass) where not pgqueue._has_costs();
        end if;
        if num_nonnulls(enqueue.retry_policy, enqueue.retry_delay, enqueue.retry_queue, enqueue.retry_cap) > 0 then
            v_retry := pgqueue._job_retry(enqueue.retry_policy, enqueue.retry_delay, enqueue.retry_queue, enqueue.retry_cap);
        end if;
        v_run_at := coalesce(enqueue.run_at, pgqueue._after(v_now, enqueue.delay));
        if v_run_at > v_now then
            v_ready_at := pgqueue._ready_at_unchecked(v_run_at);
            perform pgqueue._check_run_at(v_run_at);
        end if;
    end if;

    insert into pgqueue.jobs (
        queue, task, args, headers, tags, priority, run_at, ready_at, created_at,
        expires_at, max_attempts, retention, retry, key, score, limit_key, lane_key, timeout, cost, offered
    )
    select
        coalesce(enqueue.queue, t.queue, enqueue.declared ->> 'queue', 'default'), enqueue.task, enqueue.args, enqueue.headers, enqueue.tags,
        coalesce(enqueue.priority, t.priority, (enqueue.declared ->> 'priority')::smallint, q.priority, 0),
        coalesce(v_run_at, v_now), coalesce(v_ready_at, v_now), v_now,
        pgqueue._after(
            greatest(v_run_at, v_now), coalesce(enqueue.expires_in, t.expires_in, (enqueue.declared ->> 'expires_in')::interval)
        ),
        enqueue.max_attempts, enqueue.retention, v_retry, enqueue.key, enqueue.score, enqueue.limit_key,
        case when q.fair_by is not null then pgqueue._lane_of(enqueue.limit_key) end,
        enqueue.timeout, enqueue.cost,
        -- The first of its transaction, or the first that is due. Null: an event is on its way, or above READ COMMITTED. See _hand_off.
        case
            when coalesce(current_setting('pgqueue.offered', true), '') in ('', case when v_ready_at is null then 'announce' end)
                and current_setting('transaction_isolation') = 'read committed'
                then exists (
                    select from pgqueue.idle_workers s
                    where s.queue in (coalesce(enqueue.queue, t.queue, enqueue.declared ->> 'queue', 'default'), '')
                        and s.until > coalesce(v_ready_at, v_now)
                )
        end
    from (values (1)) one (row)
    left join (
        select
            coalesce(e.queue, e.declared_queue) as queue, coalesce(e.priority, e.declared_priority) as priority,
            coalesce(e.expires_in, e.declared_expires_in) as expires_in, coalesce(e.accumulate, e.declared_accumulate) as accumulate
        from pgqueue.tasks e
        where e.name = enqueue.task
        offset 0
    ) t on true
    left join pgqueue.queues q on q.name = coalesce(enqueue.queue, t.queue, enqueue.declared ->> 'queue', 'default')
    where enqueue.key is not null or coalesce(t.accumulate, (enqueue.declared ->> 'accumulate')::boolean) is not true
    returning
        id, queue, priority, lane_key,
        -- A lane on which this job may rely, in which tenants take no turns, and no step back of the clock. Else: _register_lane().
        lane_key is null and (
            select bool_and(not l.is_fair) and bool_or(l.until > jobs.created_at and l.due_from <= jobs.ready_at)
            from pgqueue.lanes l where l.queue = jobs.queue and l.priority = jobs.priority
        ) is true and coalesce((select h.at from pgqueue.horizons h order by h.n desc limit 1) <= jobs.created_at, true),
        case
            -- The trigger does the rest, at the end of this statement after SET CONSTRAINTS ALL IMMEDIATE.
            when offered
                then set_config('pgqueue.offered', case when v_ready_at is null then id::text else 'announce' end, true) = 'announce'
            when offered is null then current_setting('transaction_isolation') <> 'read committed'
                or exists (select from pgqueue.idle_workers s where s.queue in (jobs.queue, '') and s.until > jobs.ready_at)
        end
    into v_id, v_queue, v_priority, v_lane_key, v_is_known, v_wakes;

    if v_is_known and v_wakes is not true then
        return v_id;
    end if;
    perform pgqueue._refuse_without_key(enqueue.task) where v_id is null;
    if not v_is_known then
        perform pgqueue._register_lane(v_queue, v_priority, v_now, array[v_lane_key]);
    end if;
    perform pgqueue._wake(v_queue, coalesce(v_ready_at, v_now)) where v_wakes;
    return v_id;
end
$$;

comment on function pgqueue.enqueue(
    text, jsonb, text, integer, timestamptz, interval, interval, interval, integer, text, numeric, text, interval, text,
    bigint[], jsonb, text[], interval, text, interval, text, text, interval, jsonb, text, bigint, interval, integer
) is
    e'Enqueue one job in the current transaction and return its id. An option that is not given comes from the task, then from the queue.\n'
    'task: The task, by its name.\nargs: Its arguments, a JSON object.\nqueue: The queue.\npriority: -100 to 100, higher runs '
    'first.\nrun_at: It does not start before this time; a time in the past means now.\ndelay: The same, counted from now.\n'
    'expires_in: It is cancelled if it has not started by then, counted from run_at.\ntimeout: How long one attempt may take.\n'
    'max_attempts: Attempts before it is dead.\nkey: Jobs of one queue and key run one at a time, in order.\nscore: The '
    'position of the payload within its batch, for an accumulating task.\ndedupe: There is one job of a task and dedupe key '
    'until it ends; a second call returns the id of the first.\ndedupe_for: The dedupe key holds for this time after the '
    'enqueue, and not until the job ends.\non_conflict: What to do with the job that has the dedupe key, while it waits and '
    'was never reserved: skip (nothing; the default), replace (args, headers, run_at and priority by those of this call), '
    'merge (args || these args), debounce (defer it to the run_at of this call), supersede (in any state: cancel it, or ask it to, and enqueue this one) or raise (23505, whatever its state). See '
    'enqueue_outcome().\ndepends_on: Ids of jobs; it starts when they have ended as run_if says.\nheaders: Trace context, and data '
    'of middleware.\ntags: Labels to search by.\nretention: How long history keeps it; zero: no row.\nretry_policy: fixed, '
    'exponential, sidekiq or doubling.\nretry_delay: The delay before the first retry.\nretry_queue: The queue of its '
    'retries.\nlimit_key: The value to which limits of the kind limit_key apply.\ndebounce_max: It is debounced no further '
    'than this after its enqueue; by default ten times the delay.\ndeclared: The options that the code of the producer '
    'declares for the task (queue, priority, expires_in, accumulate): used where neither the job, nor an operator, nor a '
    'worker sets them.\nrun_if: succeeded (all of depends_on; if one does not, it is cancelled; the default), finished (in any '
    'state) or failed (as soon as one did not succeed; else it is cancelled).\ngroup_id: The group that it joins, see '
    'open_group().\nretry_cap: The longest delay between two retries.\ncost: How many units of its limits a start takes; 1 by default.\nselect pgqueue.enqueue(''send_email'', ''{"to": '
    '"a@b.c"}'', delay => ''2 hours''); [producer]';
