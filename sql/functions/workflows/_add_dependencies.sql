-- Dependencies: jobs that start only after others have ended.
--
-- A child is blocked on '@parents', out of the ready index, and has a row of dependencies for each parent that has not
-- ended. A transaction that ends a job first locks and removes its row of jobs and, in a *later* statement, closes its rows
-- of dependencies: it deletes them if the job succeeded, else records how it ended. Then it settles the children: a child
-- whose run_if is met goes back to the ready index; one whose run_if cannot be met any more is cancelled.
--
-- No transaction waits for another, and no release is lost: where a statement may have missed a row it leaves a note, which
-- is read in a later transaction (see _read_notes):
-- - A parent may end while its child is enqueued. The enqueue locks no parent; it leaves a note with the child. Once the
--   child is committed, a reader of the note tries to lock each parent (KEY SHARE, SKIP LOCKED, for one statement). Locked:
--   it lives, and the transaction that ends it later sees the row of dependencies. Visible, but locked by another session:
--   it may be ending, and the note stays. Gone: history records how it ended.
-- - Two last parents that end at the same time: each sees the other's row. So each leaves a note with the child. The note
--   of the one that commits last is read when both have committed.
-- - Above READ COMMITTED no statement sees rows that are newer than the snapshot: a note with the parent.
-- - A child whose row another session has locked: a note with the child.
-- - A parent that had failed when its child was enqueued may be retried at the same time: a note with the child.
-- One call closes a bounded number of rows; a note with the parent leaves the rest to a later one.

-- The jobs are inserted; those that depend on others are blocked. p_ids: the jobs that may have parents.
-- p_traceless: parents that lived when the options were checked, and of which history keeps nothing when they succeed. They may
-- have ended since.
create or replace function pgqueue._add_dependencies(p_ids bigint[], p_traceless bigint[])
returns void
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
declare
    v_children bigint[];
    v_doubtful bigint[];
begin
    with wanted as materialized (
        select w.id as child, p.id as parent
        from unnest(p_ids) w (id)
        cross join lateral (
            select j.depends_on from pgqueue.jobs j where j.id = w.id and j.blocked_on in ('@parents', '@jobs', '@open') limit 1
        ) j
        cross join lateral unnest(j.depends_on) p (id)
    ),
    parents as materialized (
        select
            p.id, (p.lives and p.traceless) is true as traceless,
            case
                when p.lives then null
                else coalesce(p.ended, case when p.traceless or p.id = any (p_traceless) then 'succeeded' else 'deleted' end)
            end as ended
        from pgqueue._find_parents(array(select distinct w.parent from wanted w)) p
    ),
    added as (
        insert into pgqueue.dependencies (parent, child, ended, traceless)
        select w.parent, w.child, p.ended, p.traceless
        from wanted w
        join parents p on p.id = w.parent
        where p.ended is distinct from 'succeeded'
        returning child, ended
    )
    select array_agg(distinct w.child), (select array_agg(distinct a.child) from added a where a.ended in ('dead', 'cancelled'))
    into v_children, v_doubtful
    from wanted w;
    perform pgqueue._end_parents(pgqueue._settle_children(v_children, 'parents'), 'cancelled');
    perform pgqueue._leave_notes('doubtful', v_doubtful) where v_doubtful is not null;
end
$$;

-- Refuses dependencies on jobs that are neither live nor in history. Returns those that live, and of which history keeps nothing
-- when they succeed.
create or replace function pgqueue._refuse_unknown_parents(p_ids bigint[])
returns bigint[]
language plpgsql stable parallel safe
as $$
declare
    v_found record;
begin
    select
        min(p.id) filter (where not p.lives and p.ended is null) as missing,
        array_agg(p.id) filter (where p.lives and p.traceless) as traceless
    into v_found
    from pgqueue._find_parents(p_ids) p;
    perform pgqueue._refuse(
        format('depends_on names job %s, which is unknown', v_found.missing),
        'There is no such job, or its retention has ended. Nothing was enqueued.',
        'Give depends_on as ids that enqueue() returned; an ended job must still be in history.'
    )
    where v_found.missing is not null;
    return v_found.traceless;
end
$$;

-- Whether these jobs are live, else how they ended (null: unknown), and whether history keeps them when they succeed.
create or replace function pgqueue._find_parents(p_ids bigint[])
returns table (id bigint, lives boolean, ended text, traceless boolean)
language sql stable parallel safe rows 10
set enable_seqscan = off set jit = off
as $$
    select
        p.id, l.task is not null,
        coalesce(h.state::text, (select x.state from pgqueue.traces x where l.task is null and x.id = p.id)),
        (select r.keep_for <= '0' from pgqueue._retention_of('succeeded', l.retention, l.task, l.queue) r)
    from unnest(p_ids) p (id)
    left join lateral (select j.task, j.queue, j.retention from pgqueue.jobs j where j.id = p.id limit 1) l on true
    left join lateral (select x.state from pgqueue.history x where l.task is null and x.id = p.id limit 1) h on true
$$;

-- Decides on a child by its run_if, whether a parent has not ended, and whether one has not succeeded. Inlined.
create or replace function pgqueue._decide_child(p_run_if text, p_open boolean, p_failed boolean)
returns text
language sql immutable parallel safe
as $$
    select case
        when p_failed and p_run_if = 'failed' then 'run'
        when p_failed and p_run_if = 'succeeded' then 'cancel'
        when p_open then 'wait'
        when p_run_if = 'failed' then 'cancel'
        else 'run'
    end
$$;

-- Handles the children that are live, blocked on their parents, and not locked by another session; returns those that it
-- cancels, for _end_parents. p_note: the kind of note for children that keep waiting; null: none.
create or replace function pgqueue._settle_children(p_children bigint[], p_note text)
returns bigint[]
language plpgsql
set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    v_blocked constant pgqueue.job_state := 'blocked'::pgqueue.job_state;
    v_ids bigint[];
    v_are_locked boolean[];
    v_found record;
begin
    if p_children is null or p_children = '{}' then
        return '{}'::bigint[];
    end if;
    select array_agg(w.id), array_agg(l.id is not null) into v_ids, v_are_locked
    from (select distinct u.id from unnest(p_children) u (id) order by u.id) w
    left join lateral (
        select j.id
        from pgqueue.jobs j
        where j.id = w.id and j.state = v_blocked and j.blocked_on in ('@parents', '@jobs', '@open', '@group')
        for update skip locked
    ) l on true;
    -- A later statement, which sees everything that was committed when the row was locked.
    with children as materialized (
        select
            w.id, j.reservation, j.blocked_on in ('@open', '@group') as is_group, j.is_cancelled,
            case
                when f.parent is null then
                    '{"class": "NotNeeded", "message": "all the jobs that it depends on succeeded, and it was to run if one failed"}'
                else jsonb_build_object(
                    'class', 'ParentFailed',
                    'message', format('job %s, which it depends on, did not succeed: it is %s', f.parent, f.ended)
                )
            end as error,
            case
                when not w.is_locked then 'held'
                when j.blocked_on = '@jobs' then pgqueue._decide_child('finished', o.is_open, false)
                else pgqueue._decide_child(j.run_if, o.is_open, f.parent is not null)
            end as verdict
        from unnest(v_ids, v_are_locked) w (id, is_locked)
        cross join lateral (
            select x.reservation, x.run_if, x.blocked_on, x.cancel_requested_at is not null as is_cancelled
            from pgqueue.jobs x
            where x.id = w.id and x.state = v_blocked and x.blocked_on in ('@parents', '@jobs', '@open', '@group')
            limit 1
        ) j
        left join lateral (
            -- From the newest parent backwards: the oldest ones have left dead entries.
            select true as is_open
            from pgqueue.dependencies d
            where d.child = w.id and d.ended is null
            order by d.child desc, d.parent desc
            limit 1
        ) o on true
        left join lateral (
            select d.parent, d.ended
            from pgqueue.dependencies d
            where d.child = w.id and d.ended is not null
            order by d.child, d.parent
            limit 1
        ) f on true
    )
    select
        array_agg(c.id order by c.id) filter (where c.verdict = 'run' and not c.is_group) as run,
        array_agg(c.id) filter (where c.verdict = 'wait') as wait, array_agg(c.id) filter (where c.verdict = 'held') as held,
        array_agg(c.id order by c.id) filter (where c.verdict = 'cancel' and not c.is_group) as cancel,
        array_agg(c.reservation order by c.id) filter (where c.verdict = 'cancel' and not c.is_group) as reservations,
        array_agg(c.error order by c.id) filter (where c.verdict = 'cancel' and not c.is_group) as errors,
        array_agg(c.id) filter (where c.verdict = 'run' and c.is_group) as groups,
        array_agg(c.id) filter (where c.verdict = 'cancel' and c.is_group and not c.is_cancelled) as cancel_groups,
        array_agg(c.error) filter (where c.verdict = 'cancel' and c.is_group and not c.is_cancelled) as group_errors
    into v_found
    from children c;

    perform pgqueue._release_children(v_found.run) where v_found.run is not null;
    perform pgqueue._leave_notes('group', v_found.groups) where v_found.groups is not null;
    if v_found.cancel_groups is not null then
        perform pgqueue._cancel_groups(array[g.id], g.error)
        from unnest(v_found.cancel_groups, v_found.group_errors) g (id, error);
    end if;
    perform pgqueue._leave_notes(p_note, v_found.wait) where p_note is not null and v_found.wait is not null;
    perform pgqueue._leave_notes('settle', v_found.held, interval '200 ms') where v_found.held is not null;
    if v_found.cancel is null then
        return '{}'::bigint[];
    end if;
    return pgqueue._finish(v_found.cancel, v_found.reservations, false, 'cancelled', null, null, null, v_found.errors, false);
end
$$;

-- The caller has locked the rows. They become due at the later of run_at and now, in id order. p_early: a parent may be open.
create or replace function pgqueue._release_children(p_ids bigint[], p_early boolean default false)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    v_now timestamptz := pgqueue._ready_at(null);
    v_lane record;
begin
    for v_lane in
        with released as (
            update pgqueue.jobs j
            set
                state = pgqueue._state_again(j.errors, j.attempts), blocked_on = null, resumed = j.run_at <= v_now,
                ready_at = case
                    when j.run_at > v_now then greatest(j.run_at, pgqueue._ready_at(null))
                    else v_now + (w.n - 1) * interval '1 us'
                end
            from unnest(p_ids) with ordinality w (id, n)
            -- By ctid: an equality of ids the planner may turn round, as _finish says.
            cross join lateral (select o.ctid as row_ctid from pgqueue.jobs o where o.id = w.id limit 1) l
            where j.ctid = l.row_ctid
            returning j.queue, j.priority, j.ready_at, j.resumed, j.lane_key
        )
        select
            r.queue, r.priority, min(r.ready_at) as ready_at,
            array_agg(distinct r.lane_key) filter (where not r.resumed) as lane_keys
        from released r
        group by r.queue, r.priority
        order by r.queue, r.priority
    loop
        perform pgqueue._register_lane(v_lane.queue, v_lane.priority, v_now, v_lane.lane_keys);
        perform pgqueue._wake(v_lane.queue, v_lane.ready_at);
    end loop;
    perform pgqueue._drop_dependencies(p_ids, not p_early);
end
$$;

-- Skips rows that another session has locked: maintain deletes them later. p_ended: only those of parents that ended.
create or replace function pgqueue._drop_dependencies(p_children bigint[], p_ended boolean)
returns void
language plpgsql
as $$
begin
    delete from pgqueue.dependencies d
    where d.ctid = any (
        array(
            select l.row_ctid
            from unnest(p_children) w (id)
            cross join lateral (
                select x.ctid as row_ctid
                from pgqueue.dependencies x
                where x.child = w.id and (x.ended is not null or not p_ended)
                for update skip locked
            ) l
        )
    );
end
$$;
