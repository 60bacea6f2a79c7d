-- paused_of: which of these jobs would not start now, for a pause, or might not, for a limit that was set since their claim.
--
-- A worker asks it of the jobs that it has claimed and not started, after each notification with an empty payload on the
-- common channel, and with each heartbeat. Reads only.

create or replace function pgqueue.paused_of(job_ids bigint[])
returns setof bigint
language sql stable security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off set enable_hashjoin = off set enable_mergejoin = off
as $$
    select j.id
    from (select pgqueue._clock() as now offset 0) c
    cross join unnest(paused_of.job_ids) w (id)
    cross join lateral (select x.id, x.queue, x.task, x.key, x.limit_key, x.reserved_at from pgqueue.jobs x where x.id = w.id) j
    where exists (select from pgqueue.pauses p where p.kind = 'queue' and p.target = j.queue and p.until > c.now)
        -- Not a half-open breaker: the job is its probe.
        or exists (select from pgqueue._pauses_of(j.task, j.limit_key, c.now) p where p.until > c.now)
        or exists (
            select
            from pgqueue._limits_of(j.queue, j.task, j.key, j.limit_key) x
            join pgqueue.limits l on l.kind = x.kind and l.target = x.rule
            where l.set_at > j.reserved_at
        )
$$;

comment on function pgqueue.paused_of(bigint[]) is
    'Which of these jobs belong to a paused or throttled queue, task or limit_key, or to a limit that was set after they were claimed. A worker that has claimed such a job and not started it gives it back. '
    'select * from pgqueue.paused_of(array[17, 18]); [worker]';
