-- wanted: how many jobs of some queues are due or executing: as many slots could work now. Locks nothing.
--
-- Where the last sample is older than 30 s no worker runs maintenance, perhaps because the fleet was scaled to zero: then it
-- counts itself, and counts the schedules that are due and that no maintenance enqueues.

create or replace function pgqueue.wanted(queues text[] default null)
returns integer
language plpgsql stable parallel safe security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_is_sampled boolean := coalesce((select max(s.at) from pgqueue.samples s where s.span = 10) between v_now - interval '30 s' and v_now, false);
    -- Among many lanes a sample counts a part of the queues: those that are asked for are counted here.
    v_is_counted boolean := wanted.queues is not null and v_is_sampled and pgqueue._queue_parts() > 1;
begin
    perform pgqueue._check_queues(wanted.queues);
    return (
        select coalesce(sum(c.executing + case when q.since is null then c.due else 0 end), 0)::integer
        from (
            select coalesce(s.queue, r.queue), case when r.is_cut is not false then greatest(s.due, r.due) else r.due end, coalesce(s.executing, 0)
            from (select x.* from pgqueue._last_samples() x where v_is_sampled) s
            full join (
                select l.queue, sum(d.due)::integer as due, bool_or(d.is_cut) as is_cut
                from (select distinct x.queue, x.priority from pgqueue.lanes x where v_is_counted and x.queue = any (wanted.queues)) l
                cross join (values (false), (true)) b (resumed)
                cross join lateral pgqueue._count_ready(l.queue, l.priority, b.resumed, v_now, 1000) d
                group by l.queue
            ) r on r.queue = s.queue
            union all
            select n.queue, n.due, n.executing from pgqueue._count_queues(v_now, 1000) n where not v_is_sampled
        ) c (queue, due, executing)
        left join pgqueue._standing_pauses(v_now) q on q.kind = 'queue' and q.target = c.queue
        where wanted.queues is null or c.queue = any (wanted.queues)
    ) + (
        select count(*)::integer
        from pgqueue.effective_schedules s
        left join pgqueue.effective_tasks t on t.name = s.task
        where not v_is_sampled and s.next_at <= v_now and (wanted.queues is null or coalesce(s.queue, t.queue, 'default') = any (wanted.queues))
    );
end
$$;

comment on function pgqueue.wanted(text[]) is
    'How many jobs of these queues (null: of all) are due or executing, for an autoscaler: divide it by the concurrency of a worker. '
    'From the last sample, so the cost does not depend on the backlog; counted, up to 1,000 of each lane, while no worker runs, and of queues by name beside 500 lanes. '
    'Due jobs of a paused queue do not count. select pgqueue.wanted(array[''mail'', ''default'']); [producer, worker, reader]';
