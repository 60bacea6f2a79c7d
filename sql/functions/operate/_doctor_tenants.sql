-- What doctor() checks of fair queues: who floods them, and what takes no turn there. It reads the first 10,000 due jobs of each.

create or replace function pgqueue._doctor_tenants(p_now timestamptz)
returns table (severity text, topic text, subject text, evidence text, remedy text)
language sql stable rows 5
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
    with fair as (
        select a.queue, a.priority, q.name is not null as is_fair
        from pgqueue.lanes a
        left join pgqueue.queues q on q.name = a.queue and q.fair_by is not null
        group by a.queue, a.priority, q.name
        having bool_or(a.is_fair)
    ),
    waiting as (
        select f.queue, f.is_fair, j.limit_key, j.lane_key is null as is_apart, count(*) as jobs
        from fair f
        cross join lateral pgqueue._head(f.queue, f.priority, false) h
        cross join lateral (
            select x.limit_key, x.lane_key
            from pgqueue.jobs x
            where x.state in ('waiting', 'failed') and x.queue = f.queue and x.priority = f.priority and x.resumed = false
                and (x.ready_at, x.id) >= (h.head, h.head_id) and x.ready_at <= p_now
            order by x.ready_at, x.id
            limit 10000
        ) j
        group by 1, 2, 3, 4
    ),
    tenants as (
        select w.queue, w.limit_key, sum(w.jobs) as jobs, sum(sum(w.jobs)) over (partition by w.queue) as of_queue
        from waiting w
        where w.is_fair
        group by w.queue, w.limit_key
    )
    select
        'info', 'tenant', t.queue,
        format('tenant %s has %s of the first %s jobs that wait in it; the others take their turns between them',
            t.limit_key, t.jobs, t.of_queue),
        format('nothing, or select pgqueue.set_limit(%L, %L, max_executing => 10);', 'limit_key', t.limit_key)
    from tenants t
    where t.limit_key is not null and t.jobs > 1000 and t.jobs * 2 > t.of_queue
    union all
    select
        'warning', 'tenant', t.queue,
        format('%s of the first %s jobs that wait in it have no limit_key: they are one tenant, and start in one order',
            t.jobs, t.of_queue),
        'enqueue them with a limit_key, or in another queue'
    from tenants t
    where t.limit_key is null and t.jobs > 100 and t.jobs * 2 > t.of_queue
    union all
    select
        'info', 'tenant', w.queue,
        format('at least %s jobs wait as they did before it was made %s', sum(w.jobs), case when w.is_fair then 'fair' else 'plain' end),
        'nothing: maintain() moves them, 5000 and more a second'
    from waiting w
    where w.is_fair = w.is_apart
    group by w.queue, w.is_fair
$$;
