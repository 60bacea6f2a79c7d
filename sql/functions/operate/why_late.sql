-- why_late: why jobs of a queue wait, in one row: the first cause that holds, its evidence, and the command that removes it.
--
-- Reads bounded numbers of rows, and locks nothing. explain() says the same of one job, doctor() of all queues.

create or replace function pgqueue.why_late(queue text default null)
returns table (
    queue_name text, severity text, cause text, subject text, evidence text, remedy text, since timestamptz,
    lag double precision, stuck_for double precision
)
language plpgsql stable security definer rows 5
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := pgqueue._clock();
    v_is_sampled boolean := pgqueue._is_sampled(v_now);
    -- What an operator paused by task or limit_key is listed, and is not stuck.
    v_is_paused boolean := exists (select from pgqueue.pauses p where p.kind <> 'queue' and p.source = 'operator' and p.until > v_now);
begin
    perform pgqueue._check_name('queue', why_late.queue) where why_late.queue is not null;
    return query
    select q.name, w.*
    from (
        select c.name, l.is_late
        from (
            select why_late.queue as name, null::timestamptz as oldest_due_at, null::timestamptz as oldest_stuck_at, 0 as by_limit
            where why_late.queue is not null
            union all
            select s.queue, s.oldest_due_at, s.oldest_stuck_at, s.blocked_by_limit
            from pgqueue._last_samples() s where why_late.queue is null and v_is_sampled
            union all
            select n.queue, n.oldest_due_at, n.oldest_stuck_at, n.blocked_by_limit
            from pgqueue._count_queues(v_now, 10000) n where why_late.queue is null and not v_is_sampled
        ) c
        -- Jobs that wait for a limit or a key do so on purpose for a while.
        cross join lateral (select c.oldest_due_at <= v_now - interval '30 s' or c.oldest_stuck_at <= v_now - interval '5 min') l (is_late)
        where why_late.queue is not null or l.is_late or (c.by_limit > 0 and v_is_paused)
        order by l.is_late desc nulls last, least(c.oldest_due_at, c.oldest_stuck_at)
        limit 100
    ) q
    cross join lateral pgqueue._why_late(q.name, v_now) w
    where why_late.queue is not null or w.cause = 'paused' or (w.cause <> 'on_time' and q.is_late)
    order by array_position('{critical,warning,info}'::text[], w.severity), greatest(w.lag, w.stuck_for) desc, q.name;
end
$$;

comment on function pgqueue.why_late(text) is
    'Why jobs of a queue wait: the first cause that holds, with its evidence and the command that removes it. Without a queue: a row for each that is late, '
    'its oldest due job by 30 s or a stuck one by 5 min, the worst first, a hundred at most. cause: on_time, paused, throttled, breaker (what it calls fails), limit, key (behind one job), no_worker (as soon as a job is due), unknown_task (or no living worker has it), slots (taken by jobs that do not end), '
    'starved (workers serve other queues first), flood (of one tenant or task), database (old snapshot, dead rows, locks, notifications), workers (too few). subject: the limit, key, task, tenant or worker that it is about. '
    'lag: the age of the oldest due job in seconds; stuck_for: that of the oldest job that waits for a limit or behind its key, or whose task no worker knows, unless its queue is paused, or an operator paused its task or limit_key. '
    'select cause, evidence, remedy from pgqueue.why_late(''mail''); [reader]';

create or replace function pgqueue._why_late(
    p_queue text, p_now timestamptz, out severity text, out cause text, out subject text, out evidence text, out remedy text,
    out since timestamptz, out lag double precision, out stuck_for double precision
)
language plpgsql stable
as $$
declare
    v_first pgqueue.jobs;
    -- The job that a limit or a key holds back, where these hold back more than is late; else the first one.
    v_held pgqueue.jobs;
    v_pause record;
    v_sample pgqueue.samples;
    v_due bigint;
    v_late bigint;
    v_most integer;
    v_blocked record;
    v_unserved record;
    v_is_served boolean := exists (select from pgqueue._living_workers_of(p_queue, p_now));
begin
    select j.* into v_first from pgqueue._ready_jobs(p_queue, 1, p_now) j order by j.ready_at, j.id limit 1;
    select s.*, s.by as actor into v_pause from pgqueue._standing_pauses(p_now) s where s.kind = 'queue' and s.target = p_queue;
    -- Where a sample tells of now, its numbers are not counted again: that would take longer than all the rest.
    select s.* into v_sample from pgqueue._last_samples() s where s.queue = p_queue and pgqueue._is_sampled(p_now);
    v_due := case when v_first.id is not null
        then greatest(coalesce(v_sample.due, (select count(*) from pgqueue._ready_jobs(p_queue, 10000, p_now))), 1) else 0 end;
    -- Those that wait for a limit or for a job of their key, and the limit for which most of them wait; null: a key. They may stand
    -- behind many of other queues: then more are read, and at last the sample says that there are some.
    foreach v_most in array array[
        case when v_sample.n is null then 5000 when v_sample.blocked > coalesce(v_sample.blocked_by_parents, 0) then 500 else 0 end, 250000
    ] loop
        select
            coalesce(sum(b.jobs) + greatest(v_sample.blocked - coalesce(v_sample.blocked_by_parents, 0) - sum(b.jobs), 0), 0)::bigint as jobs,
            min(b.oldest_at) as oldest_at,
            min(b.oldest_at) filter (where not exists (
                select from pgqueue.pauses p where p.source = 'operator' and p.until > p_now and b.limit_name = 'pause:' || p.kind || ':' || p.target
            )) as stuck_at,
            (array_agg(b.limit_name order by b.jobs desc, b.first_id))[1] as limit_name,
            (array_agg(b.first_id order by b.jobs desc, b.first_id))[1] as job_id, count(b.limit_name) as limits
        into v_blocked
        from pgqueue._blocked_by(p_queue, v_most) b;
        exit when v_blocked.limits > 0 or coalesce(v_sample.blocked_by_limit, (v_first.id is null)::integer) = 0;
    end loop;
    if v_blocked.jobs = 0 and v_sample.blocked_by_limit > 0
        and exists (select from pgqueue.jobs j where j.state = 'blocked' and j.blocked_on > '@zzz' offset 10000)
    then
        v_blocked.jobs := v_sample.blocked_by_limit::bigint;
        v_blocked.oldest_at := v_sample.oldest_stuck_at;
        v_blocked.stuck_at := v_sample.oldest_stuck_at;
    end if;
    -- The first jobs of each lane whose task no worker knows, or no living one has.
    select
        count(*) as jobs, max(f.of_jobs) as of_jobs, min(f.task) as task, min(f.id) as job_id, max(f.reserved_by) as worker,
        min(f.run_at) as oldest_at
    into v_unserved
    from (select x.*, count(*) over () as of_jobs from pgqueue._first_jobs(p_queue, 10, p_now + interval '30 s', p_now) x) f
    where f.is_unknown or f.is_given_back;
    lag := coalesce(extract(epoch from p_now - v_first.ready_at), 0)::float8;
    stuck_for := greatest(extract(epoch from p_now - case when v_pause.since is null then least(v_blocked.stuck_at, v_unserved.oldest_at) end), 0)::float8;
    since := least(v_first.ready_at, v_blocked.oldest_at);
    v_late := case when lag < 30 then 0 else v_due end;
    select j.* into v_held
    from pgqueue.jobs j
    where j.id = case when v_blocked.jobs > v_late then v_blocked.job_id else v_first.id end;
    v_blocked.limit_name := case when v_blocked.jobs > v_late then v_blocked.limit_name end;
    -- A row for each cause that holds, in their order. Only the first is asked for.
    select f.cause, f.subject, f.evidence, f.remedy, f.since into cause, subject, evidence, remedy, since
    from (
        select
            'paused' as cause, p_queue as subject,
            concat(
                format('the queue has %s due, and is ', pgqueue._counted(v_due)),
                case v_pause.source when 'operator' then 'paused' when 'throttle' then 'throttled' else 'stopped by its breaker' end,
                ' since ' || v_pause.since, ' until ' || v_pause.until, ' by ' || v_pause.actor, ': ' || v_pause.reason
            ) as evidence,
            format('select pgqueue.resume(''queue'', %L, %L);', p_queue, v_pause.source) as remedy, v_pause.since as since
        where v_pause.since is not null and v_due + v_blocked.jobs > 0
        union all
        select
            'key', v_held.key, format('the queue has %s blocked, most behind key %s: %s', pgqueue._counted(v_blocked.jobs), v_held.key, e.detail),
            case
                when e.behind is null then 'select pgqueue.maintain();'
                when exists (
                    select
                    from pgqueue.jobs j
                    where j.id = e.behind and j.state = 'executing' and j.cancel_requested_at < p_now - interval '10 s'
                ) then format('pgqueue jobs stack %1$s; it was asked to cancel, and does not end: pgqueue workers kill --job %1$s', e.behind)
                else format('pgqueue jobs explain %1$s; if it does not end: pgqueue jobs cancel %1$s', e.behind)
            end,
            since
        from pgqueue._explain_key(v_held, p_now) e
        where v_held.id is not null and v_blocked.jobs > v_late and v_blocked.limit_name is null
        union all
        select l.cause, l.subject, l.evidence, l.remedy, since
        from pgqueue._late_by_rule(v_held, v_blocked.limit_name, v_late, v_is_served, p_now) l
        union all
        select 'limit', p_queue, format('the queue has %s blocked, behind 10,000 and more of other queues that wait for the same limits',
            pgqueue._counted(v_blocked.jobs)), 'pgqueue limits list', since
        where v_blocked.jobs > v_late and v_blocked.job_id is null
        union all
        select
            'no_worker', p_queue,
            format('the queue has %s %s since %s, and no living worker claims from it%s', pgqueue._counted(coalesce(nullif(v_due, 0), v_blocked.jobs)),
                case when v_due > 0 then 'due' else 'blocked' end, coalesce(v_first.ready_at, v_blocked.oldest_at),
                '; worker ' || q.worker || ' serves it, and an operator made it quiet'),
            coalesce('select pgqueue.resume_worker(' || quote_literal(q.worker) || ');', 'pgqueue worker -r MODULE --queue ' || pgqueue._shell_quoted(p_queue, true)),
            since
        from (
            select min(w.worker) as worker
            from pgqueue.worker_status w
            where w.is_alive and w.command = 'quiet' and (w.queues is null or p_queue = any (w.queues))
        ) q
        where not v_is_served and (v_due > 0 or v_blocked.limit_name like 'pause:%')
        union all
        select
            'unknown_task', v_unserved.task,
            coalesce(e.detail, format('no living worker has task %s: worker %s gave job %s back without an attempt', v_unserved.task,
                v_unserved.worker, v_unserved.job_id)),
            'start a worker that has it, correct its name, or: ' || format('select pgqueue.cancel_many(task => %L);', v_unserved.task),
            v_unserved.oldest_at
        from pgqueue._explain_unknown_task(v_unserved.task, p_queue, p_now) e (detail)
        where v_unserved.jobs > 0 and (lag < 30 or 2 * v_unserved.jobs >= v_unserved.of_jobs)
        union all
        select
            'on_time', p_queue,
            coalesce('its oldest due job waits for ' || pgqueue._in_words(p_now - v_first.ready_at), 'no job of it is due'), 'nothing', null
        where lag < 30
        union all
        select l.cause, l.subject, l.evidence, l.remedy, coalesce(l.since, _why_late.since)
        from pgqueue._late_by_load(v_first, v_due, p_now) l
    ) f
    limit 1;
    severity := case
        -- One that was forgotten.
        when cause = 'paused' and since < p_now - interval '1 day' then 'warning'
        when cause in ('paused', 'throttled', 'on_time') or greatest(lag, stuck_for) < 30 then 'info'
        when cause in ('no_worker', 'slots') then 'critical'
        else 'warning'
    end;
end
$$;

-- A pause of the task or tenant of a job, else a limit without capacity: p_limit, which blocks it, or one that it would reach.
create or replace function pgqueue._late_by_rule(p_held pgqueue.jobs, p_limit text, p_late bigint, p_is_served boolean, p_now timestamptz)
returns table (cause text, subject text, evidence text, remedy text)
language sql stable rows 1
as $$
    (
        select
            e.reason, substr(p.name, 7), e.detail,
            format('pgqueue limits pauses; then: pgqueue limits resume %s %s%s', split_part(p.name, ':', 2), pgqueue._shell_quoted(p.target),
                case e.reason when 'throttled' then ' --source throttle' when 'breaker' then ' --source breaker' end)
        from pgqueue._pauses_of(p_held.task, p_held.limit_key, p_now) p
        cross join lateral pgqueue._explain_pause(p_held, p_now) e
        -- Behind a half-open breaker nothing starts until a worker tries one.
        where p.until > p_now or p_is_served
        order by p.until desc
        limit 1
    )
    union all
    select
        'limit', n.name,
        format(
            '%s; it holds back %s%s', coalesce(n.detail, format('the limit %s has capacity now', n.name)),
            case when h.jobs = 1000 then 'at least ' end,
            pgqueue._counted(h.jobs + case when n.name ~ '^(queue|max_share):' then p_late else 0 end)
        ),
        coalesce((
            select concat('raise it, if what it protects allows that: pgqueue limits set ', l.kind, ' ', pgqueue._shell_quoted(l.rule), case
                when n.detail ~ 'jobs started within|full enough in' or num_nonnulls(l.max_executing, l.max_cost) = 0
                    then format(' --rate %s --per %s', least(2 * l.rate::bigint, 1000000000), pgqueue._shell_quoted(l.per::text))
                when l.max_executing is null or (l.max_cost is not null and n.detail ~ ' units')
                    then ' --max-cost ' || least(2 * l.max_cost::bigint, 1000000000)
                else ' --max-executing ' || least(greatest(2 * l.max_executing, 1), 1000000)
            end)
            from pgqueue._limits_of(p_held.queue, p_held.task, p_held.key, p_held.limit_key) l
            where l.name = n.name
            limit 1
        ), 'start more workers, or: pgqueue queues set ' || pgqueue._shell_quoted(p_held.queue) || ' --max-share 1')
    from (
        select coalesce(p_limit, l.name) as name, l.detail
        from (select) one
        left join pgqueue._reached_limit(p_held, p_limit, p_now) l on true
    ) n
    cross join lateral (
        select count(*) as jobs from (select from pgqueue.jobs j where j.state = 'blocked' and j.blocked_on = n.name limit 1000) x
    ) h
    where p_held.id is not null and n.name is not null and (p_is_served or n.name not like 'pause:%')
    limit 1
$$;

-- Workers serve the queue, and yet its jobs wait: jobs that do not end take the slots, the workers serve other queues first, one
-- tenant or task floods the queue, the database is slow, or the workers do not keep up.
create or replace function pgqueue._late_by_load(p_first pgqueue.jobs, p_due bigint, p_now timestamptz)
returns table (cause text, subject text, evidence text, remedy text, since timestamptz)
language sql stable rows 1
as $$
    with slots as materialized (select s.* from pgqueue._slots_for(p_first.queue, p_now) s)
    select
        'slots', s.task,
        format('%s takes %s of %s slots of %s, the oldest for %s, %s%s', s.task, s.overlong, s.slots, s.workers,
            pgqueue._in_words(p_now - s.oldest_at),
            coalesce('and it usually takes at most ' || pgqueue._in_words(s.usual), 'and none ended within a day'),
            case when s.asked >= s.overlong then '; they were asked to cancel, and do not end' end),
        case
            when s.asked >= s.overlong then format('pgqueue jobs stack %1$s; pgqueue workers kill --job %1$s', s.oldest_id)
            else format('pgqueue jobs stack %s; pgqueue jobs cancel --task %s --state executing', s.oldest_id, pgqueue._shell_quoted(s.task))
        end,
        s.oldest_at
    from slots s
    where 2 * s.overlong >= s.slots and s.executing >= s.slots
    union all
    select
        'starved', p_first.queue, 'its workers serve first: ' || a.lanes,
        format('select pgqueue.configure_queue(%L, weight => 10); or a separate worker: pgqueue worker -r MODULE --queue %s',
            p_first.queue, pgqueue._shell_quoted(p_first.queue, true)),
        null
    from pgqueue._lanes_ahead(p_first, p_now) a (lanes)
    where a.lanes is not null
    union all
    select 'flood', d.subject, d.evidence, d.remedy, d.since
    from slots s
    cross join lateral pgqueue._flood_of(p_first.queue, p_due, s.slots, p_now) d
    union all
    -- What makes claims slow although slots are free.
    (
        select 'database', d.subject, d.evidence, d.remedy, null
        from slots s
        cross join lateral (
            select c.topic, c.subject, c.evidence, c.remedy
            from pgqueue._doctor_server(p_now) c
            where c.topic in ('old_snapshot', 'notify_queue', 'dead_tuples')
            union all
            select
                'locks', format('session %s', b.pid),
                format('%s for a lock that session %s holds',
                    case count(*) when 1 then '1 session of the queue waits' else count(*) || ' sessions of the queue wait' end, b.pid),
                format('select pg_terminate_backend(%s);', b.pid)
            from pg_stat_activity a
            cross join unnest(pg_blocking_pids(a.pid)) b (pid)
            where a.wait_event_type = 'Lock' and a.datname = current_database() and a.query ~ 'pgqueue'
            group by b.pid
        ) d
        where s.executing < 0.8 * s.slots
        order by array_position('{old_snapshot,notify_queue,dead_tuples,locks}'::text[], d.topic)
        limit 1
    )
    union all
    select
        'workers', p_first.queue,
        concat(
            format('the oldest of %s is due since %s, and ', pgqueue._counted(p_due), p_first.ready_at),
            coalesce('executing jobs take ' || least(s.executing, s.slots) || ' of ' || s.slots || ' slots of ' || s.workers, 'it is served by ' || s.workers),
            '; ' || round(r.started, 2) || ' a second start and ' || round(greatest(r.started + r.growth, 0), 2) || ' come in: ' || case
                when r.growth < 0 then 'the due ones will have started in '
                    || pgqueue._in_words(make_interval(secs => (-p_due / r.growth)::double precision))
                else 'they do not get fewer'
            end,
            case when r.is_idle then '; slots are free, so more of them do not help' end
        ),
        case
            when r.is_idle then 'see what these workers do: pgqueue workers list, and their logs'
            else 'start more workers, or raise --concurrency: pgqueue worker -r MODULE --queue ' || pgqueue._shell_quoted(p_first.queue, true)
        end,
        null
    from slots s
    cross join lateral (
        select
            x.started / nullif(x.seconds, 0) as started, (x.due_now - x.due_then) / nullif(x.seconds, 0) as growth,
            -- Between two short jobs a slot is free, too. Workers report starts once a minute at least.
            s.executing < 0.8 * s.slots and x.started = 0 and x.seconds >= 90 as is_idle
        from (
            select
                extract(epoch from max(c.at) - min(c.at))::numeric as seconds,
                coalesce(sum((select sum((t.value ->> 'started')::numeric) from jsonb_each(c.ended) t)), 0) as started,
                (array_agg(c.due order by c.at desc))[1]::numeric as due_now,
                (array_agg(c.due order by c.at))[1]::numeric as due_then
            from pgqueue.samples c
            -- A large queue is not counted in each sample.
            where c.span = 10 and c.at > p_now - interval '5 min' and c.queue = p_first.queue and c.at = coalesce(c.counted_at, c.at)
        ) x
    ) r
    limit 1
$$;
