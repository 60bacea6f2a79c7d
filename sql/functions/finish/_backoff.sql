-- How long a job waits after a failure, by the retry policies. Computed here and nowhere else.

create or replace function pgqueue._backoff(
    p_policy text, p_delay interval, p_jitter double precision, p_retries integer, p_cap interval default null,
    p_delays interval[] default null
)
returns interval
language sql parallel safe
set search_path = pg_catalog, pg_temp
as $$
    -- n is the retries so far. exponential, in spite of its name, is a power: 30 + n^5, so 30 s, 31 s, 62 s, 273 s, ...; sidekiq
    -- is Sidekiq's own, n^4 + 15 + random(30) * (n + 1). doubling with full jitter is what AWS measured to end a stampede
    -- soonest ("Exponential Backoff And Jitter", 2015). A power is capped at a year, and, where no cap is given, the delay of
    -- these two at a day, but not below retry_delay (after 31 retries it would be 331 days), and that of doubling at an hour.
    -- The jitter of doubling only subtracts; that of the others only adds, so that no delay is shorter than its formula.
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
                coalesce(p_cap, case
                    when n.policy = 'doubling' then interval '1 hour'
                    when n.policy in ('exponential', 'sidekiq') then greatest(p_delay, interval '1 day')
                end)
            ) as capped
        from (select coalesce(p_policy, 'exponential') as policy, p_retries::double precision as retries) n
    ) f
$$;
