-- crashed: a supervisor saw a worker process die. All jobs that the worker held go back at once, without waiting for
-- their leases to lapse.
--
-- Locks rows FOR UPDATE SKIP LOCKED: a transaction that the dead worker left open ends with its connection, and its job
-- comes back when its lease lapses. A batch of which another session has locked one row stays as it is, whole.

create or replace function pgqueue.crashed(worker text, job_ids bigint[] default '{}', reservations bigint[] default '{}')
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
begin
    perform pgqueue._check_name('worker', crashed.worker, 256);
    -- Then the crash counts for them.
    perform pgqueue.started(crashed.job_ids, crashed.reservations);
    return query select u.id from pgqueue.release_unheld(crashed.worker, died => true) u (id);
    -- As bye() does, except that heartbeats stay for their hour: they say how much memory it held at last.
    perform pgqueue.awake(crashed.worker);
    delete from pgqueue.workers w where w.name = crashed.worker;
end
$$;

comment on function pgqueue.crashed(text, bigint[], bigint[]) is
    'Report that a worker process died, and give its jobs back at once. Each job that it was running (the listed jobs, and the jobs that it had '
    'reported as started) counts one crash; at max_crashes of its task (3) a job is dead. Returns the ids of all its jobs. [worker]';
