-- What doctor() checks of the queue: what is late, limits and pauses, tenants of fair queues, maintenance and schedules.

create or replace function pgqueue._doctor_queues(p_now timestamptz)
returns table (severity text, topic text, subject text, evidence text, remedy text)
language sql stable rows 5
set enable_seqscan = off
as $$
    with late as materialized (
        select
            x.*, x.cause in ('no_worker', 'paused', 'workers', 'starved') as of_queues, greatest(x.lag, x.stuck_for) as age,
            case when x.cause = 'no_worker' then regexp_replace(x.remedy, ' --queue .*', '') end as command
        from pgqueue.why_late() x
    ),
    -- The first 10,000 due jobs of each lane of queues in which tenants take turns, or that have lanes of tenants.
    tenants as materialized (
        select
            f.queue, f.is_fair, j.limit_key, j.lane_key is null as is_apart, count(*) as jobs,
            sum(count(*)) over (partition by f.queue) as of_queue
        from (
            select a.queue, q.name is not null as is_fair
            from pgqueue.lanes a
            left join pgqueue.queues q on q.name = a.queue and q.fair_by is not null
            group by a.queue, q.name
            having bool_or(a.is_fair)
        ) f
        cross join lateral pgqueue._ready_jobs(f.queue, 10000, p_now) j
        where not j.resumed
        group by 1, 2, 3, 4
    )
    -- A finding is about one cause, and names each queue that it makes late. Unknown tasks have their own findings.
    select
        (array_agg(w.severity order by array_position('{critical,warning,info}'::text[], w.severity)))[1], case when w.cause = 'workers' then 'lag' else w.cause end,
        case when count(*) > 1 and w.of_queues then format('%s queues', count(*)) else min(w.subject) end,
        concat(
            (array_agg(w.evidence order by w.age desc, w.queue_name))[1],
            case when count(*) > 1 or not w.of_queues then '; late by it: ' || string_agg(
                format('%s (%s)', w.queue_name, pgqueue._in_words(make_interval(secs => w.age))), ', ' order by w.age desc, w.queue_name
            ) end
        ),
        case
            when count(*) > 1 and w.cause = 'no_worker' and w.command not like 'select %'
                then 'pgqueue worker -r MODULE ' || string_agg('--queue ' || pgqueue._shell_quoted(w.queue_name, true), ' ' order by w.queue_name)
            when count(*) > 1 and w.cause = 'paused' then string_agg(w.remedy, ' ' order by w.queue_name)
            else (array_agg(w.remedy order by w.age desc, w.queue_name))[1]
        end
    from late w
    where w.cause <> 'unknown_task' and (w.cause in ('no_worker', 'paused', 'slots') or w.age > 300)
    group by w.cause, w.of_queues, w.command, case when not w.of_queues then w.subject end
    union all
    select
        'warning', 'paused', format('%s:%s', s.kind, s.target),
        format('nothing of it starts since %s, until %s: %s', s.since, coalesce(s.until::text, 'resume()'),
            concat_ws(', ', s.source || ' ' || s.by, s.reason)),
        format('select pgqueue.resume(%L, %L, %L);', s.kind, s.target, s.source)
    from pgqueue._standing_pauses(p_now) s
    where s.since < p_now - interval '1 day' and s.source <> 'breaker'
        and not exists (select from late w where s.kind = 'queue' and w.queue_name = s.target)
    union all
    select
        case when t.limit_key is null then 'warning' else 'info' end, 'tenant', t.queue,
        case
            when t.limit_key is null then format('%s of the first %s that wait in it have no limit_key: they are one tenant, and start in one order',
                to_char(sum(t.jobs), 'FM999,999,999,990'), pgqueue._counted(t.of_queue::bigint, 'job'))
            else format('tenant %s has %s of the first %s that wait in it; the others take their turns between them',
                t.limit_key, to_char(sum(t.jobs), 'FM999,999,999,990'), pgqueue._counted(t.of_queue::bigint, 'job'))
        end,
        case
            when t.limit_key is null then 'enqueue them with a limit_key, or in another queue'
            else format('nothing, or select pgqueue.set_limit(%L, %L, max_executing => 10);', 'limit_key', t.limit_key)
        end
    from tenants t
    where t.is_fair
    group by t.queue, t.limit_key, t.of_queue
    having sum(t.jobs) * 2 > t.of_queue and sum(t.jobs) > case when t.limit_key is null then 100 else 1000 end
    union all
    select
        'info', 'tenant', t.queue,
        format('at least %s wait as they did before it was made %s', pgqueue._counted(sum(t.jobs)::bigint, 'job'), case when t.is_fair then 'fair' else 'plain' end),
        'nothing: maintain() moves them, 5000 and more a second'
    from tenants t
    where t.is_fair = t.is_apart
    group by t.queue, t.is_fair
    union all
    select
        'critical', 'maintenance', 'maintain',
        case
            when h.at is null then 'it has never run: no lapsed lease is taken back, and no schedule is due'
            else format('it last ran at %s, %s ago: lapsed leases, schedules and retention wait', h.at, date_trunc('second', p_now - h.at))
        end,
        'start a worker, or let pg_cron call: select pgqueue.maintain();'
    from (select max(x.at) as at from pgqueue.maintenance_runs x) h
    where (h.at is null or h.at < p_now - interval '1 min') and exists (select from pgqueue.jobs)
    union all
    select f.severity, 'maintenance', l.step, f.evidence, f.remedy
    from pgqueue._last_steps() l
    cross join lateral (
        select
            case when l.failures > 2 then 'critical' else 'warning' end as severity,
            format('the step fails since %s, %s: %s', l.failing_since, case l.failures when 1 then 'once' else l.failures || ' times' end, l.error) as evidence,
            'correct the cause that the error names; maintain() retries the step by itself' as remedy
        where l.error is not null
        union all
        select
            'warning', format('the step has not run since %s: maintenance does not keep up', l.missed_since),
            'raise statement_timeout of the role that runs it, and check old_snapshot and dead_tuples'
        where l.missed_since < p_now - interval '1 min'
    ) f
    union all
    select
        'warning', 'clock', 'server', format('the clock of the server stepped back at %s', h.at),
        'check the time synchronisation of the server'
    from pgqueue.maintenance_runs h
    where h.stepped_from is not null and h.at > p_now - interval '1 hour'
    union all
    select
        'warning', 'hidden_jobs', 'heads', 'maintenance found ready jobs below the head of their lane, and corrected that',
        'please report it, with select * from pgqueue.maintenance_runs order by n desc limit 100;'
    from (select max(x.hidden) - min(x.hidden) as found from pgqueue.maintenance_runs x) h
    where h.found > 0
    union all
    select
        'critical', 'schedule', s.name,
        case when s.error is null then format('it was due at %s and has not run', s.next_at) else format('it cannot run: %s', s.error) end,
        case when s.error is null then 'start a worker, or: select pgqueue.maintain();' else 'pgqueue schedules show ' || pgqueue._shell_quoted(s.name) end
    from pgqueue.effective_schedules s
    where s.error is not null or (s.paused_at is null and s.next_at < p_now - interval '1 min')
    union all
    select
        'warning', 'schedule', r.schedule,
        format('%s left out within a day, the last at %s: its previous job had not ended, or maintenance did not run',
            case count(*) when 1 then 'one run was' else count(*) || ' runs were' end, max(r.decided_at)),
        'pgqueue schedules show ' || pgqueue._shell_quoted(r.schedule)
    from pgqueue.schedule_runs r
    where r.decided_at > pgqueue._after(p_now, '-1 day') and (r.outcome = 'overlap' or r.passed_from is not null)
    group by r.schedule
$$;

-- Breakers, and limits that let nothing start.
create or replace function pgqueue._doctor_limits(p_now timestamptz)
returns table (severity text, topic text, subject text, evidence text, remedy text)
language sql stable rows 3
set enable_seqscan = off
as $$
    select
        'warning', 'breaker', format('%s:%s', p.kind, p.target),
        format('the breaker opened at %s (%s) %s', p.at, p.reason, case
            when p.half_open_at > p_now then format('and nothing of it starts until %s', p.half_open_at)
            else 'and is half-open: one job at a time starts, until an attempt succeeds or fails'
        end),
        'correct what its attempts fail with; to start all of it at once: '
            || format('select pgqueue.resume(%L, %L, ''breaker'');', p.kind, p.target)
    from pgqueue.pauses p
    where p.source = 'breaker' and p.until > p_now
    union all
    select
        'warning', 'limit', format('%s:%s', l.limits ->> 'kind', l.limits ->> 'target'),
        format('the limit lets no job start (max_executing = 0), and holds back %s%s',
            case when (l.limits ->> 'waiting')::bigint >= (l.limits ->> 'counted_to')::bigint then 'at least ' end,
            pgqueue._counted((l.limits ->> 'waiting')::bigint)),
        format('select pgqueue.set_limit(%L, %L, max_executing => 1);', l.limits ->> 'kind', l.limits ->> 'target')
    from jsonb_array_elements(pgqueue._limits_now(10000, 1000)) l (limits)
    where (l.limits ->> 'max_executing')::integer = 0 and (l.limits ->> 'waiting')::bigint > 0
    union all
    select
        'warning', 'limit', w.name,
        format('the first job that waits for it costs %s units, and it has %s at most: the job starts when nothing of it is taken, and those behind it wait',
            to_char(w.units, 'FM999,999,999,990'), to_char(w.most, 'FM999,999,999,990')),
        format('pgqueue limits set %s --%s %s', w.of, w.part, w.units)
    from (
        select
            l.kind || ':' || l.target as name, l.kind || ' ' || pgqueue._shell_quoted(l.target) as of,
            case when l.burst is not null then 'burst' when l.rate is not null then 'rate' else 'max-cost' end as part,
            least(coalesce(l.burst, l.rate), l.max_cost) as most,
            case when p.prefix is null then pgqueue._wanted_units(l.kind || ':' || l.target, p_now) else (
                -- The dearest of the first jobs of its values.
                select max(pgqueue._wanted_units(x.name, p_now))
                from (
                    select distinct y.name
                    from (select j.blocked_on as name from pgqueue.jobs j where j.state = 'blocked' and j.blocked_on >= p.prefix order by 1 limit 1000) y
                ) x
                where starts_with(x.name, p.prefix) and (select o.rule from pgqueue._limits_of(null, null, null, substr(x.name, 11)) o) = l.target
            ) end as units
        from pgqueue.limits l
        cross join lateral (select case when l.kind = 'limit_key' and right(l.target, 1) = '*' then 'limit_key:' || left(l.target, -1) end) p (prefix)
    ) w
    where w.units > w.most
    union all
    select
        'warning', 'limit', j.blocked_on, format('a limit that no longer exists holds back at least %s', pgqueue._counted(count(*), 'job')),
        'select pgqueue.maintain(); releases a thousand of them a call; if a rate was deleted by hand, from its next start on'
    from (select x.blocked_on from pgqueue.jobs x where x.state = 'blocked' and x.blocked_on is not null limit 10000) j
    -- @parents and its like are no limits. The jobs of a pause that has ended come back bit by bit.
    where left(j.blocked_on, 1) <> '@' and not starts_with(j.blocked_on, 'pause:') and not exists (
        select
        from pgqueue.limits l
        where l.kind || ':' || l.target = j.blocked_on
            or (l.kind = 'limit_key' and right(l.target, 1) = '*' and starts_with(j.blocked_on, 'limit_key:' || left(l.target, -1)))
    )
    group by j.blocked_on
$$;
