-- Undoes, when a job is retried, the cancels that its failure caused: those children wait again.
--
-- A cancelled child keeps its rows of dependencies. retry() reopens those that name the job, and brings back each child that
-- was cancelled because of its parents and has no other failed parent; then the children of those. A reader of a note may
-- cancel a child at the same moment: a note with the child brings it back. A note leaves what is above 1,000 children.

create or replace function pgqueue._reopen_children(p_parents bigint[])
returns void
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    v_parents bigint[] := p_parents;
    v_children bigint[];
    v_left integer := 1000;
begin
    if pgqueue._old_snapshot() then
        perform pgqueue._leave_notes('retried', p_parents);
        return;
    end if;
    loop
        v_children := pgqueue._close_dependencies(
            array(
                -- A parent that has ended again meanwhile keeps its recorded state. Not EXISTS, which may become a join that
                -- begins with all jobs.
                select w.id from unnest(v_parents) w (id) where (select true from pgqueue.jobs j where j.id = w.id)
            ),
            null, v_left
        );
        exit when v_children is null;
        v_left := v_left - cardinality(v_children);
        perform pgqueue._leave_notes('settle', v_children);
        v_parents := pgqueue._revive_children(v_children);
    end loop;
end
$$;

-- Brings back the jobs among these that were cancelled because a parent failed and have no failed one any more.
create or replace function pgqueue._revive_children(p_children bigint[])
returns bigint[]
language plpgsql
as $$
declare
    v_cancelled constant pgqueue.job_state := 'cancelled'::pgqueue.job_state;
    v_ids bigint[];
    v_are_locked boolean[];
    v_found record;
begin
    select array_agg(w.id), array_agg(l.id is not null) into v_ids, v_are_locked
    from (
        select distinct u.id
        from unnest(p_children) u (id)
        where not exists (select from pgqueue.jobs j where j.id = u.id limit 1)
        order by u.id
    ) w
    left join lateral (
        select h.id from pgqueue.history h where h.id = w.id and h.state = v_cancelled for update skip locked
    ) l on true;
    -- Only a new snapshot shows both the changes that the lock waited for and the rows of dependencies.
    select
        array_agg(h.id) filter (where w.is_locked) as ids,
        array_agg(row(h.id, h.granularity, h.kept_until, false)::pgqueue.found_job) filter (where w.is_locked) as jobs,
        array_agg(h.id) filter (where not w.is_locked) as held
    into v_found
    from unnest(v_ids, v_are_locked) w (id, is_locked)
    cross join lateral (
        select x.id, x.granularity, x.kept_until, x.state, x.errors from pgqueue.history x where x.id = w.id limit 1
    ) h
    where h.state = v_cancelled and h.errors -> -1 ->> 'class' = 'ParentFailed'
        and not exists (select from pgqueue.jobs j where j.id = w.id limit 1)
        and not exists (select from pgqueue.dependencies d where d.child = w.id and d.ended is not null);
    perform pgqueue._leave_notes('settle', v_found.held, interval '200 ms');
    perform pgqueue._requeue(v_found.jobs, false) where v_found.ids is not null;
    return v_found.ids;
end
$$;

-- Members that were cancelled with their group, in slices of 1,000; a note leaves the rest to a later call, and so the ones
-- that another session has locked. The group does not end before.
create or replace function pgqueue._revive_members(p_group_id bigint, p_after bigint)
returns void
language plpgsql
as $$
declare
    v_cancelled constant pgqueue.job_state := 'cancelled'::pgqueue.job_state;
    v_found record;
    v_next bigint;
begin
    if not exists (select from pgqueue.jobs j where j.id = p_group_id and j.cancel_requested_at is null) then
        -- It has ended again meanwhile.
        return;
    end if;
    select
        array_agg(row(l.id, l.granularity, l.kept_until, false)::pgqueue.found_job) as jobs, count(*) as members
    into v_found
    from (
        select h.id, h.granularity, h.kept_until
        from pgqueue.history h
        where h.group_id is not null and h.group_id = p_group_id and h.id > p_after and h.state = v_cancelled
            and h.errors -> -1 ->> 'class' = 'GroupCancelled'
        order by h.id
        limit 1000
        for update skip locked
    ) l;
    if v_found.members > 0 then
        perform pgqueue._requeue(v_found.jobs, false);
        -- A transaction that cancels the group at the same time does not see them.
        perform pgqueue._leave_notes('cancel', array[p_group_id]);
    end if;
    -- The first one of the next slice, or that another session has locked. Null: the group may have no member left.
    v_next := (
        select min(h.id)
        from pgqueue.history h
        where h.group_id is not null and h.group_id = p_group_id and h.id > p_after and h.state = v_cancelled
            and h.errors -> -1 ->> 'class' = 'GroupCancelled'
    );
    perform pgqueue._leave_notes(
        case when v_next is null then 'group' else 'revive' end, array[p_group_id],
        case when v_next is null or v_found.members = 1000 then interval '0' else interval '200 ms' end, null, v_next - 1
    );
end
$$;

-- The caller has just brought the jobs back, in waiting. A job that never started waits again for its open parents, those
-- among them that came back before it or with it. A parent that stays failed counts no more: the retry of the job says so.
create or replace function pgqueue._block_again(p_ids bigint[])
returns void
language plpgsql
set enable_bitmapscan = off
as $$
declare
    v_children bigint[] := array(
        select w.id
        from unnest(p_ids) w (id)
        cross join lateral (
            select from pgqueue.jobs x where x.id = w.id and x.depends_on is not null and x.reservation = 0 limit 1
        ) j
    );
    v_blocked bigint[];
    v_free bigint[];
begin
    update pgqueue.dependencies d
    set ended = null
    where d.ctid = any (
        array(
            select l.row_ctid
            from unnest(v_children) w (id)
            cross join lateral (
                select x.parent, x.ctid as row_ctid
                from pgqueue.dependencies x
                where x.child = w.id and x.ended in ('dead', 'cancelled')
                for update skip locked
            ) l
            where (select true from pgqueue.jobs j where j.id = l.parent)
        )
    );
    select array_agg(w.id) filter (where o.waits), array_agg(w.id) filter (where not o.waits) into v_blocked, v_free
    from unnest(v_children) w (id)
    cross join lateral (select x.run_if from pgqueue.jobs x where x.id = w.id limit 1) j
    cross join lateral (
        select exists (select from pgqueue.dependencies d where d.child = w.id and d.ended is null)
            and (
                j.run_if is distinct from 'failed'
                or not exists (select from pgqueue.dependencies d where d.child = w.id and d.ended is not null)
            ) as waits
    ) o;
    perform pgqueue._drop_dependencies(v_free, false);
    perform pgqueue._drop_dependencies(v_blocked, true);
    update pgqueue.jobs j
    set state = 'blocked', blocked_on = case when j.task = '@group' then '@group' else '@parents' end, resumed = false
    where j.id = any (v_blocked);
    -- A transaction that ends a parent at the same time may have seen no live child, or no open row.
    perform pgqueue._leave_notes('parents', v_blocked);
end
$$;
