-- hold: the first statement of a handler's own transaction. While it is open, no other worker can get the job: rescue skips a
-- locked row. A lease that extend promised meanwhile stays valid.
--
-- Locks the row FOR SHARE, and waits 5 s at most for another lock on it, usually of extend (55P03), at every isolation level.

create or replace function pgqueue.hold(job_id bigint, reservation bigint)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
set enable_seqscan = off set jit = off
as $$
declare
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
begin
    perform pgqueue._check_pairs(array[hold.job_id], array[hold.reservation]);
    perform
    from pgqueue.jobs j
    where j.id = hold.job_id and j.reservation = hold.reservation and j.state = v_executing
    for share;
    return found;
end
$$;

comment on function pgqueue.hold(bigint, bigint) is
    'Keep the job for as long as this transaction is open. False when the reservation is no longer held: do nothing, and roll back. '
    'Call it before the writes of the job, and complete() after them. select pgqueue.hold(42, 1048577); [worker]';
