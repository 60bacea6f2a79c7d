-- stats: numbers for people and monitors, as one JSON document. Reads only. Counts live jobs by a scan, which takes
-- about a second with millions of them; with recent => true it reads the last samples instead, whatever the backlog.

create or replace function pgqueue.stats(recent boolean default false)
returns jsonb
language plpgsql
stable
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_now timestamptz := pgqueue._clock();
    v_numbers jsonb := case when stats.recent then pgqueue._recent_numbers(v_now) else pgqueue._numbers_now(v_now) end;
begin
    return v_numbers || jsonb_build_object(
        'at', v_now,
        'workers', (
            select coalesce(
                jsonb_agg(
                    jsonb_build_object(
                        'worker', w.name, 'queues', w.queues, 'info', w.info, 'started_at', w.started_at,
                        'last_beat_at', b.at
                    )
                    order by w.name collate "C"
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
        'limits', pgqueue._limits_now(case when stats.recent then 10000 else 1000000000 end),
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

comment on function pgqueue.stats(boolean) is
    'Numbers of the queue as JSON. queues and total: length (waiting + failed), waiting, failed, scheduled (not due yet; counted in length too), blocked, executing, '
    'dead, lag (age of the oldest due job in seconds); of each queue blocked_by, its blocked jobs by what they wait for (key, limit, parents); workers; schedules (count, paused, lag, failures: the error of each schedule that has one); '
    'limits (for each: executing; parked, the jobs that it blocks; used, what of max_executing is taken; started, what of rate is; of a limit_key with *, those of the value that has the most, used_by and started_by); housekeeping, the state of maintenance (last_at; rescued: leases taken back; unparked: jobs that were blocked without a reason; hidden: ready jobs below the head of their lane; failures: steps that fail or were ended by statement_timeout, with the error; behind: steps that had no turn or too little time; overdue_partitions). '
    'recent => true: the numbers of queues are those of the last sample (sampled_at), at most ten seconds old while maintain() runs, with due, and counted_to: numbers that high mean at least that many; its cost does not depend on the backlog.';

create or replace function pgqueue._numbers_now(p_now timestamptz)
returns jsonb
language sql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    with live as (
        select
            j.queue,
            count(*) filter (where j.state = 'waiting') as waiting,
            count(*) filter (where j.state = 'failed') as failed,
            count(*) filter (where j.state = 'blocked') as blocked,
            count(*) filter (where j.state = 'blocked' and left(j.blocked_on, 1) <> '@') as by_limit,
            count(*) filter (where j.state = 'blocked' and left(j.blocked_on, 1) = '@') as by_parents,
            count(*) filter (where j.state = 'executing') as executing,
            count(*) filter (where j.state in ('waiting', 'failed') and j.ready_at > p_now) as scheduled,
            min(j.ready_at) filter (where j.state in ('waiting', 'failed') and j.ready_at <= p_now) as oldest
        from pgqueue.jobs j
        where j.queue <> '@groups'
        group by j.queue
    ),
    ended as (
        select h.queue, count(*) filter (where h.state = 'dead') as dead
        from pgqueue.history h
        where h.state <> 'succeeded' and h.kept_until > p_now and h.queue <> '@groups'
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
            pgqueue._blocked_by(l.blocked, l.by_limit, l.by_parents) as blocked_by,
            coalesce(l.executing, 0) as executing,
            coalesce(l.scheduled, 0) as scheduled,
            coalesce(e.dead, 0) as dead,
            coalesce(round(extract(epoch from p_now - l.oldest), 3), 0) as lag,
            q.paused_at
        from named n
        left join live l on l.queue = n.queue
        left join ended e on e.queue = n.queue
        left join pgqueue.queues q on q.name = n.queue
    )
    select pgqueue._numbers_document(coalesce(
        jsonb_agg(
            jsonb_build_object(
                'queue', c.queue, 'length', c.waiting + c.failed, 'waiting', c.waiting, 'failed', c.failed,
                'scheduled', c.scheduled, 'blocked', c.blocked, 'blocked_by', c.blocked_by, 'executing', c.executing, 'dead', c.dead,
                'lag', c.lag, 'paused_at', c.paused_at
            )
            order by c.queue
        ),
        '[]'
    ))
    from counted c
$$;

comment on function pgqueue._numbers_now(timestamptz) is 'Private: queues and total of stats(), counted now.';

create or replace function pgqueue._recent_numbers(p_now timestamptz)
returns jsonb
language sql
stable
parallel safe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
    select pgqueue._numbers_document(coalesce(
        jsonb_agg(
            jsonb_build_object(
                'queue', n.queue, 'length', coalesce(s.waiting + s.failed, 0), 'waiting', coalesce(s.waiting, 0),
                'failed', coalesce(s.failed, 0), 'scheduled', coalesce(s.scheduled, 0), 'due', coalesce(s.due, 0),
                'blocked', coalesce(s.blocked, 0),
                'blocked_by', pgqueue._blocked_by(s.blocked, s.blocked_by_limit, s.blocked_by_parents),
                'executing', coalesce(s.executing, 0), 'dead', coalesce(s.dead, 0),
                'counted_to', s.counted_to,
                'lag', case
                    when s.oldest_due_at is null then 0
                    else round(extract(epoch from greatest(s.at - s.oldest_due_at, '0')), 3)
                end,
                'paused_at', q.paused_at
            )
            order by n.queue
        ),
        '[]'
    )) || jsonb_build_object(
        'sampled_at', (select max(s.at) from pgqueue.samples s where s.span = 10)
    )
    from (
        select l.queue from pgqueue._last_samples() l
        union
        select q.name from pgqueue.queues q
        union
        select a.queue from pgqueue.lanes a
    ) n
    left join pgqueue._last_samples() s on s.queue = n.queue
    left join pgqueue.queues q on q.name = n.queue
$$;

comment on function pgqueue._recent_numbers(timestamptz) is 'Private: queues and total of stats(), from the last samples.';

-- Null: the sample is of before they were told apart.
create or replace function pgqueue._blocked_by(p_blocked bigint, p_limit bigint, p_parents bigint)
returns jsonb
language sql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select case
        when coalesce(p_blocked, 0) = 0 or p_limit is not null
            then jsonb_build_object(
                'key', coalesce(p_blocked - p_limit - p_parents, 0), 'limit', coalesce(p_limit, 0), 'parents', coalesce(p_parents, 0)
            )
    end
$$;

comment on function pgqueue._blocked_by(bigint, bigint, bigint) is 'Private: the blocked jobs of a queue in stats(), by what they wait for.';

create or replace function pgqueue._numbers_document(p_queues jsonb)
returns jsonb
language sql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select jsonb_build_object(
        'queues', p_queues,
        'total', jsonb_build_object(
            'length', coalesce(sum(q.length), 0), 'waiting', coalesce(sum(q.waiting), 0),
            'failed', coalesce(sum(q.failed), 0), 'scheduled', coalesce(sum(q.scheduled), 0),
            'blocked', coalesce(sum(q.blocked), 0), 'executing', coalesce(sum(q.executing), 0),
            'dead', coalesce(sum(q.dead), 0), 'lag', coalesce(max(q.lag), 0)
        ) || jsonb_strip_nulls(jsonb_build_object('due', sum(q.due)))
    )
    from jsonb_to_recordset(p_queues) q (
        length bigint, waiting bigint, failed bigint, scheduled bigint, blocked bigint, executing bigint, dead bigint,
        due bigint, lag numeric
    )
$$;

comment on function pgqueue._numbers_document(jsonb) is 'Private: queues and total of stats().';
