-- stats: numbers for people and monitors, as one JSON document. Reads only. Counts live jobs by a scan, which takes
-- about a second with millions of them.

create or replace function pgqueue.stats()
returns jsonb
language plpgsql
stable
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_queues jsonb;
    v_total jsonb;
begin
    with live as (
        select
            j.queue,
            count(*) filter (where j.state = 'waiting') as waiting,
            count(*) filter (where j.state = 'failed') as failed,
            count(*) filter (where j.state = 'blocked') as blocked,
            count(*) filter (where j.state = 'executing') as executing,
            count(*) filter (where j.state in ('waiting', 'failed') and j.ready_at > v_now) as scheduled,
            min(j.ready_at) filter (where j.state in ('waiting', 'failed') and j.ready_at <= v_now) as oldest
        from pgqueue.jobs j
        where j.queue <> '@groups'
        group by j.queue
    ),
    ended as (
        select h.queue, count(*) filter (where h.state = 'dead') as dead
        from pgqueue.history h
        where h.state <> 'succeeded' and h.kept_until > v_now and h.queue <> '@groups'
        group by h.queue
    ),
    named as (
        select l.queue from live l
        union
        select e.queue from ended e
        union
        select q.name from pgqueue.queues q
        union
        select a.queue from pgqueue.lanes a
    ),
    counted as (
        select
            n.queue,
            coalesce(l.waiting, 0) as waiting,
            coalesce(l.failed, 0) as failed,
            coalesce(l.blocked, 0) as blocked,
            coalesce(l.executing, 0) as executing,
            coalesce(l.scheduled, 0) as scheduled,
            coalesce(e.dead, 0) as dead,
            coalesce(round(extract(epoch from v_now - l.oldest), 3), 0) as lag,
            q.paused_at
        from named n
        left join live l on l.queue = n.queue
        left join ended e on e.queue = n.queue
        left join pgqueue.queues q on q.name = n.queue
    )
    select
        coalesce(
            jsonb_agg(
                jsonb_build_object(
                    'queue', c.queue, 'length', c.waiting + c.failed, 'waiting', c.waiting, 'failed', c.failed,
                    'scheduled', c.scheduled, 'blocked', c.blocked, 'executing', c.executing, 'dead', c.dead,
                    'lag', c.lag, 'paused_at', c.paused_at
                )
                order by c.queue
            ),
            '[]'
        ),
        jsonb_build_object(
            'length', coalesce(sum(c.waiting + c.failed), 0), 'waiting', coalesce(sum(c.waiting), 0),
            'failed', coalesce(sum(c.failed), 0), 'scheduled', coalesce(sum(c.scheduled), 0),
            'blocked', coalesce(sum(c.blocked), 0), 'executing', coalesce(sum(c.executing), 0),
            'dead', coalesce(sum(c.dead), 0), 'lag', coalesce(max(c.lag), 0)
        )
    into v_queues, v_total
    from counted c;

    return jsonb_build_object(
        'at', v_now,
        'queues', v_queues,
        'total', v_total,
        'workers', (
            select coalesce(
                jsonb_agg(
                    jsonb_build_object(
                        'worker', w.name, 'queues', w.queues, 'info', w.info, 'started_at', w.started_at,
                        'last_beat_at', b.at
                    )
                    order by w.name
                ),
                '[]'
            )
            from pgqueue.workers w
            left join lateral (
                select x.at from pgqueue.heartbeats x where x.worker = w.name order by x.n desc limit 1
            ) b on true
        ),
        'schedules', (
            select jsonb_build_object(
                'count', count(*),
                'paused', count(s.paused_at),
                'lag', coalesce(round(extract(epoch from v_now - min(s.next_at) filter (where s.next_at <= v_now)), 3), 0),
                'failures', coalesce(jsonb_object_agg(s.name, s.error) filter (where s.error is not null), '{}')
            )
            from pgqueue.effective_schedules s
        ),
        'limits', pgqueue._limits_now(),
        'housekeeping', (
            select jsonb_build_object(
                'last_at', max(h.at),
                'rescued', coalesce(max(h.rescued), 0),
                'prolonged', coalesce(max(h.prolonged), 0),
                'found_lanes', coalesce(max(h.found_lanes), 0),
                'hidden', coalesce(max(h.hidden), 0),
                'unparked', coalesce(max(h.unparked), 0),
                'failures', (
                    select coalesce(
                        jsonb_object_agg(
                            l.step, jsonb_build_object('error', l.error, 'since', l.failing_since, 'count', l.failures)
                        ) filter (where l.error is not null),
                        '{}'
                    )
                    from pgqueue._last_steps() l
                ),
                'behind', (
                    select coalesce(
                        jsonb_object_agg(
                            l.step,
                            jsonb_build_object('at', l.at, 'missed_since', l.missed_since, 'slice', l.slice)
                        ) filter (where l.missed_since is not null or l.unfinished),
                        '{}'
                    )
                    from pgqueue._last_steps() l
                ),
                'overdue_partitions', (select count(*) from pgqueue._overdue_partitions(v_now)),
                'drop_failures', (select l.failures from pgqueue._last_steps() l where l.step = 'drop')
            )
            from (select x.* from pgqueue.maintenance_runs x order by x.n desc limit 1) h
        )
    );
end
$$;

comment on function pgqueue.stats() is
    'Numbers of the queue as JSON. queues and total: length (waiting + failed), waiting, failed, scheduled (not due yet; counted in length too), blocked, executing, '
    'dead, lag (age of the oldest due job in seconds); workers; schedules (count, paused, lag, failures: the error of each schedule that has one); '
    'limits (for each: executing, and parked, the jobs that it blocks); housekeeping, the state of maintenance (last_at; rescued: leases taken back; unparked: jobs that were blocked without a reason; hidden: ready jobs below the head of their lane; failures: steps that fail or were cut by statement_timeout, with the error; behind: steps that had no turn or too little time; overdue_partitions).';
