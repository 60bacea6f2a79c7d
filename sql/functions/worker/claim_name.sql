-- claim_name: a worker process takes its name, before hello(). Only one process may have a name at a time: two would give
-- back each other's jobs (release_unheld), and count each other's crashes.
--
-- A row of workers represents the name. If two start at once, the insert of the second waits for the first to commit, and then
-- finds its row. A caller that believes the process of a name to be dead, by silent_for, takes the name over by naming its
-- instance, so only one of two such callers gets it. No server can tell whether it is a copy or the successor of the one in which
-- the worker registered, so after a failover the name stays that of a process that has not reconnected yet.

create or replace function pgqueue.claim_name(worker text, info jsonb, instead_of text default null)
returns table (held_by jsonb, silent_for interval)
language plpgsql security definer rows 1
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz;
begin
    perform pgqueue._check_name('worker', claim_name.worker, 256);
    perform pgqueue._refuse(
        'info has no instance', null, 'Give info as a JSON object with an instance: a text that no other process has.'
    )
    where claim_name.info ->> 'instance' is null;
    perform pgqueue._forget_original();
    v_now := pgqueue._clock();
    insert into pgqueue.workers as w (name, channel, info, started_at, database, server_started_at)
    values (
        claim_name.worker, pgqueue._channel(claim_name.worker), claim_name.info, v_now, pgqueue._database(), pg_postmaster_start_time()
    )
    on conflict (name) do update
    set
        info = excluded.info,
        started_at = excluded.started_at,
        database = excluded.database,
        server_started_at = excluded.server_started_at,
        command = null,
        commanded_at = null,
        obeyed_at = null
    where coalesce(w.info ->> 'instance', '') in (claim_name.info ->> 'instance', claim_name.instead_of);
    if found then
        insert into pgqueue.heartbeats (worker, at) values (claim_name.worker, v_now);
        return;
    end if;
    return query
    select w.info, v_now - coalesce(b.at, w.started_at)
    from pgqueue.workers w
    left join lateral pgqueue._last_heartbeat(w.name) b on true
    where w.name = claim_name.worker;
end
$$;

comment on function pgqueue.claim_name(text, jsonb, text) is
    'Take a name for a worker process, before hello(). info: a JSON object whose instance no other process has. No row: the name is '
    'taken. A row: another process has it, with the info held_by, and has sent no heartbeat for silent_for; if it is dead, call '
    'again with its instance ('''' if it has none) as instead_of. [worker]';
