-- The fast path of an end: one job that succeeded, moved to history by one small statement.
--
-- Where jobs come one by one, most of the server's time for an end is spent on starting statements and functions, and
-- _finish, which takes many jobs with any outcome, has large ones. This path costs a third less CPU. It serves any job without
-- steps, as long as no job was ever made to depend on another. What the job leaves behind, the next of its key for
-- example, is settled as in the long way (_follow_ends). Both write the same row of history (tests/sql/test_fast_path.py
-- compares them), and set pgqueue.fast_path = off forces the long way.
--
-- Locks the row of the job. If another session has locked it, or a row of what it leaves behind, this gives up after a
-- millisecond: the long way knows how long its caller may wait. True: the job has ended. False: nothing was changed, go
-- the long way.

create or replace function pgqueue._end_one(p_job_id bigint, p_reservation bigint, p_result jsonb)
returns boolean
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set lock_timeout = '1ms'
as $$
declare
    v_now timestamptz := pgqueue._clock();
    -- A variable: see extend.
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
    v_gone record;
    v_has_ended boolean;
begin
    if coalesce(current_setting('pgqueue.fast_path', true), '') = 'off' or pgqueue._has_notes() then
        return false;
    end if;
    begin
        with gone as (
            delete from pgqueue.jobs j
            where j.id = p_job_id
                and j.reservation = p_reservation
                and j.state = v_executing
                and num_nonnulls(j.has_steps, j.depends_on) = 0
            returning
                j.id, j.reservation, j.run_at, j.created_at, j.reserved_at, j.retention, j.attempts, j.max_attempts, j.losses,
                j.priority, j.queue, j.task, j.key, j.reserved_by, j.tags, j.args, j.headers, j.errors, j.retry, j.score,
                j.limit_key, j.dedupe, j.timeout, j.crashed_on, j.progress, j.followers, j.enqueued_by, j.group_id
        ),
        kept as (
            insert into pgqueue.history (
                id, reservation, run_at, created_at, reserved_at, finished_at, kept_until, retention, state, attempts,
                max_attempts, losses, priority, granularity, queue, task, key, reserved_by, tags, args, headers,
                errors, result, retry, score, limit_key, dedupe, timeout, crashed_on, progress, enqueued_by, group_id
            )
            select
                g.id, g.reservation, g.run_at, g.created_at, g.reserved_at, v_now, pgqueue._after(v_now, k.keep_for), g.retention, 'succeeded',
                g.attempts, g.max_attempts, g.losses, g.priority,
                case when k.keep_for <= '8 days' then 'd'::"char" else 'm'::"char" end,
                g.queue, g.task, g.key, g.reserved_by, g.tags, g.args, g.headers, g.errors, p_result, g.retry, g.score,
                g.limit_key, g.dedupe, g.timeout, g.crashed_on, g.progress, g.enqueued_by, g.group_id
            from gone g
            cross join lateral (
                select coalesce(
                    g.retention,
                    (select t.retention_succeeded from pgqueue.effective_tasks t where t.name = g.task),
                    (select q.retention_succeeded from pgqueue.queues q where q.name = g.queue),
                    (select s.retention_succeeded from pgqueue.settings s where s.one)
                ) as keep_for
                -- Computed once: else the planner copies it to each place that uses it.
                offset 0
            ) k
            where k.keep_for > '0'
        )
        select
            row(g.id, g.task, g.queue, g.key, g.limit_key, g.dedupe, g.group_id, g.followers, null)::pgqueue.ended_job as job,
            num_nonnulls(g.key, g.dedupe, g.group_id, g.followers) > 0
                or exists (select from pgqueue.limits l where l.kind in ('task', 'key', 'limit_key')) as leaves_more
        into v_gone
        from gone g;
        if v_gone.leaves_more then
            perform pgqueue._follow_ends(array[v_gone.job], true, 'succeeded', null);
        end if;
        -- Not IS NOT NULL, which asks that each field of the row has a value.
        v_has_ended := not (v_gone.job is null);
        if v_has_ended and pgqueue._has_notes() then
            -- A job was made to depend on this one meanwhile.
            perform pgqueue._end_parents(array[p_job_id], 'succeeded');
        end if;
    exception when lock_not_available or deadlock_detected or check_violation then
        return false;
    end;
    return v_has_ended;
end
$$;

comment on function pgqueue._end_one(bigint, bigint, jsonb) is
    'Private: ends one succeeded job by one small statement; false: nothing was changed, and it goes the long way.';
