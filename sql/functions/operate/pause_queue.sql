-- pause_queue: reserve skips the queue until resume_queue. Producers continue, executing jobs continue. Locks and writes one row
-- of queues.

create or replace function pgqueue.pause_queue(queue text)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgqueue._check_name('queue', pause_queue.queue);
    insert into pgqueue.queues as q (name, paused_at)
    values (pause_queue.queue, pgqueue._clock())
    on conflict (name) do update set paused_at = excluded.paused_at where q.paused_at is null;
    return pgqueue._audit('pause_queue', jsonb_build_object('queue', pause_queue.queue), found::integer);
end
$$;

comment on function pgqueue.pause_queue(text) is
    'Start no more jobs of a queue, until resume_queue(). False: it was paused already.';
