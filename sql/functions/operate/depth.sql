-- depth: how many jobs of a queue could start now: entries of the index of ready jobs. Locks nothing.

create or replace function pgqueue.depth(queue text default null, at_most integer default 10000)
returns integer
language plpgsql stable parallel safe security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := pgqueue._clock();
begin
    perform pgqueue._check_name('queue', depth.queue) where depth.queue is not null;
    perform pgqueue._check_range('at_most', depth.at_most, 1, 1000000, 'Give the number at which counting may stop.');
    return (
        select count(*)::integer
        from (select from pgqueue._ready_jobs(depth.queue, depth.at_most, v_now) limit depth.at_most) d
    );
end
$$;

comment on function pgqueue.depth(text, integer) is
    'How many jobs of a queue (null: of all) could start now, counted up to at_most. Scheduled, blocked and executing jobs '
    'do not count. select pgqueue.depth(''mail''); [producer, worker, reader]';
