-- fail: an attempt of one job failed. Decides what comes next: another attempt after a delay, or dead, or cancelled.
--
-- Cancelled comes before dead, and dead before a retry: after retry_in if given; else by the policy of the call, of the job, of
-- its task, or the default, exponential, for an accumulating task sidekiq (see _backoff). A task's own function (see
-- set_retry_function) may answer dead; if it raises, the default policy decides and the errors of the job record why.
-- A batch of an accumulating task fails for one key: all its members are retried together, on one count. When they are
-- out of attempts only the leader, which has the lowest score, is dead; the others go back at once with a fresh count.
-- Locks rows as complete() does. Works at every isolation level. See _fail.

create or replace function pgqueue.fail(
    job_id bigint, reservation bigint, error jsonb default null, retry_in interval default null,
    retry boolean default true, policy text default null, cancel boolean default false
)
returns text
language plpgsql security definer
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
    if fail.policy not in ('fixed', 'exponential', 'sidekiq', 'doubling', 'list', 'function') then
        perform pgqueue._refuse(
            'policy is unknown', format('It is %s.', quote_literal(fail.policy)),
            'Give policy as fixed, exponential, sidekiq, doubling, list or function, or leave it out.'
        );
    end if;
    return (
        select a.state
        from unnest(
            pgqueue._fail(
                array[
                    row(1, fail.job_id, fail.reservation, fail.error, fail.retry_in, fail.retry, fail.policy, fail.cancel)
                    ::pgqueue.failure
                ],
                true
            )
        ) a
        where a.n = 1
    );
end
$$;

comment on function pgqueue.fail(bigint, bigint, jsonb, interval, boolean, text, boolean) is
    'Report that an attempt failed. Returns the new state: failed (it will be retried), dead (out of attempts, or retry => false) or cancelled '
    '(it was asked to cancel, or cancel => true); null when the reservation is no longer held, and then nothing was changed. '
    'error: {"class": ..., "message": ..., "traceback": ...}. retry_in: the delay until the retry, instead of that of a policy. '
    'policy: the policy for this failure, instead of the job''s and the task''s. [worker]';
