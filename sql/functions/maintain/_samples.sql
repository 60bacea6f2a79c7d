-- Samples: the numbers of each queue every ten seconds, so that no reader has to count.
--
-- Counting is bounded: about 100,000 entries of jobs_ready are read for all sub-lanes together, each from its head on,
-- so that a sample costs the same beside a backlog of thousands or of millions, and beside an old snapshot. A queue
-- with nothing in it has no row; the queue '' stands for all of them, and always has one. Inserts, reads, and deletes
-- the reports of workers that it adds up; locks nothing else.

create or replace function pgqueue._sample(p_now timestamptz)
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    -- At least 1,000, so that small queues are counted exactly however many there are.
    v_most integer := greatest(1000, 100000 / greatest((select 2 * count(*) from pgqueue.lanes)::integer, 1));
begin
    with counted as (
        select c.*, r.ended
        from pgqueue._count_queues(p_now, v_most) c
        full join pgqueue._take_reports() r on r.queue = c.queue
        where c.queue is not null
    )
    insert into pgqueue.samples (
        at, span, queue, waiting, due, scheduled, failed, blocked, executing, dead, counted_to, oldest_due_at, ended,
        blocked_by_limit, blocked_by_parents
    )
    select
        p_now, 10, c.queue, c.waiting, c.due, c.scheduled, c.failed, c.blocked, c.executing, c.dead,
        case when c.is_cut then v_most end, c.oldest_due_at, c.ended,
        c.blocked_by_limit, c.blocked_by_parents
    from counted c
    where c.waiting + c.failed + c.blocked + c.executing + c.dead > 0 or c.ended is not null
    union all
    -- The row for all queues, which is always written.
    select
        p_now, 10, '', coalesce(sum(c.waiting), 0), coalesce(sum(c.due), 0), coalesce(sum(c.scheduled), 0),
        coalesce(sum(c.failed), 0), coalesce(sum(c.blocked), 0), coalesce(sum(c.executing), 0), coalesce(sum(c.dead), 0),
        case when bool_or(c.is_cut) then v_most end, min(c.oldest_due_at),
        (
            select jsonb_object_agg(e.task, e.ended)
            from pgqueue._sum_ended(array(
                select jsonb_build_object('queue', '', 'tasks', jsonb_build_object('', x.value))
                from counted y
                cross join jsonb_each(y.ended) x
            )) e
        ),
        coalesce(sum(c.blocked_by_limit), 0), coalesce(sum(c.blocked_by_parents), 0)
    from counted c;
    perform pgqueue._fold_samples(p_now);
end
$$;

comment on function pgqueue._sample(timestamptz) is 'Private: writes a sample of each queue, and aggregates the last ten minutes.';

create or replace function pgqueue._count_queues(p_now timestamptz, p_most integer)
returns table (
    queue text, waiting integer, due integer, scheduled integer, failed integer, blocked integer, executing integer,
    dead integer, is_cut boolean, oldest_due_at timestamptz, blocked_by_limit integer, blocked_by_parents integer
)
language sql
stable
parallel safe
rows 100
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
    with ready as (
        select r.*
        from (select distinct l.queue, l.priority from pgqueue.lanes l) l
        cross join (values (false), (true)) s (resumed)
        cross join lateral pgqueue._count_ready(l.queue, l.priority, s.resumed, p_now, p_most) r
    ),
    executing as (
        select j.queue, count(*) as jobs
        from (
            select x.queue
            from pgqueue.jobs x
            where x.state = 'executing' and x.lease_expires_at >= pgqueue._lease_head()
            limit 100000
        ) j
        group by j.queue
    ),
    waiting_for as (
        select
            j.queue, count(*) as jobs, count(*) filter (where j.by_limit) as by_limit, sum(count(*)) over () as of_all
        from (
            select x.queue, left(x.blocked_on, 1) <> '@' as by_limit
            from pgqueue.jobs x
            -- Jobs with a key are counted by another index, save these.
            where x.state = 'blocked' and x.blocked_on is not null and (x.key is null or x.blocked_on = '@parents')
            limit p_most
        ) j
        group by j.queue
    ),
    named as (
        select l.queue from pgqueue.lanes l
        union
        select q.name from pgqueue.queues q
        union
        select e.queue from executing e
        union
        select a.queue from waiting_for a
        union
        select r.entry ->> 'queue' from pgqueue.worker_reports w cross join jsonb_array_elements(w.report -> 'jobs') r (entry)
        union
        -- Some queues have only dead or blocked jobs left.
        select s.queue from pgqueue._last_samples() s
    )
    select
        n.queue, coalesce(r.waiting, 0)::integer, coalesce(r.due, 0)::integer, coalesce(r.scheduled, 0)::integer,
        coalesce(r.failed, 0)::integer, (k.jobs + coalesce(a.jobs, 0))::integer, coalesce(e.jobs, 0)::integer,
        d.jobs::integer, coalesce(r.is_cut, false)
            or greatest(k.jobs, (select max(x.of_all) from waiting_for x), d.jobs) >= p_most,
        r.oldest_due_at,
        (k.by_limit + coalesce(a.by_limit, 0))::integer, (k.by_parents + coalesce(a.jobs - a.by_limit, 0))::integer
    from named n
    left join (
        select
            x.queue, sum(x.waiting) as waiting, sum(x.due) as due, sum(x.scheduled) as scheduled, sum(x.failed) as failed,
            bool_or(x.is_cut) as is_cut, min(x.oldest_due_at) as oldest_due_at
        from ready x
        group by x.queue
    ) r on r.queue = n.queue
    left join executing e on e.queue = n.queue
    left join waiting_for a on a.queue = n.queue
    cross join lateral (
        select
            count(*) filter (where b.state = 'blocked') as jobs,
            count(*) filter (where b.state = 'blocked' and left(b.blocked_on, 1) <> '@') as by_limit,
            count(*) filter (where b.state = 'blocked' and left(b.blocked_on, 1) = '@') as by_parents
        from (
            select x.state, x.blocked_on
            from pgqueue.jobs x
            where x.key is not null
                and (x.state = 'blocked' or (x.state in ('waiting', 'failed') and x.reservation > 0))
                and x.blocked_on is distinct from '@parents'
                and x.queue = n.queue
            limit p_most
        ) b
    ) k
    cross join lateral (
        select count(*) as jobs
        from (
            select
            from pgqueue.history h
            where h.state <> 'succeeded' and h.queue = n.queue and h.state = 'dead'
            limit p_most
        ) x
    ) d
$$;

comment on function pgqueue._count_queues(timestamptz, integer) is
    'Private: the numbers of each queue, each counted to p_most at least; is_cut: some number may be higher.';

create or replace function pgqueue._count_ready(
    p_queue text, p_priority smallint, p_resumed boolean, p_now timestamptz, p_most integer
)
returns table (
    queue text, waiting bigint, due bigint, scheduled bigint, failed bigint, is_cut boolean, oldest_due_at timestamptz
)
language sql
stable
parallel safe
rows 1
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
    select
        p_queue, count(*) filter (where j.state = 'waiting'), count(*) filter (where j.ready_at <= p_now),
        count(*) filter (where j.ready_at > p_now), count(*) filter (where j.state = 'failed'),
        count(*) filter (where j.ready_at <= p_now) >= p_most or count(*) filter (where j.ready_at > p_now) >= p_most,
        min(j.ready_at) filter (where j.ready_at <= p_now)
    from pgqueue._head(p_queue, p_priority, p_resumed) h
    cross join lateral (
        (
            select x.state, x.ready_at
            from pgqueue.jobs x
            where x.state in ('waiting', 'failed')
                and x.queue = p_queue
                and x.priority = p_priority
                and x.resumed = p_resumed
                and (x.ready_at, x.id) >= (h.head, h.head_id)
                and x.ready_at <= p_now
            order by x.ready_at, x.id
            limit p_most
        )
        union all
        (
            select x.state, x.ready_at
            from pgqueue.jobs x
            where x.state in ('waiting', 'failed')
                and x.queue = p_queue
                and x.priority = p_priority
                and x.resumed = p_resumed
                and x.ready_at > p_now
            order by x.ready_at, x.id
            limit p_most
        )
    ) j
$$;

comment on function pgqueue._count_ready(text, smallint, boolean, timestamptz, integer) is
    'Private: the ready jobs of a sub-lane, those that are due and those for later counted to p_most each.';

create or replace function pgqueue._last_samples()
returns setof pgqueue.samples
language sql
stable
parallel safe
rows 100
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
    select s.*
    from pgqueue.samples s
    where s.span = 10
        and s.at = (select max(x.at) from pgqueue.samples x where x.span = 10)
        and s.queue <> ''
$$;

comment on function pgqueue._last_samples() is 'Private: the newest sample of each queue that was not empty.';

-- The reports of workers, by queue and task.
create or replace function pgqueue._take_reports()
returns table (queue text, ended jsonb)
language sql
volatile
parallel unsafe
rows 100
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
    with taken as (
        delete from pgqueue.worker_reports r
        where r.n = any (array(select x.n from pgqueue.worker_reports x order by x.n limit 5000))
        returning r.report
    )
    select s.queue, jsonb_object_agg(s.task, s.ended)
    from pgqueue._sum_ended(array(
        select jsonb_build_object(
            'queue', e.entry ->> 'queue', 'tasks', jsonb_build_object(e.entry ->> 'task', e.entry - '{queue,task}'::text[])
        )
        from taken t
        cross join jsonb_array_elements(t.report -> 'jobs') e (entry)
    )) s
    group by s.queue
$$;

comment on function pgqueue._take_reports() is 'Private: deletes the reports of workers, and returns their sums by queue in the form of samples.';

create or replace function pgqueue._sum_ended(p_parts jsonb[])
returns table (queue text, task text, ended jsonb)
language sql
immutable
parallel safe
rows 100
set search_path = pg_catalog, pg_temp
set jit = off
as $$
    with parts as (
        select p.part ->> 'queue' as queue, t.key as task, f.key as field, f.value
        from unnest(p_parts) p (part)
        cross join jsonb_each(p.part -> 'tasks') t
        cross join jsonb_each(t.value) f
    ),
    outcomes as (
        select p.queue, p.task, jsonb_object_agg(p.field, p.total) as fields
        from (
            select x.queue, x.task, x.field, sum((x.value #>> '{}')::numeric) as total
            from parts x
            where x.field not in ('run', 'wait')
            group by x.queue, x.task, x.field
        ) p
        group by p.queue, p.task
    ),
    buckets as (
        select p.queue, p.task, p.field, b.n, sum(b.count::numeric) as total
        from parts p
        cross join jsonb_array_elements_text(p.value -> 'buckets') with ordinality b (count, n)
        where p.field in ('run', 'wait')
        group by p.queue, p.task, p.field, b.n
    ),
    times as (
        select p.queue, p.task, jsonb_object_agg(p.field, jsonb_build_object(
            'sum', p.total, 'max', p.longest,
            'buckets', (
                select jsonb_agg(b.total order by b.n)
                from buckets b
                where b.queue = p.queue and b.task = p.task and b.field = p.field
            )
        )) as fields
        from (
            select
                x.queue, x.task, x.field, sum((x.value ->> 'sum')::numeric) as total,
                max((x.value ->> 'max')::numeric) as longest
            from parts x
            where x.field in ('run', 'wait')
            group by x.queue, x.task, x.field
        ) p
        group by p.queue, p.task
    )
    select o.queue, o.task, o.fields || coalesce(t.fields, '{}')
    from outcomes o
    left join times t on t.queue = o.queue and t.task = o.task
$$;

comment on function pgqueue._sum_ended(jsonb[]) is
    'Private: adds up counts of ended jobs, given as objects of a queue and its tasks.';

-- One row for ten minutes, at the first sample after they are over.
create or replace function pgqueue._fold_samples(p_now timestamptz)
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_until timestamptz := date_bin('10 min', p_now, 'epoch');
begin
    if exists (select from pgqueue.samples s where s.span = 600 and s.at >= v_until)
        or not exists (
            select from pgqueue.samples s where s.span = 10 and s.at >= v_until - interval '10 min' and s.at < v_until
        )
    then
        return;
    end if;
    insert into pgqueue.samples (
        at, span, queue, waiting, due, scheduled, failed, blocked, executing, dead, counted_to, oldest_due_at, ended,
        blocked_by_limit, blocked_by_parents
    )
    select
        v_until, 600, s.queue, max(s.waiting), max(s.due), max(s.scheduled), max(s.failed), max(s.blocked), max(s.executing),
        max(s.dead), max(s.counted_to), v_until - max(s.at - s.oldest_due_at),
        (
            select jsonb_object_agg(e.task, e.ended)
            from pgqueue._sum_ended(
                array_agg(jsonb_build_object('queue', s.queue, 'tasks', s.ended)) filter (where s.ended is not null)
            ) e
        ),
        max(s.blocked_by_limit), max(s.blocked_by_parents)
    from pgqueue.samples s
    where s.span = 10 and s.at >= v_until - interval '10 min' and s.at < v_until
    group by s.queue;
end
$$;

comment on function pgqueue._fold_samples(timestamptz) is
    'Private: writes one row of each queue with the highest numbers of the last ten minutes, and the count of jobs that ended.';

create or replace function pgqueue._tidy_samples(p_now timestamptz, p_limit integer)
returns bigint
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_samples bigint;
    v_audit bigint;
begin
    delete from pgqueue.samples s
    where s.n = any (
        array(
            (select x.n from pgqueue.samples x where x.span = 10 and x.at < pgqueue._after(p_now, '-1 day') order by x.at limit p_limit)
            union all
            (select x.n from pgqueue.samples x where x.span = 600 and x.at < pgqueue._after(p_now, '-90 days') order by x.at limit p_limit)
        )
    );
    get diagnostics v_samples = row_count;
    delete from pgqueue.audit a
    where a.n = any (
        array(
            select x.n
            from pgqueue.audit x
            where x.at < (select pgqueue._after(p_now, -s.retention_audit) from pgqueue.settings s where s.one)
            order by x.at
            limit p_limit
        )
    );
    get diagnostics v_audit = row_count;
    return greatest(v_samples, v_audit);
end
$$;

comment on function pgqueue._tidy_samples(timestamptz, integer) is
    'Private: deletes samples and audit rows that are too old, up to p_limit rows of each; returns how many.';
