-- What doctor() checks of the memory of workers, as their heartbeats report it: one that grows fast, or nears its limit,
-- with the jobs that it runs. One that its supervisor replaces at --max-memory may come near to that slowly.

create or replace function pgqueue._doctor_memory(p_now timestamptz)
returns table (severity text, topic text, subject text, evidence text, remedy text)
language sql stable rows 1
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
as $$
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
        cross join lateral (
            select x.at, x.memory
            from pgqueue.heartbeats x
            where x.worker = w.name
            order by x.n desc
            limit 1
        ) h
        cross join lateral (
            select case when jsonb_typeof(w.info -> 'memory_limit') = 'number' then (w.info ->> 'memory_limit')::numeric end as memory_limit
        ) l
        -- The slowest heartbeat comes once a minute. worker_status would count all executing jobs.
        where h.at > p_now - interval '65 s' and (h.memory >= 0.8 * l.memory_limit or h.memory > 1e9)
        offset 0
    ) m
    -- The least within ten minutes.
    left join lateral (
        select x.at, x.memory
        from (
            select y.at, y.memory
            from pgqueue.heartbeats y
            where y.worker = m.worker
            order by y.n desc
            limit 500
        ) x
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
