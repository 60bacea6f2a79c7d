-- What doctor() checks of workers and their tasks; last their memory, as their heartbeats report it.

create or replace function pgqueue._doctor_workers(p_now timestamptz)
returns table (severity text, topic text, subject text, evidence text, remedy text)
language sql stable rows 3
set enable_seqscan = off
as $$
    with first_jobs as materialized (
        -- 60 of a lane, and 30,000 in all where there are up to 15,000 lanes.
        select f.*
        from (select least(15000 / greatest(count(*), 500), 30)::integer as most from (select from pgqueue.lanes limit 15000) x) l
        cross join lateral pgqueue._first_jobs(null, l.most, 'infinity', p_now) f
        where f.is_unknown or f.is_given_back
    )
    select
        'warning', case when j.is_unknown then 'unknown_task' else 'given_back' end, j.task,
        case
            when j.is_unknown
            then format('no worker has ever declared the task, and jobs of it wait in queue %s, such as job %s', min(j.queue), min(j.id))
            else format('workers give jobs of the task back again and again without an attempt, such as job %s, the last time worker %s: '
                'they do not have the task, or its handler snoozes', min(j.id), max(j.reserved_by))
        end,
        format('start a worker that has it, %s, or: select pgqueue.cancel_many(task => %L);',
            case when j.is_unknown then 'correct its name' else 'let its queue be served by such workers only' end, j.task)
    from first_jobs j
    group by j.task, j.is_unknown
    union all
    select
        'warning', 'failures', f.task,
        format('%s of %s attempts within ten minutes failed', to_char(f.failed, 'FM999,999,999,990'), to_char(f.attempts, 'FM999,999,999,990'))
            || coalesce((select ', the last one with ' || r.class
                from (select x.task, x.class from pgqueue.troubles x order by x.n desc limit 1000) r where r.task = f.task limit 1), ''),
        format('pgqueue jobs list --state dead --task %1$s; when its cause is removed: pgqueue jobs retry --task %1$s', pgqueue._shell_quoted(f.task))
    from (
        select
            t.key as task, sum((t.value ->> e.state)::numeric) filter (where e.state <> 'succeeded') as failed,
            sum((t.value ->> e.state)::numeric) as attempts
        from pgqueue.samples s
        cross join jsonb_each(s.ended) t
        cross join unnest('{succeeded,failed,dead}'::text[]) e (state)
        where s.span = 10 and s.at > p_now - interval '10 min' and s.queue <> ''
        group by t.key
    ) f
    where f.attempts >= 20 and f.failed > 0.5 * f.attempts
    union all
    select
        'warning', 'worker', w.worker,
        format('jobs that it holds: %s, with a lapsed lease: %s; its last heartbeat: %s', w.executing, w.lapsed,
            coalesce(w.last_heartbeat_at::text, 'none')),
        'check its process; maintain() takes the jobs back'
    from pgqueue.worker_status w
    where w.is_alive is not true and w.lapsed > 0
    union all
    select
        case when w.obeyed_at is null and w.commanded_at < p_now - interval '2 min' then 'warning' else 'info' end,
        'command', w.worker,
        format('an operator asked it at %s to %s; it %s', w.commanded_at, case w.command when 'quiet' then 'be quiet' when 'kill' then 'end at once' else w.command end,
            case when w.obeyed_at is null then 'has not obeyed yet' else 'obeys' end),
        case w.command when 'quiet' then format('select pgqueue.resume_worker(%L); when it may reserve jobs again', w.worker)
            else 'wait for its jobs to end, or end its process' end
    from pgqueue.worker_status w
    where w.command is not null and w.is_alive
    union all
    select
        case when abs(c.ahead) > 30 then 'warning' else 'info' end, 'clock', c.host,
        format('the clock of %s is %s s %s that of the database', c.host, abs(c.ahead), case when c.ahead > 0 then 'ahead of' else 'behind' end),
        'synchronise the clocks (chrony, systemd-timesyncd); the queue uses the clock of the database alone, logs do not'
    from (
        -- Processes of one host have one clock.
        select distinct on (h.host) h.host, a.ahead::numeric as ahead
        from pgqueue.workers w
        cross join lateral (select coalesce(w.info ->> 'host', w.name) as host) h
        cross join lateral jsonb_path_query_first(w.info, '$.clock_ahead ? (@.type() == "number")') a (ahead)
        order by h.host, abs(a.ahead::numeric) desc nulls last
    ) c
    where abs(c.ahead) > 2
    union all
    select
        'info', 'pooler', case count(*) when 1 then min(w.name) else count(*) || ' workers' end,
        case
            when w.is_deaf then 'no LISTEN: an idle worker starts a job up to its poll interval late'
            else 'through a pooler in transaction mode, with a connection of its own to listen'
        end,
        'to start jobs at once: --listen-dsn with the server''s own address'
    from (
        select x.name, coalesce(x.info -> 'listen' = 'false', false) as is_deaf
        from pgqueue.workers x
        where x.info -> 'listen' = 'false' or x.info -> 'pooled' = 'true'
    ) w
    group by w.is_deaf
    union all
    select
        'info', 'versions', 'workers',
        format('workers of several versions: %s', string_agg(distinct (w.info ->> 'version') collate "C", ', ' order by (w.info ->> 'version') collate "C")),
        'nothing, if a deployment is under way'
    from pgqueue.workers w
    having count(distinct w.info ->> 'version') > 1
    union all
    -- One that grows fast, or nears its limit. One that its supervisor replaces at --max-memory may come near to that slowly.
    select
        case when m.share >= 0.9 and m.memory >= 2 * b.memory then 'critical' else 'warning' end, 'memory', m.worker,
        concat(
            'it holds ' || pg_size_pretty(m.memory),
            ', ' || round(100 * m.share) || ' % of its limit of ' || pg_size_pretty(m.memory_limit),
            '; ' || pgqueue._in_words(p_now - b.at) || ' ago it held ' || pg_size_pretty(b.memory),
            '; it runs ' || coalesce(j.tasks || ', the longest job ' || j.first_id || ' for ' || pgqueue._in_words(p_now - j.since), 'no job')
        ),
        case
            when j.jobs = 1 then format('pgqueue jobs stack %1$s; pgqueue jobs cancel %1$s; if it does not end: pgqueue workers kill --job %1$s', j.first_id)
            when j.jobs > 1 then format('pgqueue jobs list --state executing --worker %1$s; pgqueue workers kill %1$s', pgqueue._shell_quoted(m.worker))
            else 'pgqueue workers stop ' || pgqueue._shell_quoted(m.worker)
        end
    from (
        select w.name as worker, h.memory, l.memory_limit, h.memory / nullif(l.memory_limit, 0) as share, w.info ? 'max_memory' as is_replaced
        from pgqueue.workers w
        cross join lateral pgqueue._last_heartbeat(w.name, w.server_started_at) h
        cross join lateral (
            select jsonb_path_query_first(w.info, '$.memory_limit ? (@.type() == "number")')::numeric as memory_limit
        ) l
        -- The slowest heartbeat comes once a minute. worker_status would count all executing jobs.
        where h.at > p_now - interval '65 s' and (h.memory >= 0.8 * l.memory_limit or h.memory > 1e9)
        offset 0
    ) m
    -- The least within ten minutes.
    left join lateral (
        select x.at, x.memory
        from (select y.at, y.memory from pgqueue.heartbeats y where y.worker = m.worker order by y.n desc limit 500) x
        where x.memory is not null and x.at > p_now - interval '10 min'
        order by x.memory, x.at desc
        limit 1
    ) b on true
    cross join lateral (
        select
            sum(t.jobs) as jobs, string_agg(t.jobs || ' ' || t.task, ', ' order by t.jobs desc, t.task) as tasks,
            min(t.since) as since, (array_agg(t.first_id order by t.since, t.first_id))[1] as first_id
        from (
            select x.task, count(*) as jobs, min(x.reserved_at) as since, (array_agg(x.id order by x.reserved_at, x.id))[1] as first_id
            from pgqueue.jobs x
            where x.state = 'executing' and x.lease_expires_at >= pgqueue._lease_head() and x.reserved_by = m.worker
                and x.started = x.reservation
            group by x.task
            order by 2 desc, 1
            limit 5
        ) t
    ) j
    where (m.share >= 0.9 and not m.is_replaced) or (m.share >= 0.8 and m.memory >= 2 * b.memory) or (m.memory > 1e9 and m.memory > 4 * b.memory)
$$;
