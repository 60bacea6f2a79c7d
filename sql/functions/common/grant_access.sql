-- grant_access, revoke_access: who may do what. Nothing is granted to PUBLIC.
--
-- The rights are recorded in grants and applied again at every reload, because replacing a function by DROP
-- and CREATE loses what was granted on it. Public functions run with their owner's rights (security definer, path
-- pinned), so no role needs a right on a table to use them. Not security definer themselves: the caller must own
-- the schema, or PostgreSQL refuses the GRANT. GRANT is dynamic SQL because roles are names.

create or replace function pgqueue.grant_access(kind text, role name)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform pgqueue._refuse(
        'kind is unknown', format('It is %s.', coalesce(quote_literal(grant_access.kind), 'null')),
        'Give kind as producer, worker, operator or reader.'
    )
    where (grant_access.kind in ('producer', 'worker', 'operator', 'reader')) is not true;
    perform pgqueue._refuse(
        'role does not exist', format('It is %s.', coalesce(quote_literal(grant_access.role), 'null')),
        'Create it first: create role ... login.'
    )
    where not exists (select from pg_roles r where r.rolname = grant_access.role);
    -- All functions run with the rights of the owner: narrower ones would replace them.
    perform pgqueue._refuse(
        'role owns the queue', format('%s has every right already.', grant_access.role),
        'Grant access to another role: create role ... login, then grant_access(kind, role).'
    )
    where grant_access.role = (select pg_get_userbyid(n.nspowner) from pg_namespace n where n.nspname = 'pgqueue');
    -- First, or the row of a role that was renamed would be taken for this one's.
    perform pgqueue._follow_roles();
    insert into pgqueue.grants (role, kind, role_oid, recorded_in)
    select r.rolname, grant_access.kind, r.oid, 'pgqueue.grants'::regclass from pg_roles r where r.rolname = grant_access.role
    on conflict (role, kind) do update set role_oid = excluded.role_oid, recorded_in = excluded.recorded_in;
    perform pgqueue._apply_grants();
    perform pgqueue._audit('grant_access', jsonb_build_object('kind', grant_access.kind, 'role', grant_access.role));
end
$$;

comment on function pgqueue.grant_access(text, name) is
    'Let a role use the queue. kind: producer (enqueue, nothing else), worker (what a worker calls), '
    'operator (all functions, all views, settings) or reader (views and stats).';

-- The role of a grant is the role that has the recorded oid, whatever its name is now: two may have exchanged their names. A
-- restored dump has the oids of other roles, and another oid for the table of grants. There it is the role that has the recorded
-- name and a right on the schema, as the dump restores it: a new role with the name of one that is gone has none.
create or replace function pgqueue._roles_of_grants()
returns table (role name, kind text, role_oid oid, now_oid oid, now_name name)
language sql stable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select g.role, g.kind, case when h.is_here then g.role_oid end, f.oid, f.rolname
    from pgqueue.grants g
    cross join lateral (select (g.recorded_in = 'pgqueue.grants'::regclass) is true as is_here) h
    left join lateral (
        select r.oid, r.rolname
        from pg_roles r
        where case
            when h.is_here then r.oid = g.role_oid
            -- Before it was recorded where an oid holds, that of a renamed role was.
            else (r.rolname = g.role or (g.recorded_in is null and r.oid = g.role_oid)) and exists (
                select
                from pg_namespace n
                cross join aclexplode(n.nspacl) a
                where n.nspname = 'pgqueue' and a.grantee = r.oid
            )
        end
        order by r.rolname = g.role desc
        limit 1
    ) f on true
$$;

-- Records the present name and oid of each granted role, once no other grant or migration is under way: two at once would fail.
create or replace function pgqueue._follow_roles()
returns void
language plpgsql
as $$
begin
    perform pg_advisory_xact_lock(pgqueue._lock_class(), 3);
    with moved as materialized (
        select f.*
        from pgqueue._roles_of_grants() f
        where f.now_oid is not null and (f.role_oid is distinct from f.now_oid or f.role <> f.now_name)
    ),
    gone as (
        delete from pgqueue.grants g
        using moved m
        where g.role = m.role and g.kind = m.kind
        returning m.now_name, g.kind, m.now_oid
    )
    insert into pgqueue.grants (role, kind, role_oid, recorded_in)
    select distinct on (o.now_name, o.kind) o.now_name, o.kind, o.now_oid, 'pgqueue.grants'::regclass
    from gone o order by o.now_name, o.kind
    on conflict (role, kind) do update set role_oid = excluded.role_oid, recorded_in = excluded.recorded_in;
end
$$;

-- Revokes everything from PUBLIC and grants the rights recorded in pgqueue.grants.
create or replace function pgqueue._apply_grants()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_grant record;
    v_right text;
begin
    revoke all on all routines in schema pgqueue from public;
    perform pgqueue._follow_roles();
    -- Skips a role that no longer exists, also if another has its name now; its row stays until revoke_access.
    for v_grant in
        select f.now_name as role, f.kind, f.kind = 'operator' as operates, f.kind in ('reader', 'operator') as reads
        from pgqueue._roles_of_grants() f
        where f.now_oid is not null order by f.now_name, f.kind
    loop
        if v_grant.operates then
            execute format('revoke insert, update on pgqueue.tasks from %I', v_grant.role);
            execute format('revoke update on pgqueue.settings from %I', v_grant.role);
        end if;
        for v_right in
            -- A worker compares due times with the clock, and the time is no secret.
            select r.right from unnest('{usage on schema pgqueue,execute on function pgqueue._clock()}'::text[]) r ("right")
            union all
            select 'execute on function ' || p.oid::regprocedure
            from pg_proc p
            where p.pronamespace = 'pgqueue'::regnamespace and v_grant.kind = any (pgqueue._who_may_call(p.oid))
            union all
            select 'select on pgqueue.' || t.name
            from unnest('{queues,tasks,settings,workers,limits,pauses,breakers,shares,samples,audit,schedules}'::text[]) t (name)
            where v_grant.reads
            union all
            select 'select (queue) on pgqueue.lanes' where v_grant.reads
            union all
            select 'select on ' || c.oid::regclass from pg_class c
            where v_grant.reads and c.relnamespace = 'pgqueue'::regnamespace and c.relkind = 'v'
            union all
            -- A view reads tables with its owner's rights, but calls functions with the rights of its reader.
            select distinct 'execute on function ' || d.refobjid::regprocedure
            from pg_class c
            join pg_rewrite r on r.ev_class = c.oid
            join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = r.oid and d.refclassid = 'pg_proc'::regclass
            join pg_proc p on p.oid = d.refobjid
            where v_grant.reads and c.relnamespace = 'pgqueue'::regnamespace and c.relkind = 'v'
                and p.pronamespace = 'pgqueue'::regnamespace
            union all
            select o.right
            from (
                values
                    ('insert, update, delete on pgqueue.queues, pgqueue.limits'),
                    ('update (paused_at, expression, timezone) on pgqueue.schedules'),
                    -- Every column but retry_function, which fail() calls with its owner's rights,
                    (format('insert (%1$s), update (%1$s), delete on pgqueue.tasks', pgqueue._columns_of('pgqueue.tasks', 'retry_function'))),
                    -- and for how long it is recorded what operators do.
                    (format('update (%s) on pgqueue.settings', pgqueue._columns_of('pgqueue.settings', 'retention_audit')))
            ) o ("right")
            where v_grant.operates
        loop
            execute format('grant %s to %I', v_right, v_grant.role);
        end loop;
    end loop;
end
$$;

-- The columns of a table but one, as a list for GRANT.
create or replace function pgqueue._columns_of(p_table regclass, p_but name)
returns text
language sql stable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select string_agg(quote_ident(a.attname), ', ' order by a.attnum)
    from pg_attribute a
    where a.attrelid = p_table and a.attnum > 0 and not a.attisdropped and a.attname <> p_but
$$;

-- The kinds of roles that may call a function: those that stand in brackets at the end of its comment, and operators. Null: the
-- owner alone, for it is private, or runs with the rights of its caller.
create or replace function pgqueue._who_may_call(p_function oid)
returns text[]
language sql stable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select string_to_array(substring(obj_description(p.oid, 'pg_proc') from e'\\[([a-z, ]+)\\]$'), ', ') || 'operator'::text
    from pg_proc p
    where p.oid = p_function and p.prosecdef and not starts_with(p.proname, '_')
$$;
