-- Wake-up: notifies idle workers that a job is ready.
--
-- _wake reads one range of an index (the workers that serve this queue and are idle now and beyond the ready time) and notifies at
-- most p_count of them, at random: two, for one may be gone. The payload wake means that the job is ready: claim. The payload due
-- means that it becomes ready while the worker is idle: call idle() for the time. Each is sent once for each transaction and queue.
-- Both carry the time of the commit in microseconds, by which workers see how long commits wait for NOTIFY's lock: where many
-- wait, they stay awake. An event at the commit knows it, for which _wake leaves a note: see _hand_off. Without an insert none does.
-- Under an old snapshot (above READ COMMITTED) it cannot see which workers are idle, so it notifies all workers on the
-- common channel. Never waits and locks nothing.

create or replace function pgqueue._wake(
    p_queue text, p_ready_at timestamptz, p_count integer default 2, p_except text default null, p_commits_at timestamptz default null
)
returns void
language plpgsql
set enable_seqscan = off set jit = off
as $$
declare
    v_from timestamptz := greatest(p_ready_at, pgqueue._clock());
    v_payload text := case when p_ready_at > pgqueue._clock() then 'due' else 'wake' end;
    v_sent text := E'\x1f' || v_payload || ' ' || p_queue || E'\x1f';
    v_woken text := coalesce(current_setting('pgqueue.woken', true), '');
    v_noted text := nullif(current_setting('pgqueue.noted', true), '');
begin
    if strpos(v_woken, v_sent) > 0 or not pgqueue._may_notify() then
        return;
    end if;

    if pgqueue._old_snapshot() then
        perform pg_notify('pgqueue', p_queue);
    elsif current_setting('pgqueue.offered', true) <> all ('{"",sent}') then
        perform set_config('pgqueue.noted', concat_ws(',', v_noted, jsonb_build_array(p_queue, p_ready_at)), true)
        where exists (select from pgqueue.idle_workers a where a.queue in (p_queue, '') and a.until > p_ready_at);
    else
        perform pg_notify(w.channel, concat_ws(' ', v_payload, pgqueue._microseconds(p_commits_at)))
        from (
            select s.channel
            from (
                select a.channel
                from pgqueue.idle_workers a
                where a.queue in (p_queue, '') and a.until > v_from and a.worker is distinct from p_except
                limit 64
            ) s
            group by s.channel
            order by random()
            limit p_count
        ) w;
    end if;
    perform set_config('pgqueue.woken', v_woken || v_sent, true) where found;
end
$$;

-- False where set pgqueue.notify = off, for bulk loads and PREPARE TRANSACTION, or where the server's queue of notifications
-- is half full.
create or replace function pgqueue._may_notify()
returns boolean
language sql parallel safe
as $$
    -- When the server's NOTIFY queue overflows, every commit with a NOTIFY fails. A late start is better.
    select
        coalesce(pg_catalog.lower(pg_catalog.current_setting('pgqueue.notify', true) collate pg_catalog."C"), 'on')
            not in ('off', 'false', 'no', '0')
        and pg_catalog.pg_notification_queue_usage() <= 0.5
$$;

-- The NOTIFY channel of a worker.
create or replace function pgqueue._channel(p_worker text)
returns text
language sql immutable parallel safe
as $$
    select 'pgqueue_' || pg_catalog.md5(p_worker)
$$;
