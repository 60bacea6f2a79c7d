-- parents: the states and results of the jobs that a job depends on. Reads only.
--
-- One statement, because a job moves from jobs to history.

create or replace function pgqueue.parents(job_id bigint)
returns table (id bigint, task text, state text, result jsonb, error jsonb)
language plpgsql stable parallel safe security definer rows 10
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
as $$
begin
    perform pgqueue._refuse('job_id must not be null', null, 'Give the id of the job whose parents to read.')
    where parents.job_id is null;
    return query
    select
        p.id, j.task, coalesce(j.state::text, case when d.ended = 'deleted' then 'deleted' else 'forgotten' end),
        j.result, j.errors -> -1
    from (select a.depends_on from pgqueue.all_jobs a where a.id = parents.job_id limit 1) c
    cross join lateral unnest(c.depends_on) p (id)
    left join lateral (select a.task, a.state, a.result, a.errors from pgqueue.all_jobs a where a.id = p.id limit 1) j on true
    left join pgqueue.dependencies d on d.parent = p.id and d.child = parents.job_id
    order by p.id;
end
$$;

comment on function pgqueue.parents(bigint) is
    'The jobs that a job depends on, by id: task, state, result (of tasks with store_result) and last error. '
    'state: as of any job; deleted; or forgotten, where history no longer keeps it. select * from pgqueue.parents(42); [worker, reader]';
