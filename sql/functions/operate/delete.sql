-- delete: removes a job that is not executing, with its traces. For an executing one see cancel.
--
-- Locks the job's row; waits for another lock at most 5 s (55P03). _delete_jobs is the other way out of jobs, beside _finish:
-- it frees the job's position in its key and its dedupe key, and settles the jobs that depend on it.

create or replace function pgqueue.delete(job_id bigint)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_ended pgqueue.found_job;
    v_count bigint := pgqueue._delete_jobs(array[delete.job_id]);
begin
    if v_count = 0 then
        select h.id, h.granularity, h.kept_until, false into v_ended from pgqueue.history h where h.id = delete.job_id for update;
        v_count := case when found then pgqueue._delete_history(array[v_ended]) else 0 end;
    end if;
    return pgqueue._audit('delete', jsonb_build_object('job_id', delete.job_id), v_count);
end
$$;

comment on function pgqueue.delete(bigint) is
    'Delete a job that is not executing, or its row in history, and free its dedupe key. False: there is no such job, or it is executing.';

-- Deletes the jobs among these that are not executing, waiting for locked ones, and returns how many.
create or replace function pgqueue._delete_jobs(p_ids bigint[])
returns bigint
language plpgsql
as $$
declare
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
    v_gone record;
begin
    with wanted as materialized (select w.id from unnest(p_ids) w (id) order by w.id),
    gone as (
        delete from pgqueue.jobs j
        using wanted w
        where j.id = w.id and j.state <> v_executing
        returning j.id, j.task, j.queue, j.key, j.dedupe, j.depends_on, j.group_id, j.has_steps, j.followers, j.retention
    )
    select
        coalesce(array_agg(g.id), '{}') as ids, array_agg(g.id) filter (where r.keep_for <= '0') as unkept,
        array_agg(g.id) filter (where g.dedupe is not null) as dedupe_ids,
        array_agg(g.id) filter (where g.depends_on is not null) as children,
        array_agg(row(g.id, g.task, g.queue, g.key, null, null, g.group_id, g.followers, g.has_steps, null)::pgqueue.ended_job)
            filter (where num_nonnulls(g.key, g.group_id, g.has_steps) > 0) as more
    into v_gone
    from gone g
    cross join lateral pgqueue._retention_of('succeeded', g.retention, g.task, g.queue) r;
    perform pgqueue._forget_deleted(v_gone.ids, v_gone.unkept, v_gone.dedupe_ids, v_gone.children);
    perform pgqueue._follow_ends(v_gone.more, false, null, null) where v_gone.more is not null;
    perform pgqueue._end_parents(v_gone.ids, 'deleted') where v_gone.ids <> '{}' and pgqueue._ever_depended();
    return cardinality(v_gone.ids)::bigint;
end
$$;

-- Deletes rows of history, and returns how many.
create or replace function pgqueue._delete_history(p_jobs pgqueue.found_job[])
returns bigint
language plpgsql
as $$
declare
    v_gone record;
begin
    with gone as (
        delete from pgqueue.history h
        using unnest(p_jobs) w
        where h.granularity = w.granularity and h.kept_until = w.kept_until and h.id = w.id
        returning h.id, h.dedupe, h.depends_on, h.state, h.task, h.queue, h.retention
    )
    select
        count(*) as number, array_agg(g.id) as ids,
        array_agg(g.id) filter (where g.state <> 'succeeded' and r.keep_for <= '0') as unkept,
        array_agg(g.id) filter (where g.dedupe is not null) as dedupe_ids,
        array_agg(g.id) filter (where g.depends_on is not null) as children
    into v_gone
    from gone g
    cross join lateral pgqueue._retention_of('succeeded', g.retention, g.task, g.queue) r;
    perform pgqueue._forget_deleted(v_gone.ids, v_gone.unkept, v_gone.dedupe_ids, v_gone.children);
    return v_gone.number;
end
$$;

-- What goes with deleted jobs: their logs, their dedupe keys, also within their dedupe_for, and what says that they depend on
-- others. A trace stays of those that history would not have kept.
create or replace function pgqueue._forget_deleted(p_ids bigint[], p_unkept bigint[], p_dedupe_ids bigint[], p_children bigint[])
returns void
language sql
as $$
    insert into pgqueue.traces (id, state) select u.id, 'deleted' from unnest(p_unkept) u (id) on conflict do nothing;
    select pgqueue._free_dedupe(p_dedupe_ids, true) where p_dedupe_ids is not null;
    delete from pgqueue.job_logs l where l.job_id = any (p_ids);
    select pgqueue._drop_dependencies(p_children, false) where p_children is not null;
$$;
