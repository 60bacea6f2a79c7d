-- fail: a try of one job failed. Decides what comes next: another try after a delay, or dead.
--
-- Locks the job's row and waits for another holder at most 5 s (55P03). The backoff is computed here and nowhere
-- else. A job that somebody asked to cancel is cancelled now. Works at every isolation level.

create or replace function pgqueue.fail(
    job_id bigint,
    reservation bigint,
    error jsonb default null,
    retry_in interval default null,
    retry boolean default true
)
returns text
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
#variable_conflict use_column
declare
    -- A variable: a constant would let a plan go by the index of leases, through all of them (see extend).
    v_executing constant pgqueue.job_state := 'executing';
    v_job record;
    v_error jsonb := coalesce(fail.error, '{}');
    v_delay interval;
    v_ready_at timestamptz;
    v_state text;
begin
    perform pgqueue._check_pairs(array[fail.job_id], array[fail.reservation]);
    if fail.retry_in is not null and (not isfinite(fail.retry_in) or fail.retry_in not between '0' and '10 years') then
        perform pgqueue._refuse(
            'retry_in must be between zero and ten years', format('It is %s.', fail.retry_in),
            'Give retry_in as an interval, or leave it out to let the task''s retry policy decide.'
        );
    end if;

    select
        j.id, j.queue, j.priority, j.attempts, j.reserved_by, j.cancel_requested_at,
        coalesce(j.max_attempts, t.max_attempts, 11) as max_attempts,
        t.retry_policy, t.retry_delay, t.retry_jitter
    into v_job
    from pgqueue.jobs j
    left join pgqueue.effective_tasks t on t.name = j.task
    where j.id = fail.job_id
        and j.reservation = fail.reservation
        and j.state = v_executing
    for update of j;
    if not found then
        return null;
    end if;

    v_state := case
        when v_job.cancel_requested_at is not null then 'cancelled'
        when not coalesce(fail.retry, true) or v_job.attempts >= v_job.max_attempts then 'dead'
        else 'failed'
    end;
    if v_state <> 'failed' then
        perform pgqueue._finish(
            array[fail.job_id], array[fail.reservation], true, v_state::pgqueue.job_state, null, v_error
        );
        return v_state;
    end if;

    v_delay := coalesce(
        fail.retry_in,
        pgqueue._backoff(v_job.retry_policy, v_job.retry_delay, v_job.retry_jitter, v_job.attempts - 1)
    );
    v_ready_at := pgqueue._ready_at(pgqueue._clock() + v_delay);
    update pgqueue.jobs
    set
        state = 'failed',
        ready_at = v_ready_at,
        resumed = false,
        lease_expires_at = null,
        errors = pgqueue._with_error(errors, v_error, v_job.attempts, v_job.reserved_by, pgqueue._clock())
    where id = fail.job_id;
    perform pgqueue._register_lane(v_job.queue, v_job.priority, v_ready_at);
    perform pgqueue._wake(v_job.queue, v_ready_at, 2, null);
    return v_state;
end
$$;

comment on function pgqueue.fail(bigint, bigint, jsonb, interval, boolean) is
    'A try failed. Returns the new state: failed (it will be retried), dead (out of tries, or retry => false) or cancelled '
    '(somebody asked for it); null when the reservation is no longer held, and then nothing was changed. '
    'error: {"class": ..., "message": ..., "traceback": ...}. retry_in: instead of what the task''s policy says.';

create or replace function pgqueue._backoff(
    p_policy text, p_delay interval, p_jitter double precision, p_retries integer
)
returns interval
language sql
volatile
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    -- 30 s, 31 s, 62 s, 273 s, ... for n = 0, 1, 2, 3 retries so far: the n-th power that Sidekiq made known, as
    -- 30 + n^5. At most a year. Jitter only adds, so that a delay is never shorter than its formula.
    select (
        coalesce(p_delay, interval '30 s')
        + case
            when coalesce(p_policy, 'exponential') = 'exponential'
            then make_interval(secs => least(power(p_retries::double precision, 5), 31536000))
            else interval '0'
        end
    ) * (1 + coalesce(p_jitter, 0.1) * random())
$$;

comment on function pgqueue._backoff(text, interval, double precision, integer) is
    'Private: how long a job waits after a failure, given its retries so far.';
