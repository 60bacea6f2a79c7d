-- retry: a dead or cancelled job comes back with a fresh count, a failed one runs now.
--
-- Locks the one row, in jobs or in history, and waits for another holder at most 5 s (55P03). The job keeps its id,
-- its errors, and its reservation, which goes on growing: whoever held it before stays fenced off. It takes its dedupe
-- key again where that is free; where another job stands for it, it comes back without.

create or replace function pgqueue.retry(job_id bigint)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
#variable_conflict use_column
declare
    -- Variables: constants would let a plan go by a partial index, through all that waits or all that is dead, where
    -- it was made while that was little.
    v_failed constant pgqueue.job_state := 'failed';
    v_ended constant pgqueue.job_state[] := '{dead,cancelled}';
    v_now timestamptz := pgqueue._ready_at(null);
    v_lane record;
begin
    update pgqueue.jobs
    set
        ready_at = v_now,
        resumed = true,
        expires_at = null
    where id = retry.job_id and state = v_failed
    returning queue, priority into v_lane;

    if not found then
        with gone as (
            delete from pgqueue.history
            where id = retry.job_id and state = any (v_ended)
            returning *
        )
        insert into pgqueue.jobs (
            id, reservation, run_at, ready_at, created_at, reserved_at, retention, state, max_attempts, losses, priority,
            resumed, queue, task, key, reserved_by, tags, args, headers, errors, retry, score,
            limit_key, dedupe
        )
        overriding system value
        select
            g.id, g.reservation, least(g.run_at, v_now), v_now, g.created_at, g.reserved_at, g.retention, 'waiting', g.max_attempts,
            g.losses,
            g.priority, true, g.queue, g.task, g.key, g.reserved_by, g.tags, g.args, g.headers, g.errors,
            g.retry, g.score, g.limit_key, g.dedupe
        from gone g
        returning queue, priority, task, dedupe into v_lane;
        if not found then
            return false;
        end if;
        if v_lane.dedupe is not null and pgqueue._retake_dedupe(retry.job_id, v_lane.task, v_lane.dedupe) is null then
            update pgqueue.jobs set dedupe = null where id = retry.job_id;
        end if;
    end if;

    perform pgqueue._register_lane(v_lane.queue, v_lane.priority, v_now);
    perform pgqueue._wake(v_lane.queue, v_now, 2, null);
    return true;
end
$$;

comment on function pgqueue.retry(bigint) is
    'Run a dead, cancelled or failed job now; a dead or cancelled one starts counting its attempts afresh. False: there is no such job.';
