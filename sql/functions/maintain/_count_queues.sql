-- How many jobs each queue has, by state: the one count behind samples, stats() and wanted().
--
-- By indexes alone, each sub-lane from its head on, and without a sort. Each count ends at p_most, that of ready jobs at 100 in a
-- queue of p_large, which is known to have many more; those that queues share, of jobs that limits and parents block and of the dead,
-- at ten times p_most; that of executing ones at 100,000, without is_cut: it says which queues are counted in turn. Reads only.

-- p_parts, p_part, p_always: one part of the queues, see _sample.
create or replace function pgqueue._count_queues(
    p_now timestamptz, p_most integer, p_queues text[] default null, p_large text[] default '{}', p_parts integer default 1,
    p_part integer default 0, p_always text[] default null
)
returns table (
    queue text, waiting integer, due integer, scheduled integer, failed integer, blocked integer, executing integer,
    dead integer, is_cut boolean, oldest_due_at timestamptz, blocked_by_limit integer, blocked_by_parents integer,
    oldest_stuck_at timestamptz, is_ready_cut boolean
)
language sql stable parallel safe rows 100
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set jit = off
as $$
    with ready as (
        select r.*
        from (
            select distinct l.queue, l.priority
            from pgqueue.lanes l
            where (p_queues is null or l.queue = any (p_queues)) and pgqueue._is_in_part(l.queue, p_parts, p_part, p_always)
        ) l
        cross join (values (false), (true)) s (resumed)
        cross join lateral pgqueue._count_ready(
            l.queue, l.priority, s.resumed, p_now, case when l.queue = any (p_large) then 100 else p_most end
        ) r
    ),
    executing as (
        select j.queue, count(*) as jobs
        from (
            select x.queue
            from pgqueue.jobs x
            where x.state = 'executing' and x.lease_expires_at >= pgqueue._lease_head()
            limit greatest(p_most, 100000)
        ) j
        group by j.queue
    ),
    -- Jobs that wait because an operator paused their task or limit_key are not stuck.
    paused as materialized (
        select 'pause:' || p.kind || ':' || p.target as name from pgqueue.pauses p where p.source = 'operator' and p.until > p_now
    ),
    waiting_for as (
        select
            j.queue, count(*) as jobs, count(*) filter (where j.by_limit) as by_limit, sum(count(*)) over () as of_all,
            min(j.ready_at) filter (where j.by_limit and not j.is_paused) as oldest_at
        from (
            select x.queue, x.ready_at, left(x.blocked_on, 1) <> '@' as by_limit, x.blocked_on in (select p.name from paused p) as is_paused
            from pgqueue.jobs x
            -- Jobs with a key are counted by another index, save these.
            where x.state = 'blocked' and x.blocked_on is not null and (x.key is null or x.blocked_on = '@parents')
            limit 10::bigint * p_most
        ) j
        group by j.queue
    ),
    dead as (
        select j.queue, count(*) as jobs, sum(count(*)) over () as of_all
        from (
            (
                select x.queue
                from pgqueue.history x
                where p_queues is null and x.state <> 'succeeded' and x.state = 'dead'
                order by x.id
                limit 10::bigint * p_most
            )
            union all
            select x.queue
            from unnest(p_queues) q (name)
            cross join lateral (select h.queue from pgqueue.history h where h.state <> 'succeeded' and h.queue = q.name and h.state = 'dead' offset 0) x
        ) j
        group by j.queue
    ),
    named as (
        select l.queue from pgqueue.lanes l union select q.name from pgqueue.queues q
        union
        select e.queue from executing e union select a.queue from waiting_for a union select d.queue from dead d
        union
        select r.entry ->> 'queue' from pgqueue.worker_reports w cross join jsonb_array_elements(w.report -> 'jobs') r (entry)
        union
        -- Some queues have only blocked jobs left.
        select s.queue from pgqueue._last_samples() s
    )
    select
        n.queue, greatest(coalesce(r.due + r.scheduled, 0) - f.jobs, 0)::integer, coalesce(r.due, 0)::integer,
        coalesce(r.scheduled, 0)::integer, f.jobs::integer, (k.jobs + coalesce(a.jobs, 0))::integer, coalesce(e.jobs, 0)::integer,
        coalesce(d.jobs, 0)::integer, z.is_cut or k.jobs >= p_most
            or greatest((select max(x.of_all) from waiting_for x), (select max(x.of_all) from dead x)) >= 10::bigint * p_most,
        r.oldest_due_at,
        (k.by_limit + coalesce(a.by_limit, 0))::integer, (k.by_parents + coalesce(a.jobs - a.by_limit, 0))::integer,
        least(k.oldest_at, a.oldest_at), z.is_cut
    from named n
    left join (
        select
            x.queue, sum(x.due) as due, sum(x.scheduled) as scheduled, bool_or(x.is_cut) as is_cut, min(x.oldest_due_at) as oldest_due_at
        from ready x
        group by x.queue
    ) r on r.queue = n.queue
    left join executing e on e.queue = n.queue
    left join waiting_for a on a.queue = n.queue
    cross join lateral (
        select
            count(*) filter (where b.state = 'blocked') as jobs,
            count(*) filter (where b.state = 'blocked' and b.by = '@') as by_parents,
            count(*) filter (where b.state = 'blocked' and b.by <> '@') as by_limit,
            min(b.ready_at) filter (where b.state = 'blocked' and b.by is distinct from '@' and not b.is_paused) as oldest_at
        from (
            select x.state, x.ready_at, left(x.blocked_on, 1) as by, coalesce(x.blocked_on in (select p.name from paused p), false) as is_paused
            from pgqueue.jobs x
            where pgqueue._holds_position(x) and x.queue = n.queue
            limit p_most
        ) b
    ) k
    left join dead d on d.queue = n.queue
    cross join lateral (select case when n.queue = any (p_large) then 100 else p_most end as most) m
    cross join lateral (
        -- The index of ready jobs does not have their states; jobs_failed is read by this condition alone.
        select count(*) as jobs
        from (
            select
            from pgqueue.jobs x
            where case when x.state = 'failed' then true else false end and x.queue = n.queue
            limit m.most
        ) x
    ) f
    cross join lateral (select coalesce(r.is_cut, false) or f.jobs >= m.most as is_cut) z
    -- Groups are counted by group_progress().
    where n.queue <> '@groups' and (p_queues is null or n.queue = any (p_queues))
        and pgqueue._is_in_part(n.queue, p_parts, p_part, p_always)
$$;

-- The ready jobs of a sub-lane, those that are due and those for later counted to p_most each. Inlined (no SET, and stable).
create or replace function pgqueue._count_ready(
    p_queue text, p_priority smallint, p_resumed boolean, p_now timestamptz, p_most integer
)
returns table (queue text, due bigint, scheduled bigint, is_cut boolean, oldest_due_at timestamptz)
language sql stable parallel safe rows 1
as $$
    select p_queue, d.jobs, l.jobs, greatest(d.jobs, l.jobs) >= p_most, d.oldest_at
    from pgqueue._head(p_queue, p_priority, p_resumed) h
    cross join lateral (
        select count(*) as jobs, min(y.ready_at) as oldest_at
        from (
            select x.ready_at
            from pgqueue.jobs x
            where x.state in ('waiting', 'failed') and x.queue = p_queue and x.priority = p_priority
                and x.resumed = p_resumed and (x.ready_at, x.id) >= (h.head, h.head_id) and x.ready_at <= p_now
            order by x.ready_at, x.id
            limit p_most
        ) y
    ) d
    cross join lateral (
        select count(*) as jobs
        from (
            select
            from pgqueue.jobs x
            where x.state in ('waiting', 'failed') and x.queue = p_queue and x.priority = p_priority
                and x.resumed = p_resumed and x.ready_at > p_now
            order by x.ready_at, x.id
            limit p_most
        ) y
    ) l
$$;
