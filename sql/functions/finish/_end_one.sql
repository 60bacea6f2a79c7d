-- The small end: one job that succeeded, moved to history by one small statement.
--
-- Where jobs come one by one, most of the server's time for an end is spent on starting statements and functions, and
-- _finish, which takes many jobs with any outcome, has large ones. This one costs a third less CPU. It serves any job without
-- steps, parents and children. Both write the same row of history (tests/sql/test_end_one.py compares them), and name its columns:
-- one function for both would take each of them out of a composite of the whole job, which is taken apart for each column anew.
--
-- If another session has locked the row of the job, or one of what it leaves behind, this gives up after a millisecond: the long
-- way knows how long its caller may wait. True: the job has ended. False: nothing was changed, go the long way.

create or replace function pgqueue._end_one(p_job_id bigint, p_reservation bigint, p_result jsonb)
returns boolean
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off
set lock_timeout = '1ms'
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
    v_may_have_children boolean := pgqueue._ever_depended();
    v_gone record;
    v_has_ended boolean;
begin
    begin
        with gone as (
            delete from pgqueue.jobs j
            where j.id = p_job_id and j.reservation = p_reservation and j.state = v_executing
                and num_nonnulls(j.has_steps, j.depends_on) = 0
                -- The long way knows how long history keeps a job with children. A scalar, and an order: see _parents_among.
                and (
                    not v_may_have_children
                    or (
                        select true
                        from pgqueue.dependencies d
                        where d.parent between p_job_id and p_job_id
                        order by d.parent, d.child
                        limit 1
                    ) is null
                )
            returning
                j.id, j.reservation, j.run_at, j.created_at, j.reserved_at, j.retention, j.attempts, j.max_attempts, j.losses,
                j.priority, j.queue, j.task, j.key, j.reserved_by, j.tags, j.args, j.headers, j.errors, j.retry, j.score,
                j.limit_key, j.dedupe, j.timeout, j.crashed_on, j.progress, j.followers, j.enqueued_by, j.group_id,
                j.cost
        ),
        kept as (
            insert into pgqueue.history (
                id, reservation, run_at, created_at, reserved_at, finished_at, kept_until, retention, state, attempts,
                max_attempts, losses, priority, granularity, queue, task, key, reserved_by, tags, args, headers,
                errors, result, retry, score, limit_key, dedupe, timeout, crashed_on, progress, enqueued_by, group_id,
                cost
            )
            select
                g.id, g.reservation, g.run_at, g.created_at, g.reserved_at, v_now, pgqueue._after(v_now, k.keep_for), g.retention, 'succeeded',
                g.attempts, g.max_attempts, g.losses, g.priority,
                case when k.keep_for <= '8 days' then 'd'::"char" else 'm'::"char" end,
                g.queue, g.task, g.key, g.reserved_by, g.tags, g.args, g.headers, g.errors, p_result, g.retry, g.score,
                g.limit_key, g.dedupe, g.timeout, g.crashed_on, g.progress, g.enqueued_by, g.group_id, g.cost
            from gone g
            cross join lateral (
                select coalesce(
                    g.retention,
                    (select t.retention_succeeded from pgqueue.effective_tasks t where t.name = g.task),
                    (select q.retention_succeeded from pgqueue.queues q where q.name = g.queue),
                    (select s.retention_succeeded from pgqueue.settings s where s.one)
                ) as keep_for
                offset 0
            ) k
            where k.keep_for > '0'
        )
        select
            row(g.id, g.task, g.queue, g.key, g.limit_key, g.dedupe, g.group_id, g.followers, null, g.reserved_at)::pgqueue.ended_job as job,
            num_nonnulls(g.dedupe, g.group_id, g.followers) > 0
                or exists (select from pgqueue.limits l where l.kind = 'task' and l.target = g.task)
                or (num_nonnulls(g.key, g.limit_key) > 0 and exists (
                    select from pgqueue.limits l
                    where l.kind = any (
                        array[case when g.key is not null then 'key' end, case when g.limit_key is not null then 'limit_key' end]
                    )
                )) as leaves_more,
            g.queue, g.key
        into v_gone
        from gone g;
        if v_gone.leaves_more then
            perform pgqueue._follow_ends(array[v_gone.job], true, 'succeeded', null);
        elsif v_gone.key is not null then
            perform pgqueue._release_next(array[v_gone.queue], array[v_gone.key], array[p_job_id]);
        end if;
        -- Not IS NOT NULL, which asks that each field of the row has a value.
        v_has_ended := not (v_gone.job is null);
        -- A job may have been made to depend on this one meanwhile. An old snapshot does not show it.
        if v_has_ended and pgqueue._ever_depended()
            and (
                pgqueue._old_snapshot()
                or (
                    select true
                    from pgqueue.dependencies d
                    where d.parent between p_job_id and p_job_id
                    order by d.parent, d.child
                    limit 1
                )
            )
        then
            perform pgqueue._end_parents(array[p_job_id], 'succeeded');
        end if;
    exception when lock_not_available or deadlock_detected or check_violation then
        return false;
    end;
    return v_has_ended;
end
$$;
