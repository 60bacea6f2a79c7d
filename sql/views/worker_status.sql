-- worker_status: each worker with its last heartbeat and the jobs that it executes, also a dead one that
-- still holds jobs. Reads the index of leases from its head on, which holds executing jobs only.

create or replace view pgqueue.worker_status as
select
    coalesce(w.name, h.reserved_by) as worker,
    w.queues,
    w.info,
    w.started_at,
    b.at as last_heartbeat_at,
    -- A worker sends a heartbeat every 10 s, or at the interval that it reported, a minute at most; 5 s of tolerance.
    w.name is not null and pgqueue._clock() - b.at < make_interval(secs => 5 + case
        when jsonb_typeof(w.info -> 'heartbeat') = 'number'
            then least(greatest((w.info ->> 'heartbeat')::numeric, 10), 60)::double precision
        else 10
    end)
        -- A heartbeat to another server, of which this one is a copy, says nothing about it. A standby shows those of its primary.
        and (coalesce(w.server_started_at, pg_postmaster_start_time()) = pg_postmaster_start_time() or pg_is_in_recovery())
        as is_alive,
    coalesce(h.executing, 0) as executing,
    coalesce(h.lapsed, 0) as lapsed,
    w.command, w.commanded_at, w.obeyed_at,
    b.memory,
    case
        when jsonb_typeof(w.info -> 'memory_limit') = 'number' then least((w.info ->> 'memory_limit')::numeric, 1e18)::bigint
    end as memory_limit
from pgqueue.workers w
left join lateral (
    -- A range, not an equality: its order is that of one index alone, which does not have the heartbeats of others.
    select x.at, x.memory from pgqueue.heartbeats x where x.worker between w.name and w.name order by x.worker desc, x.n desc limit 1
) b on true
full join (
    select
        j.reserved_by,
        count(*) as executing,
        count(*) filter (where j.lease_expires_at < pgqueue._clock()) as lapsed
    from pgqueue._executing_jobs() j
    group by j.reserved_by
) h on h.reserved_by = w.name;

comment on view pgqueue.worker_status is
    'Each worker, with its last heartbeat and its jobs; also a dead one that still holds jobs. '
    'select * from pgqueue.worker_status where not is_alive;';
comment on column pgqueue.worker_status.worker is 'Its name, as in reserve(worker).';
comment on column pgqueue.worker_status.queues is 'The queues that it serves; null: all.';
comment on column pgqueue.worker_status.info is 'What it reported about itself: host, pid, version, ...';
comment on column pgqueue.worker_status.started_at is 'When it registered; null: it is not registered.';
comment on column pgqueue.worker_status.last_heartbeat_at is 'Its last heartbeat.';
comment on column pgqueue.worker_status.is_alive is 'Whether that heartbeat is recent enough.';
comment on column pgqueue.worker_status.executing is 'Jobs that are reserved by it.';
comment on column pgqueue.worker_status.lapsed is 'Jobs among these whose lease is over: maintenance gives them back.';
comment on column pgqueue.worker_status.command is 'The command that an operator gave it: quiet, stop or kill; null: none.';
comment on column pgqueue.worker_status.commanded_at is 'When the command was given.';
comment on column pgqueue.worker_status.obeyed_at is 'When the worker reported that it follows the command; null: it has not yet.';
comment on column pgqueue.worker_status.memory is 'The resident memory of its process in bytes, as of its last heartbeat; null: it did not report it.';
comment on column pgqueue.worker_status.memory_limit is
    'How many bytes its process may hold, as it reported: --max-memory, or the limit of its container or machine.';
