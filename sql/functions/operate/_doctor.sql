-- The parts of doctor(). Each returns rows of severity, topic, subject, evidence and remedy.

create or replace function pgqueue._doctor_sessions()
returns table (severity text, topic text, subject text, evidence text, remedy text)
language sql
stable
parallel restricted
rows 5
set search_path = pg_catalog, pg_temp
as $$
    select
        case when o.age > interval '1 hour' then 'critical' else 'warning' end,
        'old_snapshot', o.who, o.evidence
            || '; nothing that was deleted since can be cleaned up: tables and indexes of the queue grow, and every claim slows down',
        o.remedy
    from (
        select
            clock_timestamp() - a.xact_start as age,
            format('session %s', a.pid) as who,
            format(
                'session %s (role %s, %s, from %s), %s since %s, holds back the horizon by %s transactions', a.pid, a.usename,
                coalesce(nullif(a.application_name, ''), 'no application_name'), coalesce(host(a.client_addr), 'the local socket'),
                a.state, a.xact_start, age(coalesce(a.backend_xmin, a.backend_xid))
            ) as evidence,
            format('select pg_terminate_backend(%s); and set idle_in_transaction_session_timeout', a.pid) as remedy
        from pg_stat_activity a
        where coalesce(a.backend_xmin, a.backend_xid) is not null
            and a.xact_start < clock_timestamp() - interval '15 min'
            and a.backend_type in ('client backend', 'walsender')
            and (a.datname = current_database() or a.datname is null)
        union all
        select
            clock_timestamp() - x.prepared, format('prepared transaction %s', x.gid),
            format('prepared transaction %L of %s, since %s', x.gid, x.owner, x.prepared), format('rollback prepared %L;', x.gid)
        from pg_prepared_xacts x
        where x.prepared < clock_timestamp() - interval '15 min' and x.database = current_database()
        union all
        select
            interval '2 hours', format('replication slot %s', s.slot_name),
            format('replication slot %s (%s) holds back the horizon by %s transactions', s.slot_name,
                case when s.active then 'in use' else 'not in use' end, age(coalesce(s.xmin, s.catalog_xmin))),
            case
                when s.active then 'end the long query on that standby, or set hot_standby_feedback = off there'
                else format('select pg_drop_replication_slot(%L); if nothing needs it', s.slot_name)
            end
        from pg_replication_slots s
        where age(coalesce(s.xmin, s.catalog_xmin)) > 1000000
    ) o
    union all
    select
        'info', 'blind', 'pg_stat_activity',
        format('%s sessions of other roles are hidden from role %s: an old snapshot among them is not found', count(*), current_user),
        format('grant pg_read_all_stats to %I;', current_user)
    from pg_stat_activity a
    where a.query = '<insufficient privilege>' and a.datname = current_database()
    having count(*) > 0
    union all
    select
        case when u.used > 0.9 then 'critical' else 'warning' end, 'notify_queue', 'NOTIFY',
        format('%s %% of the queue of notifications is used: a session that listens is in a long transaction. Above one half, workers are not notified and poll instead', round(u.used::numeric * 100)),
        'end the oldest transaction of a session that listens: select pid, xact_start, query from pg_stat_activity order by xact_start;'
    from (select pg_notification_queue_usage() as used) u
    where u.used > 0.25
    union all
    select
        'warning', 'connections', 'max_connections',
        format('%s of %s connections are in use', c.used, c.most), 'use a pooler, or raise max_connections'
    from (
        select count(*) as used, current_setting('max_connections')::integer as most
        from pg_stat_activity a
        where a.backend_type = 'client backend'
    ) c
    where c.used > 0.9 * c.most
$$;

comment on function pgqueue._doctor_sessions() is 'Private: doctor() of sessions, prepared transactions, slots and notifications.';

create or replace function pgqueue._doctor_settings()
returns table (severity text, topic text, subject text, evidence text, remedy text)
language sql
stable
parallel restricted
rows 3
set search_path = pg_catalog, pg_temp
as $$
    select s.severity, 'settings', s.name, s.evidence, s.remedy
    from (
        values
            (
                'critical', 'fsync', 'off', 'a crash of the machine loses or corrupts the whole cluster',
                'alter system set fsync = on; select pg_reload_conf();'
            ),
            (
                'critical', 'full_page_writes', 'off', 'a crash of the machine may corrupt pages',
                'alter system set full_page_writes = on; select pg_reload_conf();'
            ),
            (
                'critical', 'autovacuum', 'off', 'dead rows are never cleaned up: the queue slows down without end',
                'alter system set autovacuum = on; select pg_reload_conf();'
            ),
            (
                'critical', 'track_counts', 'off', 'autovacuum does nothing without it',
                'alter system set track_counts = on; select pg_reload_conf();'
            ),
            (
                'warning', 'synchronous_commit', 'off',
                'a crash loses the last commits: a job that was enqueued is gone, one that had ended runs again',
                'alter system set synchronous_commit = on; select pg_reload_conf();'
            )
    ) w (severity, name, bad, why, remedy)
    cross join lateral (
        select w.severity, w.name, format('%s = %s: %s', w.name, current_setting(w.name), w.why) as evidence, w.remedy
    ) s
    where current_setting(w.name) = w.bad
    union all
    -- Of a database or a role: what this session has may differ.
    select
        'warning', 'settings', c.setting,
        format('%s is set for %s: a crash loses the last commits of its sessions', c.setting,
            coalesce('role ' || (select r.rolname from pg_roles r where r.oid = d.setrole), 'this database')),
        case
            when d.setrole = 0 then format('alter database %I reset synchronous_commit;', current_database())
            else format('alter role %I reset synchronous_commit;', (select r.rolname from pg_roles r where r.oid = d.setrole))
        end
    from pg_db_role_setting d
    cross join unnest(d.setconfig) c (setting)
    where d.setdatabase in (0, (select b.oid from pg_database b where b.datname = current_database()))
        and c.setting = 'synchronous_commit=off'
    union all
    select
        'info', 'settings', 'idle_in_transaction_session_timeout',
        'it is 0: a session that was forgotten inside a transaction holds back vacuum without end',
        format('alter database %I set idle_in_transaction_session_timeout = ''10 min'';', current_database())
    where current_setting('idle_in_transaction_session_timeout')::interval = '0'
    union all
    select
        case when age(d.datfrozenxid) > 1600000000 then 'critical' else 'warning' end, 'wraparound', d.datname::text,
        format('the oldest row is %s transactions old; at 2 billion the server stops to accept commands', age(d.datfrozenxid)),
        'end old transactions and drop unused replication slots, then: vacuum (freeze);'
    from pg_database d
    where d.datname = current_database() and age(d.datfrozenxid) > 1000000000
$$;

comment on function pgqueue._doctor_settings() is 'Private: doctor() of settings of the server.';

create or replace function pgqueue._doctor_tables(p_now timestamptz)
returns table (severity text, topic text, subject text, evidence text, remedy text)
language sql
stable
parallel restricted
rows 3
set search_path = pg_catalog, pg_temp
as $$
    select
        case when s.n_dead_tup > 1000000 then 'critical' else 'warning' end, 'dead_tuples', s.relname::text,
        format('%s dead rows beside %s live ones; last vacuum %s', s.n_dead_tup, s.n_live_tup,
            coalesce(greatest(s.last_vacuum, s.last_autovacuum)::text, 'never')),
        format('vacuum %I.%I; if it removes nothing, see old_snapshot', s.schemaname, s.relname)
    from pg_stat_all_tables s
    where s.schemaname = 'pgqueue'
        and s.relname !~ '^history'
        and s.n_dead_tup > greatest(100000, s.n_live_tup)
    union all
    select
        'critical', 'autovacuum', c.relname::text, format('autovacuum is off for the table %s', c.relname),
        format('alter table pgqueue.%I reset (autovacuum_enabled);', c.relname)
    from pg_class c
    cross join unnest(c.reloptions) o (option)
    where c.relnamespace = 'pgqueue'::regnamespace and o.option = 'autovacuum_enabled=false'
    union all
    select
        'warning', 'autovacuum', 'jobs',
        'pgqueue.jobs has lost its settings of autovacuum: it is vacuumed as rarely as any table',
        'alter table pgqueue.jobs set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);'
    from pg_class c
    where c.oid = 'pgqueue.jobs'::regclass
        and not coalesce(c.reloptions, '{}') @> '{autovacuum_vacuum_scale_factor=0}'
    union all
    select
        'warning', 'partitions', 'history',
        format('%s partitions of history hold only rows whose retention is over, the oldest since %s', count(*), min(o.upper)),
        'end the long queries on pgqueue.history or all_jobs that keep maintain() from dropping them'
    from pgqueue._overdue_partitions(p_now) o
    where o.upper < p_now - interval '1 hour'
    having count(*) > 0
    union all
    select
        'warning', 'partitions', 'history',
        format('%s partitions of history for the next days or months are missing', count(*)),
        'let a worker run, or: select pgqueue.maintain();'
    from pgqueue._partition_gaps(3, 1) g
    having count(*) > 0
$$;

comment on function pgqueue._doctor_tables(timestamptz) is 'Private: doctor() of dead rows, autovacuum and partitions.';

create or replace function pgqueue._doctor_maintenance(p_now timestamptz)
returns table (severity text, topic text, subject text, evidence text, remedy text)
language sql
stable
parallel restricted
rows 3
set search_path = pg_catalog, pg_temp
as $$
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
        'critical', 'maintenance', l.step, format('the step fails since %s, %s times: %s', l.failing_since, l.failures, l.error),
        'mend what the error says; the step is tried again by itself'
    from pgqueue._last_steps() l
    where l.error is not null and l.failures > 2
    union all
    select
        'warning', 'maintenance', l.step,
        format('the step had no turn since %s: maintenance does not keep up', l.missed_since),
        'raise statement_timeout of the role that runs it, and look for old_snapshot and dead_tuples'
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
        'warning', 'hidden_jobs', 'heads', 'maintenance found ready jobs that were below the head of their lane, and mended that',
        'please report it, with select * from pgqueue.maintenance_runs order by n desc limit 100;'
    from (
        select max(x.hidden) - min(x.hidden) as found from pgqueue.maintenance_runs x
    ) h
    where h.found > 0
$$;

comment on function pgqueue._doctor_maintenance(timestamptz) is 'Private: doctor() of maintain().';

create or replace function pgqueue._doctor_queues(p_now timestamptz)
returns table (severity text, topic text, subject text, evidence text, remedy text)
language sql
stable
parallel restricted
rows 5
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
    with due as (
        select d.queue, min(d.ready_at) as oldest
        from (select distinct l.queue, l.priority from pgqueue.lanes l) l
        cross join (values (false), (true)) s (resumed)
        cross join lateral pgqueue._head(l.queue, l.priority, s.resumed) h
        cross join lateral (
            select l.queue, f.ready_at
            from pgqueue._first_ready(l.queue, l.priority, s.resumed, h.head, h.head_id, p_now) f
        ) d
        group by d.queue
    )
    select
        case when q.paused_at is null then 'critical' else 'info' end,
        case when q.paused_at is null then 'no_worker' else 'paused' end,
        d.queue,
        case
            when q.paused_at is not null then format('the queue is paused since %s; its oldest job is due since %s', q.paused_at, d.oldest)
            else format('jobs are due since %s, and no worker with a heartbeat within a minute serves the queue', d.oldest)
        end,
        case
            when q.paused_at is not null then format('select pgqueue.resume_queue(%L);', d.queue)
            else format('pgqueue worker --queues %s', d.queue)
        end
    from due d
    left join pgqueue.queues q on q.name = d.queue
    where (q.paused_at is not null or pgqueue._workers_of(d.queue, p_now) = 0)
        and d.oldest < p_now - interval '30 s'
    union all
    select
        'warning', 'lag', d.queue, format('the oldest job is due since %s', d.oldest),
        'start more workers for the queue, or raise --concurrency; see its tasks for what takes long'
    from due d
    left join pgqueue.queues q on q.name = d.queue
    where d.oldest < p_now - interval '5 min' and q.paused_at is null and pgqueue._workers_of(d.queue, p_now) > 0
    union all
    select
        'warning', 'limit', format('%s:%s', l.limits ->> 'kind', l.limits ->> 'target'),
        format('the limit lets nothing start (max_executing = 0), and %s jobs wait for it', l.limits ->> 'parked'),
        format('select pgqueue.set_limit(%L, %L, max_executing => 1);', l.limits ->> 'kind', l.limits ->> 'target')
    from jsonb_array_elements(pgqueue._limits_now(10000)) l (limits)
    where (l.limits ->> 'max_executing')::integer = 0 and (l.limits ->> 'parked')::bigint > 0
    union all
    select
        'warning', 'limit', j.blocked_on, format('at least %s jobs wait for a limit that does not exist any more', count(*)),
        'select pgqueue.maintain(); releases them within a minute'
    from (
        select x.blocked_on from pgqueue.jobs x where x.state = 'blocked' and x.blocked_on is not null limit 10000
    ) j
    where not exists (
        select
        from pgqueue.limits l
        where l.kind || ':' || l.target = j.blocked_on
            or (l.kind = 'limit_key' and right(l.target, 1) = '*' and starts_with(j.blocked_on, 'limit_key:' || left(l.target, -1)))
    )
    group by j.blocked_on
$$;

comment on function pgqueue._doctor_queues(timestamptz) is 'Private: doctor() of queues and limits.';

create or replace function pgqueue._doctor_workers(p_now timestamptz)
returns table (severity text, topic text, subject text, evidence text, remedy text)
language sql
stable
parallel restricted
rows 3
set search_path = pg_catalog, pg_temp
as $$
    select
        'warning', 'worker', w.worker,
        format('jobs that it holds: %s, with a lapsed lease: %s; its last heartbeat: %s', w.executing, w.lapsed,
            coalesce(w.last_heartbeat_at::text, 'none')),
        'look after its process; maintain() takes the jobs back'
    from pgqueue.worker_status w
    where w.is_alive is not true and w.lapsed > 0
    union all
    select
        case when abs(c.ahead) > 30 then 'warning' else 'info' end, 'clock', coalesce(c.host, c.name),
        format('the clock of %s is %s s %s that of the database', coalesce(c.host, c.name), abs(c.ahead),
            case when c.ahead > 0 then 'ahead of' else 'behind' end),
        'synchronise the clocks (chrony, systemd-timesyncd); the queue goes by the database''s alone, logs do not'
    from (
        select w.name, w.info ->> 'host' as host, (w.info ->> 'clock_ahead')::numeric as ahead
        from pgqueue.workers w
        where jsonb_typeof(w.info -> 'clock_ahead') = 'number'
    ) c
    where abs(c.ahead) > 2
    union all
    select
        'info', 'pooler', w.name,
        case
            when w.info -> 'listen' = 'false' then 'it does not listen: an idle worker starts a job up to its poll interval late'
            else 'it works through a pooler in transaction mode, and listens on a connection of its own'
        end,
        'for work at once: --listen-dsn with the server''s own address'
    from pgqueue.workers w
    where w.info -> 'listen' = 'false' or w.info -> 'pooled' = 'true'
    union all
    select
        'info', 'versions', 'workers', format('workers of several versions: %s', string_agg(v.version, ', ' order by v.version)),
        'nothing, if a deployment is under way'
    from (select distinct w.info ->> 'version' as version from pgqueue.workers w where w.info ->> 'version' is not null) v
    having count(*) > 1
$$;

comment on function pgqueue._doctor_workers(timestamptz) is 'Private: doctor() of workers.';

create or replace function pgqueue._doctor_tasks()
returns table (severity text, topic text, subject text, evidence text, remedy text)
language sql
stable
parallel restricted
rows 3
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
    select
        'warning', 'unknown_task', j.task,
        format('no worker has ever declared the task, and jobs of it wait in queue %s, such as job %s', min(j.queue), min(j.id)),
        'start a worker that has it, mend its name, or: ' || format('select pgqueue.cancel_many(task => %L);', j.task)
    from (select distinct l.queue, l.priority from pgqueue.lanes l) l
    cross join (values (false), (true)) s (resumed)
    cross join lateral pgqueue._head(l.queue, l.priority, s.resumed) h
    cross join lateral (
        select x.id, x.queue, x.task
        from pgqueue.jobs x
        where x.state in ('waiting', 'failed')
            and x.queue = l.queue
            and x.priority = l.priority
            and x.resumed = s.resumed
            and (x.ready_at, x.id) >= (h.head, h.head_id)
        order by x.ready_at, x.id
        limit 100
    ) j
    where exists (select from pgqueue.tasks) and not exists (select from pgqueue.tasks t where t.name = j.task)
    group by j.task
    union all
    select
        'warning', 'failures', f.task,
        format('%s of %s attempts within ten minutes failed', f.failed, f.attempts),
        format('select line, jobs from pgqueue.dead_groups() where task = %L; and its log', f.task)
    from (
        select
            t.key as task,
            sum(coalesce((t.value ->> 'failed')::numeric, 0) + coalesce((t.value ->> 'dead')::numeric, 0)) as failed,
            sum(coalesce((t.value ->> 'succeeded')::numeric, 0) + coalesce((t.value ->> 'failed')::numeric, 0)
                + coalesce((t.value ->> 'dead')::numeric, 0)) as attempts
        from pgqueue.samples s
        cross join jsonb_each(s.ended) t
        where s.span = 10 and s.at > pgqueue._clock() - interval '10 min' and s.queue <> ''
        group by t.key
    ) f
    where f.attempts >= 20 and f.failed > 0.5 * f.attempts
$$;

comment on function pgqueue._doctor_tasks() is 'Private: doctor() of tasks.';

create or replace function pgqueue._doctor_schedules(p_now timestamptz)
returns table (severity text, topic text, subject text, evidence text, remedy text)
language sql
stable
parallel restricted
rows 3
set search_path = pg_catalog, pg_temp
as $$
    select
        'critical', 'schedule', s.name, format('it cannot run: %s', s.error),
        format('pgqueue schedules show %s', s.name)
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
        format('%s runs within a day were left out, the last at %s: its job before had not ended, or nobody ran maintenance', count(*), max(r.decided_at)),
        format('pgqueue schedules show %s', r.schedule)
    from pgqueue.schedule_runs r
    where r.decided_at > p_now - interval '1 day' and (r.outcome = 'overlap' or r.passed_from is not null)
    group by r.schedule
$$;

comment on function pgqueue._doctor_schedules(timestamptz) is 'Private: doctor() of schedules.';

create or replace function pgqueue._doctor_rights()
returns table (severity text, topic text, subject text, evidence text, remedy text)
language sql
stable
parallel restricted
rows 3
set search_path = pg_catalog, pg_temp
as $$
    select
        'critical', 'rights', r.what, format('every role of the server may use %s (%s)', r.what, r.rights),
        'select pgqueue._apply_grants(); as the schema''s owner, and: ' || r.remedy
    from (
        select
            'the schema pgqueue' as what, string_agg(a.privilege_type, ', ') as rights,
            'revoke all on schema pgqueue from public;' as remedy
        from pg_namespace n
        cross join aclexplode(n.nspacl) a
        where n.nspname = 'pgqueue' and a.grantee = 0
        group by n.nspname
        union all
        select
            'table ' || c.relname, string_agg(a.privilege_type, ', '), format('revoke all on pgqueue.%I from public;', c.relname)
        from pg_class c
        cross join aclexplode(c.relacl) a
        where c.relnamespace = 'pgqueue'::regnamespace and a.grantee = 0
        group by c.relname
        union all
        select
            'function ' || min(p.proname), format('execute, on %s functions', count(*)),
            'revoke all on all functions in schema pgqueue from public;'
        from pg_proc p
        cross join aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
        where p.pronamespace = 'pgqueue'::regnamespace and a.grantee = 0
        having count(*) > 0
    ) r
    union all
    select
        'info', 'rights', s.usename::text,
        format('a worker (%s) is connected as %s, a superuser', min(s.application_name), s.usename),
        'create role app_worker login; then: pgqueue grant worker app_worker, and let workers connect as it'
    from pg_stat_activity s
    join pg_roles r on r.rolname = s.usename and r.rolsuper
    join pgqueue.workers w on s.application_name = left('pgqueue ' || w.name, 63)
    where s.datname = current_database()
    group by s.usename
    union all
    select
        'info', 'rights', g.role::text, format('role %s was granted %s and does not exist any more', g.role, g.kind),
        format('select pgqueue.revoke_access(%L, %L);', g.kind, g.role)
    from pgqueue.grants g
    where not exists (select from pg_roles r where r.rolname = g.role)
$$;

comment on function pgqueue._doctor_rights() is 'Private: doctor() of rights.';
