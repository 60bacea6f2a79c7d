-- metrics: the numbers for a monitor, one a row, under their Prometheus names.
--
-- From the last samples, bounded numbers of rows, and statistics of the server: the cost does not depend on the backlog.
-- While no living worker takes samples, the jobs are counted: alerts have to fire just then. Reads only.
-- Read it once for a database, not in each worker; workers count the jobs that they end.

create or replace function pgqueue.metrics()
returns table (name text, labels jsonb, value double precision)
language plpgsql stable security definer rows 100
set search_path = pg_catalog, pg_temp
set jit = off
as $$
declare
    v_now timestamptz := pgqueue._clock();
begin
    return query
    with numbers as materialized (select pgqueue.stats(recent => null) as document),
    -- Where there are thousands of queues, those that are late, and those with the most jobs.
    queues as (
        select q.queue ->> 'queue' as name, q.queue, case when l.lag >= 30 or l.stuck_for >= 300 then greatest(l.lag, l.stuck_for) end as late
        from numbers n
        cross join jsonb_array_elements(n.document -> 'queues') q (queue)
        cross join jsonb_to_record(q.queue) l (lag float8, stuck_for float8)
        order by (l.lag >= 30 or l.stuck_for >= 300) desc, (q.queue ->> 'length')::bigint + (q.queue ->> 'executing')::bigint desc, q.queue ->> 'queue'
        limit 500
    ),
    living as materialized (select w.* from pgqueue._living_workers_of(null, v_now) w)
    select 'pgqueue_queue_jobs', jsonb_build_object('queue', q.name, 'state', s.state), (q.queue ->> s.state)::double precision
    from queues q
    cross join unnest('{waiting,due,scheduled,failed,blocked,executing,dead}'::text[]) s (state)
    where q.queue ? s.state
    union all
    select 'pgqueue_' || x.name, jsonb_build_object('queue', q.name) || x.labels, x.value
    from queues q
    left join pgqueue.why_late() w on w.queue_name = q.name
    left join (
        -- An attempt that its worker has reported as running: every third of a lease.
        select j.queue, extract(epoch from v_now - min(j.reserved_at))::double precision as seconds
        from pgqueue._executing_jobs() j
        where j.started = j.reservation
        group by j.queue
    ) e on e.queue = q.name
    cross join lateral (
        values
            ('queue_lag_seconds', '{}'::jsonb, (q.queue ->> 'lag')::double precision),
            -- Only of queues that are not counted in each sample.
            ('queue_counted_age_seconds', '{}', extract(epoch from v_now - (q.queue ->> 'counted_at')::timestamptz)::float8),
            ('queue_counted_to', '{}', (q.queue ->> 'counted_to')::float8),
            ('queue_stuck_seconds', '{}', (q.queue ->> 'stuck_for')::double precision),
            -- Jobs of a paused task or limit_key are neither due nor stuck. why_late() names a hundred.
            ('queue_late_seconds', jsonb_build_object('cause', coalesce(w.cause, case when q.late > 0 then 'unknown' end, 'on_time')), greatest(
                w.lag, w.stuck_for, case when w.cause is null then q.late end, case when w.cause = 'paused' and w.subject <> w.queue_name then extract(epoch from v_now - w.since) end, 0
            )),
            ('queue_oldest_attempt_seconds', '{}', coalesce(e.seconds, 0)),
            ('queue_paused', '{}', (q.queue ->> 'paused_at' is not null)::integer::double precision),
            ('workers', '{}', (select count(*) from living l where l.queues is null or q.name = any (l.queues))::double precision)
    ) x (name, labels, value)
    where x.value is not null
    union all
    select 'pgqueue_pauses', jsonb_build_object('kind', s.kind, 'source', s.source), count(*)::double precision
    from pgqueue._standing_pauses(v_now) s
    group by s.kind, s.source
    union all
    select
        'pgqueue_breakers_open', jsonb_build_object('kind', b.kind, 'state', case when b.half_open_at > v_now then 'open' else 'half_open' end),
        count(*)::double precision
    from pgqueue.pauses b
    where b.source = 'breaker' and b.until > v_now
    group by b.kind, b.half_open_at > v_now
    union all
    select 'pgqueue_slots', jsonb_build_object('state', x.state), x.slots::double precision
    from pgqueue._slots_for(null, v_now) s
    cross join lateral (values
        ('running', greatest(least(s.executing, s.slots) - s.overlong, 0)), ('overlong', s.overlong), ('free', greatest(s.slots - s.executing, 0))
    ) x (state, slots)
    where s.slots is not null
    union all
    select 'pgqueue_heartbeat_memory_bytes', jsonb_build_object('worker', l.name), b.memory::double precision
    from living l
    cross join lateral pgqueue._last_heartbeat(l.name) b
    where b.memory is not null
    union all
    select 'pgqueue_tenant_jobs', jsonb_build_object('tenant', t.tenant), t.jobs from pgqueue._count_tenants(10, 40) t
    union all
    select
        'pgqueue_dead_jobs', jsonb_build_object('task', d.task, 'class', coalesce(d.class, ''), 'error', d.fingerprint), sum(d.jobs)::double precision
    from (select g.* from pgqueue.dead_groups(max_jobs => 2000) g order by g.jobs desc, g.last_at desc limit 10) d
    group by d.task, d.class, d.fingerprint
    union all
    select 'pgqueue_limit_' || x.name, jsonb_build_object('kind', l.part ->> 'kind', 'target', l.part ->> 'target'),
        (l.part ->> x.name)::double precision
    from numbers n
    cross join jsonb_array_elements(n.document -> 'limits') l (part)
    cross join unnest('{executing,waiting}'::text[]) x (name)
    union all
    select 'pgqueue_schedule_lag_seconds', jsonb_build_object('name', s.name), greatest(extract(epoch from v_now - s.next_at), 0)::double precision
    from pgqueue.effective_schedules s
    where s.paused_at is null
    union all
    select 'pgqueue_task_info', jsonb_build_object('task', t.name, 'queue', coalesce(t.queue, 'default'), 'owner', coalesce(t.owner, '')), 1
    from (select e.name, e.queue, e.owner from pgqueue.effective_tasks e order by e.name limit 500) t
    union all
    select case when s.relname ~ '^event' then 'pgqueue_' || s.relname else 'pgqueue_dead_tuples' end,
        case when s.relname ~ '^event' then '{}' else jsonb_build_object('table', s.relname) end,
        (case when s.relname ~ '^event' then s.n_live_tup else s.n_dead_tup end)::double precision
    from pg_stat_all_tables s
    where s.schemaname = 'pgqueue'
        and s.relname in ('jobs', 'heads', 'heartbeats', 'idle_workers', 'dedupe_keys', 'samples', 'events', 'event_waits')
    union all
    select 'pgqueue_' || x.name, '{}'::jsonb, x.value::double precision
    from numbers n
    -- Where maintenance has never run, it is as old as the schema.
    cross join (select min(r.installed_at) as at from pgqueue.releases r) f
    cross join lateral (
        values
            ('maintenance_age_seconds', extract(epoch from greatest(v_now - coalesce((n.document #>> '{maintenance,last_at}')::timestamptz, f.at), '0'))),
            ('rescued_total', (n.document #>> '{maintenance,rescued}')::numeric),
            ('unblocked_total', (n.document #>> '{maintenance,unblocked}')::numeric),
            ('sample_age_seconds', (select extract(epoch from v_now - max(s.at)) from pgqueue.samples s where s.span = 10)),
            ('partitions_overdue', (n.document #>> '{maintenance,overdue_partitions}')::numeric),
            ('notify_queue_usage_ratio', pg_notification_queue_usage()::numeric),
            ('oldest_xmin_age_seconds', (
                select coalesce(max(extract(epoch from greatest(clock_timestamp() - o.since, '0'))), 0)
                from (
                    select a.xact_start as since
                    from pg_stat_activity a
                    where coalesce(a.backend_xmin, a.backend_xid) is not null and a.pid <> pg_backend_pid()
                        and a.backend_type in ('client backend', 'walsender') and (a.datname = current_database() or a.datname is null)
                    union all
                    select p.prepared from pg_prepared_xacts p where p.database = current_database()
                ) o
            ))
    ) x (name, value)
    where x.value is not null;
end
$$;

comment on function pgqueue.metrics() is
    'The numbers for a monitor: name, labels and value, as /metrics shows them. Those of queues are of the last sample while a worker takes samples, else counted, '
    'up to 10,000 of each lane. select name, labels, value from pgqueue.metrics(); [reader]';

-- How many jobs of each limit_key wait, the most first; what is beyond p_most is in one row. Reads the jobs of p_blocks blocks
-- of the table, and estimates by them where it has more: no index has limit_key, for every enqueue would pay for it.
create or replace function pgqueue._count_tenants(p_most integer, p_blocks integer)
returns table (tenant text, jobs double precision)
language sql rows 10
as $$
    with chosen as materialized (
        select distinct case when s.blocks > p_blocks then floor(random() * s.blocks)::bigint else g.n end as block, s.blocks
        from (select pg_relation_size('pgqueue.jobs') / current_setting('block_size')::bigint as blocks) s
        cross join generate_series(0, p_blocks - 1) g (n)
        where g.n < s.blocks
    ),
    found as (
        select j.limit_key as tenant, count(*) * max(c.blocks)::double precision / (select count(*) from chosen) as jobs
        from chosen c
        cross join lateral (
            select x.limit_key
            from pgqueue.jobs x
            where x.ctid >= format('(%s,0)', c.block)::tid and x.ctid < format('(%s,0)', c.block + 1)::tid
                and x.state in ('waiting', 'failed', 'blocked') and x.limit_key is not null
            offset 0
        ) j
        group by j.limit_key
    )
    select case when r.n <= p_most then r.tenant else '(others)' end, round(sum(r.jobs)::numeric)::double precision
    from (select f.*, row_number() over (order by f.jobs desc, f.tenant) as n from found f) r
    group by 1
$$;
