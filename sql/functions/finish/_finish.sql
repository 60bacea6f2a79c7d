-- How a job ends: one statement deletes the live row and inserts the row of history.
--
-- It deletes rows in id order, and only under the reservation given: a worker with another one changes nothing. p_executing: the
-- job must be executing; if not, the caller has locked the row and read its reservation.
-- The delete itself finds and locks the rows, unless jobs may depend on them. A lock before it costs a record of WAL for each
-- row, and a multixact, which every reader of the dead version looks up: the block below is a subtransaction of its own.
-- p_error is the error of all jobs and of members, p_errors has one for each of p_job_ids. p_settle false: the caller settles children.
-- A history partition that is missing (maintain was not called for weeks) is attached here as a last resort,
-- so the statement is in an exception block.

create or replace function pgqueue._finish(
    p_job_ids bigint[], p_reservations bigint[], p_executing boolean, p_state pgqueue.job_state,
    p_results jsonb[] default null, p_error jsonb default null, p_merged_into bigint[] default null,
    p_errors jsonb[] default null, p_settle boolean default true
)
returns bigint[]
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_gone record;
    v_parents bigint[];
    v_kept_by_day interval := interval '8 days';
    v_misses integer := 0;
begin
    if pgqueue._ever_depended() then
        -- Locked first: so the next statement shows every job that was made to depend on one of these before.
        perform l.id
        from (select u.id, u.reservation from unnest(p_job_ids, p_reservations) u (id, reservation) order by u.id) w
        cross join lateral (
            select j.id
            from pgqueue.jobs j
            where j.id = w.id and j.reservation = w.reservation and (j.state = 'executing') = p_executing
            for update
        ) l;
        v_parents := pgqueue._parents_among(p_job_ids);
    end if;
    loop
        begin
            with wanted as materialized (
                select u.id, u.reservation, u.result, u.merged_into, coalesce(u.error, p_error) as error
                from unnest(p_job_ids, p_reservations, p_results, p_merged_into, p_errors)
                    u (id, reservation, result, merged_into, error)
                order by u.id
            ),
            gone as (
                delete from pgqueue.jobs j
                using wanted w
                -- A range of one id: by an equality the planner may turn the join round, and a plan that was made while the table
                -- was empty would read every entry of the index, also those that an old snapshot keeps from being removed.
                where j.id between w.id and w.id and j.reservation = w.reservation and (j.state = 'executing') = p_executing
                -- Columns by name: * would also copy the ones that history does not keep.
                returning
                    w.result, w.merged_into, w.error, j.id, j.reservation, j.run_at, j.created_at, j.reserved_at, j.retention,
                    j.attempts, j.max_attempts, j.losses, j.priority, j.queue, j.task, j.key, j.reserved_by, j.tags, j.args,
                    j.headers, j.errors, j.retry, j.score, j.limit_key, j.dedupe, j.timeout, j.crashed_on, j.progress, j.followers,
                    j.enqueued_by, j.depends_on, j.run_if, j.group_id, j.has_steps, j.leader, j.cost
            ),
            kept as (
                insert into pgqueue.history (
                    id, reservation, run_at, created_at, reserved_at, finished_at, kept_until, retention, state, attempts,
                    max_attempts, losses, priority, granularity, queue, task, key, reserved_by, tags, args, headers,
                    errors, result, retry, score, limit_key, dedupe,
                    merged_into, timeout, crashed_on, progress, enqueued_by, depends_on, run_if, group_id,
                    steps, cost
                )
                select
                    g.id, g.reservation, g.run_at, g.created_at, g.reserved_at, v_now, pgqueue._after(v_now, k.keep_for), g.retention, p_state,
                    g.attempts, g.max_attempts, g.losses, g.priority,
                    case when k.keep_for <= v_kept_by_day then 'd'::"char" else 'm'::"char" end,
                    g.queue, g.task, g.key, g.reserved_by, g.tags, g.args, g.headers,
                    case
                        when g.error is null then g.errors
                        else pgqueue._with_error(g.errors, g.error, g.attempts, g.reserved_by, v_now, g.reserved_at, null)
                    end,
                    g.result, g.retry, g.score, g.limit_key, g.dedupe, g.merged_into, g.timeout, g.crashed_on, g.progress,
                    g.enqueued_by, g.depends_on, g.run_if, g.group_id,
                    -- The steps of a batch are those of its leader.
                    case when g.has_steps then pgqueue._steps_as_json(coalesce(g.leader, g.id), p_state <> 'succeeded') end,
                    g.cost
                from gone g
                cross join lateral (
                    select greatest(
                        -- A group counts its members at its end.
                        case when g.id = any (v_parents) or (g.group_id is not null and p_state <> 'succeeded')
                            then (select s.retention_parents from pgqueue.settings s where s.one) end,
                        r.keep_for
                    ) as keep_for
                    from pgqueue._retention_of(p_state, g.retention, g.task, g.queue) r
                    offset 0
                ) k
                where k.keep_for > '0'
                returning id
            )
            select
                coalesce(array_agg(g.id), '{}') as ids,
                -- History does not keep these.
                case
                    -- Not NOT IN: the planner takes the rows of a range for a ninth of the table, too many for a hash table.
                    when p_state <> 'succeeded' then array(select x.id from gone x except select k.id from kept k)
                end as unkept,
                array_agg(
                    row(
                        g.id, g.task, g.queue, g.key, g.limit_key, g.dedupe, g.group_id, g.followers, g.has_steps,
                        case when coalesce(g.leader, g.id) = g.id then g.reserved_at end
                    )::pgqueue.ended_job
                ) filter (
                    where num_nonnulls(g.key, g.dedupe, g.group_id, g.followers, g.has_steps) > 0
                        or (g.limit_key is not null and exists (select from pgqueue.limits l where l.kind = 'limit_key'))
                        or g.task = any ((select array_agg(l.target) from pgqueue.limits l where l.kind = 'task')::text[])
                ) as more
            into v_gone
            from gone g;
            exit;
        exception when check_violation then
            v_misses := v_misses + 1;
            case v_misses
                when 1 then perform pgqueue._attach_partitions(9, 25, 100);
                when 2 then v_kept_by_day := interval '0';
                else raise;
            end case;
        end;
    end loop;

    if v_gone.unkept <> '{}' then
        insert into pgqueue.traces (id, state)
        select u.id, p_state::text from unnest(v_gone.unkept) u (id) on conflict do nothing;
    end if;
    if v_gone.more is not null then
        perform pgqueue._follow_ends(v_gone.more, p_executing, p_state, p_error);
    end if;
    if p_settle and pgqueue._ever_depended() then
        perform pgqueue._end_parents(v_gone.ids, p_state::text);
    end if;
    return v_gone.ids;
end
$$;

-- In later statements than the one that removed the rows, whose snapshots show the jobs blocked meanwhile. Jobs without a key
-- pay nothing for that, and without limits there is one probe. p_executing: the jobs were executing; p_state null: they are
-- deleted.
create or replace function pgqueue._follow_ends(
    p_ended pgqueue.ended_job[], p_executing boolean, p_state pgqueue.job_state, p_error jsonb
)
returns void
language plpgsql
as $$
declare
    v_more record;
begin
    select
        array_agg(e.id) filter (where e.dedupe is not null) as deduped,
        array_agg(e.queue) filter (where e.key is not null) as queues,
        array_agg(e.key) filter (where e.key is not null) as keys,
        array_agg(e.id) filter (where e.key is not null) as keyed,
        array_agg(e.task) as tasks,
        array_agg(e.limit_key) as limit_keys,
        array_agg(e.group_id) filter (where e.group_id is not null) as groups,
        array_agg(e.id) filter (where e.has_steps) as stepped,
        (select array_agg(m.id) from unnest(p_ended) l cross join lateral unnest(l.followers) m (id)) as members
    into v_more
    from unnest(p_ended) e;
    if v_more.members is not null and p_state is not null then
        perform pgqueue._finish(array_agg(m.id), array_agg(m.reservation), true, p_state, null, p_error)
        from pgqueue._lock_members(v_more.members) m;
    end if;
    if v_more.deduped is not null then
        perform pgqueue._free_dedupe(v_more.deduped);
    end if;
    if p_executing and exists (select from pgqueue._limits_among(v_more.tasks, v_more.keys, v_more.limit_keys)) then
        perform pgqueue._leave_limits(v_more.tasks, v_more.keys, v_more.limit_keys);
        if p_state = 'succeeded' and exists (select from pgqueue.breakers) then -- Each has a row in limits, too.
            perform pgqueue._note_ends(p_ended, false);
        end if;
    end if;
    if v_more.keys is not null then
        perform pgqueue._release_next(v_more.queues, v_more.keys, v_more.keyed);
    end if;
    if v_more.stepped is not null then
        if v_more.members is not null then
            perform pgqueue._inherit_steps(l.id, l.followers) from unnest(p_ended) l where l.has_steps and l.followers is not null;
        end if;
        perform pgqueue._drop_steps(v_more.stepped);
        if pgqueue._old_snapshot() then
            -- The statement may not have seen the last steps.
            perform pgqueue._leave_notes('steps', v_more.stepped);
        end if;
    end if;
    if v_more.groups is not null then
        insert into pgqueue.notes (kind, id, look_at, xid)
        select 'group', g.id, pgqueue._clock(), pg_current_xact_id()
        from (select distinct u.id from unnest(v_more.groups) u (id)) g
        -- Members had not started: one that ends at the same time may have seen them waiting.
        where not p_executing or pgqueue._old_snapshot() or not pgqueue._has_members(g.id, '{waiting,failed,blocked}');
    end if;
end
$$;

-- In id order. Waits for other sessions' locks, under the lock_timeout of the caller.
create or replace function pgqueue._lock_members(p_job_ids bigint[])
returns table (id bigint, reservation bigint)
language sql rows 10
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off set enable_bitmapscan = off
as $$
    select j.id, j.reservation
    from pgqueue.jobs j
    where j.id = any (p_job_ids) and j.leader is not null
    order by j.id
    for update
$$;
