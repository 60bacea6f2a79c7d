-- held_by: the jobs that execute under a worker's name. A worker calls it after it lost the reply of a claim: the claim may
-- have been committed, and then the worker holds jobs that it does not know. The worker compares the
-- answer with what it holds and gives the rest back with release(), under the reservations that are returned here.
--
-- Two calls, so that the fence decides. If the network delivers either of them late, after the worker has claimed
-- again, nothing happens: this one only reads, and release() changes no reservation that it does not name.
--
-- Locks nothing. Reads the index of leases, which holds executing jobs only. For a batch it returns the leader;
-- release() then gives back all members.

create or replace function pgqueue.held_by(worker text)
returns table (job_id bigint, reservation bigint)
language plpgsql
stable
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_head timestamptz := pgqueue._lease_head();
begin
    perform pgqueue._check_name('worker', held_by.worker, 256);
    return query
    select j.id, j.reservation
    from pgqueue.jobs j
    where j.state = 'executing'
        and j.lease_expires_at >= v_head
        and j.reserved_by = held_by.worker
        and (j.leader is null or j.leader = j.id)
    order by j.id;
end
$$;

comment on function pgqueue.held_by(text) is
    'The jobs that execute under the name of a worker, with their reservations; for a batch, its leader. '
    'Give back with release() the jobs that the worker does not know: the reply of a claim was lost.';
