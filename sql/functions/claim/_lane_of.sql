-- Lanes of tenants: which one a job of a fair queue is in, which ones claims visit, and which of those leave that path.
--
-- Each statement that makes a job ready writes jobs.lane_key, as the queue is then. Lanes come in the order of a hash, so that
-- no name comes first by choice. All ready jobs stay in jobs_ready as well: what counts, searches and waits reads them
-- there. Jobs that came back at once (resumed) have had their turn: claims take them from there, first.
--
-- There may be ten thousand tenants, of which twenty have jobs: only lanes with jobs may stay on the path. Each row of
-- tenant_lanes promises that its lane is visited, to each transaction that makes a job ready while `until` has not passed. It
-- goes by the rule of rows of lanes (see _register_lane): once all these transactions have ended, and the lane is read.
-- A lane that flips between empty and due gets a row in five seconds at most; where an old snapshot keeps many dead ones, lanes
-- stay on the path, for a visit to an empty lane costs less than the walk over dead rows.
--
-- Heads of these lanes stand beside those of others (see _head), under a priority that is 1,000 higher, and the length of the
-- name of the queue, that name, and the lane as their queue. They are moved by claims alone, which had to walk. Every job of
-- a lane is in jobs_ready as well, so the head of its queue and priority holds for it, too.
--
-- The lane '' stands for jobs of a fair queue that have no lane_key: they were ready before the queue was fair, or their
-- transaction did not see that it is. maintain gives them their lanes.

create or replace function pgqueue._lane_of(p_limit_key text)
returns text
language sql immutable parallel safe
as $$
    select pg_catalog.lpad(pg_catalog.to_hex(pg_catalog.hashtext(coalesce(p_limit_key, ''))), 8, '0') || coalesce(p_limit_key, '')
$$;

-- Null: the queue is not fair.
create or replace function pgqueue._lane_key(p_queue text, p_limit_key text)
returns text
language plpgsql stable parallel safe
as $$
begin
    return (select pgqueue._lane_of(p_limit_key) from pgqueue.queues q where q.name = p_queue and q.fair_by is not null);
end
$$;

-- Inlined. When the first job of the lane is due, if it is by p_until.
create or replace function pgqueue._first_in_lane(p_queue text, p_priority smallint, p_lane_key text, p_until timestamptz)
returns table (ready_at timestamptz)
language sql stable parallel safe rows 1
as $$
    select f.ready_at
    from pgqueue._head(pgqueue._head_name(p_queue, p_lane_key), (p_priority + 1000)::smallint, false) h
    cross join lateral (
        select j.ready_at
        from pgqueue.jobs j
        where j.state in ('waiting', 'failed') and j.lane_key is not null and not j.resumed and j.queue = p_queue
            and j.priority = p_priority and j.lane_key = p_lane_key and (j.ready_at, j.id) >= (h.head, h.head_id)
            and j.ready_at <= p_until
        order by j.ready_at, j.id
        limit 1
    ) f
$$;

-- Inlined. Under which queue a head of the lane stands.
create or replace function pgqueue._head_name(p_queue text, p_lane_key text)
returns text
language sql immutable parallel safe
as $$
    select pg_catalog.lpad(pg_catalog.length(p_queue)::text, 3, '0') || p_queue || p_lane_key
$$;

-- Called after a statement that made jobs ready in these lanes (null: in ''): the transaction has its xid by then.
create or replace function pgqueue._register_tenants(p_queue text, p_priority smallint, p_lane_keys text[])
returns void
language plpgsql
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_first boolean;
begin
    insert into pgqueue.lanes (queue, priority, until, is_fair)
    select p_queue, p_priority, v_now + interval '5 s', true
    where not exists (select from pgqueue.lanes l where l.queue = p_queue and l.priority = p_priority and l.is_fair);
    v_first := found;
    insert into pgqueue.tenant_lanes (queue, priority, lane_key, due_from, until)
    select
        p_queue, p_priority, k.lane_key, v_now,
        -- From its commit on claims go round: a transaction that began before adds jobs without a lane.
        v_now + case when v_first and k.lane_key = '' then interval '1 min' else interval '5 s' end
    from (
        select coalesce(u.lane_key, '') as lane_key from unnest(coalesce(p_lane_keys, '{null}')) u (lane_key)
        union
        select '' where v_first
    ) k
    where not exists (
        select
        from pgqueue.tenant_lanes t
        where t.queue = p_queue and t.priority = p_priority and t.lane_key = k.lane_key and t.due_from <= v_now
            and t.until > v_now
    );
end
$$;

-- A step of maintain. Deletes rows whose `until` has passed; a lane that has jobs gets a new one. Returns how many it looked at.
create or replace function pgqueue._renew_tenants(p_limit integer)
returns bigint
language plpgsql
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_safe timestamptz;
    v_many constant boolean := pg_stat_get_dead_tuples('pgqueue.tenant_lanes'::regclass) > 20000;
    v_rows bigint;
begin
    if not exists (select from pgqueue.tenant_lanes t where t.until <= v_now) then
        return 0::bigint;
    end if;
    v_safe := case when not v_many then pgqueue._ended_before(v_now) end;
    with passed as materialized (
        select t.ctid as row_ctid, t.queue, t.priority, t.lane_key, t.due_from, t.until
        from pgqueue.tenant_lanes t
        -- Beside a transaction that stays open rows of one lane become one.
        where t.until <= greatest(v_safe, v_now - interval '2 min')
        order by t.until
        limit p_limit
        for update skip locked
    ),
    gone as (delete from pgqueue.tenant_lanes t where t.ctid = any (array(select p.row_ctid from passed p))),
    renewed as (
        insert into pgqueue.tenant_lanes (queue, priority, lane_key, due_from, until)
        select
            p.queue, p.priority, p.lane_key, f.due_from,
            greatest(f.due_from, v_now) + case when v_many then interval '10 min' else interval '30 s' end
        from (
            select x.queue, x.priority, x.lane_key, min(x.due_from) as due_from, max(x.until) <= v_safe as is_safe
            from passed x
            group by x.queue, x.priority, x.lane_key
        ) p
        cross join lateral (
            select
                case when p.is_safe then pgqueue._first_of_tenant(p.queue, p.priority, p.lane_key) else p.due_from end as due_from
            offset 0
        ) f
        where f.due_from is not null
            and not exists (
                select
                from pgqueue.tenant_lanes t
                where t.queue = p.queue and t.priority = p.priority and t.lane_key = p.lane_key
                    and t.due_from <= f.due_from and t.until > v_now
            )
        returning queue, priority
    ),
    fair_lanes as (
        insert into pgqueue.lanes (queue, priority, until, is_fair)
        select distinct r.queue, r.priority, v_now + interval '5 s', true
        from renewed r
        where not exists (select from pgqueue.lanes l where l.queue = r.queue and l.priority = r.priority and l.is_fair)
    )
    select count(*) into v_rows from passed;
    return v_rows;
end
$$;

-- When the first job of the lane is due; null: it is empty. A long queue is not searched to its end for jobs without a lane.
create or replace function pgqueue._first_of_tenant(p_queue text, p_priority smallint, p_lane_key text)
returns timestamptz
language plpgsql stable
as $$
begin
    if p_lane_key <> '' then
        return (select f.ready_at from pgqueue._first_in_lane(p_queue, p_priority, p_lane_key, 'infinity') f);
    end if;
    return (
        select case when count(*) = 100000 or count(*) > count(w.lane_key) then min(w.ready_at) end
        from pgqueue._head(p_queue, p_priority, false) h
        cross join lateral (
            select j.ready_at, j.lane_key
            from pgqueue.jobs j
            where j.state in ('waiting', 'failed') and j.queue = p_queue and j.priority = p_priority and j.resumed = false
                and (j.ready_at, j.id) >= (h.head, h.head_id)
            order by j.ready_at, j.id
            limit 100000
        ) w
    );
end
$$;

-- A step of maintain: gives waiting jobs the lanes that their queues, as they are now, have for them. What is due goes behind
-- what is in its lane, for a head may have passed its time. Reads p_limit jobs. The cursor is read by sessions of any DateStyle.
create or replace function pgqueue._move_to_lanes(p_limit integer, p_cursor text[], out moved bigint, out next_cursor text[])
language plpgsql
set datestyle = 'ISO, YMD'
as $$
declare
    v_now timestamptz;
    v_left bigint := p_limit::bigint;
    v_lane record;
    v_after record;
    v_seen record;
begin
    moved := 0;
    for v_lane in
        select l.queue, l.priority, q.name is not null as is_fair
        from (select distinct a.queue, a.priority from pgqueue.lanes a where a.is_fair) l
        left join pgqueue.queues q on q.name = l.queue and q.fair_by is not null
        where (p_cursor is null or (l.queue, l.priority) >= (p_cursor[1] collate "C", p_cursor[2]::smallint))
            and (
                q.name is null
                or exists (
                    select from pgqueue.tenant_lanes t where t.queue = l.queue and t.priority = l.priority and t.lane_key = ''
                )
            )
        order by l.queue, l.priority
    loop
        v_now := pgqueue._ready_at(null);
        select h.head as at, h.head_id as id into v_after from pgqueue._head(v_lane.queue, v_lane.priority, false) h;
        if (v_lane.queue, v_lane.priority) = (p_cursor[1], p_cursor[2]::smallint) then
            select p_cursor[3]::timestamptz as at, p_cursor[4]::bigint + 1 as id into v_after;
        end if;
        with seen as materialized (
            select
                j.ctid as row_ctid, j.ready_at, j.id, j.lane_key,
                case when v_lane.is_fair then pgqueue._lane_of(j.limit_key) end as wanted
            from pgqueue.jobs j
            where j.state in ('waiting', 'failed') and j.queue = v_lane.queue and j.priority = v_lane.priority
                and j.resumed = false and (j.ready_at, j.id) >= (v_after.at, v_after.id)
            order by j.ready_at, j.id
            limit v_left
        ),
        held as materialized (
            select j.ctid as row_ctid
            from pgqueue.jobs j
            where j.ctid = any (array(select s.row_ctid from seen s where s.lane_key is distinct from s.wanted))
            for update skip locked
        ),
        changed as (
            update pgqueue.jobs j
            set
                lane_key = s.wanted,
                ready_at = case when v_lane.is_fair and j.ready_at < v_now then v_now + (s.ord - 1) * interval '1 us' else j.ready_at end
            from (
                select x.*, row_number() over (order by x.ready_at, x.id) as ord
                from held h
                join seen x on x.row_ctid = h.row_ctid
            ) s
            where j.ctid = s.row_ctid
            returning j.lane_key
        )
        select
            (select count(*) from seen) as jobs,
            (select count(*) from changed) as moved,
            (select array_agg(distinct c.lane_key) from changed c where c.lane_key is not null) as lane_keys,
            (select array[s.ready_at::text, s.id::text] from seen s order by s.ready_at desc, s.id desc limit 1) as last
        into v_seen;
        moved := moved + v_seen.moved;
        perform pgqueue._register_tenants(v_lane.queue, v_lane.priority, v_seen.lane_keys) where v_seen.moved > 0;
        if v_seen.jobs = v_left then
            next_cursor := array[v_lane.queue, v_lane.priority::text] || v_seen.last;
            return;
        end if;
        v_left := v_left - v_seen.jobs;
    end loop;
end
$$;

-- The safety net, a step of maintain, as _find_lanes: registers lanes that hold jobs and are not on the path.
create or replace function pgqueue._find_tenants()
returns integer
language plpgsql
as $$
declare
    v_found integer := 0;
begin
    -- Also has jobs without a lane looked for.
    perform pgqueue._register_tenants(l.queue, l.priority, null)
    from (select a.queue, a.priority, bool_or(a.is_fair) as is_fair from pgqueue.lanes a group by a.queue, a.priority) l
    where l.is_fair
        or (
            select true
            from pgqueue.jobs j
            where j.state in ('waiting', 'failed') and j.lane_key is not null and not j.resumed and j.queue = l.queue
                and j.priority = l.priority
            order by j.lane_key, j.ready_at, j.id
            limit 1
        );
    for v_round in 1..100 loop
        perform pgqueue._register_tenants(g.queue, g.priority, array_agg(f.lane_key))
        from (
            select k.*, lead(k.lane_key, 1, 'g') over (partition by k.queue, k.priority order by k.lane_key) as next_key
            from (select distinct t.queue, t.priority, t.lane_key from pgqueue.tenant_lanes t) k
        ) g
        cross join lateral (
            select j.lane_key
            from pgqueue.jobs j
            where j.state in ('waiting', 'failed') and j.lane_key is not null and not j.resumed and j.queue = g.queue
                and j.priority = g.priority and j.lane_key > g.lane_key and j.lane_key < g.next_key
            order by j.lane_key, j.ready_at, j.id
            limit 1
        ) f
        group by g.queue, g.priority;
        exit when not found;
        v_found := v_found + 1;
    end loop;
    return v_found;
end
$$;

-- A step of maintain, whose row has the result: the lanes of the tenants of fair queues whose jobs that began more than a second ago
-- are more than their part of all, another tenant counted in, of the 2,000 leases that lapse first; the 64 with most, as _head_name
-- names them. Claims do not count: beside short jobs the walk over the leases that ended would cost more than all the rest.
create or replace function pgqueue._busy_tenants()
returns text[]
language plpgsql
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_lease_head timestamptz := pgqueue._lease_head();
begin
    if not exists (select from pgqueue.queues q where q.fair_by is not null) then
        return null;
    end if;
    return (
        select (array_agg(pgqueue._head_name(b.queue, pgqueue._lane_of(b.limit_key)) order by b.executing * b.part_of_long desc))[1:64]
        from (
            select e.*, sum(e.executing) over (partition by e.queue) as of_queue, count(*) over (partition by e.queue) as tenants
            from (
                select
                    l.queue, l.limit_key, count(*)::double precision / pgqueue._share_of(coalesce(l.limit_key, '')) as executing,
                    avg((l.reserved_at <= v_now - interval '1 s')::integer) as part_of_long
                from (
                    select j.queue, j.limit_key, j.reserved_at
                    from pgqueue.jobs j
                    where j.state = 'executing' and j.lease_expires_at >= v_lease_head
                    order by j.lease_expires_at, j.id
                    limit 2000
                ) l
                join pgqueue.queues q on q.name = l.queue and q.fair_by is not null
                group by l.queue, l.limit_key
            ) e
        ) b
        where b.executing * b.part_of_long > 1 + b.of_queue / (b.tenants + 1)
    );
end
$$;

-- The share of a tenant: that of its own row, else of the longest prefix*, else 1.
create or replace function pgqueue._share_of(p_limit_key text)
returns integer
language plpgsql stable parallel safe
as $$
begin
    return coalesce(
        (select s.weight from pgqueue.shares s where s.limit_key = p_limit_key),
        (
            select s.weight
            from pgqueue.shares s
            where right(s.limit_key, 1) = '*' and starts_with(p_limit_key, left(s.limit_key, -1))
            order by length(s.limit_key) desc
            limit 1
        ),
        1
    );
end
$$;
