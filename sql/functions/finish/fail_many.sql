-- fail_many: many failed attempts in one statement; see fail for the outcome of each.
--
-- Locks rows as complete_many() does. Works at every isolation level.

create or replace function pgqueue.fail_many(
    job_ids bigint[], reservations bigint[], errors jsonb[] default null, retry_in interval[] default null,
    retry boolean[] default null, policies text[] default null, cancel boolean[] default null
)
returns table (job_id bigint, state text, policy_error text)
language plpgsql security definer rows 100
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
begin
    perform pgqueue._check_pairs(fail_many.job_ids, fail_many.reservations);
    return query
    select w.id, a.state, a.policy_error
    from unnest(fail_many.job_ids) with ordinality w (id, n)
    left join unnest(
        pgqueue._fail(
            pgqueue._failures(
                fail_many.job_ids, fail_many.reservations, fail_many.errors, fail_many.retry_in, fail_many.retry,
                fail_many.policies, fail_many.cancel
            ),
            false
        )
    ) a on a.n = w.n
    order by w.n;
end
$$;

comment on function pgqueue.fail_many(bigint[], bigint[], jsonb[], interval[], boolean[], text[], boolean[]) is
    'fail() for many jobs at once, with an array for each argument of fail(). Returns a row for each, in order: its new state, null when its '
    'reservation is no longer held. policy_error: why its retry_in or policy could not be applied (out of bounds, not one of '
    'its task): then its own policy decided, and its errors record that. [worker]';

-- The arrays of fail_many() and exchange() as one. Refuses those that do not have one length.
create or replace function pgqueue._failures(
    p_job_ids bigint[], p_reservations bigint[], p_errors jsonb[], p_retry_in interval[], p_retry boolean[],
    p_policies text[], p_cancel boolean[]
)
returns pgqueue.failure[]
language plpgsql stable parallel safe
as $$
declare
    v_count constant integer := cardinality(p_job_ids);
begin
    perform pgqueue._refuse(
        format('%s must match the jobs that failed', w.name),
        format('It has length %s, and there are %s.', w.count, case when v_count = 1 then '1 such job' else v_count || ' such jobs' end),
        format('Give one of %s for each of these jobs (null for none), or leave it out.', w.name)
    )
    from (
        values
            ('errors', cardinality(p_errors)),
            ('retry_in', cardinality(p_retry_in)),
            ('retry', cardinality(p_retry)),
            ('policies', cardinality(p_policies)),
            ('cancel', cardinality(p_cancel))
    ) w (name, count)
    where w.count <> v_count;
    return array(
        select row(w.n, w.id, w.reservation, w.error, w.retry_in, w.retry, w.policy, w.cancel)::pgqueue.failure
        from unnest(p_job_ids, p_reservations, p_errors, p_retry_in, p_retry, p_policies, p_cancel)
            with ordinality w (id, reservation, error, retry_in, retry, policy, cancel, n)
        order by w.n
    );
end
$$;
