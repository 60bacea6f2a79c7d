-- resume_queue: ends a pause. Wakes workers for jobs that have become due meanwhile. Locks and writes one row of queues.

create or replace function pgqueue.resume_queue(queue text)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgqueue._check_name('queue', resume_queue.queue);
    update pgqueue.queues set paused_at = null where name = resume_queue.queue and paused_at is not null;
    if not found then
        return false;
    end if;
    perform pgqueue._wake(resume_queue.queue, pgqueue._clock(), 2, null);
    return pgqueue._audit('resume_queue', jsonb_build_object('queue', resume_queue.queue));
end
$$;

comment on function pgqueue.resume_queue(text) is 'Start jobs of a paused queue again. False: it was not paused.';
