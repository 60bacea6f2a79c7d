-- Circles: a job must not wait for what waits for it.
--
-- depends_on names jobs that exist, so dependencies alone make no circle. A group waits for its members, though, and an
-- executing job may wait for jobs that it started. Only those two ways are checked. Reads at most 10,000 of the jobs that
-- the parents wait for.

-- p_job_id: the job, if others may wait for it already. p_group_id: the group that it belongs to.
create or replace function pgqueue._circle(p_job_id bigint, p_group_id bigint, p_parents bigint[])
returns bigint
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_behind bigint[];
    v_ahead bigint;
begin
    with recursive outer_groups (id, n) as (
        select p_group_id, 1
        where p_group_id is not null
        union all
        select j.group_id, o.n + 1
        from outer_groups o
        cross join lateral (select x.group_id from pgqueue.jobs x where x.id = o.id limit 1) j
        where j.group_id is not null and o.n < 100
    )
    select array_remove(array_agg(o.id) || p_job_id, null) into v_behind from outer_groups o;

    with recursive ahead (id) as (
        select p.id from unnest(p_parents) p (id)
        union
        select w.id
        from ahead a
        cross join lateral (select x.task, x.group_id from pgqueue.jobs x where x.id = a.id limit 1) j
        cross join lateral (
            (select d.parent as id from pgqueue.dependencies d where d.child = a.id and d.ended is null limit 1000)
            union all
            (
                select m.id
                from pgqueue.jobs m
                where j.task = '@group' and m.group_id is not null and m.group_id = a.id and m.state = 'blocked'
                limit 1000
            )
        ) w
        where a.id <> all (v_behind)
            -- The members of the group were checked when they joined it.
            and (p_job_id is not null or j.group_id is distinct from p_group_id)
    )
    select r.id into v_ahead from (select a.id from ahead a limit 10000) r where r.id = any (v_behind) limit 1;
    return v_ahead;
end
$$;

comment on function pgqueue._circle(bigint, bigint, bigint[]) is
    'Private: the job, or a group that it belongs to, if one of these parents is that or waits for it; null: none.';

create or replace function pgqueue._refuse_circle(p_job_id bigint, p_group_id bigint, p_parents bigint[])
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_ahead bigint := pgqueue._circle(p_job_id, p_group_id, p_parents);
begin
    if v_ahead is not null then
        perform pgqueue._refuse(
            'depends_on would make a circle',
            case
                when v_ahead = p_job_id then 'A job that it names waits for this job.'
                else format('It names group %s, or a job that waits for it, and that group waits for this job.', v_ahead)
            end,
            'Leave out depends_on, or group_id: what follows a group must not be a member of it.'
        );
    end if;
end
$$;

comment on function pgqueue._refuse_circle(bigint, bigint, bigint[]) is
    'Private: refuses dependencies on the group of a job, and on jobs that wait for the job or for its group.';
