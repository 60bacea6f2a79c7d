-- What doctor() checks of the server: sessions, settings, tables and rights.

-- Inlined (no SET, and stable): why_late() asks for some topics, and the others are not evaluated.
create or replace function pgqueue._doctor_server(p_now timestamptz)
returns table (severity text, topic text, subject text, evidence text, remedy text)
language sql stable rows 5
as $$
    select
        case when o.age > interval '1 hour' then 'critical' else 'warning' end, 'old_snapshot', o.who,
        format(
            '%s; vacuum cannot remove rows that were deleted since: the tables of the queue have %s dead and %s live rows now, %s with their indexes; they grow with each job, and claims slow down',
            o.evidence, to_char(c.dead, 'FM999,999,999,990'), to_char(c.live, 'FM999,999,999,990'), c.size
        ),
        o.remedy
    from (
        select
            p_now - a.xact_start as age, format('session %s', a.pid) as who,
            format(
                'session %s (role %s, %s, from %s), %s since %s, holds back vacuum by %s', a.pid, a.usename,
                coalesce(nullif(a.application_name, ''), 'no application_name'), coalesce(host(a.client_addr), 'the local socket'),
                a.state, a.xact_start, pgqueue._counted(age(coalesce(a.backend_xmin, a.backend_xid)), 'transaction')
            ) as evidence,
            format('select pg_terminate_backend(%s); and set idle_in_transaction_session_timeout', a.pid) as remedy
        from pg_stat_activity a
        where coalesce(a.backend_xmin, a.backend_xid) is not null and a.xact_start < p_now - interval '15 min'
            and a.backend_type in ('client backend', 'walsender') and (a.datname = current_database() or a.datname is null)
        union all
        select
            p_now - x.prepared, format('prepared transaction %s', x.gid),
            format('prepared transaction %L of %s, since %s', x.gid, x.owner, x.prepared), format('rollback prepared %L;', x.gid)
        from pg_prepared_xacts x
        where x.prepared < p_now - interval '15 min' and x.database = current_database()
        union all
        select
            interval '2 hours', format('replication slot %s', s.slot_name),
            format('replication slot %s (%s) holds back vacuum by %s', s.slot_name, case when s.active then 'in use' else 'not in use' end,
                pgqueue._counted(age(coalesce(s.xmin, s.catalog_xmin)), 'transaction')),
            case
                when s.active then 'end the long query on that standby, or set hot_standby_feedback = off there'
                else format('select pg_drop_replication_slot(%L); if nothing needs it', s.slot_name)
            end
        from pg_replication_slots s
        where age(coalesce(s.xmin, s.catalog_xmin)) > 1000000
    ) o
    cross join (
        select sum(s.n_dead_tup) as dead, sum(s.n_live_tup) as live, pg_size_pretty(sum(pg_total_relation_size(s.relid))) as size
        from pg_stat_all_tables s
        where s.schemaname = 'pgqueue' and s.relname !~ '^history'
    ) c
    union all
    select
        case when s.n_dead_tup > 1000000 then 'critical' else 'warning' end, 'dead_tuples', s.relname::text,
        format('%s dead and %s live rows; last vacuum %s', to_char(s.n_dead_tup, 'FM999,999,999,990'), to_char(s.n_live_tup, 'FM999,999,999,990'),
            coalesce(greatest(s.last_vacuum, s.last_autovacuum)::text, 'never')),
        format('vacuum %I.%I; if it removes nothing, see old_snapshot', s.schemaname, s.relname)
    from pg_stat_all_tables s
    where s.schemaname = 'pgqueue' and s.relname !~ '^history' and s.n_dead_tup > greatest(100000, s.n_live_tup)
    union all
    select
        case when u.used > 0.9 then 'critical' else 'warning' end, 'notify_queue', 'NOTIFY',
        format('%s %% of the queue of notifications is used: a session that listens is in a long transaction. Above one half, workers are not notified and poll instead', round(u.used::numeric * 100)),
        'end the oldest transaction of a session that listens: select pid, xact_start, query from pg_stat_activity order by xact_start;'
    from (select pg_notification_queue_usage() as used) u
    where u.used > 0.25
    union all
    select
        'info', 'blind', 'pg_stat_activity',
        format('role %s cannot see %s of other roles, nor an old snapshot that one of them holds', current_user, pgqueue._counted(count(*), 'session')),
        format('grant pg_read_all_stats to %I;', current_user)
    from pg_stat_activity a
    where a.query = '<insufficient privilege>' and a.datname = current_database()
    having count(*) > 0
    union all
    select
        'warning', 'connections', 'max_connections',
        format('%s of the %s connections that are not reserved for superusers are in use: soon producers and workers are refused', c.used, c.most),
        'use a pooler, or raise max_connections'
    from (
        select
            count(*) as used,
            -- reserved_connections came with PostgreSQL 16.
            current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
                - coalesce(current_setting('reserved_connections', true)::integer, 0) as most
        from pg_stat_activity a
        where a.backend_type = 'client backend'
    ) c
    where c.used > 0.9 * c.most
    union all
    select w.severity, 'settings', w.name, format('%s = %s: %s', w.name, w.wrong, w.why), format(w.remedy, w.name, current_database())
    from (
        select v.severity, v.name, 'off' as wrong, v.why, 'alter system set %s = on; select pg_reload_conf();' as remedy
        from (
            values
                ('critical', 'fsync', 'a crash of the machine loses or corrupts the whole cluster'),
                ('critical', 'full_page_writes', 'a crash of the machine may corrupt pages'),
                ('critical', 'autovacuum', 'dead rows are never cleaned up: the queue slows down without end'),
                ('critical', 'track_counts', 'autovacuum does nothing without it'),
                (
                    'warning', 'synchronous_commit',
                    'a crash loses the last commits: a job that was enqueued is gone, one that had ended runs again'
                )
        ) v (severity, name, why)
        union all
        select
            'info', 'idle_in_transaction_session_timeout', '0', 'a session that was forgotten inside a transaction holds back vacuum without end',
            'alter database %2$I set %1$s = ''10 min'';'
    ) w
    where current_setting(w.name) = w.wrong
    union all
    -- Set for a database or a role: the value in this session may differ.
    select
        'warning', 'settings', c.setting,
        format('%s is set for %s: a crash loses the last commits of its sessions', c.setting, coalesce('role ' || r.rolname, 'this database')),
        format('alter %s %I reset synchronous_commit;', case when r.rolname is null then 'database' else 'role' end, coalesce(r.rolname, current_database()))
    from pg_db_role_setting d
    cross join unnest(d.setconfig) c (setting)
    left join pg_roles r on r.oid = d.setrole
    where d.setdatabase in (0, (select b.oid from pg_database b where b.datname = current_database()))
        and c.setting collate "C" ~* '^synchronous_commit=(off|false|no|0)$'
    union all
    select
        case when age(d.datfrozenxid) > 1600000000 then 'critical' else 'warning' end, 'wraparound', d.datname::text,
        format('the oldest row is %s transactions old; autovacuum freezes rows at %s, and something keeps it from that; at 2 billion the server stops accepting commands',
            to_char(age(d.datfrozenxid), 'FM999,999,999,990'), current_setting('autovacuum_freeze_max_age')),
        'end old transactions and drop unused replication slots, then: vacuum (freeze);'
    from pg_database d
    where d.datname = current_database()
        and age(d.datfrozenxid) > least(3 * current_setting('autovacuum_freeze_max_age')::bigint, 1000000000)
$$;

-- Autovacuum, partitions, and rights.
create or replace function pgqueue._doctor_tables(p_now timestamptz)
returns table (severity text, topic text, subject text, evidence text, remedy text)
language sql stable rows 3
as $$
    select 'critical', 'autovacuum', c.relname::text, format('autovacuum is off for the table %s', c.relname),
        format('alter table pgqueue.%I reset (autovacuum_enabled);', c.relname)
    from pg_class c
    where c.relnamespace = 'pgqueue'::regnamespace and exists (select from unnest(c.reloptions) o where o collate "C" ~* '^autovacuum_enabled=(f|n|of|0)')
    union all
    select
        'warning', 'autovacuum', 'jobs',
        'pgqueue.jobs has lost its autovacuum settings: it is vacuumed as rarely as any other table',
        'alter table pgqueue.jobs set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);'
    from pg_class c
    where c.oid = 'pgqueue.jobs'::regclass and not coalesce(c.reloptions, '{}') @> '{autovacuum_vacuum_scale_factor=0}'
    union all
    select
        'warning', 'partitions', 'history',
        format('history keeps %s of rows whose retention is over, the oldest since %s', pgqueue._counted(count(*), 'partition'), min(o.upper)),
        'end the long queries on pgqueue.history or all_jobs that keep maintain() from dropping them'
    from pgqueue._partitions() o
    where o.upper < p_now - interval '1 hour'
    having count(*) > 0
    union all
    select
        'warning', 'partitions', 'history',
        format('history is missing %s for the next days or months%s', pgqueue._counted(count(*), 'partition'), '; maintain() could not make them: ' || l.error),
        case when l.error is null then 'let a worker run, or: select pgqueue.maintain();' else 'correct the cause that the error names' end
    from pgqueue._partition_gaps(3, 1) g
    cross join (select s.error from pgqueue._last_steps() s where s.step = 'partitions') l
    group by l.error
    union all
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
            'function ' || min(p.proname), 'execute, on ' || pgqueue._counted(count(*), 'function'),
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
        case when e.is_replaced then 'warning' else 'info' end, 'rights', f.role::text,
        concat(
            format('role %s, which was granted %s, ', f.role, f.kind),
            coalesce('was renamed to ' || f.now_name || ': it keeps its rights', 'no longer exists'),
            case when e.is_replaced then '; the role that has its name now is another one, and does not get them' end
        ),
        format(
            case
                when e.is_replaced
                then case when f.now_oid is null then '' else 'nothing: the next pgqueue migrate records the name; ' end
                    || 'if the other role is to have them: select pgqueue.grant_access(%1$L, %2$L); if %3$s is not: select pgqueue.revoke_access(%1$L, %3$L);'
                when f.now_oid is null then 'select pgqueue.revoke_access(%1$L, %2$L);'
                else 'nothing: the next pgqueue migrate records the name'
            end,
            f.kind, f.role, coalesce(f.now_name, f.role)
        )
    from pgqueue._roles_of_grants() f
    cross join lateral (
        select exists (select from pg_roles r where r.rolname = f.role and r.oid is distinct from f.now_oid) as is_replaced
    ) e
    where f.now_oid is null or f.now_name <> f.role
    union all
    -- The owner, with whose rights functions and views read, is exempt unless it is forced.
    select
        case when s.is_forced then 'critical' else 'warning' end, 'rights', 'row level security',
        format(
            case
                when s.is_forced then 'row level security is forced on %s, without a policy: the functions of the queue see no row of them'
                else 'row level security is on for %s, without a policy: readers and operators see them as empty'
            end,
            string_agg(s.name, ', ' order by s.name)
        ),
        string_agg(
            format('alter table pgqueue.%I %s row level security;', s.name, case when s.is_forced then 'no force' else 'disable' end),
            ' ' order by s.name
        )
    from (
        select
            c.relname as name, c.relforcerowsecurity and not (o.rolsuper or o.rolbypassrls) as is_forced,
            exists (
                select from aclexplode(c.relacl) a where a.grantee <> c.relowner and a.privilege_type = 'SELECT'
            ) as is_read_by_others
        from pg_class c
        join pg_roles o on o.oid = c.relowner
        where c.relnamespace = 'pgqueue'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
            and c.relrowsecurity
            and not exists (select from pg_policy p where p.polrelid = c.oid and p.polpermissive and p.polcmd in ('r', '*'))
    ) s
    where s.is_forced or s.is_read_by_others
    group by s.is_forced
$$;
