-- The last heartbeat of a worker. Inlined. A range: by an equality the order would be n alone, as an index of all workers has it.
-- p_server: its workers.server_started_at; a heartbeat to another server says nothing about this one. A standby shows those of its primary.
create or replace function pgqueue._last_heartbeat(p_worker text, p_server timestamptz default null)
returns setof pgqueue.heartbeats
language sql stable parallel safe rows 1
as $$
    select x.*
    from pgqueue.heartbeats x
    where x.worker between p_worker and p_worker
        and (p_server is null or p_server = pg_catalog.pg_postmaster_start_time() or pg_catalog.pg_is_in_recovery())
    order by x.worker desc, x.n desc
    limit 1
$$;
