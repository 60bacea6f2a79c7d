-- release_unheld: gives back the jobs that are reserved for the worker and not in its list, because the reply of a reserve was
-- lost or, with `died`, a former process of that name is dead. A job that was reported as started counts as a crash.
--
-- The list must name every job that the worker holds when this runs: no claim of that worker may be in flight. A worker
-- that claims on several connections asks held_by() and gives back with release() instead, where the fence decides.
--
-- Locks rows FOR UPDATE SKIP LOCKED, in id order. Two processes must never share a name: each would give back the other's jobs.

create or replace function pgqueue.release_unheld(
    worker text, job_ids bigint[] default '{}', reservations bigint[] default '{}', died boolean default false
)
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
set enable_seqscan = off set jit = off
as $$
declare
    v_unheld bigint[];
    v_crashed bigint[];
    v_head timestamptz := pgqueue._lease_head();
begin
    perform pgqueue._check_name('worker', release_unheld.worker, 256);
    perform pgqueue._check_pairs(release_unheld.job_ids, release_unheld.reservations);

    select array_agg(u.id), array_agg(u.id) filter (where u.started) into v_unheld, v_crashed
    from (
        select j.id, j.started is not distinct from j.reservation as started
        from pgqueue.jobs j
        where j.state = 'executing' and j.lease_expires_at >= v_head and j.reserved_by = release_unheld.worker
            and (j.leader is null or j.leader = j.id)
            and not exists (
                select
                from unnest(release_unheld.job_ids, release_unheld.reservations) w (id, reservation)
                where w.id = j.id and w.reservation = j.reservation
            )
        order by j.id
        for update of j skip locked
    ) u;
    v_unheld := pgqueue._whole_batches(v_unheld);
    perform pgqueue._put_back(v_unheld, '0', coalesce(release_unheld.died, false), coalesce(release_unheld.died, false), v_crashed);
    return query select u.id from unnest(v_unheld) u (id);
end
$$;

comment on function pgqueue.release_unheld(text, bigint[], bigint[], boolean) is
    'Give back, uncounted, the jobs that are reserved for the worker and missing in this list. Returns their ids. '
    'died: they belong to a former process of that name, which is dead, and count as lost. [worker]';
