-- retry: a dead or cancelled job comes back with a fresh count, a failed one runs now.
--
-- Locks the one row, in jobs or in history; waits for another lock at most 5 s (55P03). The job keeps its id, its errors,
-- and its reservation, which keeps growing, so that a former worker stays fenced off. A job that was ever reserved takes
-- its old position in its key again; another has its position by its run_at, which therefore must not be in the future. It
-- takes its dedupe key again if that is free; if another job has it, the job comes back without one.
-- A job that never started, and depends on jobs that have not ended, waits for them again: see _reopen_children.

create or replace function pgqueue.retry(job_id bigint, dependents boolean default true)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
declare
    v_failed constant pgqueue.job_state := 'failed'::pgqueue.job_state;
    v_ended constant pgqueue.job_state[] := '{dead,cancelled}'::pgqueue.job_state[];
    v_position record;
    v_count bigint := 0::bigint;
begin
    perform from pgqueue.jobs j where j.id = retry.job_id and j.state = v_failed for update;
    if found then
        v_count := pgqueue._run_now(array[retry.job_id]);
    else
        select row(h.id, h.granularity, h.kept_until, false)::pgqueue.found_job as job, h.task into v_position
        from pgqueue.history h
        where h.id = retry.job_id and h.state = any (v_ended)
        for update;
        perform pgqueue._refuse(
            format('%s is a group', retry.job_id), 'It ended as its members did.',
            'Retry its members, and it comes back with them: select * from pgqueue.retry_many(group_id => ...).', '55000'
        )
        where v_position.task = '@group';
        v_count := case when v_position.task is null then 0 else pgqueue._requeue(array[v_position.job], p_waits => true) end;
        perform pgqueue._reopen_children(array[retry.job_id]) where v_count > 0 and retry.dependents;
    end if;
    return pgqueue._audit('retry', jsonb_build_object('job_id', retry.job_id), v_count);
end
$$;

comment on function pgqueue.retry(bigint, boolean) is
    'Run a dead, cancelled or failed job now. The attempts of a dead or cancelled one are counted from zero again. False: there is no such job, or it waits, executes or has succeeded. '
    'dependents: jobs that were cancelled because this one failed come back too, and wait for it.';

-- The caller has locked the rows, in waiting or failed. p_anew: an operator asks for it, and the count of crashes starts again.
create or replace function pgqueue._run_now(p_ids bigint[], p_anew boolean default true)
returns bigint
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off
as $$
declare
    v_now timestamptz := pgqueue._ready_at(null);
    v_count bigint := 0::bigint;
    v_lane record;
begin
    for v_lane in
        with due as (
            update pgqueue.jobs j
            set
                ready_at = v_now, resumed = true,
                run_at = case when j.reservation = 0 then least(j.run_at, v_now) else j.run_at end,
                expires_at = case when j.state = 'failed' then null else j.expires_at end,
                crashed_on = case when not p_anew then j.crashed_on end
            where j.id = any (p_ids)
            returning j.queue, j.priority
        )
        select d.queue, d.priority, count(*) as jobs from due d group by d.queue, d.priority order by d.queue, d.priority
    loop
        v_count := v_count + v_lane.jobs;
        perform pgqueue._register_lane(v_lane.queue, v_lane.priority, v_now);
        perform pgqueue._wake(v_lane.queue, v_now);
    end loop;
    return v_count;
end
$$;

-- p_at_once: due now; else a job keeps its run_at, and members that were cancelled with these groups come back after them. A
-- group is blocked again. p_waits: see _retake_dedupe.
create or replace function pgqueue._requeue(
    p_jobs pgqueue.found_job[], p_at_once boolean default true, p_waits boolean default false
)
returns bigint
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_now timestamptz := pgqueue._ready_at(null);
    v_count bigint := 0::bigint;
    v_lane record;
    v_job record;
    v_is_child boolean := false;
    v_group_ids bigint[] := '{}'::bigint[];
begin
    for v_lane in
        with gone as (
            delete from pgqueue.history h
            using unnest(p_jobs) w
            where h.granularity = w.granularity and h.kept_until = w.kept_until and h.id = w.id
            returning h.*
        ),
        back as (
            insert into pgqueue.jobs (
                id, reservation, run_at, ready_at, created_at, reserved_at, retention, state, blocked_on, max_attempts, losses,
                priority, resumed, queue, task, key, reserved_by, tags, args, headers, errors, retry, score, limit_key,
                lane_key, dedupe, timeout, enqueued_by, depends_on, run_if, group_id, has_steps, cost
            )
            overriding system value
            select
                g.id, g.reservation, case when d.is_due then least(g.run_at, v_now) else g.run_at end,
                case when d.is_due then v_now else g.run_at end, g.created_at, g.reserved_at, g.retention,
                case when d.is_group then 'blocked'::pgqueue.job_state else 'waiting'::pgqueue.job_state end,
                case when d.is_group then '@group' end, g.max_attempts, g.losses,
                g.priority, d.is_due and not d.is_group, g.queue, g.task, g.key, g.reserved_by, g.tags, g.args, g.headers,
                pgqueue._attempts_errors(g.errors, g.state, g.task), g.retry, g.score, g.limit_key,
                case when g.limit_key is not null then pgqueue._lane_key(g.queue, g.limit_key) end,
                g.dedupe, g.timeout, g.enqueued_by, g.depends_on, g.run_if, g.group_id,
                case when g.steps is not null then true end, g.cost
            from gone g
            -- A job that was to run at once is due, also where the clock has stepped back since its enqueue.
            cross join lateral (
                select p_at_once or g.run_at <= greatest(v_now, g.created_at) as is_due, g.task = '@group' as is_group
            ) d
            returning queue, priority, key, depends_on, group_id, resumed, lane_key
        ),
        restored as (
            insert into pgqueue.steps (job_id, name, result, attempt, at)
            select g.id, s.name, s.result, s.attempt, s.at
            from gone g
            cross join lateral jsonb_to_recordset(g.steps) s (name text, result jsonb, attempt integer, at timestamptz)
            where g.steps is not null
        )
        select
            b.queue, b.priority, count(*) as jobs, count(b.key) > 0 as is_keyed, count(b.depends_on) > 0 as is_child,
            array_agg(b.group_id) filter (where b.group_id is not null) as group_ids,
            array_agg(distinct b.lane_key) filter (where not b.resumed) as lane_keys
        from back b
        group by b.queue, b.priority
        order by b.queue, b.priority
    loop
        v_count := v_count + v_lane.jobs;
        perform pgqueue._register_lane(v_lane.queue, v_lane.priority, v_now, v_lane.lane_keys);
        perform pgqueue._wake(v_lane.queue, v_now);
        insert into pgqueue.head_marks (reason, at) select 'key', pgqueue._clock() where v_lane.is_keyed;
        v_is_child := v_is_child or v_lane.is_child;
        v_group_ids := v_group_ids || v_lane.group_ids;
    end loop;
    -- Groups first: jobs among these may depend on them.
    if v_group_ids <> '{}' then
        v_group_ids := array(select distinct g.id from unnest(v_group_ids) g (id) order by g.id);
        -- A group that is ending at the same time is found by the reader of the note.
        perform pgqueue._leave_notes('recount', v_group_ids);
        perform pgqueue._revive_group(g.id)
        from unnest(v_group_ids) g (id)
        where not pgqueue._old_snapshot() and not exists (select from pgqueue.jobs j where j.id = g.id);
    end if;
    perform pgqueue._leave_notes(
        'revive',
        array(
            select l.id
            from unnest(p_jobs) w
            cross join lateral (select j.id from pgqueue.jobs j where j.id = w.id and j.task = '@group' limit 1) l
        )
    )
    where not p_at_once;
    perform pgqueue._block_again(array(select w.id from unnest(p_jobs) w)) where v_is_child;

    for v_job in
        select l.id, l.task, l.dedupe
        from unnest(p_jobs) w
        cross join lateral (
            select j.id, j.task, j.dedupe from pgqueue.jobs j where j.id = w.id and j.dedupe is not null limit 1
        ) l
        order by l.task, l.dedupe, l.id
    loop
        if not pgqueue._retake_dedupe(v_job.id, v_job.task, v_job.dedupe, p_waits) then
            update pgqueue.jobs set dedupe = null where id = v_job.id;
        end if;
    end loop;
    return v_count;
end
$$;
