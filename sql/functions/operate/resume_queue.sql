-- resume_queue: resume() of a queue that pause_queue() or pause() has paused.

create or replace function pgqueue.resume_queue(queue text)
returns boolean
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
    select pgqueue._check_name('queue', resume_queue.queue);
    select pgqueue._audit(
        'resume_queue', jsonb_build_object('queue', resume_queue.queue),
        pgqueue._resume('queue', resume_queue.queue, 'operator')::integer
    )
$$;

comment on function pgqueue.resume_queue(text) is 'Start jobs of a paused queue again. False: it was not paused.';
