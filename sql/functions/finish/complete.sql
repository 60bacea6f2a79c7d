-- complete: ends one job that succeeded. In the handler's own transaction, its writes and the end of the job commit together.
--
-- Locks the row of the job, then each member of its batch, and waits 5 s at most for each (55P03), at every isolation level.

create or replace function pgqueue.complete(job_id bigint, reservation bigint, result jsonb default null)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
begin
    if pgqueue._end_one(complete.job_id, complete.reservation, complete.result) then
        return true;
    end if;
    perform pgqueue._check_pairs(array[complete.job_id], array[complete.reservation]);
    return cardinality(
        pgqueue._finish(array[complete.job_id], array[complete.reservation], true, 'succeeded', array[complete.result])
    ) > 0;
end
$$;

comment on function pgqueue.complete(bigint, bigint, jsonb) is
    'Report that a job succeeded, and move it to history with its result. False when the reservation is no longer held; then nothing was changed. '
    'In the same transaction as the writes of the job, both are committed, or neither is. [worker]';
