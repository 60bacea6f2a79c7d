-- release_unheld: what a worker says after it (re)connected. The reply of a reserve may have been lost on the
-- way; the jobs stand as executing under this worker, which does not know of them. All that is booked on the
-- worker and not in its list is given back, uncounted. What was reported started is no lost reply: a process of that
-- name died while it ran it, and has come back; that counts as a crash (see _put_back).
--
-- Takes rows FOR UPDATE SKIP LOCKED. It reads the index of leases, which holds executing jobs only.
-- Two processes must never share a worker name: each would give back what the other runs.

create or replace function pgqueue.release_unheld(
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
    v_unheld bigint[];
    v_crashed bigint[];
    v_head timestamptz := pgqueue._lease_head();
begin
    perform pgqueue._check_name('worker', release_unheld.worker, 256);
    perform pgqueue._check_pairs(release_unheld.job_ids, release_unheld.reservations);

    select array_agg(u.id), array_agg(u.id) filter (where u.started)
    into v_unheld, v_crashed
    from (
        select j.id, j.started is not distinct from j.reservation as started
        from pgqueue.jobs j
        where j.state = 'executing'
            and j.lease_expires_at >= v_head
            and j.reserved_by = release_unheld.worker
            and (j.leader is null or j.leader = j.id)
            and not exists (
                select
                from unnest(release_unheld.job_ids, release_unheld.reservations) w (id, reservation)
                where w.id = j.id and w.reservation = j.reservation
            )
        order by j.id
        for update of j skip locked
    ) u;
    v_unheld := pgqueue._whole_calls(v_unheld);
    perform pgqueue._put_back(v_unheld, '0', true, v_crashed);
    return query select u.id from unnest(v_unheld) u (id);
end
$$;

comment on function pgqueue.release_unheld(text, bigint[], bigint[]) is
    'Give back, uncounted, what is booked on the worker and not in the list of what it knows that it holds. Returns those ids.';
