-- How tries fail, one or many: what fail, fail_many and exchange share.
--
-- Locks the jobs' rows in the order of their ids, all of them before the first is decided; then, job by job, what a call
-- of an accumulating task holds, and the retry budgets of queues in the order of their locks, so that two batches take
-- turns and never wait in a circle. Jobs are decided one by one and changed all together: one UPDATE of those that will
-- be retried, and one _finish for each final state. A call of an accumulating task ends by itself.
-- What a failure asks for and cannot have is refused where p_strict; else the job goes by its own policy. A job that is
-- named twice fails once.

create or replace function pgqueue._fail(
    p_job_ids bigint[],
    p_reservations bigint[],
    p_errors jsonb[],
    p_retry_in interval[],
    p_retry boolean[],
    p_policies text[],
    p_cancel boolean[],
    p_strict boolean
)
returns table (n bigint, job_id bigint, state text, policy_error text)
language plpgsql
volatile
parallel unsafe
rows 100
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    -- A variable: a constant would let a plan go by the index of leases, through all of them (see extend).
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
    v_job record;
    v_answer record;
    v_may_ask boolean := true;
    v_error jsonb;
    v_flaw text;
    v_delay interval;
    v_state text;
    v_states text[] := array_fill(null::text, array[cardinality(p_job_ids)]);
    v_flaws text[] := v_states;
    v_ready_at timestamptz;
    v_followers bigint[];
    v_lane record;
    -- Of those that will be retried, with the payloads that go with them.
    v_ids bigint[] := '{}'::bigint[];
    v_queues text[] := '{}'::text[];
    v_ready_ats timestamptz[] := '{}'::timestamptz[];
    v_errors jsonb[] := '{}'::jsonb[];
    v_attempts integer[] := '{}'::integer[];
    v_workers text[] := '{}'::text[];
    v_keyed bigint[] := '{}'::bigint[];
    v_tasks text[] := '{}'::text[];
    v_keys text[] := '{}'::text[];
    v_limit_keys text[] := '{}'::text[];
    -- Of those that end.
    v_dead bigint[] := '{}'::bigint[];
    v_dead_reservations bigint[] := '{}'::bigint[];
    v_dead_errors jsonb[] := '{}'::jsonb[];
    v_cancelled bigint[] := '{}'::bigint[];
    v_cancelled_reservations bigint[] := '{}'::bigint[];
    v_cancelled_errors jsonb[] := '{}'::jsonb[];
begin
    for v_job in
        with wanted as materialized (
            select distinct on (w.id) w.*
            from unnest(p_job_ids, p_reservations, p_errors, p_retry_in, p_retry, p_policies, p_cancel)
                with ordinality w (id, held_under, error, retry_in, retry, policy, cancel, n)
            order by w.id, w.n
        ),
        -- Sorted below, so all of them are locked before the first is decided.
        held as materialized (
            select w.n, w.error, w.retry_in, w.retry, w.policy as asked_policy, w.cancel, l.*
            from wanted w
            cross join lateral (
                select
                    j.id, j.reservation, j.priority, j.attempts, j.reserved_by, j.cancel_requested_at, j.task, j.key,
                    j.limit_key, j.followers, j.max_attempts, j.retry as own, j.queue
                from pgqueue.jobs j
                where j.id = w.id
                    and j.reservation = w.held_under
                    and j.state = v_executing
                for update
            ) l
        )
        select
            h.n, h.id, h.reservation, h.error, h.retry_in, h.retry, h.asked_policy, h.cancel, h.priority, h.attempts,
            h.reserved_by, h.cancel_requested_at, h.task, h.key, h.limit_key, h.followers,
            coalesce(h.max_attempts, t.max_attempts, case when t.accumulate then 26 else 11 end) as max_attempts,
            coalesce(h.own ->> 'policy', t.retry_policy, case when t.accumulate then 'sidekiq' end) as own_policy,
            coalesce(make_interval(secs => (h.own ->> 'delay')::double precision), t.retry_delay) as delay,
            t.retry_jitter, t.retry_cap, t.retry_delays, t.retry_function,
            d.queue, q.retry_budget
        from held h
        left join pgqueue.effective_tasks t on t.name = h.task
        cross join lateral (
            -- Not for a job with a key: its order holds within one queue.
            select coalesce(case when h.key is null then coalesce(h.own ->> 'queue', t.retry_queue) end, h.queue) as queue
        ) d
        left join pgqueue.queues q on q.name = d.queue
        -- Two batches take the locks of several budgets in the same order.
        order by case when q.retry_budget is not null then pgqueue._budget_lock(d.queue) end nulls first, h.n
    loop
        v_error := coalesce(v_job.error, '{}');
        v_delay := v_job.retry_in;
        v_flaw := pgqueue._failure_flaw(
            v_job.retry_in, v_job.asked_policy, v_job.retry_delays is not null, v_job.retry_function is not null
        );
        if v_flaw is not null then
            if p_strict then
                perform pgqueue._refuse(
                    format('policy %s is not one of this task', v_job.asked_policy),
                    format('The task has no %s.', case v_job.asked_policy when 'list' then 'retry_delays' else 'retry_function' end),
                    'Give the task retry_delays (or a function, with set_retry_function), or name another policy.'
                );
            end if;
            v_delay := null;
            v_job.asked_policy := null;
        end if;

        v_state := case
            when v_job.cancel_requested_at is not null or coalesce(v_job.cancel, false) then 'cancelled'
            when not coalesce(v_job.retry, true) or v_job.attempts >= v_job.max_attempts then 'dead'
            else 'failed'
        end;
        if v_state = 'failed' and v_delay is null then
            if coalesce(v_job.asked_policy, v_job.own_policy) = 'function' then
                if v_may_ask then
                    select a.delay, a.flaw, a.canceled
                    into v_answer
                    from pgqueue._ask_retry_function(v_job.retry_function, v_job.id, v_job.max_attempts, v_error) a;
                    -- A timeout ends one function that does not return, and would not end a second one.
                    v_may_ask := v_answer.canceled is not true;
                else
                    v_answer.delay := null;
                    v_answer.flaw := format(
                        'retry function %s: It was not asked, for one before it was canceled.', v_job.retry_function
                    );
                end if;
                v_flaw := coalesce(v_flaw, v_answer.flaw);
                v_delay := v_answer.delay;
                if v_answer.flaw is not null then
                    v_delay := pgqueue._backoff(null, null, null, v_job.attempts - 1);
                elsif v_delay is null then
                    v_state := 'dead';
                end if;
            else
                v_delay := pgqueue._backoff(
                    coalesce(v_job.asked_policy, v_job.own_policy), v_job.delay, v_job.retry_jitter, v_job.attempts - 1,
                    v_job.retry_cap, v_job.retry_delays
                );
            end if;
        end if;
        if v_flaw is not null then
            v_error := jsonb_build_object('policy_error', v_flaw)
                || case jsonb_typeof(v_error)
                    when 'object' then v_error
                    else jsonb_build_object('message', v_error #>> '{}')
                end;
        end if;
        v_states[v_job.n] := v_state;
        v_flaws[v_job.n] := v_flaw;

        v_followers := case
            when v_job.followers is not null then pgqueue._part_followers(
                v_job.id, v_job.followers, v_job.queue, v_job.priority, v_state,
                case v_state
                    when 'dead' then coalesce(v_job.retry, true)
                    when 'cancelled' then not coalesce(v_job.cancel, false)
                    else false
                end
            )
        end;
        if v_state = 'failed' then
            v_ready_at := case
                when v_job.retry_budget is null then pgqueue._ready_at(pgqueue._clock() + v_delay)
                else pgqueue._within_budget(v_job.queue, v_delay, v_job.retry_budget)
            end;
            v_followers := v_job.id || v_followers;
            for v_i in 1..cardinality(v_followers) loop
                v_ids := v_ids || v_followers[v_i];
                v_queues := v_queues || v_job.queue;
                v_ready_ats := v_ready_ats || v_ready_at;
                v_errors := v_errors || v_error;
                v_attempts := v_attempts || v_job.attempts;
                v_workers := v_workers || v_job.reserved_by;
            end loop;
            if v_job.key is not null then
                v_keyed := v_keyed || v_followers;
            end if;
            v_tasks := v_tasks || v_job.task;
            v_keys := v_keys || v_job.key;
            v_limit_keys := v_limit_keys || v_job.limit_key;
        elsif v_job.followers is not null then
            perform pgqueue._finish(
                array[v_job.id], array[v_job.reservation], true, v_state::pgqueue.job_state, null, v_error
            );
        elsif v_state = 'dead' then
            v_dead := v_dead || v_job.id;
            v_dead_reservations := v_dead_reservations || v_job.reservation;
            v_dead_errors := v_dead_errors || v_error;
        else
            v_cancelled := v_cancelled || v_job.id;
            v_cancelled_reservations := v_cancelled_reservations || v_job.reservation;
            v_cancelled_errors := v_cancelled_errors || v_error;
        end if;
    end loop;

    if v_dead <> '{}' then
        perform pgqueue._finish(v_dead, v_dead_reservations, true, 'dead', null, null, null, v_dead_errors);
    end if;
    if v_cancelled <> '{}' then
        perform pgqueue._finish(
            v_cancelled, v_cancelled_reservations, true, 'cancelled', null, null, null, v_cancelled_errors
        );
    end if;
    if v_ids <> '{}' then
        for v_lane in
            with failed as (
                update pgqueue.jobs j
                set
                    state = 'failed',
                    queue = w.queue,
                    ready_at = w.ready_at,
                    resumed = false,
                    lease_expires_at = null,
                    leader = null,
                    followers = null,
                    errors = pgqueue._with_error(j.errors, w.error, w.attempts, w.worker, pgqueue._clock())
                from unnest(v_ids, v_queues, v_ready_ats, v_errors, v_attempts, v_workers)
                    w (id, queue, ready_at, error, attempts, worker)
                where j.id = w.id
                returning j.queue, j.priority, j.ready_at
            )
            select f.queue, f.priority, min(f.ready_at) as ready_at
            from failed f
            group by f.queue, f.priority
            -- _wake tells the sleepers of a queue once.
            order by min(f.ready_at)
        loop
            perform pgqueue._register_lane(v_lane.queue, v_lane.priority, v_lane.ready_at);
            perform pgqueue._wake(v_lane.queue, v_lane.ready_at, 2, null);
        end loop;
        if v_keyed <> '{}' then
            perform pgqueue._release_earlier(v_keyed);
        end if;
        if exists (select from pgqueue.limits l where l.kind in ('task', 'key', 'limit_key')) then
            perform pgqueue._leave_limits(v_tasks, v_keys, v_limit_keys);
        end if;
    end if;

    return query
    select w.n, w.id, v_states[w.n], v_flaws[w.n]
    from unnest(p_job_ids) with ordinality w (id, n)
    order by w.n;
end
$$;

comment on function pgqueue._fail(bigint[], bigint[], jsonb[], interval[], boolean[], text[], boolean[], boolean) is
    'Private: ends tries that failed, and returns what became of each job: null where its reservation is no longer held.';

create or replace function pgqueue._failure_flaw(
    p_retry_in interval, p_policy text, p_has_delays boolean, p_has_function boolean
)
returns text
language sql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select case
        when not isfinite(p_retry_in) or p_retry_in not between '0' and '10 years'
            then format('retry_in must be between zero and ten years: It is %s', p_retry_in)
        when p_policy not in ('fixed', 'exponential', 'sidekiq', 'doubling', 'list', 'function')
            then format('policy is unknown: It is %L', p_policy)
        when p_policy = 'list' and not p_has_delays then 'policy list is not one of this task: The task has no retry_delays'
        when p_policy = 'function' and not p_has_function then 'policy function is not one of this task: The task has no retry_function'
    end
$$;

comment on function pgqueue._failure_flaw(interval, text, boolean, boolean) is
    'Private: why a failed job cannot be retried as its failure asks; null where it can.';

-- The other payloads of a call of an accumulating task that fails: those that somebody asked to cancel end so. When the
-- leader goes alone (p_alone) the others go back at once, else their ids are returned.
create or replace function pgqueue._part_followers(
    p_leader bigint, p_followers bigint[], p_queue text, p_priority smallint, p_state text, p_alone boolean
)
returns bigint[]
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_cancelled bigint[];
    v_reservations bigint[];
    v_left bigint[];
    v_ready_at timestamptz;
begin
    select array_agg(c.id), array_agg(c.reservation)
    into v_cancelled, v_reservations
    from pgqueue._lock_followers(p_followers) f
    cross join lateral (
        select j.id, j.reservation from pgqueue.jobs j where j.id = f.id and j.cancel_requested_at is not null limit 1
    ) c;
    if v_cancelled is not null then
        perform pgqueue._finish(v_cancelled, v_reservations, true, 'cancelled');
    end if;
    v_left := array(select f.id from pgqueue._lock_followers(p_followers) f);
    if p_alone then
        v_ready_at := pgqueue._ready_at(null);
        update pgqueue.jobs
        set
            state = pgqueue._state_again(errors, case when p_state = 'dead' then 0 else attempts - 1 end),
            leader = null,
            attempts = case when p_state = 'dead' then 0 else greatest(attempts - 1, 0) end,
            ready_at = v_ready_at,
            resumed = true,
            lease_expires_at = null
        where id = any (v_left);
        update pgqueue.jobs set followers = null where id = p_leader;
        perform pgqueue._register_lane(p_queue, p_priority, v_ready_at);
        perform pgqueue._wake(p_queue, v_ready_at, 2, null);
    end if;
    return v_left;
end
$$;

comment on function pgqueue._part_followers(bigint, bigint[], text, smallint, text, boolean) is
    'Private: locks the other payloads of a failed call, and returns those that fail with it.';
