-- stats: numbers for people and monitors, as one JSON document. Reads only. Counts live jobs by their indexes, which takes
-- about a second with millions of them. The samples are counted by the same statement; an old one says nothing about the present.

create or replace function pgqueue.stats(recent boolean default false)
returns jsonb
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_is_sample boolean := coalesce(stats.recent, pgqueue._is_sampled(v_now));
    v_numbers jsonb;
begin
    with counted as (
        select
            s.queue, s.waiting, s.due, s.scheduled, s.failed, s.blocked, s.executing, s.dead, s.blocked_by_limit,
            s.blocked_by_parents, s.counted_to, nullif(s.counted_at, max(s.at) over ()) as counted_at,
            nullif(case when s.is_ready_kept then s.counted_at else s.at end, max(s.at) over ()) as ready_counted_at, s.at - s.oldest_due_at as lag, s.at - s.oldest_stuck_at as stuck_for
        from pgqueue._last_samples() s
        where v_is_sample and s.queue <> '@groups'
        union all
        select
            c.queue, c.waiting, c.due, c.scheduled, c.failed, c.blocked, c.executing, c.dead, c.blocked_by_limit,
            c.blocked_by_parents,
            case when stats.recent is null and (c.is_cut or sum(c.executing) over () >= 100000) then 10000 end, null, null, v_now - c.oldest_due_at,
            v_now - c.oldest_stuck_at
        from pgqueue._count_queues(v_now, case when stats.recent is null then 10000 else 2147483647 end) c
        where not v_is_sample
    ),
    listed as (
        select
            n.queue, coalesce(c.waiting + c.failed, 0) as length, coalesce(c.waiting, 0) as waiting,
            coalesce(c.failed, 0) as failed, coalesce(c.due, 0) as due, coalesce(c.scheduled, 0) as scheduled,
            coalesce(c.blocked, 0) as blocked,
            case
                -- Null: the sample is of before they were told apart.
                when coalesce(c.blocked, 0) = 0 or c.blocked_by_limit is not null
                    then jsonb_build_object(
                        'key', coalesce(c.blocked - c.blocked_by_limit - c.blocked_by_parents, 0),
                        'limit', coalesce(c.blocked_by_limit, 0), 'parents', coalesce(c.blocked_by_parents, 0)
                    )
            end as blocked_by,
            coalesce(c.executing, 0) as executing, coalesce(c.dead, 0) as dead, c.counted_to, c.counted_at,
            -- Among thousands of queues, its part has not had its turn since its first job.
            case when c.queue is not null or not exists (select from pgqueue.lanes x where x.queue = n.queue) then c.ready_counted_at
                else (select case when max(x.at) > min(x.at) then min(x.at) end from pgqueue._last_samples() x where v_is_sample) end as ready_counted_at,
            coalesce(round(extract(epoch from greatest(c.lag, '0')), 3), 0) as lag,
            case when q.since is null then coalesce(round(extract(epoch from greatest(c.stuck_for, '0')), 3), 0) else 0 end as stuck_for,
            q.since as paused_at
        from (
            select x.queue from counted x
            union
            select x.name from pgqueue.queues x
            union
            select x.target from pgqueue._standing_pauses(v_now) x where x.kind = 'queue'
            union
            select x.queue from pgqueue.lanes x where x.queue <> '@groups'
        ) n
        left join counted c on c.queue = n.queue
        left join pgqueue._standing_pauses(v_now) q on q.kind = 'queue' and q.target = n.queue
    )
    select jsonb_build_object(
        'queues', coalesce(jsonb_agg(to_jsonb(l) order by l.queue), '[]'),
        'total', jsonb_build_object(
            'length', coalesce(sum(l.length), 0), 'waiting', coalesce(sum(l.waiting), 0), 'failed', coalesce(sum(l.failed), 0),
            'due', coalesce(sum(l.due), 0), 'scheduled', coalesce(sum(l.scheduled), 0), 'blocked', coalesce(sum(l.blocked), 0),
            'executing', coalesce(sum(l.executing), 0), 'dead', coalesce(sum(l.dead), 0), 'lag', coalesce(max(l.lag), 0),
            'stuck_for', coalesce(max(l.stuck_for), 0),
            'counted_to', max(l.counted_to), 'counted_at', min(l.counted_at), 'ready_counted_at', min(l.ready_counted_at)
        ),
        'sampled_at', (select max(s.at) from pgqueue.samples s where s.span = 10 and v_is_sample)
    )
    into v_numbers
    from listed l;
    return v_numbers || jsonb_build_object(
        'at', v_now,
        'workers', (
            select coalesce(jsonb_agg(to_jsonb(x) order by x.worker collate "C"), '[]')
            from (
                select w.name as worker, w.queues, w.info, w.started_at, b.at as last_beat_at
                from pgqueue.workers w
                left join lateral pgqueue._last_heartbeat(w.name, w.server_started_at) b on true
            ) x
        ),
        'schedules', (
            select jsonb_build_object(
                'count', count(*), 'paused', count(s.paused_at),
                'lag', coalesce(round(extract(epoch from v_now - min(s.next_at) filter (where s.next_at <= v_now)), 3), 0),
                'failures', coalesce(jsonb_object_agg(s.name, s.error) filter (where s.error is not null), '{}')
            )
            from pgqueue.effective_schedules s
        ),
        'limits', case when stats.recent is not false then pgqueue._limits_now(10000, 1000) else pgqueue._limits_now(1000000000, 2147483647) end,
        'pauses', (select coalesce(jsonb_agg(to_jsonb(p)), '[]') from (select x.* from pgqueue._standing_pauses(v_now) x limit 1000) p),
        'breakers', (
            select coalesce(jsonb_agg(to_jsonb(b) order by b.kind, b.target), '[]')
            from (
                select
                    x.*,
                    (
                        select coalesce(jsonb_agg(
                            jsonb_build_object(
                                'target', p.target, 'state', case when p.half_open_at > v_now then 'open' else 'half_open' end,
                                'since', p.at, 'half_open_at', p.half_open_at, 'reason', p.reason
                            )
                            order by p.target
                        ), '[]')
                        from pgqueue.pauses p
                        where p.source = 'breaker' and p.kind = x.kind and p.until > v_now
                            and (p.target = x.target or (right(x.target, 1) = '*' and starts_with(p.target, left(x.target, -1))))
                    ) as opened
                from pgqueue.breakers x
                limit 1000
            ) b
        ),
        'maintenance', (
            select jsonb_build_object(
                'last_at', h.at, 'rescued', coalesce(h.rescued, 0), 'grace_periods', coalesce(h.grace_periods, 0),
                'found_lanes', coalesce(h.found_lanes, 0), 'hidden', coalesce(h.hidden, 0), 'unblocked', coalesce(h.unblocked, 0),
                'failures', coalesce(l.failures, '{}'), 'behind', coalesce(l.behind, '{}'), 'drop_failures', l.drop_failures,
                'overdue_partitions', (select count(*) from pgqueue._partitions() p where p.upper <= v_now)
            )
            from (
                select
                    jsonb_object_agg(
                        x.step, jsonb_build_object('error', x.error, 'since', x.failing_since, 'count', x.failures)
                    ) filter (where x.error is not null) as failures,
                    jsonb_object_agg(
                        x.step, jsonb_build_object('at', x.at, 'missed_since', x.missed_since, 'slice', x.slice)
                    ) filter (where x.missed_since is not null or x.unfinished) as behind,
                    max(x.failures) filter (where x.step = 'drop') as drop_failures
                from pgqueue._last_steps() x
            ) l
            left join (select x.* from pgqueue.maintenance_runs x order by x.n desc limit 1) h on true
        )
    );
end
$$;

comment on function pgqueue.stats(boolean) is
    'Numbers of the queue as JSON. queues and total: length (waiting + failed), waiting, failed, due, scheduled (not due yet; due + scheduled = length), blocked, executing, '
    'dead, lag (age of the oldest due job in seconds), stuck_for (that of the oldest job that waits for a limit or behind its key, or, by the samples, whose task no worker knows; 0 in a paused queue, and without jobs whose task or limit_key an operator paused); of each queue blocked_by, its blocked jobs by what they wait for (key, limit, parents); workers; schedules (count, paused, lag, failures: the error of each schedule that has one); '
    'limits (for each: executing; waiting, the jobs that wait for it: those that it blocks, and the due ones of a queue that is at its limit, up to counted_to; used, what of max_executing is taken; started, what of rate is; of a limit_key with *, those of the value that has the most, used_by and started_by); pauses (what is paused or throttled: kind, target, source, since, until, reason, by; the first thousand); breakers (kind, target, failures, of, pause; opened: those that are open or half_open, with the value, since, half_open_at and reason); maintenance (last_at; rescued: leases taken back; unblocked: jobs that were blocked without a reason; hidden: ready jobs below the head of their lane; failures: steps that fail or were ended by statement_timeout, with the error; behind: steps that had no turn or too little time; overdue_partitions). '
    'recent => true: the numbers of queues are those of the last sample (sampled_at), at most ten seconds old while maintain() runs; its cost does not depend on the backlog. '
    'recent => null: as with true while a worker lives and the last sample is at most 30 s old; otherwise they are counted now, up to 10,000 of each lane (counted_to), and sampled_at is null. '
    'counted_at: a queue of more than 10,000 jobs was last counted then, at most ten minutes ago; null: in this sample. ready_counted_at: the same of waiting, due, scheduled and failed, which are of this sample where only blocked or dead ones are too many. counted_to: it was not counted yet, and numbers that high mean at least that many. [reader]';

-- Whether the last sample is current: maintenance took it within 30 s, and a worker sent a heartbeat within the longest interval.
create or replace function pgqueue._is_sampled(p_now timestamptz)
returns boolean
language sql stable parallel safe
as $$
    select
        coalesce((select max(s.at) from pgqueue.samples s where s.span = 10) between p_now - interval '30 s' and p_now, false)
        and exists (
            select
            from pgqueue.workers w
            where (select b.at from pgqueue._last_heartbeat(w.name, w.server_started_at) b) > p_now - interval '65 s'
        )
$$;
