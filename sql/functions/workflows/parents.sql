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
    if parents.job_id is null then
        perform pgqueue._refuse('job_id must not be null', null, 'Give the id of the job whose parents to read.');
    end if;
    return query
    select
        p.id, coalesce(l.task, e.task),
        coalesce(l.state, e.state, case when d.ended = 'deleted' then 'deleted' else 'forgotten' end),
        e.result, coalesce(l.errors, e.errors) -> -1
    from (
        select j.depends_on from pgqueue.jobs j where j.id = parents.job_id
        union all
        select h.depends_on from pgqueue.history h where h.id = parents.job_id
        limit 1
    ) c
    cross join lateral unnest(c.depends_on) p (id)
    left join lateral (select j.task, j.state::text, j.errors from pgqueue.jobs j where j.id = p.id limit 1) l on true
    left join lateral (
        select h.task, h.state::text, h.result, h.errors
        from pgqueue.history h
        where l.state is null and h.id = p.id
        limit 1
    ) e on true
    left join pgqueue.dependencies d on d.parent = p.id and d.child = parents.job_id
    order by p.id;
end
$$;

comment on function pgqueue.parents(bigint) is
    'The jobs that a job depends on, by id: task, state, result (of tasks with store_result) and last error. '
    'state: as of any job; deleted; or forgotten, where history no longer keeps it. select * from pgqueue.parents(42); [worker, reader]';
