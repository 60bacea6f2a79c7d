-- suspend: an executing job waits for others, or for a time, without a worker; the attempt does not count.
--
-- Locks the row of the job and waits for another session's lock on it at most 5 s (55P03). A job that began keeps its
-- position in its key: it must not wait for a job behind it.

create or replace function pgqueue.suspend(
    job_id bigint, reservation bigint, until timestamptz default null, depends_on bigint[] default null
)
returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
declare
    v_open bigint[];
    v_job record;
begin
    perform pgqueue._refuse(
        'suspend takes either until or depends_on, of at most 1000 jobs', null,
        'Give until, an instant, or depends_on, ids of jobs; for more jobs open a group, and wait for that.'
    )
    where num_nonnulls(suspend.until, suspend.depends_on) <> 1 or cardinality(suspend.depends_on) > 1000
        or array_ndims(suspend.depends_on) > 1 or array_position(suspend.depends_on, null) is not null;
    if not pgqueue._lock_held(suspend.job_id, suspend.reservation, true) then
        return null;
    end if;
    if suspend.until is not null then
        perform pgqueue._check_run_at(suspend.until);
        perform pgqueue._put_back(array[suspend.job_id], suspend.until - pgqueue._clock(), true, false)
        where suspend.until > pgqueue._clock();
        return case when found then 'suspended' else 'ready' end;
    end if;

    perform pgqueue._refuse_unknown_parents(suspend.depends_on);
    v_open := array(
        select distinct p.id from pgqueue._find_parents(suspend.depends_on) p where p.lives and p.id <> suspend.job_id
    );
    if v_open = '{}' then
        return 'ready';
    end if;
    select j.queue, j.key, j.group_id into v_job from pgqueue.jobs j where j.id = suspend.job_id;
    perform pgqueue._refuse(
        'depends_on names a job of the same key',
        format('Jobs of key %s run one at a time, and this one keeps its position.', quote_literal(v_job.key)),
        'Give the jobs to wait for another key, or none.'
    )
    from unnest(v_open) o (id)
    cross join lateral (select from pgqueue.jobs p where p.id = o.id and p.queue = v_job.queue and p.key = v_job.key limit 1) p;
    perform pgqueue._refuse_circle(suspend.job_id, v_job.group_id, v_open);
    perform pgqueue._put_back(array[suspend.job_id], '0', true, false);
    perform pgqueue._wait_for_jobs(suspend.job_id, v_open);
    return 'suspended';
end
$$;

comment on function pgqueue.suspend(bigint, bigint, timestamptz, bigint[]) is
    'Suspend an executing job until an instant, or until other jobs have ended, in whatever state. ready: there is nothing to '
    'wait for, continue. suspended: the job comes back, as the same attempt; leave the handler. Null: the reservation is no longer held. '
    'select pgqueue.suspend(42, 1048577, depends_on => array[43, 44]); [worker]';

-- The caller has put the job back, and holds its lock.
create or replace function pgqueue._wait_for_jobs(p_job_id bigint, p_parents bigint[])
returns void
language plpgsql
as $$
begin
    update pgqueue.jobs j set state = 'blocked', blocked_on = '@jobs', resumed = false where j.id = p_job_id;
    if not found then
        -- The job was asked to cancel, and has ended.
        return;
    end if;
    -- Rows that another session had locked when the job came back from an earlier wait.
    delete from pgqueue.dependencies d where d.child = p_job_id and d.parent <> all (p_parents);
    insert into pgqueue.dependencies (parent, child, traceless)
    select p.id, p_job_id, true from unnest(p_parents) p (id) on conflict (parent, child) do update set ended = null;
    perform pgqueue._leave_notes('parents', array[p_job_id]);
end
$$;
