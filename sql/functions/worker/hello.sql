-- hello, beat, bye: register a worker, report its heartbeat, deregister it.
--
-- hello and bye write its row of workers; beat only inserts, because a row that every worker updates every few seconds
-- would, under an old snapshot, become a chain of versions that every reader walks. hello locks the worker's row.
-- A copy of a database has the workers of the original, which live elsewhere: the first worker of the copy that takes a
-- name or registers deletes them. In another server, a copied one or one that a failover or a restart brought, with the same
-- database, they do not count as alive until they register again: those of a failover do when they reconnect, with their commands.

create or replace function pgqueue.hello(worker text, queues text[] default null, info jsonb default '{}')
returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_channel text := pgqueue._channel(hello.worker);
    v_now timestamptz := pgqueue._clock();
    v_info jsonb := coalesce(hello.info, '{}');
    v_memory bigint;
begin
    perform pgqueue._check_name('worker', hello.worker, 256);
    perform pgqueue._check_queues(hello.queues);
    perform pgqueue._forget_original();
    if jsonb_typeof(v_info) = 'object' then
        -- Values that change with each heartbeat are stored with the heartbeats.
        v_memory := case when pgqueue._is_count(v_info -> 'memory') then (v_info ->> 'memory')::numeric::bigint end;
        v_info := (v_info - 'memory') || case
            -- The clock of its host, so that doctor() can report a wrong one.
            when pgqueue._is_count(v_info -> 'clock') then jsonb_build_object(
                'clock_ahead', round((v_info ->> 'clock')::numeric - extract(epoch from clock_timestamp()), 3)
            )
            else '{}'
        end;
    end if;
    insert into pgqueue.workers as w (name, channel, queues, info, started_at, database, server_started_at)
    values (hello.worker, v_channel, hello.queues, v_info, v_now, pgqueue._database(), pg_postmaster_start_time())
    on conflict (name) do update
    set
        queues = excluded.queues,
        info = excluded.info,
        database = excluded.database,
        server_started_at = excluded.server_started_at,
        -- A command is for the process that had the name when it was given.
        command = case when w.info -> 'instance' is not distinct from excluded.info -> 'instance' then w.command end,
        commanded_at = case when w.info -> 'instance' is not distinct from excluded.info -> 'instance' then w.commanded_at end,
        obeyed_at = case when w.info -> 'instance' is not distinct from excluded.info -> 'instance' then w.obeyed_at end;
    insert into pgqueue.heartbeats (worker, at, memory) values (hello.worker, v_now, v_memory);
    return v_channel;
end
$$;

comment on function pgqueue.hello(text, text[], jsonb) is
    'Register a worker that starts, with the queues that it serves (null: all) and what it reports about itself. '
    'Returns the channel to LISTEN on; the channel pgqueue carries wake-ups from producers above READ COMMITTED, with the queue as payload. [worker]';

-- One statement: two workers that start in a copy at once delete the same rows, and not each other's new ones.
create or replace function pgqueue._forget_original()
returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    with original as (delete from pgqueue.workers w where w.database <> pgqueue._database() returning w.name),
    heard as (delete from pgqueue.heartbeats b using original o where b.worker = o.name)
    delete from pgqueue.idle_workers s using original o where s.worker = o.name
$$;
