-- The limits as stats() shows them, each number counted to p_most; the jobs that wait for them to p_waiting, which they share,
-- and to 100 of each at least (counted_to).
create or replace function pgqueue._limits_now(p_most integer, p_waiting integer)
returns jsonb
language sql stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off set enable_sort = off
as $$
    with held as materialized (
        select v.kind, v.target, count(*)::bigint as jobs
        from (
            select j.queue, j.task from pgqueue.jobs j where j.state = 'executing' and j.lease_expires_at >= pgqueue._lease_head()
            order by j.lease_expires_at, j.id limit greatest(p_most, 100000)
        ) x
        cross join lateral (values ('queue', x.queue), ('task', x.task)) v (kind, target)
        group by v.kind, v.target
    )
    select coalesce(
        jsonb_agg(
            jsonb_build_object(
                'kind', l.kind, 'target', l.target, 'max_executing', l.max_executing, 'rate', l.rate, 'per', l.per,
                'max_cost', l.max_cost, 'burst', l.burst,
                'executing', e.executing,
                'used', case when p.prefix is null then e.executing else v.used end, 'used_by', v.value,
                'started', case when l.rate is not null then coalesce(s.units, 0) end, 'started_by', s.value,
                'counted_to', case when w.most < 1000000 then w.most end,
                'waiting', (
                    -- Those of a name, and of a prefix, come first among all from there on.
                    select count(*) filter (where case when p.prefix is null then c.name = p.name else starts_with(c.name, p.name) end)
                    from (
                        select j.blocked_on as name
                        from pgqueue.jobs j
                        where j.state = 'blocked' and j.blocked_on is not null and j.blocked_on >= p.name
                        order by j.blocked_on, j.priority desc, j.ready_at, j.id
                        limit w.most
                    ) c
                ) + case
                    -- A limit on a queue blocks no job: a claim takes fewer of those that are due.
                    when l.kind = 'queue' and pgqueue._queue_capacity(l.target, 1, t.now) = 0
                    then (
                        select coalesce(sum(r.due), 0)
                        from (select distinct a.priority from pgqueue.lanes a where a.queue = l.target) a
                        cross join (values (false), (true)) b (resumed)
                        cross join lateral pgqueue._count_ready(l.target, a.priority, b.resumed, pgqueue._clock(), w.most) r
                    )
                    else 0
                end
            )
            order by l.kind, l.target
        ),
        '[]'
    )
    from pgqueue.limits l
    cross join (select pgqueue._clock() as now offset 0) t
    cross join (select greatest(p_waiting / nullif(count(*), 0), 100)::integer as most from pgqueue.limits x) w
    cross join lateral (
        select
            x.prefix, l.kind || ':' || coalesce(x.prefix, l.target) as name,
            -- The names of limit_keys end there.
            case when x.prefix is null then l.kind || ':' || l.target else 'limit_key;' end as last
        from (select case when l.kind = 'limit_key' and right(l.target, 1) = '*' then left(l.target, -1) end as prefix) x
    ) p
    cross join lateral (
        select
            coalesce(sum(f.jobs), 0)::integer as executing,
            coalesce(max(f.jobs) filter (where f.counts), 0) as used,
            (array_agg(f.value order by f.jobs desc, f.value) filter (where f.counts))[1] as value
        from (
            select x.*, (select o.rule from pgqueue._limits_of(null, null, null, x.value) o) = l.target as counts
            from (
                select c.limit_key as value, count(*)::integer as jobs
                from (
                    select j.limit_key, j.leader, j.id
                    from pgqueue.jobs j
                    where j.state = 'executing' and j.limit_key is not null and j.limit_key >= p.prefix
                        and j.lease_expires_at >= pgqueue._lease_head()
                    order by j.limit_key, j.lease_expires_at
                    limit p_most
                ) c
                where starts_with(c.limit_key, p.prefix) and (c.leader is null or c.leader = c.id)
                group by c.limit_key
            ) x
            offset 0
        ) f
    ) v
    cross join lateral (
        -- Those of queues and tasks are counted at once.
        select case when l.kind in ('queue', 'task') then least(coalesce((select h.jobs from held h where h.kind = l.kind and h.target = l.target), 0), p_most)
            when p.prefix is not null then v.executing
            else (select x.executing from pgqueue._executing_under(l.kind, l.target, p_most, pgqueue._lease_head()) x) end as executing
    ) e
    left join lateral (
        -- The units that were started, or, in a bucket, that are taken. With a prefix they are those of the value that has the
        -- most: each has the rate for itself.
        select x.units, case when p.prefix is not null then substr(x.name, length('limit_key:') + 1) end as value
        from (
            select s.name, sum(s.started)::bigint as units
            from (
                select y.name, y.started
                from pgqueue.limit_starts y
                where l.burst is null and y.name between p.name and p.last and starts_with(y.name, p.name)
                    and y.at > pgqueue._after(t.now, -l.per) and y.at <= t.now + interval '1 s'
                limit p_most
            ) s
            group by s.name
            union all
            select n.name, ceil(l.burst - z.level)::bigint
            from (
                select distinct y.name
                from pgqueue.limit_levels y
                where l.burst is not null and not y.is_spent and y.name between p.name and p.last and starts_with(y.name, p.name)
                limit p_most
            ) n
            cross join lateral pgqueue._level_of(
                row(n.name, l.kind, null, null, l.rate, l.per, null, l.burst, null, null)::pgqueue.rule, t.now
            ) z
        ) x
        where l.rate is not null and (p.prefix is null or (
            select o.rule from pgqueue._limits_of(null, null, null, substr(x.name, length('limit_key:') + 1)) o
        ) = l.target)
        order by x.units desc, x.name
        limit 1
    ) s on true
    where num_nonnulls(l.max_executing, l.rate, l.max_cost) > 0
$$;
