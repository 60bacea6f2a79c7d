-- next_attempts: when failed jobs run again, for the log of the worker whose attempts failed. One statement by primary
-- key; locks nothing, waits for nothing. A job that is no longer failed has no row.

create or replace function pgqueue.next_attempts(job_ids bigint[])
returns table (job_id bigint, run_at timestamptz)
language plpgsql stable parallel safe security definer rows 10
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
declare
    v_failed constant pgqueue.job_state := 'failed'::pgqueue.job_state;
begin
    return query
    select j.id, j.ready_at
    from unnest(next_attempts.job_ids) u (id)
    cross join lateral (select n.id, n.ready_at from pgqueue.jobs n where n.id = u.id and n.state = v_failed) j;
end
$$;

comment on function pgqueue.next_attempts(bigint[]) is
    'When failed jobs run again. A job that is not failed has no row. select * from pgqueue.next_attempts(array[17, 18]);';
