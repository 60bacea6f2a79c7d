-- outcome: the state of one job, and its result once it is final.
--
-- pgqueue.wait() calls it repeatedly, so it reads the live row first, and the partitions of history only where there is
-- none. One statement, because a job moves from one to the other. Locks nothing.
--
-- uncommitted: the live row was written by this transaction, so no worker sees it yet. A visible version of a row whose
-- xmin is not older than our own transaction id is ours, a savepoint's as well, or was committed since, which its status
-- shows. The 32 bits of xmin wrap around: xids in the upper half of the circle are older.

create or replace function pgqueue.outcome(job_id bigint)
returns table (
    state text, result jsonb, errors jsonb, attempts integer, finished_at timestamptz, progress jsonb, uncommitted boolean
)
language plpgsql stable security definer rows 1
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
as $$
declare
    -- The caller's transaction, null before its first write; and the first id that its snapshot does not know.
    v_own constant bigint := pg_current_xact_id_if_assigned()::text::bigint;
    v_next constant bigint := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    v_circle constant bigint := 4294967296;
begin
    perform pgqueue._refuse('job_id must not be null', null, 'Give the id that enqueue returned.') where outcome.job_id is null;
    return query
    (
        select
            j.state::text, null::jsonb, j.errors, j.attempts, null::timestamptz, j.progress,
            case
                when v_own is null or w.since >= v_circle / 2 then false
                when v_own + w.since >= v_next then true
                else pg_xact_status((v_own + w.since)::text::xid8) = 'in progress'
            end
        from pgqueue.jobs j
        cross join lateral (select (j.xmin::text::bigint - v_own % v_circle + v_circle) % v_circle as since) w
        where j.id = outcome.job_id
    )
    union all
    (
        select h.state::text, h.result, h.errors, h.attempts, h.finished_at, h.progress, false
        from pgqueue.history h
        where h.id = outcome.job_id
    )
    limit 1;
end
$$;

comment on function pgqueue.outcome(bigint) is
    'The state of a job, and its result once that is final. No row: there is no such job, or its retention has ended. '
    'uncommitted: this transaction enqueued or changed it, so no worker sees that before the commit. [worker, reader]';
