-- fail_many: a batch of tries that failed, in one statement; see fail for what becomes of each.
--
-- Locks rows in the order of their ids. One that another transaction holds is waited for, at most 5 s; then the whole
-- batch fails with 55P03 and nothing was changed. What one of them asks for that cannot be done spoils none: the
-- failure counts, its own policy decides, and its errors say why. Works at every isolation level.

create or replace function pgqueue.fail_many(
    job_ids bigint[],
    reservations bigint[],
    errors jsonb[] default null,
    retry_in interval[] default null,
    retry boolean[] default null,
    policies text[] default null,
    cancel boolean[] default null
)
returns table (job_id bigint, state text, policy_error text)
language plpgsql
volatile
parallel unsafe
security definer
rows 100
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
begin
    perform pgqueue._check_pairs(fail_many.job_ids, fail_many.reservations);
    perform pgqueue._check_failures(
        cardinality(fail_many.job_ids), fail_many.errors, fail_many.retry_in, fail_many.retry, fail_many.policies,
        fail_many.cancel
    );
    return query
    select f.job_id, f.state, f.policy_error
    from pgqueue._fail(
        fail_many.job_ids, fail_many.reservations, fail_many.errors, fail_many.retry_in, fail_many.retry,
        fail_many.policies, fail_many.cancel, false
    ) f
    order by f.n;
end
$$;

comment on function pgqueue.fail_many(bigint[], bigint[], jsonb[], interval[], boolean[], text[], boolean[]) is
    'fail() for many jobs at once, each with what fail() takes. Returns a row for each, in order: its new state, null when its '
    'reservation is no longer held. policy_error: why what was asked for it cannot be done (retry_in out of bounds, a policy that '
    'its task has not): its own policy decided then, and its errors say so.';

create or replace function pgqueue._check_failures(
    p_count integer, p_errors jsonb[], p_retry_in interval[], p_retry boolean[], p_policies text[], p_cancel boolean[]
)
returns void
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_wrong record;
begin
    select w.name, w.count
    into v_wrong
    from (
        values
            ('errors', cardinality(p_errors)),
            ('retry_in', cardinality(p_retry_in)),
            ('retry', cardinality(p_retry)),
            ('policies', cardinality(p_policies)),
            ('cancel', cardinality(p_cancel))
    ) w (name, count)
    where w.count <> p_count
    limit 1;
    if found then
        perform pgqueue._refuse(
            format('%s must match the jobs that failed', v_wrong.name),
            format('There are %s of %s and %s jobs that failed.', v_wrong.count, v_wrong.name, p_count),
            format('Give one of %s for each of these jobs (null for none), or leave it out.', v_wrong.name)
        );
    end if;
end
$$;

comment on function pgqueue._check_failures(integer, jsonb[], interval[], boolean[], text[], boolean[]) is
    'Private: refuses arrays about failures that are not of one length.';
