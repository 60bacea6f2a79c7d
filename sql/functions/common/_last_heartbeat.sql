-- The last heartbeat of a worker. Inlined. A range: by an equality the order would be n alone, as an index of all workers has it.
create or replace function pgqueue._last_heartbeat(p_worker text)
returns setof pgqueue.heartbeats
language sql stable parallel safe rows 1
as $$
    select x.* from pgqueue.heartbeats x where x.worker between p_worker and p_worker order by x.worker desc, x.n desc limit 1
$$;
