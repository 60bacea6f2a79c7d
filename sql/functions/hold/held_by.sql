-- held_by: the jobs that execute under a worker's name. A worker calls it after it lost the reply of a claim: the claim may
-- have been committed. It gives jobs that it does not know back with release(), under the reservations that are returned here.
--
-- Two calls, so that the fence decides. If the network delivers either of them late, after the worker has claimed
-- again, nothing happens: this one only reads, and release() changes no reservation that it does not name.
--
-- With handed_within it reads the index of offered jobs from that time on, except the last 500 ms, whose notifications may be
-- on their way: it costs as much as jobs were handed to this worker in that time, 0.1 ms for none. Offered jobs that were
-- announced and claimed are in that index as well: no claim of the worker may be under way when it calls.

create or replace function pgqueue.held_by(worker text, handed_within interval default null)
returns table (job_id bigint, reservation bigint)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off
as $$
declare
    v_now timestamptz;
    v_head timestamptz;
begin
    perform pgqueue._check_name('worker', held_by.worker, 256);
    if held_by.handed_within is not null then
        v_now := pgqueue._clock();
        return query
        select j.id, j.reservation
        from pgqueue.jobs j
        where j.state = 'executing' and j.offered and j.key is null
            and j.reserved_by = held_by.worker
            and j.reserved_at between v_now - held_by.handed_within and v_now - interval '500 ms';
        return;
    end if;
    v_head := pgqueue._lease_head();
    return query
    select j.id, j.reservation
    from pgqueue.jobs j
    where j.state = 'executing' and j.lease_expires_at >= v_head and j.reserved_by = held_by.worker
        and (j.leader is null or j.leader = j.id)
    order by j.id;
end
$$;

comment on function pgqueue.held_by(text, interval) is
    'The jobs that execute under the name of a worker, with their reservations; for a batch, its leader. '
    'A job that the worker does not know was in a reply that was lost: give it back with release(). '
    'handed_within: only those that were handed to it in that time, except the last 500 ms: see idle(). [worker]';
