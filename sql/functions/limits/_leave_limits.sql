-- Releases jobs that a limit or a pause blocks, once it has capacity again. _limits_of.sql tells the whole.

-- For each job that stops executing, each of its limits with max_executing releases one blocked job. An old snapshot would
-- not show the jobs that were blocked since: then the next claim or maintain does it, as where costs decide which may start.
create or replace function pgqueue._leave_limits(p_tasks text[], p_keys text[], p_limit_keys text[])
returns void
language plpgsql
set jit = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    v_old boolean := pgqueue._old_snapshot();
    v_now timestamptz := pgqueue._clock();
    v_limit record;
begin
    -- Most limits block no job: one query asks for all.
    for v_limit in
        select n.name, n.count, n.is_costed
        from (
            select l.name, sum(j.count)::integer as count, bool_or(l.max_cost is not null) as is_costed
            from (
                select u.task, u.key, u.limit_key, count(*) as count
                from unnest(p_tasks, p_keys, p_limit_keys) u (task, key, limit_key)
                group by grouping sets ((u.task), (u.key), (u.limit_key))
            ) j
            cross join lateral pgqueue._limits_of(null, j.task, j.key, j.limit_key) l
            where num_nonnulls(l.max_executing, l.max_cost) > 0
            group by l.name
            offset 0
        ) n
        left join lateral pgqueue._first_blocked_on(n.name) w on true
        where v_old or w.priority is not null
        order by n.name
    loop
        if v_old or v_limit.is_costed then
            insert into pgqueue.limit_waits (name, next_at) values (v_limit.name, pgqueue._clock());
        else
            perform pgqueue._unblock(v_limit.name, v_limit.count);
        end if;
    end loop;
    -- In fair queues the jobs of a tenant at its limit are not blocked. Only the lanes of the tenant itself are read.
    perform pgqueue._wake(f.queue, v_now, p_count => 1)
    from (
        select distinct u.name
        from unnest(p_limit_keys) u (name)
        where (select num_nonnulls(l.max_executing, l.max_cost) from pgqueue._limits_of(null, null, null, u.name) l) > 0
    ) k
    cross join lateral (
        -- Not = k.name: to a plan that was made on an empty table any index seems as cheap.
        select distinct on (substr(t.lane_key, 9), t.queue, t.priority) t.queue, t.priority, t.lane_key
        from pgqueue.tenant_lanes t
        where substr(t.lane_key, 9) between k.name and k.name and t.due_from <= v_now
        order by substr(t.lane_key, 9), t.queue, t.priority
    ) f
    where exists (select from pgqueue.idle_workers i where i.queue in (f.queue, '') and i.until > v_now)
        and pgqueue._first_of_tenant(f.queue, f.priority, f.lane_key) <= v_now;
end
$$;

-- Checks the limits that are due in limit_waits, whose rows become one. Each releases as many jobs as it has capacity for, at
-- most p_jobs: a claim locks the jobs that it releases until it commits. Two calls that check a limit at the same time may
-- release twice as many; the next claim blocks the surplus again. A row that is a second overdue counts even if another
-- transaction has locked it, for that one may stay open.
create or replace function pgqueue._recheck_limits(p_limit integer, p_jobs integer default 1000, p_since timestamptz default '-infinity')
returns integer
language plpgsql
set enable_sort = off
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_lease_head timestamptz := pgqueue._lease_head();
    v_names text[];
    v_name text;
    v_of text[];
    v_limit pgqueue.rule;
    v_left record;
    v_count integer;
    v_released integer := 0;
begin
    if (select true from pgqueue.limit_waits w where w.next_at between p_since and v_now order by w.next_at limit 1) is null then
        return 0;
    end if;
    with due as materialized (
        select x.name, x.next_at from pgqueue.limit_waits x
        where x.next_at between p_since and v_now order by x.next_at limit p_limit
    ),
    taken as (
        delete from pgqueue.limit_waits w
        where w.n = any (
            array(
                select l.n
                from (select distinct d.name from due d) n
                cross join lateral (
                    select y.n from pgqueue.limit_waits y where y.name = n.name and y.next_at >= p_since for update skip locked
                ) l
            )
        )
        returning w.name
    )
    select coalesce(array_agg(n.name order by n.name), '{}') into v_names
    from (select t.name from taken t union select d.name from due d where d.next_at <= v_now - interval '1 s') n;
    foreach v_name in array v_names loop
        -- A name is kind:target, of a pause behind pause:. For a limit_key it has the job's value, by which a prefix* is found.
        v_of := regexp_match(v_name, '^(?:pause:)?([a-z_]+):(.*)$');
        select l.* into v_limit
        from pgqueue._rules_of(
            null, case v_of[1] when 'task' then v_of[2] end, case v_of[1] when 'key' then v_of[2] end,
            case v_of[1] when 'limit_key' then v_of[2] end, v_now
        ) l
        where l.name = v_name;
        -- If no limit was found, it was dropped: then there is plenty, and all its jobs are released.
        select r.capacity, r.next_at, r.timed, r.units into v_left from pgqueue._capacity_of(v_limit, v_now, v_lease_head) r;
        v_count := case when v_left.capacity > 0 then pgqueue._unblock(
            v_name, least(v_left.capacity, p_jobs),
            least(v_left.units, coalesce(v_limit.burst, v_limit.rate), v_limit.max_cost), v_left.units = 'infinity'
        ) else 0 end;
        v_released := v_released + v_count;
        -- Not where the first of them costs more than there is.
        if v_left.capacity > 0 and (v_count > 0 or not v_left.timed or not pgqueue._has_costs()) then
            v_left.timed := v_limit.rate is not null;
            -- Under a rate, the next start is allowed about per / rate later.
            v_left.next_at := v_now + case
                when v_left.capacity > p_jobs then interval '0'
                when v_left.timed then least(interval '1 s', greatest(v_limit.per / v_limit.rate, interval '10 ms'))
                else interval '1 s'
            end;
        elsif not v_left.timed then
            -- A safety net, rarer for many: jobs that end release the blocked ones that they see, and resume() leaves a row of its own.
            v_left.next_at := least(
                case when v_limit.until > v_now then v_limit.until end,
                v_now + case when v_limit.kind = 'pause' then interval '1 min' else interval '1 s' + cardinality(v_names) * interval '10 ms' end
            );
        end if;
        insert into pgqueue.limit_waits (name, next_at, timed)
        select v_name, w.next_at, w.timed
        from (values (v_left.next_at, v_left.timed), (v_now + interval '5 min', false)) w (next_at, timed)
        where w.next_at <= v_left.next_at and exists (select from pgqueue._first_blocked_on(v_name));
    end loop;
    return v_released;
end
$$;

-- Releases the first p_count jobs that a limit blocks, in the order of their priority and time, as long as they cost no more than
-- p_units together; returns how many. p_is_full: nothing of the limit is taken, and the first one comes whatever it costs.
-- What a pause has blocked may be a million jobs: it comes after what waits.
create or replace function pgqueue._unblock(
    p_name text, p_count integer, p_units double precision default null, p_is_full boolean default false
)
returns integer
language plpgsql
set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    v_rows tid[];
    v_ready_at timestamptz;
    v_lane record;
begin
    select array_agg(u.row_ctid) into v_rows
    from (
        select
            p.row_ctid, row_number() over () as n,
            sum(p.cost) over (rows between unbounded preceding and current row) as units
        from (
            select j.ctid as row_ctid, coalesce(j.cost, 1) as cost
            from pgqueue.jobs j
            where j.state = 'blocked' and j.blocked_on is not null and j.blocked_on = p_name
            order by j.blocked_on, j.priority desc, j.ready_at, j.id
            limit p_count
            for update skip locked
        ) p
    ) u
    where p_units is null or u.units <= p_units + 1e-6 or (p_is_full and u.n = 1);
    if v_rows is null then
        return 0;
    end if;
    v_ready_at := pgqueue._ready_at(null);
    for v_lane in
        with back as (
            update pgqueue.jobs j
            set
                state = pgqueue._state_again(j.errors, j.attempts),
                blocked_on = null,
                -- A microsecond apart, to keep their order.
                ready_at = v_ready_at + (w.n - 1) * interval '1 us',
                resumed = not starts_with(p_name, 'pause:')
            from unnest(v_rows) with ordinality w (row_ctid, n)
            where j.ctid = w.row_ctid
            returning j.queue, j.priority, j.resumed, j.lane_key
        )
        select b.queue, b.priority, array_agg(distinct b.lane_key) filter (where not b.resumed) as lane_keys
        from back b
        group by b.queue, b.priority
    loop
        perform pgqueue._register_lane(v_lane.queue, v_lane.priority, v_ready_at, v_lane.lane_keys);
        perform pgqueue._wake(v_lane.queue, v_ready_at);
    end loop;
    return cardinality(v_rows);
end
$$;

-- Inlined: no SET, and stable. A row for each limit that may touch one of these jobs.
create or replace function pgqueue._limits_among(p_tasks text[], p_keys text[], p_limit_keys text[])
returns table (target text)
language sql stable parallel safe rows 1
as $$
    select l.target from pgqueue.limits l where l.kind = 'task' and l.target = any (p_tasks)
    union all
    select l.target from pgqueue.limits l where l.kind = 'key' and num_nonnulls(variadic p_keys) > 0
    union all
    select l.target from pgqueue.limits l where l.kind = 'limit_key' and num_nonnulls(variadic p_limit_keys) > 0
$$;

-- Inlined: no SET, and stable. The first job that a limit or a pause blocks, in the order in which they are released.
create or replace function pgqueue._first_blocked_on(p_name text)
returns table (priority smallint, cost integer)
language sql stable parallel safe rows 1
as $$
    select j.priority, j.cost
    from pgqueue.jobs j
    where j.state = 'blocked' and j.blocked_on is not null and j.blocked_on = p_name
    order by j.blocked_on, j.priority desc, j.ready_at, j.id
    limit 1
$$;
