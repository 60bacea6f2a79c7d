-- children: the jobs that wait for a job, or did not run because of how it ended. Reads only, along one index.
--
-- A child that has started since is not among them, because it no longer waits; parents() of it still names this job.

create or replace function pgqueue.children(job_id bigint, max integer default 100)
returns table (id bigint, task text, state text, run_if text, parent_ended text)
language plpgsql stable parallel safe security definer rows 10
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
begin
    perform pgqueue._check_range('max', children.max, 1, 10000, 'Give max within this range.');
    return query
    select d.child, c.task, c.state::text, c.run_if, d.ended
    from (
        select x.child, x.ended from pgqueue.dependencies x where x.parent = children.job_id order by x.child limit children.max
    ) d
    cross join lateral (select a.task, a.state, a.run_if from pgqueue.all_jobs a where a.id = d.child limit 1) c
    order by d.child;
end
$$;

comment on function pgqueue.children(bigint, integer) is
    'The jobs that wait for a job, and those that did not run because of how it ended, by id. run_if: what they wait for; null: that it succeeds. '
    'parent_ended: how it ended; null: it has not. At most max. select * from pgqueue.children(17); [worker, reader]';
