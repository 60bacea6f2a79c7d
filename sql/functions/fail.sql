-- fail: a try of one job failed. Decides what comes next: another try after a delay, or dead, or cancelled.
--
-- In this order: somebody asked to cancel it, or cancel => true: cancelled. retry => false, or out of tries: dead.
-- Else it will be retried, after retry_in if given; else by the policy that the call names, else the job, else its
-- task, else the default, exponential. The backoff is computed here and nowhere else. A task's own function (see
-- set_retry_function) may say dead; should it raise, the default policy decides and the job's errors say why.
-- A call of an accumulating task fails for one key: all its payloads are retried together, on one count. When they are
-- out of tries only the one with the lowest score, which led, dies; the others go back at once with a fresh count.
-- The retry budget of the queue in which it will wait may put it off further.
-- Locks the job's row and waits for another holder at most 5 s (55P03). Works at every isolation level.

create or replace function pgqueue.fail(
    job_id bigint,
    reservation bigint,
    error jsonb default null,
    retry_in interval default null,
    retry boolean default true,
    policy text default null,
    cancel boolean default false
)
returns text
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    -- A variable: a constant would let a plan go by the index of leases, through all of them (see extend).
    v_executing constant pgqueue.job_state := 'executing';
    v_job record;
    v_error jsonb := coalesce(fail.error, '{}');
    v_delay interval := fail.retry_in;
    v_answer record;
    v_ready_at timestamptz;
    v_state text;
    v_followers bigint[] := '{}';
    v_cancelled bigint[];
    v_cancelled_reservations bigint[];
    v_alone boolean := false;
begin
    perform pgqueue._check_pairs(array[fail.job_id], array[fail.reservation]);
    if fail.retry_in is not null and (not isfinite(fail.retry_in) or fail.retry_in not between '0' and '10 years') then
        perform pgqueue._refuse(
            'retry_in must be between zero and ten years', format('It is %s.', fail.retry_in),
            'Give retry_in as an interval, or leave it out to let the task''s retry policy decide.'
        );
    end if;
    if fail.policy is not null then
        perform pgqueue._check_policy(fail.policy);
    end if;

    select
        j.id, j.priority, j.attempts, j.reserved_by, j.cancel_requested_at, j.task, j.key, j.limit_key, j.followers,
        coalesce(j.max_attempts, t.max_attempts, case when t.accumulate then 26 else 11 end) as max_attempts,
        coalesce(
            fail.policy, j.retry ->> 'policy', t.retry_policy, case when t.accumulate then 'sidekiq' end
        ) as policy,
        coalesce(make_interval(secs => (j.retry ->> 'delay')::double precision), t.retry_delay) as delay,
        t.retry_jitter, t.retry_cap, t.retry_delays, t.retry_function,
        d.queue, q.retry_budget
    into v_job
    from pgqueue.jobs j
    left join pgqueue.effective_tasks t on t.name = j.task
    cross join lateral (
        -- Not for a job with a key: its order holds within one queue.
        select coalesce(case when j.key is null then coalesce(j.retry ->> 'queue', t.retry_queue) end, j.queue) as queue
    ) d
    left join pgqueue.queues q on q.name = d.queue
    where j.id = fail.job_id
        and j.reservation = fail.reservation
        and j.state = v_executing
    for update of j;
    if not found then
        return null;
    end if;
    if fail.policy = 'list' and v_job.retry_delays is null
        or fail.policy = 'function' and v_job.retry_function is null
    then
        perform pgqueue._refuse(
            format('policy %s is not one of this task', fail.policy),
            format('The task has no %s.', case fail.policy when 'list' then 'retry_delays' else 'retry_function' end),
            'Give the task retry_delays (or a function, with set_retry_function), or name another policy.'
        );
    end if;

    v_state := case
        when v_job.cancel_requested_at is not null or coalesce(fail.cancel, false) then 'cancelled'
        when not coalesce(fail.retry, true) or v_job.attempts >= v_job.max_attempts then 'dead'
        else 'failed'
    end;
    if v_state = 'failed' and v_delay is null then
        if v_job.policy = 'function' then
            select a.delay, a.flaw
            into v_answer
            from pgqueue._ask_retry_function(v_job.retry_function, v_job.id, v_job.max_attempts, v_error) a;
            if v_answer.flaw is null then
                v_delay := v_answer.delay;
                v_state := case when v_delay is null then 'dead' else 'failed' end;
            else
                v_delay := pgqueue._backoff(null, null, null, v_job.attempts - 1);
                v_error := jsonb_build_object('policy_error', v_answer.flaw)
                    || case jsonb_typeof(v_error)
                        when 'object' then v_error
                        else jsonb_build_object('message', v_error #>> '{}')
                    end;
            end if;
        else
            v_delay := pgqueue._backoff(
                v_job.policy, v_job.delay, v_job.retry_jitter, v_job.attempts - 1, v_job.retry_cap, v_job.retry_delays
            );
        end if;
    end if;
    if v_job.followers is not null then
        select array_agg(c.id), array_agg(c.reservation)
        into v_cancelled, v_cancelled_reservations
        from pgqueue._lock_followers(v_job.followers) f
        cross join lateral (
            select j.id, j.reservation from pgqueue.jobs j where j.id = f.id and j.cancel_requested_at is not null limit 1
        ) c;
        if v_cancelled is not null then
            perform pgqueue._finish(v_cancelled, v_cancelled_reservations, true, 'cancelled');
        end if;
        v_followers := array(select f.id from pgqueue._lock_followers(v_job.followers) f);
        v_alone := case v_state
            when 'dead' then coalesce(fail.retry, true)
            when 'cancelled' then not coalesce(fail.cancel, false)
            else false
        end;
        if v_alone then
            v_ready_at := pgqueue._ready_at(null);
            update pgqueue.jobs
            set
                state = case when errors is null then 'waiting'::pgqueue.job_state else 'failed'::pgqueue.job_state end,
                leader = null,
                attempts = case when v_state = 'dead' then 0 else greatest(attempts - 1, 0) end,
                ready_at = v_ready_at,
                resumed = true,
                lease_expires_at = null
            where id = any (v_followers);
            update pgqueue.jobs set followers = null where id = v_job.id;
            perform pgqueue._register_lane(v_job.queue, v_job.priority, v_ready_at);
            perform pgqueue._wake(v_job.queue, v_ready_at, 2, null);
        end if;
    end if;
    if v_state <> 'failed' then
        perform pgqueue._finish(
            array[fail.job_id], array[fail.reservation], true, v_state::pgqueue.job_state, null, v_error
        );
        return v_state;
    end if;

    v_ready_at := case
        when v_job.retry_budget is null then pgqueue._ready_at(pgqueue._clock() + v_delay)
        else pgqueue._within_budget(v_job.queue, v_delay, v_job.retry_budget)
    end;
    update pgqueue.jobs
    set
        state = 'failed',
        queue = v_job.queue,
        ready_at = v_ready_at,
        resumed = false,
        lease_expires_at = null,
        leader = null,
        followers = null,
        errors = pgqueue._with_error(errors, v_error, v_job.attempts, v_job.reserved_by, pgqueue._clock())
    where id = any (fail.job_id || v_followers);
    perform pgqueue._register_lane(v_job.queue, v_job.priority, v_ready_at);
    perform pgqueue._wake(v_job.queue, v_ready_at, 2, null);
    if v_job.key is not null then
        perform pgqueue._release_earlier(v_followers || v_job.id);
    end if;
    if exists (select from pgqueue.limits l where l.kind in ('task', 'key', 'limit_key')) then
        perform pgqueue._leave_limits(array[v_job.task], array[v_job.key], array[v_job.limit_key]);
    end if;
    return v_state;
end
$$;

comment on function pgqueue.fail(bigint, bigint, jsonb, interval, boolean, text, boolean) is
    'A try failed. Returns the new state: failed (it will be retried), dead (out of tries, or retry => false) or cancelled '
    '(somebody asked for it, or cancel => true); null when the reservation is no longer held, and then nothing was changed. '
    'error: {"class": ..., "message": ..., "traceback": ...}. retry_in: instead of what a policy says. '
    'policy: the policy to go by this once, instead of the job''s and the task''s.';

create or replace function pgqueue._check_policy(p_policy text)
returns void
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_policy not in ('fixed', 'exponential', 'sidekiq', 'doubling', 'list', 'function') then
        perform pgqueue._refuse(
            'policy is unknown', format('It is %s.', quote_literal(p_policy)),
            'Give policy as fixed, exponential, sidekiq, doubling, list or function, or leave it out.'
        );
    end if;
end
$$;

comment on function pgqueue._check_policy(text) is 'Private: refuses a policy that is unknown.';

create or replace function pgqueue._backoff(
    p_policy text,
    p_delay interval,
    p_jitter double precision,
    p_retries integer,
    p_cap interval default null,
    p_delays interval[] default null
)
returns interval
language sql
volatile
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    -- n is the retries so far. exponential is 30 s, 31 s, 62 s, 273 s, ...: the n-th power that Sidekiq made known, as
    -- 30 + n^5; sidekiq is Sidekiq's own, n^4 + 15 + random(30) * (n + 1). doubling with full jitter is what AWS found
    -- to end a stampede soonest ("Exponential Backoff And Jitter", 2015). Powers count for at most a year. For the
    -- others jitter only adds, so that a delay is never shorter than its formula.
    select case
        when f.policy = 'sidekiq' then f.capped + make_interval(secs => 30 * (p_retries + 1) * coalesce(p_jitter, 1) * random())
        when f.policy = 'doubling' then f.capped * (1 - coalesce(p_jitter, 1) * random())
        else f.capped * (1 + coalesce(p_jitter, 0.1) * random())
    end
    from (
        select
            n.policy,
            least(
                case n.policy
                    when 'fixed' then coalesce(p_delay, interval '30 s')
                    when 'sidekiq' then coalesce(p_delay, interval '15 s') + make_interval(secs => least(power(n.retries, 4), 31536000))
                    when 'doubling' then make_interval(secs => least(
                        extract(epoch from coalesce(p_delay, interval '30 s'))::double precision * power(2, least(n.retries, 60)),
                        31536000
                    ))
                    when 'list' then p_delays[least(p_retries + 1, cardinality(p_delays))]
                    else coalesce(p_delay, interval '30 s') + make_interval(secs => least(power(n.retries, 5), 31536000))
                end,
                coalesce(p_cap, case when n.policy = 'doubling' then interval '1 hour' end)
            ) as capped
        from (select coalesce(p_policy, 'exponential') as policy, p_retries::double precision as retries) n
    ) f
$$;

comment on function pgqueue._backoff(text, interval, double precision, integer, interval, interval[]) is
    'Private: how long a job waits after a failure, given its retries so far.';
