-- fail: a try of one job failed. Decides what comes next: another try after a delay, or dead, or cancelled.
--
-- In this order: somebody asked to cancel it, or cancel => true: cancelled. retry => false, or out of tries: dead.
-- Else it will be retried, after retry_in if given; else by the policy that the call names, else the job, else its
-- task, else the default, exponential. The backoff is computed here and nowhere else. A task's own function (see
-- set_retry_function) may say dead; should it raise, the default policy decides and the job's errors say why.
-- A call of an accumulating task fails for one key: all its payloads are retried together, on one count. When they are
-- out of tries only the one with the lowest score, which led, dies; the others go back at once with a fresh count.
-- The retry budget of the queue in which it will wait may put it off further.
-- Locks the job's row and waits for another holder at most 5 s (55P03). Works at every isolation level. See _fail.

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
as $$
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
    return (
        select f.state
        from pgqueue._fail(
            array[fail.job_id], array[fail.reservation], array[fail.error], array[fail.retry_in], array[fail.retry],
            array[fail.policy], array[fail.cancel], true
        ) f
    );
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
