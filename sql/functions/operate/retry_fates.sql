-- retry_fates: what became of the jobs that bulk retries brought back.
--
-- The jobs of a retry are listed with it, by _act_on_jobs. Live ones are looked up by their ids, 250 in all at most; the
-- dead and the cancelled are read by their index, between the first and the last id, 10,000 of each at most. Locks nothing.

create or replace function pgqueue.retry_fates(max_retries integer default 20)
returns table (
    n bigint, at timestamptz, actor text, task text, class text, fingerprint text, jobs bigint, looked_at bigint, waiting bigint,
    executing bigint, dead bigint, cancelled bigint, is_cut boolean
)
language plpgsql stable security definer rows 20
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
begin
    perform pgqueue._check_range('max_retries', retry_fates.max_retries, 1, 100, 'Give the number of retries to look at.');
    return query
    with recent as materialized (
        select r.*, cardinality(r.job_ids)::bigint as jobs
        from pgqueue.retries r
        where r.at > pgqueue._clock() - interval '1 day'
        order by r.n desc
        limit retry_fates.max_retries
    ),
    live as (
        select r.n, count(*) as looked_at, count(*) filter (where j.state = 'executing') as executing, count(j.state) as jobs
        from recent r
        cross join lateral unnest(r.job_ids) with ordinality i (id, place)
        left join lateral (select x.state from pgqueue.jobs x where x.id = i.id limit 1) j on true
        where (i.place - 1) % (select ceil(sum(x.jobs) / 250)::bigint from recent x) = 0
        group by r.n
    ),
    -- One scan for all: each opens the index of every partition.
    found as materialized (
        select h.*
        from (select min(x.job_ids[1]) as low, max(x.job_ids[x.jobs::integer]) as high from recent x) b
        cross join unnest('{dead,cancelled}'::pgqueue.job_state[]) s (state)
        cross join lateral (
            select x.id, x.state
            from pgqueue.history x
            where x.state <> 'succeeded' and x.state = s.state and x.id between b.low and b.high
            order by x.id
            limit 10000
        ) h
    ),
    ended as (
        select i.n, count(*) filter (where f.state = 'dead') as dead, count(*) filter (where f.state = 'cancelled') as cancelled
        from found f
        join (select y.n, unnest(y.job_ids) as id from recent y) i on i.id = f.id
        group by i.n
    )
    select
        r.n, r.at, r.actor, r.task, r.class, r.fingerprint, r.jobs, l.looked_at, l.jobs - l.executing, l.executing,
        coalesce(e.dead, 0), coalesce(e.cancelled, 0), exists (select from found f group by f.state having count(*) = 10000)
    from recent r
    join live l on l.n = r.n
    left join ended e on e.n = r.n
    order by r.n desc;
end
$$;

comment on function pgqueue.retry_fates(integer) is
    'What became of the jobs that retry_many() brought back within a day, the newest retry first: a row for each call, task and fingerprint of the error they had died of. '
    'jobs: how many; waiting (blocked and to be retried too) and executing: of looked_at of them; dead and cancelled: of all, at least that many where is_cut; the others have succeeded, or were deleted. '
    'select at, actor, task, jobs, waiting, executing, dead from pgqueue.retry_fates(); [reader]';
