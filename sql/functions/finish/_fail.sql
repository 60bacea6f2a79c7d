-- Failed attempts, one or many: the shared part of fail, fail_many and exchange.
--
-- Locks the rows of the jobs in id order, all of them before the first is decided; then, job by job, the members of a
-- batch, and the retry budgets of queues in the order of their locks, so that two calls take turns and cannot deadlock.
-- Decides jobs one by one and changes them all together, but for the leader of a batch, which ends by itself, with its members.
-- If a failure asks for something impossible, p_strict refuses it; else the job's policy decides. A job named twice fails once.

create or replace function pgqueue._fail(p_failures pgqueue.failure[], p_strict boolean, p_ask boolean default true)
returns pgqueue.failed_attempt[]
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
    v_attempt pgqueue.failed_attempt;
    v_attempts pgqueue.failed_attempt[] := '{}'::pgqueue.failed_attempt[];
    -- Null: no retry function is asked. False: no further one is asked.
    v_may_ask boolean := case when p_ask then true end;
    v_members bigint[];
    v_member bigint;
begin
    for v_attempt in
        with wanted as materialized (
            select distinct on (w.job_id, w.reservation) w.* from unnest(p_failures) w order by w.job_id, w.reservation, w.n
        ),
        held as materialized (
            select w.n, w.error, w.retry_in, w.retry as retries, w.policy, w.cancel, l.*
            from wanted w
            cross join lateral (
                select
                    j.id, j.reservation, j.priority, j.attempts, j.reserved_by, j.cancel_requested_at, j.task, j.key,
                    j.limit_key, j.followers, j.max_attempts, j.retry as own, j.queue, j.reserved_at
                from pgqueue.jobs j
                where j.id = w.job_id and j.reservation = w.reservation and j.state = v_executing
                for update
            ) l
        )
        select
            h.n, h.id as job_id, h.reservation, coalesce(h.error, '{}') as error, h.retry_in, h.retries as retry, h.policy,
            -- null: not cancelled. false: this job alone was asked to be. true: fail() asks, for its members too (_part_members).
            case when h.cancel_requested_at is not null then coalesce(h.cancel, false) when h.cancel then true end as cancel,
            h.task, d.queue, h.priority, h.key, h.limit_key, h.followers as members, h.reserved_by as worker, h.attempts,
            pgqueue._max_attempts(h.max_attempts, t.max_attempts, t.accumulate) as max_attempts,
            coalesce(h.own ->> 'policy', t.retry_policy, case when t.accumulate then 'sidekiq' end) as own_policy,
            coalesce(make_interval(secs => (h.own ->> 'delay')::double precision), t.retry_delay) as retry_delay,
            t.retry_jitter,
            coalesce(make_interval(secs => (h.own ->> 'cap')::double precision), t.retry_cap) as retry_cap, t.retry_delays, t.retry_function, q.retry_budget,
            true as may_ask, null::text as state, null::timestamptz as ready_at, null::text as policy_error,
            case when exists (select from pgqueue.breakers) then h.reserved_at end as reserved_at
        from held h
        left join pgqueue.effective_tasks t on t.name = h.task
        cross join lateral (
            -- A job with a key stays in its queue: its order holds within one queue.
            select coalesce(case when h.key is null then coalesce(h.own ->> 'queue', t.retry_queue) end, h.queue) as queue
        ) d
        left join pgqueue.queues q on q.name = d.queue
        order by case when q.retry_budget is not null then pgqueue._budget_lock(d.queue) end nulls first, h.n
    loop
        v_attempt.may_ask := v_may_ask;
        v_attempt := pgqueue._decide_retry(v_attempt, p_strict);
        v_may_ask := v_attempt.may_ask;
        v_members := case
            when v_attempt.members is not null and v_attempt.state <> 'undecided' then pgqueue._part_members(v_attempt)
        end;
        if v_attempt.state = 'failed' then
            v_attempt.ready_at := case
                when v_attempt.retry_budget is null then pgqueue._ready_at(pgqueue._after(pgqueue._clock(), v_attempt.retry_in))
                else pgqueue._within_budget(v_attempt.queue, v_attempt.retry_in, v_attempt.retry_budget)
            end;
        elsif v_members is not null then
            perform pgqueue._finish(
                array[v_attempt.job_id], array[v_attempt.reservation], true, v_attempt.state::pgqueue.job_state, null,
                v_attempt.error
            );
        end if;
        v_attempts := v_attempts || v_attempt;
        if v_attempt.state = 'failed' and v_members is not null then
            -- Members are retried with their leader, and reported with it.
            v_attempt.n := null;
            foreach v_member in array v_members loop
                v_attempt.job_id := v_member;
                v_attempts := v_attempts || v_attempt;
            end loop;
        end if;
    end loop;

    perform pgqueue._finish(e.ids, e.reservations, true, e.state::pgqueue.job_state, null, null, null, e.errors)
    from (
        select
            a.state, array_agg(a.job_id) as ids, array_agg(a.reservation) as reservations, array_agg(a.error) as errors
        from unnest(v_attempts) a
        where a.state not in ('failed', 'undecided') and a.members is null
        group by a.state
    ) e;
    perform pgqueue._retry_failed(array_agg(a)) from unnest(v_attempts) a where a.state = 'failed' having count(*) > 0;
    if v_attempts[1].reserved_at is not null then -- There are breakers.
        -- Not those that were discarded or cancelled, and of a batch its leader alone.
        perform pgqueue._note_ends(
            array(
                select row(a.job_id, a.task, a.queue, a.key, a.limit_key, null, null, null, null, a.reserved_at)::pgqueue.ended_job
                from unnest(v_attempts) a
                where a.state in ('failed', 'dead') and a.n is not null and coalesce(a.retry, true) and a.cancel is null
            ),
            true
        );
    end if;
    return v_attempts;
end
$$;

-- Decides on one job: sets state, retry_in, error, policy_error and may_ask.
create or replace function pgqueue._decide_retry(p_attempt pgqueue.failed_attempt, p_strict boolean)
returns pgqueue.failed_attempt
language plpgsql
as $$
declare
    v_attempt pgqueue.failed_attempt := p_attempt;
    v_answer record;
    v_policy text;
begin
    if v_attempt.retry_in is not null or v_attempt.policy is not null then
        v_attempt.policy_error := case
            when not isfinite(v_attempt.retry_in) or v_attempt.retry_in not between '0' and '10 years'
                then format('retry_in must be between zero and ten years: It is %s', v_attempt.retry_in)
            when v_attempt.policy not in ('fixed', 'exponential', 'sidekiq', 'doubling', 'list', 'function')
                then format('policy is unknown: It is %L', v_attempt.policy)
            when v_attempt.policy = 'list' and v_attempt.retry_delays is null
                then 'policy list is not one of this task: The task has no retry_delays'
            when v_attempt.policy = 'function' and v_attempt.retry_function is null
                then 'policy function is not one of this task: The task has no retry_function'
        end;
    end if;
    if v_attempt.policy_error is not null then
        perform pgqueue._refuse(
            format('policy %s is not one of this task', v_attempt.policy),
            format('The task has no %s.', case v_attempt.policy when 'list' then 'retry_delays' else 'retry_function' end),
            'Give the task retry_delays (or a function, with set_retry_function), or name another policy.'
        )
        where p_strict;
        v_attempt.retry_in := null;
        v_attempt.policy := null;
    end if;

    -- One that was superseded (_supersede) is cancelled as well.
    v_attempt.cancel := coalesce(
        v_attempt.cancel, (select false from pgqueue.notes n where n.kind = 'superseded' and n.id = v_attempt.job_id limit 1)
    );
    v_attempt.state := case
        when v_attempt.cancel is not null then 'cancelled'
        when not coalesce(v_attempt.retry, true) or v_attempt.attempts >= v_attempt.max_attempts then 'dead'
        else 'failed'
    end;
    if v_attempt.state = 'failed' and v_attempt.retry_in is null then
        v_policy := coalesce(v_attempt.policy, v_attempt.own_policy);
        if v_policy is distinct from 'function' then
            v_attempt.retry_in := pgqueue._backoff(
                v_policy, v_attempt.retry_delay, v_attempt.retry_jitter, v_attempt.attempts - 1, v_attempt.retry_cap,
                v_attempt.retry_delays
            );
        elsif v_attempt.may_ask is null then
            v_attempt.state := 'undecided';
        else
            select a.delay, a.flaw, a.may_ask into v_answer from pgqueue._ask_retry_function(v_attempt) a;
            v_attempt.may_ask := v_answer.may_ask;
            v_attempt.policy_error := coalesce(v_attempt.policy_error, v_answer.flaw);
            v_attempt.retry_in := v_answer.delay;
            if v_answer.flaw is not null then
                v_attempt.retry_in := pgqueue._backoff(null, null, null, v_attempt.attempts - 1);
            elsif v_attempt.retry_in is null then
                v_attempt.state := 'dead';
            end if;
        end if;
    end if;
    if v_attempt.policy_error is not null then
        v_attempt.error := jsonb_build_object('policy_error', v_attempt.policy_error)
            || case jsonb_typeof(v_attempt.error)
                when 'object' then v_attempt.error
                else jsonb_build_object('message', v_attempt.error #>> '{}')
            end;
    end if;
    return v_attempt;
end
$$;

-- A member that was asked to cancel is cancelled. If the leader alone is dead or cancelled, the other members go back at
-- once; else their ids are returned. cancel is true if fail() asked for it: then it is for the whole batch.
create or replace function pgqueue._part_members(p_attempt pgqueue.failed_attempt)
returns bigint[]
language plpgsql
as $$
declare
    v_alone constant boolean := case p_attempt.state
        -- No handler has seen the batch of a leader that cannot be read.
        when 'dead' then coalesce(p_attempt.retry, true) or p_attempt.error ->> 'class' is not distinct from 'Unreadable'
        when 'cancelled' then not p_attempt.cancel
        else false
    end;
    v_left bigint[];
    v_ready_at timestamptz;
begin
    perform pgqueue._finish(array_agg(c.id), array_agg(c.reservation), true, 'cancelled')
    from pgqueue._lock_members(p_attempt.members) f
    cross join lateral (
        select j.id, j.reservation from pgqueue.jobs j where j.id = f.id and (j.cancel_requested_at is not null
            or exists (select from pgqueue.notes n where n.kind = 'superseded' and n.id = f.id)) limit 1
    ) c
    having count(*) > 0;
    v_left := array(select f.id from pgqueue._lock_members(p_attempt.members) f);
    if v_alone then
        v_ready_at := pgqueue._ready_at(null);
        update pgqueue.jobs
        set
            state = pgqueue._state_again(errors, case when p_attempt.state = 'dead' then 0 else attempts - 1 end),
            leader = case when has_steps then leader end,
            attempts = case when p_attempt.state = 'dead' then 0 else greatest(attempts - 1, 0) end,
            ready_at = v_ready_at,
            resumed = true,
            expires_at = null,
            lease_expires_at = null
        where id = any (v_left);
        update pgqueue.jobs set followers = null where id = p_attempt.job_id and has_steps is null;
        -- The payloads of a batch may differ in priority.
        perform pgqueue._register_lane(p_attempt.queue, l.priority, v_ready_at)
        from (select distinct j.priority from pgqueue.jobs j where j.id = any (v_left)) l;
        perform pgqueue._wake(p_attempt.queue, v_ready_at);
    end if;
    return v_left;
end
$$;

-- The caller has locked the rows.
create or replace function pgqueue._retry_failed(p_attempts pgqueue.failed_attempt[])
returns void
language plpgsql
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_lane record;
    v_left record;
begin
    for v_lane in
        with failed as (
            update pgqueue.jobs j
            set
                state = 'failed',
                queue = a.queue,
                lane_key = case
                    when num_nonnulls(j.limit_key, j.lane_key) > 0 then pgqueue._lane_key(a.queue, j.limit_key)
                end,
                ready_at = a.ready_at,
                resumed = false,
                -- expires_at bounds the wait for the first start.
                expires_at = null,
                lease_expires_at = null,
                throttled_since = null,
                -- A batch that has a step stays together.
                leader = case when j.has_steps then nullif(j.leader, j.id) end,
                followers = case when j.has_steps then j.followers end,
                errors = pgqueue._with_error(j.errors, a.error, a.attempts, a.worker, v_now, j.reserved_at, a.ready_at)
            from unnest(p_attempts) a
            -- By ctid: an equality of ids the planner may turn round, as _finish says.
            cross join lateral (select o.ctid as row_ctid from pgqueue.jobs o where o.id = a.job_id limit 1) l
            where j.ctid = l.row_ctid
            returning j.queue, j.priority, j.ready_at, j.lane_key
        )
        select f.queue, f.priority, min(f.ready_at) as ready_at, array_agg(distinct f.lane_key) as lane_keys
        from failed f
        group by f.queue, f.priority
        -- _wake notifies idle workers of a queue once.
        order by min(f.ready_at)
    loop
        perform pgqueue._register_lane(v_lane.queue, v_lane.priority, v_lane.ready_at, v_lane.lane_keys);
        perform pgqueue._wake(v_lane.queue, v_lane.ready_at);
    end loop;

    select
        array_agg(a.job_id) filter (where a.key is not null) as keyed,
        array_agg(a.task) filter (where a.n is not null) as tasks,
        array_agg(a.key) filter (where a.n is not null) as keys,
        array_agg(a.limit_key) filter (where a.n is not null) as limit_keys
    into v_left
    from unnest(p_attempts) a;
    perform pgqueue._release_earlier(v_left.keyed) where v_left.keyed is not null;
    if exists (select from pgqueue._limits_among(v_left.tasks, v_left.keys, v_left.limit_keys)) then
        perform pgqueue._leave_limits(v_left.tasks, v_left.keys, v_left.limit_keys);
    end if;
end
$$;
