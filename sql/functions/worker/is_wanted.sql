-- is_wanted: a worker that holds more jobs than it has started asks whether another worker could run them now.
--
-- Reads one range of the index of idle workers for each queue, as enqueue does. Locks nothing.

create or replace function pgqueue.is_wanted(worker text, queues text[])
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off set enable_bitmapscan = off
as $$
declare
    v_now timestamptz := pgqueue._clock();
begin
    perform pgqueue._check_name('worker', is_wanted.worker, 256);
    return exists (
        select
        from pgqueue.idle_workers s
        where s.queue = any (array(select unnest(is_wanted.queues) union all select ''))
            and s.until > v_now and s.worker <> is_wanted.worker
    );
end
$$;

comment on function pgqueue.is_wanted(text, text[]) is
    'Whether another worker that serves one of these queues is idle now: release() the jobs that you have not started, and it is woken. [worker]';
