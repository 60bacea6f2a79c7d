-- Asks the workers of executing jobs to cancel them.

-- The caller has locked the rows.
create or replace function pgqueue._request_cancel(p_job_ids bigint[])
returns bigint
language plpgsql
set enable_bitmapscan = off
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_workers text[];
    v_count bigint;
begin
    with asked as (
        update pgqueue.jobs j
        set cancel_requested_at = coalesce(j.cancel_requested_at, v_now)
        where j.id = any (p_job_ids)
        returning j.reserved_by
    )
    select count(*), array_agg(distinct a.reserved_by) into v_count, v_workers from asked a;
    perform pg_notify(pgqueue._channel(w.name), 'cancel') from unnest(v_workers) w (name) where pgqueue._may_notify();
    return v_count;
end
$$;
