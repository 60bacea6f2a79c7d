-- steps: the completed steps of a job. Reads only.

create or replace function pgqueue.steps(job_id bigint)
returns table (name text, result jsonb, attempt integer, at timestamptz)
language plpgsql stable parallel safe security definer rows 10
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
as $$
begin
    return query
    select s.name, s.result, s.attempt, s.at
    from (
        select x.name, x.result, x.attempt, x.at from pgqueue.steps x where x.job_id = steps.job_id
        union all
        select e.name, e.result, e.attempt, e.at
        from pgqueue.history h
        cross join lateral jsonb_to_recordset(h.steps) e (name text, result jsonb, attempt integer, at timestamptz)
        where h.id = steps.job_id and h.steps is not null
    ) s
    order by s.at, s.name;
end
$$;

comment on function pgqueue.steps(bigint) is
    'The completed steps of a job, in order, with their results; after the job has succeeded they have none. select * from pgqueue.steps(42); [worker, reader]';
