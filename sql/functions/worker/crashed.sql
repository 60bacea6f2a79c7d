-- crashed: a supervisor saw a worker process die. All jobs that the worker held go back at once, without waiting for
-- their leases to lapse. Each job that the dead process was running counts one crash: the listed jobs, under the
-- reservations given, and the jobs that the worker itself had reported as started.
--
-- Locks rows FOR UPDATE SKIP LOCKED, in id order, and the members of batches with them: a transaction that the dead
-- worker left open ends with its connection, and its job comes back when its lease lapses. A batch of which another
-- session has locked one row stays as it is, whole. Reads the index of leases, which holds executing jobs only.

create or replace function pgqueue.crashed(
    worker text, job_ids bigint[] default '{}', reservations bigint[] default '{}'
)
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
set enable_seqscan = off set jit = off
as $$
declare
    v_held bigint[];
    v_crashed bigint[];
    v_head timestamptz := pgqueue._lease_head();
begin
    perform pgqueue._check_name('worker', crashed.worker, 256);
    perform pgqueue._check_pairs(crashed.job_ids, crashed.reservations);

    select array_agg(h.id), array_agg(h.id) filter (where h.ran)
    into v_held, v_crashed
    from (
        select
            j.id,
            j.started is not distinct from j.reservation
            or exists (
                select
                from unnest(crashed.job_ids, crashed.reservations) w (id, reservation)
                where w.id = j.id and w.reservation = j.reservation
            ) as ran
        from pgqueue.jobs j
        where j.state = 'executing'
            and j.lease_expires_at >= v_head
            and j.reserved_by = crashed.worker
            and (j.leader is null or j.leader = j.id)
        order by j.id
        for update of j skip locked
    ) h;
    v_held := pgqueue._whole_batches(v_held);
    perform pgqueue._put_back(v_held, '0', true, true, v_crashed);
    perform pgqueue.bye(crashed.worker);
    return query select h.id from unnest(v_held) h (id);
end
$$;

comment on function pgqueue.crashed(text, bigint[], bigint[]) is
    'A worker process died. Give its jobs back at once. Each job that it was running (the listed jobs, and the jobs that it had '
    'reported as started) counts one crash; at max_crashes of its task (3) a job is dead. Returns the ids of all its jobs.';
