-- crashed: a supervisor saw a worker process die. All that was booked on that worker goes back at once, and need not wait
-- for its leases to lapse. What the dead process was running counts one crash: what is listed, under the reservation
-- given, and what the worker itself had reported as started.
--
-- Takes rows FOR UPDATE SKIP LOCKED, in the order of their ids: a transaction that the dead worker left open ends with
-- its connection, and its job comes back with its lease. It reads the index of leases, which holds executing jobs only.

create or replace function pgqueue.crashed(
    worker text, job_ids bigint[] default '{}', reservations bigint[] default '{}'
)
returns setof bigint
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_booked bigint[];
    v_crashed bigint[];
    v_head timestamptz := pgqueue._lease_head();
begin
    perform pgqueue._check_name('worker', crashed.worker, 256);
    perform pgqueue._check_pairs(crashed.job_ids, crashed.reservations);

    select array_agg(b.id), array_agg(b.id) filter (where b.ran)
    into v_booked, v_crashed
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
    ) b;
    perform pgqueue._put_back(v_booked, '0', true, v_crashed);
    perform pgqueue.bye(crashed.worker);
    return query select b.id from unnest(v_booked) b (id);
end
$$;

comment on function pgqueue.crashed(text, bigint[], bigint[]) is
    'A worker process died. What was booked on it is given back at once; what it was running (those listed, and those that it had '
    'reported as started) counts one crash each, and at max_crashes of its task (3) a job is dead. Returns the ids of both.';
