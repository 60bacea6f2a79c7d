-- queue_facets: what fills a queue. Due jobs are read as claims read them, lane by lane from the head on, max_jobs in all at
-- most; blocked ones by _blocked_by. Locks nothing.

create or replace function pgqueue.queue_facets(queue text default null, max_jobs integer default 5000, max_values integer default 5)
returns table (facet text, value text, jobs bigint)
language plpgsql stable security definer rows 50
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_now timestamptz := pgqueue._clock();
begin
    perform pgqueue._check_range('max_jobs', queue_facets.max_jobs, 1, 100000, 'Give the number of due jobs to read at most.');
    perform pgqueue._check_range('max_values', queue_facets.max_values, 1, 1000, 'Give the number of values of each facet.');
    return query
    with due as materialized (
        select j.task, j.limit_key, j.key, j.tags, j.enqueued_by, j.ready_at
        from pgqueue._ready_jobs(queue_facets.queue, queue_facets.max_jobs, v_now) j
        limit queue_facets.max_jobs
    ),
    counted as (
        select f.facet, f.value, count(*) as jobs
        from due d
        cross join lateral (
            select v.*
            from (
                values ('due', ''), ('task', d.task), ('tenant', d.limit_key), ('key', d.key), ('enqueued_by', d.enqueued_by),
                    ('wait', width_bucket(extract(epoch from v_now - d.ready_at)::float8, '{0.001,0.004,0.016,0.064,0.25,1,4,16,60,300,3600}'::float8[])::text)
            ) v (facet, value)
            union all
            select 'tag', t.tag from unnest(d.tags) t (tag)
        ) f
        where f.value is not null
        group by f.facet, f.value
        union all
        select case when b.limit_name is null then 'blocked_key' else 'blocked_limit' end, coalesce(b.limit_name, b.key), b.jobs
        from pgqueue._blocked_by(queue_facets.queue, 5000) b
    )
    select c.facet, c.value, c.jobs
    from (select x.*, row_number() over (partition by x.facet order by x.jobs desc, x.value) as place from counted x) c
    where c.place <= queue_facets.max_values or c.facet = 'wait'
    order by c.facet, c.place;
end
$$;

comment on function pgqueue.queue_facets(text, integer, integer) is
    'What fills a queue, or all: of its first max_jobs due jobs the most frequent values of task, tenant (limit_key), key, tag and enqueued_by, and how many they are (due); '
    'wait: how many of them wait how long, by the buckets of samples.ended, from 0 on; of the blocked jobs of one queue the keys (blocked_key) and the limits (blocked_limit) that they wait for, among the first 200 jobs of each limit. '
    'select facet, value, jobs from pgqueue.queue_facets(''mail''); [reader]';
