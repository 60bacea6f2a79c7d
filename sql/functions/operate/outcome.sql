-- outcome: the state of one job, and its result once it is final.
--
-- pgqueue.wait() calls it repeatedly, so it reads the live row first, and the partitions of history only where there is
-- none. One statement, because a job moves from one to the other. Locks nothing.

create or replace function pgqueue.outcome(job_id bigint)
returns table (state text, result jsonb, errors jsonb, attempts integer, finished_at timestamptz, progress jsonb)
language plpgsql stable parallel safe security definer rows 1
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
begin
    if outcome.job_id is null then
        perform pgqueue._refuse('job_id must not be null', null, 'Give the id that enqueue returned.');
    end if;
    return query
    (
        select j.state::text, null::jsonb, j.errors, j.attempts, null::timestamptz, j.progress
        from pgqueue.jobs j
        where j.id = outcome.job_id
    )
    union all
    (
        select h.state::text, h.result, h.errors, h.attempts, h.finished_at, h.progress
        from pgqueue.history h
        where h.id = outcome.job_id
    )
    limit 1;
end
$$;

comment on function pgqueue.outcome(bigint) is
    'The state of a job, and its result once that is final. No row: there is no such job, or its retention has ended.';
