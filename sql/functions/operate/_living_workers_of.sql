-- The facts that why_late(), doctor(), metrics() and the pages ask for. Each function reads a bounded number of rows.

-- The living workers that claim from a queue; null: from any.
create or replace function pgqueue._living_workers_of(p_queue text, p_now timestamptz)
returns setof pgqueue.workers
language sql stable parallel safe rows 10
set enable_seqscan = off
as $$
    select w.*
    from pgqueue.workers w
    where (p_queue is null or w.queues is null or p_queue = any (w.queues))
        -- One that an operator made quiet, or stops, claims nothing.
        and w.command is null
        -- As worker_status.is_alive.
        and (select b.at from pgqueue._last_heartbeat(w.name, w.server_started_at) b) > p_now - make_interval(secs => 5 + case
            when jsonb_typeof(w.info -> 'heartbeat') = 'number' then least(greatest((w.info ->> 'heartbeat')::numeric, 10), 60) else 10
        end)
$$;

-- What executes, from the head of the leases on: an old snapshot keeps the entries of all that executed since it was taken.
-- 100,000 jobs at most. The views executing and worker_status read it.
create or replace function pgqueue._executing_jobs()
returns setof pgqueue.jobs
language sql stable parallel safe security definer rows 100
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
    select j.*
    from pgqueue.jobs j
    where j.state = 'executing' and j.lease_expires_at >= pgqueue._lease_head()
    order by j.lease_expires_at, j.id
    limit 100000
$$;

-- The slots of the living workers of a queue (null: of all), and the jobs that take them. A job is overlong if it has run ten
-- times as long as usual: the p95 of the last ten minutes and the last four hours in which its task ran within a day, as on the
-- pages; or for five minutes if none ended. executing: with prefetched jobs, which take no slot yet. asked: to cancel.
create or replace function pgqueue._slots_for(p_queue text, p_now timestamptz)
returns table (
    workers text, slots bigint, executing bigint, overlong bigint, asked bigint, task text, oldest_id bigint, oldest_at timestamptz,
    usual interval
)
language sql stable rows 1
as $$
    with living as materialized (
        select
            w.name,
            case when jsonb_typeof(w.info -> 'concurrency') = 'number' then least((w.info ->> 'concurrency')::numeric, 100000)::bigint end as slots
        from pgqueue._living_workers_of(p_queue, p_now) w
    ),
    held as materialized (
        select j.id, j.queue, j.task, j.reserved_at, j.cancel_requested_at, j.started is not distinct from j.reservation as is_started
        from pgqueue._executing_jobs() j
        join living l on l.name = j.reserved_by
        where j.leader is null or j.leader = j.id
    ),
    usual as materialized (
        select k.queue, k.task, u.p95
        from (select distinct x.queue, x.task from held x where x.is_started and x.reserved_at < p_now - interval '1 min') k
        left join lateral (
            -- Within a bucket, times are taken to spread by their logarithm, as the pages do.
            select make_interval(secs => b.low * power(b.high / b.low, (0.95 * b.total - b.reached + b.jobs) / b.jobs)) as p95
            from (
                select
                    c.nth, sum(c.jobs::float8) as jobs, sum(sum(c.jobs::float8)) over (order by c.nth) as reached,
                    sum(sum(c.jobs::float8)) over () as total, v.bounds[c.nth] as low, v.bounds[c.nth + 1] as high
                from (values ('{0.00025,0.001,0.004,0.016,0.064,0.25,1,4,16,60,300,3600,14400}'::float8[])) v (bounds)
                cross join (values (10, interval '10 min', 60), (600, '1 day', 24)) f (span, length, most)
                cross join lateral (
                    select s.ended #> array[k.task, 'run', 'buckets'] as buckets
                    from pgqueue.samples s
                    where s.span = f.span and s.at > p_now - f.length and s.queue = k.queue and s.ended -> k.task ? 'run'
                    order by s.queue desc, s.span desc, s.at desc
                    limit f.most
                ) r
                cross join lateral jsonb_array_elements_text(r.buckets) with ordinality c (jobs, nth)
                group by c.nth, v.bounds
            ) b
            where b.jobs > 0 and b.reached >= 0.95 * b.total
            order by b.nth
            limit 1
        ) u on true
    ),
    overlong as (
        select
            h.task, count(*) as jobs, count(*) filter (where h.cancel_requested_at < p_now - interval '10 s') as asked,
            min(h.reserved_at) as oldest_at, (array_agg(h.id order by h.reserved_at, h.id))[1] as oldest_id, u.p95
        from held h
        join usual u on u.queue = h.queue and u.task = h.task
        where h.is_started and h.reserved_at < p_now - greatest(coalesce(10 * u.p95, '5 min'), '1 min')
        group by h.task, u.p95
    )
    select
        (
            select case count(*) when 0 then null when 1 then min('worker ' || l.name) else format('%s workers', count(*)) end
            from living l
        ),
        (select sum(l.slots)::bigint from living l), (select count(*) from held), coalesce(a.jobs, 0)::bigint, coalesce(a.asked, 0)::bigint,
        o.task, o.oldest_id, o.oldest_at, o.p95
    from (select sum(x.jobs) as jobs, sum(x.asked) as asked from overlong x) a
    left join (select x.* from overlong x order by x.jobs desc, x.task limit 1) o on true
$$;

-- A flood: half of the due jobs, among the first and the last 100 of each lane, belong to one tenant; or to one task that had
-- at most a third of the starts within a day. The remedy gives them half of the slots, and leaves the other half to others.
create or replace function pgqueue._flood_of(p_queue text, p_due bigint, p_slots bigint, p_now timestamptz)
returns table (subject text, evidence text, remedy text, since timestamptz)
language sql stable rows 1
as $$
    with due as materialized (
        select j.id, j.task, j.limit_key, j.created_at from pgqueue._ready_jobs(p_queue, 100, p_now) j
        union
        select j.id, j.task, j.limit_key, j.created_at
        from (select distinct l.priority from pgqueue.lanes l where l.queue = p_queue) l
        cross join (values (false), (true)) s (resumed)
        cross join lateral pgqueue._head(p_queue, l.priority, s.resumed) h
        cross join lateral (
            select x.id, x.task, x.limit_key, x.created_at
            from pgqueue.jobs x
            where x.state in ('waiting', 'failed') and x.queue = p_queue and x.priority = l.priority and x.resumed = s.resumed
                and (x.ready_at, x.id) >= (h.head, h.head_id) and x.ready_at <= p_now
            order by x.ready_at desc, x.id desc
            limit 100
        ) j
    ),
    day as materialized (
        select p.ended, (select sum((t.value ->> 'started')::numeric) from jsonb_each(p.ended) t) as started
        from pgqueue.samples p
        where p.span = 600 and p.at > p_now - interval '1 day' and p.queue = p_queue
    )
    select
        s.name,
        format('about %s (%s %%) of the %s that are due are of %s %s, enqueued since %s%s',
            to_char(s.share * p_due, 'FM999,999,999,990'), round(100 * s.share), pgqueue._counted(p_due),
            case s.kind when 'task' then 'task' else 'tenant' end, s.name, s.since, '; of the starts within a day it had ' || round(100 * s.usual) || ' %'),
        concat('let fewer of them run at a time: pgqueue limits set ', s.kind, ' ', pgqueue._shell_quoted(s.name), ' --max-executing ',
            least(greatest(coalesce(p_slots / 2, 2), 1), l.max_executing),
            ' --rate ' || a.rate || ' --per ' || pgqueue._shell_quoted(a.per::text), ' --max-cost ' || a.max_cost, ' --burst ' || a.burst),
        s.since
    from (
        select x.*, x.jobs / (select count(*)::numeric from due) as share, case when x.kind = 'task' then (
            select sum(coalesce((d.ended -> x.name ->> 'started')::numeric, 0)) / nullif(sum(d.started), 0) from day d
        ) end as usual
        from (
            select v.kind, v.name, count(*) as jobs, min(d.created_at) as since
            from due d
            cross join lateral (values ('limit_key', d.limit_key), ('task', d.task)) v (kind, name)
            where v.name is not null
            group by v.kind, v.name
            order by 3 desc
            limit 4
        ) x
    ) s
    left join pgqueue._limits_of(null, case s.kind when 'task' then s.name end, null, case s.kind when 'limit_key' then s.name end) l on true
    -- A row of its own takes the place of that of target*, so it gets all parts of it.
    left join lateral (select l.* where l.rule <> l.target) a on true
    where s.share >= 0.5 and (s.kind = 'limit_key' or s.usual < 0.34)
    order by s.kind = 'task', s.share desc
    limit 1
$$;

-- The blocked jobs of a queue by the limit or the key that they wait for, up to p_most of each: of the first p_most / 25 of each
-- limit, and 100,000 of all limits, for no index has their queue.
create or replace function pgqueue._blocked_by(p_queue text, p_most integer)
returns table (limit_name text, key text, jobs bigint, oldest_at timestamptz, first_id bigint)
language sql stable rows 10
as $$
    with recursive limits (blocked_on) as (
        select '@zzz'::text collate pg_catalog."C"
        union all
        select (
            select j.blocked_on from pgqueue.jobs j where j.state = 'blocked' and j.blocked_on > l.blocked_on order by j.blocked_on limit 1
        )
        from limits l
        where l.blocked_on is not null
    ),
    blocked as materialized (
        (
            select null as limit_name, j.key, j.ready_at, j.id
            from (
                select x.state, x.blocked_on, x.key, x.ready_at, x.id
                from pgqueue.jobs x
                where pgqueue._holds_position(x) and x.queue = p_queue
                -- Those that came back have entries as well.
                limit least(4 * p_most, 20000)
            ) j
            where j.state = 'blocked' and j.blocked_on is null
            limit p_most
        )
        union all
        (
            select j.blocked_on, null, j.ready_at, j.id
            from (
                select y.*
                from (select x.blocked_on from limits x where x.blocked_on > '@zzz' limit least(p_most, 500)) l
                cross join lateral (
                    select x.blocked_on, x.ready_at, x.id, x.queue
                    from pgqueue.jobs x
                    where x.state = 'blocked' and x.blocked_on = l.blocked_on
                    order by x.priority desc, x.ready_at, x.id
                    limit p_most / 25
                ) y
                limit 100000
            ) j
            where j.queue = p_queue
            limit p_most
        )
    )
    select x.limit_name, x.key, count(*), min(x.ready_at), min(x.id) from blocked x group by x.limit_name, x.key
$$;

-- The first jobs of a queue (null: of each), p_most of each sub-lane, also those that were given back for a while.
create or replace function pgqueue._first_jobs(p_queue text, p_most integer, p_until timestamptz, p_now timestamptz)
returns table (id bigint, queue text, task text, reserved_by text, run_at timestamptz, is_unknown boolean, is_given_back boolean)
language sql stable rows 100
as $$
    select
        j.id, j.queue, j.task, j.reserved_by, j.run_at,
        exists (select from pgqueue.tasks) and not exists (select from pgqueue.tasks t where t.name = j.task),
        -- Passing a row as an argument decompresses its long args, so this is done for few rows only.
        case when j.attempts = 0 and j.reservation >= 3 << 20 then pgqueue._is_given_back(j, p_now) end
    from pgqueue._ready_jobs(p_queue, p_most, p_until) j
$$;

-- A number with its noun: 1 event, 2,000 events. Without a noun, jobs that were counted up to 10,000.
create or replace function pgqueue._counted(p_number bigint, p_noun text default null)
returns text
language sql stable parallel safe
as $$
    select case when p_noun is null and p_number >= 10000 then 'about ' else '' end || to_char(p_number, 'FM999,999,999,999,990') || ' '
        || coalesce(p_noun, 'job') || case when p_number = 1 then '' else 's' end
$$;

-- A time as people say it: 40 s, 38 min, 7 h, 3 d.
create or replace function pgqueue._in_words(p_time interval)
returns text
language sql immutable parallel safe
as $$
    select case
        when s.n < 10 then round(s.n, 1) || ' s'
        when s.n < 120 then round(s.n) || ' s'
        when s.n < 7200 then round(s.n / 60) || ' min'
        when s.n < 172800 then round(s.n / 3600) || ' h'
        else round(s.n / 86400) || ' d'
    end
    from (select extract(epoch from p_time)::numeric as n) s
$$;

-- Quotes a name for a shell: a producer may give a queue any name, and an operator pastes the command. p_is_served: of a queue that a
-- worker is to serve, where a comma begins a weight.
create or replace function pgqueue._shell_quoted(p_text text, p_is_served boolean default false)
returns text
language sql immutable parallel safe
as $$
    select case when n.name ~ '^[A-Za-z0-9_.:@%+/][A-Za-z0-9_.:@%+/-]*$' then n.name else '''' || replace(n.name, '''', '''"''"''') || '''' end
    from (select case when p_is_served then regexp_replace(p_text, ',.*$', e'\\&,1') else p_text end) n (name)
$$;
