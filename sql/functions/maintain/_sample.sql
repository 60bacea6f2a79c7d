-- Samples: the numbers of each queue every ten seconds, so that no reader has to count.
--
-- A queue of up to 10,000 jobs is counted whole each time (fewer where all queues have more than a million such jobs, as the
-- last sample counted them). A larger one is counted whole in its turn, one of sixty of them in each sample, so every ten
-- minutes at least; where large queues have millions of jobs, no more often: a sample is to take 50 ms of a core at most.
-- Between, its sample has the numbers of that count, with its time, and the time of its oldest due job is of now. Whether it
-- is still large is tried in each sample; where it had more than twice as many, once a minute, and whether 100 are left in
-- each sample. A queue with nothing in it has no row; the queue '' stands for all of them, and always has one. Deletes the
-- reports of workers that it adds up.
-- Where there are more than 500 lanes, a sample counts one part of the queues, some 250, and the fifty that had the most jobs,
-- and writes rows of these, and of queues with jobs that have ended. The others keep their numbers until their turn.

-- p_cursor: which part. Returns the next one.
create or replace function pgqueue._sample(p_now timestamptz, p_cursor text[] default null)
returns text[]
language plpgsql
as $$
declare
    -- The first one counts all.
    v_parts integer := case when exists (select from pgqueue._last_samples()) then pgqueue._queue_parts() else 1 end;
    v_part integer := coalesce(p_cursor[1]::integer, 0) % v_parts;
    v_always text[] := array(select s.queue from pgqueue._last_samples() s where v_parts > 1 order by s.due + s.blocked + s.executing desc limit 50);
    v_most integer := least(10000, greatest(1000, coalesce(1e10 / nullif((
        select sum(least(s.due, 10000) + least(s.scheduled, 10000) + least(s.blocked, 10000)) from pgqueue._last_samples() s
    ), 0), 10000)))::integer;
begin
    with before as materialized (
        select s.*, s.is_large and s.counted_at is not null as is_known, s.waiting + s.failed + s.blocked as jobs
        from pgqueue._last_samples() s
    ),
    counted_now as materialized (
        select c.*
        from pgqueue._count_queues(p_now, v_most, null, array(
            select b.queue
            from before b
            where b.is_known and b.jobs > 2 * v_most
                and abs(hashtext(b.queue)::bigint) % 6 <> floor(extract(epoch from p_now) / 10)::bigint % 6
        ), v_parts, v_part, v_always) c
    ),
    bounded as materialized (
        select c.*, false as is_kept from counted_now c
        union all
        select
            b.queue, b.waiting, b.due, b.scheduled, b.failed, b.blocked, b.executing, b.dead, b.is_large, b.oldest_due_at,
            b.blocked_by_limit, b.blocked_by_parents, b.oldest_stuck_at, b.is_large, true
        from before b
        where v_parts > 1 and b.queue not in (select c.queue from counted_now c)
    ),
    taken as (
        delete from pgqueue.worker_reports r
        where r.n = any (array(select x.n from pgqueue.worker_reports x order by x.n limit 5000))
        returning r.report
    ),
    reports as (
        select s.queue, jsonb_object_agg(s.task, s.ended) as ended
        from (
            select
                e.entry ->> 'queue' as queue, e.entry ->> 'task' as task,
                pgqueue._sum_ended(array_agg(e.entry - '{queue,task}'::text[])) as ended
            from taken t
            cross join jsonb_array_elements(t.report -> 'jobs') e (entry)
            group by 1, 2
        ) s
        where s.ended is not null
        group by s.queue
    ),
    whole as (
        select w.*
        from pgqueue._count_queues(p_now, 2147483647, array(
            select t.queue
            from (
                select
                    c.queue, c.is_ready_cut, count(*) over (partition by c.is_ready_cut) as of_all,
                    -- One that has become large has no count of before.
                    row_number() over (partition by c.is_ready_cut order by s.counted_at nulls first, c.queue) as place,
                    coalesce(s.counted_at, case when not c.is_ready_cut then max(s.counted_at) over (partition by c.is_ready_cut) end) as counted_at
                from bounded c
                left join before s on s.queue = c.queue and s.is_known
                where c.is_cut and not c.is_kept
            ) t
            -- Where the bound that queues share is reached, one scan counts all that are cut by it alone.
            where (not t.is_ready_cut or t.place <= ceil(t.of_all / 60.0)) and (t.counted_at is null or t.counted_at <= p_now - least((
                -- 1,000,000 ready jobs once a minute, 10,000,000 in ten; 100,000 that are blocked or dead once a minute.
                select sum(x.jobs) * interval '60 us' + sum(x.blocked + x.dead) * interval '500 us' from before x where x.is_known
            ), '9 min'))
        )) w
    ),
    unknown as (
        -- The oldest job of each queue whose task no worker has declared, among the first of each sub-lane.
        select l.queue, min(j.run_at) as oldest_at
        from (
            select distinct x.queue
            from pgqueue.lanes x where exists (select from pgqueue.tasks) and pgqueue._is_in_part(x.queue, v_parts, v_part, v_always)
        ) l
        -- Workers give them back for ten seconds.
        cross join lateral pgqueue._ready_jobs(l.queue, least(v_most / 500, 20), p_now + interval '30 s') j
        where not exists (select from pgqueue.tasks t where t.name = j.task)
        group by l.queue
    ),
    counted as (
        select
            coalesce(c.queue, r.queue) as queue, coalesce(w.waiting, o.waiting, c.waiting, 0) as waiting,
            coalesce(w.due, o.due, c.due, 0) as due, coalesce(w.scheduled, o.scheduled, c.scheduled, 0) as scheduled,
            coalesce(w.failed, o.failed, c.failed, 0) as failed, coalesce(w.blocked, b.blocked, c.blocked, 0) as blocked,
            coalesce(c.executing, 0) as executing, coalesce(w.dead, b.dead, c.dead, 0) as dead,
            case when c.is_kept then b.counted_to
                when c.is_cut and w.queue is null and b.queue is null or sum(c.executing) over () >= 100000 then v_most end as counted_to,
            coalesce(c.is_cut, false) as is_large, coalesce(c.is_kept or c.is_ready_cut and w.queue is null, false) as is_ready_kept,
            case when c.is_kept or c.is_cut and w.queue is null then b.counted_at else p_now end as counted_at,
            c.oldest_due_at, coalesce(w.blocked_by_limit, b.blocked_by_limit, c.blocked_by_limit, 0) as blocked_by_limit,
            coalesce(w.blocked_by_parents, b.blocked_by_parents, c.blocked_by_parents, 0) as blocked_by_parents,
            least(c.oldest_stuck_at, w.oldest_stuck_at, u.oldest_at) as oldest_stuck_at, r.ended,
            coalesce(c.is_kept, false) as is_kept
        from bounded c
        left join whole w on w.queue = c.queue
        left join before b on b.queue = c.queue and (c.is_kept or (c.is_cut and b.is_known))
        -- Where only the bound that queues share is reached, its ready jobs were counted whole.
        left join lateral (select b.* where c.is_kept or c.is_ready_cut) o on true
        left join unknown u on u.queue = c.queue and u.oldest_at <= p_now
        full join reports r on r.queue = c.queue
    )
    insert into pgqueue.samples (
        at, span, queue, waiting, due, scheduled, failed, blocked, executing, dead, counted_to, is_large, counted_at,
        oldest_due_at, ended, blocked_by_limit, blocked_by_parents, oldest_stuck_at, is_ready_kept
    )
    select
        p_now, 10, coalesce(c.queue, ''), coalesce(sum(c.waiting), 0), coalesce(sum(c.due), 0), coalesce(sum(c.scheduled), 0),
        coalesce(sum(c.failed), 0), coalesce(sum(c.blocked), 0), coalesce(sum(c.executing), 0), coalesce(sum(c.dead), 0),
        max(c.counted_to), coalesce(bool_or(c.is_large), false),
        coalesce(min(c.counted_at), case when grouping(c.queue) = 1 then p_now end), min(c.oldest_due_at),
        case when grouping(c.queue) = 0 then (array_agg(c.ended))[1] else (
            select jsonb_build_object('', pgqueue._sum_ended(array_agg(x.value)))
            from counted y
            cross join jsonb_each(y.ended) x
            having count(*) > 0
        ) end,
        coalesce(sum(c.blocked_by_limit), 0), coalesce(sum(c.blocked_by_parents), 0), min(c.oldest_stuck_at), coalesce(bool_or(c.is_ready_kept), false)
    from counted c
    group by grouping sets ((c.queue), ())
    having grouping(c.queue) = 1 or bool_or(
        c.ended is not null
        or (not c.is_kept and (c.waiting + c.failed + c.blocked + c.executing + c.dead > 0 or v_parts > 1))
    );
    perform pgqueue._fold_samples(p_now);
    return case when v_parts > 1 then array[(v_part + 1)::text] end;
end
$$;

-- Into how many parts maintenance divides the queues, and whether a queue is in one of them, or in p_always.
create or replace function pgqueue._queue_parts()
returns integer
language sql stable parallel safe
as $$
    select case when count(*) > 500 then (count(*) / 250)::integer else 1 end from (select from pgqueue.lanes limit 10000) l
$$;

create or replace function pgqueue._is_in_part(p_queue text, p_parts integer, p_part integer, p_always text[] default null)
returns boolean
language sql immutable parallel safe
as $$
    select p_parts = 1 or (pg_catalog.hashtext(p_queue) & 2147483647) % p_parts = p_part or p_queue = any (p_always)
$$;

-- The newest sample of each queue that was not empty.
create or replace function pgqueue._last_samples()
returns setof pgqueue.samples
language sql stable parallel safe rows 100
set enable_seqscan = off set jit = off
as $$
    select distinct on (s.queue) s.*
    from pgqueue.samples s
    where s.span = 10
        -- One of each part, however long ago: maintenance may have stood still. There were more parts while there were more lanes.
        and s.at >= (
            select min(x.at)
            from pgqueue._queue_parts() p (parts)
            cross join lateral (select y.at from pgqueue.samples y where y.queue = '' and y.span = 10 order by y.at desc limit case when p.parts > 1 then 2 * p.parts else 1 end) x
        )
        and s.queue <> ''
    order by s.queue, s.at desc
$$;

-- Adds up what ended of one task: numbers of jobs, and the times run and wait, each with its histogram. Null: nothing.
create or replace function pgqueue._sum_ended(p_counts jsonb[])
returns jsonb
language sql immutable parallel safe
as $$
    select jsonb_object_agg(t.field, t.total)
    from (
        select
            f.key as field,
            case
                when f.key not in ('run', 'wait')
                    then to_jsonb(sum((f.value #>> '{}')::numeric) filter (where f.key not in ('run', 'wait')))
                else jsonb_build_object(
                    'sum', sum((f.value ->> 'sum')::numeric), 'max', max((f.value ->> 'max')::numeric),
                    'buckets', (
                        select jsonb_agg(b.total order by b.nth)
                        from (
                            select x.nth, sum(x.count::numeric) as total
                            from unnest(array_agg(f.value -> 'buckets')) u (buckets)
                            cross join jsonb_array_elements_text(u.buckets) with ordinality x (count, nth)
                            group by x.nth
                        ) b
                    )
                )
            end as total
        from unnest(p_counts) c (counts)
        cross join jsonb_each(c.counts) f
        group by f.key
    ) t
$$;

-- One row for ten minutes, at the first sample after they are over.
create or replace function pgqueue._fold_samples(p_now timestamptz)
returns void
language plpgsql
as $$
declare
    v_until timestamptz := date_bin('10 min', p_now, 'epoch');
begin
    insert into pgqueue.samples (
        at, span, queue, waiting, due, scheduled, failed, blocked, executing, dead, counted_to, is_large, counted_at,
        oldest_due_at, ended, blocked_by_limit, blocked_by_parents, oldest_stuck_at
    )
    select
        v_until, 600, s.queue, max(s.waiting), max(s.due), max(s.scheduled), max(s.failed), max(s.blocked), max(s.executing),
        max(s.dead), max(s.counted_to), bool_or(s.is_large), max(s.counted_at), v_until - max(s.at - s.oldest_due_at),
        (
            select jsonb_object_agg(t.task, t.ended)
            from (
                select e.key as task, pgqueue._sum_ended(array_agg(e.value)) as ended
                from unnest(array_agg(s.ended)) x (ended)
                cross join jsonb_each(x.ended) e
                group by e.key
            ) t
        ),
        max(s.blocked_by_limit), max(s.blocked_by_parents), v_until - max(s.at - s.oldest_stuck_at)
    from pgqueue.samples s
    where s.span = 10 and s.at >= v_until - interval '10 min' and s.at < v_until
        and not exists (select from pgqueue.samples x where x.span = 600 and x.at >= v_until)
    group by s.queue;
end
$$;
