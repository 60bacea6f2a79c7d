-- enqueue_outcome: enqueue, with the outcome. Both enqueue a job with a dedupe key by _enqueue_row.
--
-- For its locks see _dedupe. Without a dedupe key the job is announced, and not offered to an idle worker: see _hand_off.

create or replace function pgqueue.enqueue_outcome(
    task text, args jsonb default '{}', queue text default null, priority integer default null,
    run_at timestamptz default null, delay interval default null, expires_in interval default null, timeout interval default null,
    max_attempts integer default null, key text default null, score numeric default null,
    dedupe text default null, dedupe_for interval default null, on_conflict text default null,
    depends_on bigint[] default null, headers jsonb default null, tags text[] default null, retention interval default null,
    retry_policy text default null, retry_delay interval default null, retry_queue text default null,
    limit_key text default null, debounce_max interval default null, declared jsonb default null,
    run_if text default null, group_id bigint default null, retry_cap interval default null,
    cost integer default null
)
returns table (job_id bigint, outcome text)
language plpgsql security definer rows 1
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
as $$
begin
    return query
    select o.job_id, o.outcome
    from pgqueue._enqueue_row(
        row(
            task, args, queue, priority, run_at, delay, expires_in, timeout, max_attempts, key, score, dedupe, dedupe_for,
            on_conflict, depends_on, headers, tags, retention, retry_policy, retry_delay, retry_queue, limit_key, debounce_max,
            declared, run_if, group_id, retry_cap, cost
        )
    ) o;
end
$$;

comment on function pgqueue.enqueue_outcome(
    text, jsonb, text, integer, timestamptz, interval, interval, interval, integer, text, numeric, text, interval, text,
    bigint[], jsonb, text[], interval, text, interval, text, text, interval, jsonb, text, bigint, interval, integer
) is
    'Enqueue one job as enqueue() does, and return the outcome: inserted; or, if another job has its dedupe key, '
    'with the job_id of that job: skipped, replaced, merged or debounced; superseded: inserted, and that job is cancelled or asked to. '
    'select * from pgqueue.enqueue_outcome(''report'', dedupe => ''report:2026-11'', on_conflict => ''replace''); '
    'Waits for an open transaction that holds the same dedupe key, at most pgqueue.settings.dedupe_wait (55P03). [producer]';
