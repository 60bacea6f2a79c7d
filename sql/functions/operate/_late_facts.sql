-- The facts that why_late() asks for: slots, floods, the database, rates, and which jobs are due, blocked, or of a task that
-- no worker has. Each function reads a bounded number of rows.

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
-- times as long as its task did in the mean of the last four hours in which it ran within a day, or for five minutes if none
-- ended. A prefetched job takes no slot. asked: how many of the overlong ones were asked to cancel.
create or replace function pgqueue._slots_for(p_queue text, p_now timestamptz)
returns table (
    workers text, slots bigint, executing bigint, overlong bigint, asked bigint, task text, oldest_id bigint, oldest_at timestamptz, usual interval
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
        select j.id, j.queue, j.task, j.reserved_at, j.cancel_requested_at, coalesce(j.started = j.reservation, false) as is_started
        from pgqueue._executing_jobs() j
        join living l on l.name = j.reserved_by
        where j.leader is null or j.leader = j.id
    ),
    lasting as (select x.* from held x where x.is_started and x.reserved_at < p_now - interval '1 min'),
    usual as materialized (
        select k.queue, k.task, u.mean
        from (select distinct x.queue, x.task from lasting x) k
        cross join lateral (
            select make_interval(secs => (sum((r.run ->> 'sum')::numeric) / nullif(sum(
                (select sum(b.count::numeric) from jsonb_array_elements_text(r.run -> 'buckets') b (count))
            ), 0))::double precision) as mean
            from (
                select s.ended -> k.task -> 'run' as run
                from pgqueue.samples s
                where s.span = 600 and s.at > p_now - interval '1 day' and s.queue = k.queue and s.ended ? k.task
                order by s.queue desc, s.span desc, s.at desc
                limit 24
            ) r
        ) u
    ),
    overlong as (
        select
            h.task, count(*) filter (where h.reserved_at < p_now - greatest(coalesce(10 * u.mean, '5 min'), '1 min')) as jobs,
            count(*) filter (
                where h.reserved_at < p_now - greatest(coalesce(10 * u.mean, '5 min'), '1 min') and h.cancel_requested_at < p_now - interval '10 s'
            ) as asked,
            min(h.reserved_at) as oldest_at, (array_agg(h.id order by h.reserved_at, h.id))[1] as oldest_id, u.mean
        from lasting h
        join usual u on u.queue = h.queue and u.task = h.task
        group by h.task, u.mean
    )
    select
        (
            select case count(*) when 0 then null when 1 then min('worker ' || l.name) else format('%s workers', count(*)) end
            from living l
        ),
        (select sum(l.slots)::bigint from living l), (select count(*) from held), coalesce(sum(o.jobs), 0)::bigint,
        coalesce(sum(o.asked), 0)::bigint,
        string_agg(o.task, ', ' order by o.jobs desc, o.task) filter (where o.jobs > 0 and o.n = 1),
        min(o.oldest_id) filter (where o.n = 1), min(o.oldest_at) filter (where o.n = 1), min(o.mean) filter (where o.n = 1)
    from (select x.*, row_number() over (order by x.jobs desc, x.task) as n from overlong x) o
$$;

-- A flood: half of the due jobs, among the first and the last 100 of each lane, belong to one tenant; or to one task that had
-- at most a third of the starts within a day. The remedy gives them half of the slots, and leaves the other half to others.
create or replace function pgqueue._late_by_flood(
    p_queue text, p_due bigint, p_slots bigint, p_now timestamptz,
    out cause text, out subject text, out evidence text, out remedy text, out since timestamptz
)
language sql stable
as $$
    with due as materialized (
        select d.*
        from (select distinct l.priority from pgqueue.lanes l where l.queue = p_queue) l
        cross join (values (false), (true)) s (resumed)
        cross join lateral pgqueue._head(p_queue, l.priority, s.resumed) h
        cross join lateral (
            (
                select j.task, j.limit_key, j.created_at
                from pgqueue.jobs j
                where j.state in ('waiting', 'failed') and j.queue = p_queue and j.priority = l.priority and j.resumed = s.resumed
                    and (j.ready_at, j.id) >= (h.head, h.head_id) and j.ready_at <= p_now
                order by j.ready_at, j.id
                limit 100
            )
            union all
            (
                select j.task, j.limit_key, j.created_at
                from pgqueue.jobs j
                where j.state in ('waiting', 'failed') and j.queue = p_queue and j.priority = l.priority and j.resumed = s.resumed
                    and (j.ready_at, j.id) >= (h.head, h.head_id) and j.ready_at <= p_now
                order by j.ready_at desc, j.id desc
                limit 100
            )
        ) d
    ),
    shares as (
        select 'limit_key' as kind, d.limit_key as name, count(*) as jobs, min(d.created_at) as since from due d where d.limit_key is not null group by 2
        union all
        select 'task', d.task, count(*), min(d.created_at) from due d group by 2
    ),
    day as materialized (
        select p.ended, (select sum((t.value ->> 'started')::numeric) from jsonb_each(p.ended) t) as started
        from pgqueue.samples p
        where p.span = 600 and p.at > p_now - interval '1 day' and p.queue = p_queue
    )
    select
        'flood', s.name,
        format('%s of the %s that are due are of %s %s, enqueued since %s%s', case when s.share > 0.99 then 'nearly all' else 'about ' || round(100 * s.share) || ' %' end,
            pgqueue._counted(p_due), case s.kind when 'task' then 'task' else 'tenant' end, s.name, s.since,
            '; of the starts within a day it had ' || round(100 * s.usual) || ' %'),
        format('let fewer of them run at a time: pgqueue limits set %s %s --max-executing %s', s.kind, pgqueue._shell_quoted(s.name),
            greatest(coalesce(p_slots / 2, 2), 1)),
        s.since
    from (
        select x.*, x.jobs / (select count(*)::numeric from due) as share, case when x.kind = 'task' then (
            select sum(coalesce((d.ended -> x.name ->> 'started')::numeric, 0)) / nullif(sum(d.started), 0) from day d
        ) end as usual
        from (select y.* from shares y order by y.jobs desc limit 4) x
    ) s
    where s.share >= 0.5 and (s.kind = 'limit_key' or s.usual < 0.34)
    order by s.kind = 'task', s.share desc
    limit 1
$$;

-- What makes claims slow although slots are free.
create or replace function pgqueue._late_by_database(p_now timestamptz, out subject text, out evidence text, out remedy text)
language sql stable
as $$
    select d.subject, d.evidence, d.remedy
    from (
        select d.subject, d.evidence, d.remedy, 1 as n from pgqueue._doctor_server() d where d.topic in ('old_snapshot', 'notify_queue')
        union all
        select d.subject, d.evidence, d.remedy, 2 from pgqueue._doctor_dead_rows() d
        union all
        select
            format('session %s', b.pid),
            format('%s for a lock that session %s holds',
                case count(*) when 1 then '1 session of the queue waits' else count(*) || ' sessions of the queue wait' end, b.pid),
            format('select pg_terminate_backend(%s);', b.pid), 3
        from pg_stat_activity a
        cross join unnest(pg_blocking_pids(a.pid)) b (pid)
        where a.wait_event_type = 'Lock' and a.datname = current_database() and a.query ~ 'pgqueue'
        group by b.pid
    ) d
    order by d.n
    limit 1
$$;

-- How many jobs start and come in per second, by the samples of five minutes, and when the due ones will have started.
create or replace function pgqueue._rates_of(p_queue text, p_due bigint, p_now timestamptz)
returns text
language sql stable
as $$
    select case when r.seconds > 0 then
        format('%s a second start and %s come in', round(r.started, 2), round(greatest(r.started + r.growth, 0), 2))
            || case
                when r.growth < 0 then format(': the due ones will have started in %s', pgqueue._in_words(make_interval(secs => (-p_due / r.growth)::double precision)))
                else ': they do not get fewer'
            end
        end
    from (
        select
            x.seconds, x.started / nullif(x.seconds, 0) as started, (x.due_now - x.due_then) / nullif(x.seconds, 0) as growth
        from (
            select
                extract(epoch from max(s.at) - min(s.at))::numeric as seconds,
                sum((select sum((t.value ->> 'started')::numeric) from jsonb_each(s.ended) t)) as started,
                (array_agg(s.due order by s.at desc))[1]::numeric as due_now, (array_agg(s.due order by s.at))[1]::numeric as due_then
            from pgqueue.samples s
            -- A large queue is not counted in each sample.
            where s.span = 10 and s.at > p_now - interval '5 min' and s.queue = p_queue and s.at = coalesce(s.counted_at, s.at)
        ) x
    ) r
$$;

-- How many jobs of a queue are due: by its last sample, if that tells of now; else counted, up to 10,000.
create or replace function pgqueue._due_in(p_queue text, p_sample pgqueue.samples, p_now timestamptz)
returns bigint
language sql stable
as $$
    select coalesce((p_sample).due::bigint, (
        select coalesce(sum(r.due), 0)::bigint
        from (select distinct l.priority from pgqueue.lanes l where l.queue = p_queue) l
        cross join (values (false), (true)) s (resumed)
        cross join lateral pgqueue._count_ready(p_queue, l.priority, s.resumed, p_now, 10000) r
    ))
$$;

-- The blocked jobs of a queue that wait for a limit or for a job of their key, and the limit for which most of them wait;
-- null: most wait for a job of their key. job_id: the oldest of these, or of the key with most.
create or replace function pgqueue._blocked_in(p_queue text, p_most integer)
returns table (jobs bigint, oldest_at timestamptz, limit_name text, job_id bigint)
language sql stable rows 1
as $$
    select
        coalesce(sum(b.jobs), 0)::bigint, min(b.oldest_at), (array_agg(b.limit_name order by b.jobs desc, b.first_id))[1],
        (array_agg(b.first_id order by b.jobs desc, b.first_id))[1]
    from pgqueue._blocked_by(p_queue, p_most) b
$$;

-- The blocked jobs of a queue by the limit or the key that they wait for, up to p_most of each.
create or replace function pgqueue._blocked_by(p_queue text, p_most integer)
returns table (limit_name text, key text, jobs bigint, oldest_at timestamptz, first_id bigint)
language sql stable rows 10
as $$
    with recursive limits as (
        (
            select j.blocked_on from pgqueue.jobs j where j.state = 'blocked' and j.blocked_on > '@zzz' order by j.blocked_on limit 1
        )
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
                limit 4 * p_most
            ) j
            where j.state = 'blocked' and j.blocked_on is null
            limit p_most
        )
        union all
        (
            select l.blocked_on, null, j.ready_at, j.id
            from (select x.blocked_on from limits x where x.blocked_on is not null limit least(p_most, 500)) l
            cross join lateral (
                select x.ready_at, x.id, x.queue
                from pgqueue.jobs x
                where x.state = 'blocked' and x.blocked_on = l.blocked_on
                order by x.priority desc, x.ready_at, x.id
                limit p_most / 25
            ) j
            where j.queue = p_queue
            limit p_most
        )
    )
    select x.limit_name, x.key, count(*), min(x.ready_at), min(x.id) from blocked x group by x.limit_name, x.key
$$;

-- Counts those of the first jobs of a queue, 10 of each lane, whose task no worker knows, or no living one has.
create or replace function pgqueue._unserved_in(p_queue text, p_now timestamptz)
returns table (jobs bigint, of_jobs bigint, task text, job_id bigint, worker text, oldest_at timestamptz)
language sql stable rows 1
as $$
    select
        count(*) filter (where f.is_unserved), count(*), min(f.task) filter (where f.is_unserved),
        min(f.id) filter (where f.is_unserved), max(f.reserved_by) filter (where f.is_unserved), min(f.run_at) filter (where f.is_unserved)
    from (
        select x.*, x.is_unknown or coalesce(x.is_given_back, false) as is_unserved
        from pgqueue._first_jobs(p_queue, 10, p_now + interval '30 s', p_now) x
    ) f
$$;

-- A number with its noun: 1 event, 2 events. Without a noun, jobs that were counted up to 10,000.
create or replace function pgqueue._counted(p_number bigint, p_noun text default null)
returns text
language sql immutable parallel safe
as $$
    select case when p_noun is null and p_number >= 10000 then 'about ' else '' end || p_number || ' ' || coalesce(p_noun, 'job')
        || case when p_number = 1 then '' else 's' end
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
