-- What doctor() checks of the queue: maintenance, queues, limits, workers, tasks and schedules.
-- Each function returns rows of severity, topic, subject, evidence and remedy.

create or replace function pgqueue._doctor_queues(p_now timestamptz)
returns table (severity text, topic text, subject text, evidence text, remedy text)
language sql stable rows 5
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
    -- A finding is about one cause, and names each queue that it makes late. Unknown tasks have their own findings.
    select
        (array_agg(w.severity order by array_position('{critical,warning,info}'::text[], w.severity)))[1], case when w.cause = 'workers' then 'lag' else w.cause end,
        case when count(*) > 1 and w.of_queues then format('%s queues', count(*)) else min(w.subject) end,
        concat(
            (array_agg(w.evidence order by greatest(w.lag, w.stuck_for) desc, w.queue_name))[1],
            case when count(*) > 1 or not w.of_queues then '; late by it: ' || string_agg(
                format('%s (%s)', w.queue_name, pgqueue._in_words(make_interval(secs => greatest(w.lag, w.stuck_for)))), ', '
                order by greatest(w.lag, w.stuck_for) desc, w.queue_name
            ) end
        ),
        case
            when count(*) > 1 and w.cause = 'no_worker' and w.command not like 'select %'
                then 'pgqueue worker -r MODULE ' || string_agg('--queue ' || pgqueue._shell_quoted(w.queue_name), ' ' order by w.queue_name)
            when count(*) > 1 and w.cause = 'paused' then string_agg(w.remedy, ' ' order by w.queue_name)
            else (array_agg(w.remedy order by greatest(w.lag, w.stuck_for) desc, w.queue_name))[1]
        end
    from (
        select
            x.*, x.cause in ('no_worker', 'paused', 'workers', 'starved') as of_queues,
            case when x.cause = 'no_worker' then regexp_replace(x.remedy, ' --queue .*', '') end as command
        from pgqueue.why_late() x
        where x.cause <> 'unknown_task'
            and (x.cause in ('no_worker', 'paused', 'slots') or greatest(x.lag, x.stuck_for) > 300)
    ) w
    group by w.cause, w.of_queues, w.command, case when not w.of_queues then w.subject end
    union all
    select
        'warning', 'limit', format('%s:%s', l.limits ->> 'kind', l.limits ->> 'target'),
        format('the limit lets no job start (max_executing = 0), and holds back %s%s',
            case when (l.limits ->> 'parked')::bigint >= (l.limits ->> 'counted_to')::bigint then 'at least ' end,
            pgqueue._counted((l.limits ->> 'parked')::bigint)),
        format('select pgqueue.set_limit(%L, %L, max_executing => 1);', l.limits ->> 'kind', l.limits ->> 'target')
    from jsonb_array_elements(pgqueue._limits_now(10000, 1000)) l (limits)
    where (l.limits ->> 'max_executing')::integer = 0 and (l.limits ->> 'parked')::bigint > 0
    union all
    select
        'warning', 'limit', w.name,
        format('the first job that waits for it costs %s units, and it has %s at most: the job starts when nothing of it is taken, and those behind it wait',
            w.units, w.most),
        format('pgqueue limits set %s --%s %s', w.of, w.part, w.units)
    from (
        select
            l.kind || ':' || l.target as name, l.kind || ' ' || pgqueue._shell_quoted(l.target) as of,
            case when l.burst is not null then 'burst' when l.rate is not null then 'rate' else 'max-cost' end as part,
            least(coalesce(l.burst, l.rate), l.max_cost) as most, pgqueue._wanted_units(l.kind || ':' || l.target, p_now) as units
        from pgqueue.limits l
    ) w
    where w.units > w.most
    union all
    select
        'warning', 'paused', format('%s:%s', s.kind, s.target),
        format('nothing of it starts since %s, until %s: %s', s.since, coalesce(s.until::text, 'resume()'),
            concat_ws(', ', s.source || ' ' || s.by, s.reason)),
        format('select pgqueue.resume(%L, %L, %L);', s.kind, s.target, s.source)
    from pgqueue._standing(p_now) s
    -- A queue that has jobs due is found above.
    where s.since < p_now - interval '1 day' and s.source <> 'breaker' and (s.kind <> 'queue' or pgqueue._due_in(s.target, null, p_now) = 0)
    union all
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
    union all
    select
        'critical', 'maintenance', 'maintain',
        case
            when h.at is null then 'it has never run: no lapsed lease is taken back, and no schedule is due'
            else format('it last ran at %s, %s ago: lapsed leases, schedules and retention wait', h.at, date_trunc('second', p_now - h.at))
        end,
        'start a worker, or let pg_cron call: select pgqueue.maintain();'
    from (select max(x.at) as at from pgqueue.maintenance_runs x) h
    where (h.at is null or h.at < p_now - interval '1 min')
        and exists (select from pgqueue.jobs)
    union all
    select
        case when l.failures > 2 then 'critical' else 'warning' end, 'maintenance', l.step,
        format('the step fails since %s, %s: %s', l.failing_since,
            case l.failures when 1 then 'once' else l.failures || ' times' end, l.error),
        'correct the cause that the error names; maintain() retries the step by itself'
    from pgqueue._last_steps() l
    where l.error is not null
    union all
    select
        'warning', 'maintenance', l.step,
        format('the step has not run since %s: maintenance does not keep up', l.missed_since),
        'raise statement_timeout of the role that runs it, and check old_snapshot and dead_tuples'
    from pgqueue._last_steps() l
    where l.missed_since < p_now - interval '1 min'
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
        'critical', 'schedule', s.name, format('it cannot run: %s', s.error),
        'pgqueue schedules show ' || pgqueue._shell_quoted(s.name)
    from pgqueue.effective_schedules s
    where s.error is not null
    union all
    select
        'critical', 'schedule', s.name, format('it was due at %s and has not run', s.next_at),
        'start a worker, or: select pgqueue.maintain();'
    from pgqueue.effective_schedules s
    where s.error is null and s.paused_at is null and s.next_at < p_now - interval '1 min'
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

-- Quotes a name for a shell: a producer may give a queue any name, and an operator pastes the command.
create or replace function pgqueue._shell_quoted(p_text text)
returns text
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select case
        when p_text ~ '^[A-Za-z0-9_.:@%+/][A-Za-z0-9_.:@%+/-]*$' then p_text
        else '''' || replace(p_text, '''', '''"''"''') || ''''
    end
$$;

create or replace function pgqueue._doctor_workers(p_now timestamptz)
returns table (severity text, topic text, subject text, evidence text, remedy text)
language sql stable rows 3
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
    with first_jobs as materialized (select f.* from pgqueue._first_jobs(null, 30, 'infinity', p_now) f)
    select
        'warning', 'unknown_task', j.task,
        format('no worker has ever declared the task, and jobs of it wait in queue %s, such as job %s', min(j.queue), min(j.id)),
        'start a worker that has it, correct its name, or: ' || format('select pgqueue.cancel_many(task => %L);', j.task)
    from first_jobs j
    where j.is_unknown
    group by j.task
    union all
    select
        'warning', 'given_back', j.task,
        format('workers give jobs of the task back again and again without an attempt, such as job %s, the last time worker %s: '
            'they do not have the task, or its handler snoozes', min(j.id), max(j.reserved_by)),
        'start a worker that has it, let its queue be served by such workers only, or: '
            || format('select pgqueue.cancel_many(task => %L);', j.task)
    from first_jobs j
    where j.is_given_back and not j.is_unknown
    group by j.task
    union all
    select
        'warning', 'failures', f.task,
        format('%s of %s attempts within ten minutes failed', f.failed, f.attempts),
        format('pgqueue jobs list --state dead --task %1$s; when its cause is removed: pgqueue jobs retry --task %1$s', pgqueue._shell_quoted(f.task))
    from (
        select
            t.key as task,
            sum(coalesce((t.value ->> 'failed')::numeric, 0) + coalesce((t.value ->> 'dead')::numeric, 0)) as failed,
            sum(coalesce((t.value ->> 'succeeded')::numeric, 0) + coalesce((t.value ->> 'failed')::numeric, 0)
                + coalesce((t.value ->> 'dead')::numeric, 0)) as attempts
        from pgqueue.samples s
        cross join jsonb_each(s.ended) t
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
        case w.command
            when 'quiet' then format('select pgqueue.resume_worker(%L); when it may reserve jobs again', w.worker)
            else 'wait for its jobs to end, or end its process'
        end
    from pgqueue.worker_status w
    where w.command is not null and w.is_alive
    union all
    select
        case when abs(c.ahead) > 30 then 'warning' else 'info' end, 'clock', c.host,
        format('the clock of %s is %s s %s that of the database', c.host, abs(c.ahead),
            case when c.ahead > 0 then 'ahead of' else 'behind' end),
        'synchronise the clocks (chrony, systemd-timesyncd); the queue uses the clock of the database alone, logs do not'
    from (
        -- Processes of one host have one clock.
        select distinct on (x.host) x.host, x.ahead
        from (
            select coalesce(w.info ->> 'host', w.name) as host, (w.info ->> 'clock_ahead')::numeric as ahead
            from pgqueue.workers w
            where jsonb_typeof(w.info -> 'clock_ahead') = 'number'
        ) x
        order by x.host, abs(x.ahead) desc
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
        'info', 'versions', 'workers', format('workers of several versions: %s', string_agg(v.version, ', ' order by v.version collate "C")),
        'nothing, if a deployment is under way'
    from (select distinct w.info ->> 'version' as version from pgqueue.workers w where w.info ->> 'version' is not null) v
    having count(*) > 1
$$;

-- The first jobs of a queue (null: of each), p_most of each lane, also those that were given back for a while.
create or replace function pgqueue._first_jobs(p_queue text, p_most integer, p_until timestamptz, p_now timestamptz)
returns table (id bigint, queue text, task text, reserved_by text, run_at timestamptz, is_unknown boolean, is_given_back boolean)
language sql stable rows 100
as $$
    select
        j.id, j.queue, j.task, j.reserved_by, j.run_at,
        exists (select from pgqueue.tasks) and not exists (select from pgqueue.tasks t where t.name = j.task),
        j.is_given_back
    from (
        select distinct l.queue, l.priority from pgqueue.lanes l where p_queue is null or l.queue = p_queue
    ) l
    cross join (values (false), (true)) s (resumed)
    cross join lateral pgqueue._head(l.queue, l.priority, s.resumed) h
    cross join lateral (
        select
            x.id, x.queue, x.task, x.reserved_by, x.run_at,
            -- Passing a row as an argument decompresses its long args, so this is done for few rows only.
            case when x.attempts = 0 and x.reservation >= 3 << 20 then pgqueue._is_given_back(x, p_now) end as is_given_back
        from pgqueue.jobs x
        where x.state in ('waiting', 'failed')
            and x.queue = l.queue
            and x.priority = l.priority
            and x.resumed = s.resumed
            and (x.ready_at, x.id) >= (h.head, h.head_id)
            and x.ready_at <= p_until
        order by x.ready_at, x.id
        limit p_most
    ) j
$$;
