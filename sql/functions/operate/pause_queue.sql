-- pause_queue: pause() of a queue, until resume_queue.

create or replace function pgqueue.pause_queue(queue text)
returns boolean
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
    select pgqueue._check_name('queue', pause_queue.queue);
    select pgqueue._audit(
        'pause_queue', jsonb_build_object('queue', pause_queue.queue),
        pgqueue._pause('queue', pause_queue.queue, 'operator', 'infinity', null, null)::integer
    )
$$;

comment on function pgqueue.pause_queue(text) is
    'Start no more jobs of a queue, until resume_queue(). False: it was paused already.';
