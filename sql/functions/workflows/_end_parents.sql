-- Settles the jobs that depend on a job that ended. See _add_dependencies.

-- Settles the children of jobs that ended; p_state: succeeded, dead, cancelled or deleted.
create or replace function pgqueue._end_parents(p_ids bigint[], p_state text)
returns void
language plpgsql
set jit = off
as $$
declare
    v_ids bigint[] := p_ids;
    v_state text := p_state;
    v_children bigint[];
    v_left integer := 1000;
begin
    if pgqueue._old_snapshot() then
        perform pgqueue._leave_notes('ended', p_ids, '0', p_state);
        return;
    end if;
    loop
        v_children := pgqueue._close_dependencies(v_ids, v_state, v_left);
        exit when v_children is null;
        v_left := v_left - cardinality(v_children);
        v_ids := pgqueue._settle_children(v_children, 'settle');
        exit when v_ids = '{}';
        v_state := 'cancelled';
    end loop;
end
$$;

-- The jobs among these for which others wait; null: none. Usually one probe says so, of the range between the least and the
-- greatest id. plpgsql, which keeps its plan. Volatile, to get a newer snapshot.
create or replace function pgqueue._parents_among(p_ids bigint[])
returns bigint[]
language plpgsql parallel safe
set enable_sort = off
as $$
begin
    -- In the order of the primary key, which no other index has: a plan made while the table was empty might read all of
    -- dependencies_by_child. A scalar: see _has_members.
    if (
        select true
        from pgqueue.dependencies d
        where d.parent >= (select min(i.id) from unnest(p_ids) i (id))
            and d.parent <= (select max(i.id) from unnest(p_ids) i (id))
        order by d.parent, d.child
        limit 1
    ) then
        return (
            select array_agg(i.id)
            from unnest(p_ids) i (id)
            where (
                select true
                from pgqueue.dependencies d
                where d.parent between i.id and i.id
                order by d.parent, d.child
                limit 1
            )
        );
    end if;
    return null;
end
$$;

-- Records in the rows of dependencies how these parents ended; p_state null: they were retried, and the rows are open again.
-- p_after: only children with ids above it; an earlier call closed the others.
create or replace function pgqueue._close_dependencies(p_ids bigint[], p_state text, p_limit integer, p_after bigint default 0)
returns bigint[]
language plpgsql
set enable_sort = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    v_parents bigint[] := pgqueue._parents_among(p_ids);
    v_rows tid[];
    v_children bigint[];
begin
    if v_parents is null then
        return null;
    end if;
    select array_agg(o.row_ctid), array_agg(distinct o.child) into v_rows, v_children
    from (
        select l.*
        from (select u.id from unnest(v_parents) u (id) order by u.id) p
        cross join lateral (
            select d.parent, d.child, d.ctid as row_ctid
            from pgqueue.dependencies d
            -- Not "=", which any index with the child in it could order: see _parents_among.
            where d.parent between p.id and p.id and d.child > p_after
                and case when p_state is null then d.ended in ('dead', 'cancelled') else d.ended is null end
            order by d.parent, d.child
            for update skip locked
        ) l
        limit p_limit
    ) o;
    if p_state = 'succeeded' then
        delete from pgqueue.dependencies d where d.ctid = any (v_rows);
    else
        update pgqueue.dependencies d set ended = p_state where d.ctid = any (v_rows);
    end if;
    -- The rest: beyond the limit, or locked by another session.
    insert into pgqueue.notes (kind, id, after, name, look_at, xid)
    select
        case when p_state is null then 'retried' else 'ended' end, p.id, l.child - 1, p_state, pgqueue._clock(), pg_current_xact_id()
    from unnest(v_parents) p (id)
    cross join lateral (
        select d.child
        from pgqueue.dependencies d
        where d.parent between p.id and p.id and d.child > p_after
            and case when p_state is null then d.ended in ('dead', 'cancelled') else d.ended is null end
        order by d.parent, d.child
        limit 1
    ) l;
    return v_children;
end
$$;

-- Continues what a note left of a parent, which may have been retried since, but not while its row in history is locked.
create or replace function pgqueue._close_more(p_note pgqueue.notes)
returns integer
language plpgsql
as $$
declare
    v_state text := p_note.name;
    v_children bigint[];
begin
    if v_state not in ('succeeded', 'deleted') then
        v_state := (select h.state::text from pgqueue.history h where h.id = p_note.id limit 1 for key share skip locked);
        if v_state is null and exists (select from pgqueue.jobs j where j.id = p_note.id) then
            return 0;
        elsif v_state is null and exists (select from pgqueue.history h where h.id = p_note.id) then
            perform pgqueue._leave_notes('ended', array[p_note.id], interval '200 ms', p_note.name, p_note.after);
            return 0;
        end if;
    end if;
    -- Null: history does not keep this parent.
    v_children := pgqueue._close_dependencies(array[p_note.id], coalesce(v_state, p_note.name), 1000, p_note.after);
    perform pgqueue._end_parents(pgqueue._settle_children(v_children, 'settle'), 'cancelled');
    return coalesce(cardinality(v_children), 0);
end
$$;

-- Reads the parents of new children in a later transaction, and returns the children to check again: see _add_dependencies. Locks
-- ended parents in history, so that no retry brings them back at the same time. p_failed: reads those that had ended badly when
-- the child was enqueued, for another session may have been retrying them, and could not see the child.
create or replace function pgqueue._check_parents(p_children bigint[], p_failed boolean)
returns bigint[]
language plpgsql
as $$
declare
    v_ended constant text[] := case when p_failed then '{dead,cancelled}'::text[] else '{""}'::text[] end;
    v_parents bigint[] := array(
        select distinct d.parent
        from unnest(p_children) w (id)
        cross join lateral (
            select x.parent from pgqueue.dependencies x where x.child = w.id and coalesce(x.ended, '') = any (v_ended)
        ) d
    );
    v_alive bigint[] := '{}'::bigint[];
    v_failed bigint[];
begin
    begin
        select coalesce(array_agg(l.id), '{}') into v_alive
        from (select u.id from unnest(v_parents) u (id) order by u.id) w
        cross join lateral (select j.id from pgqueue.jobs j where j.id = w.id for key share skip locked) l;
        -- The locks end with this block: a claim skips locked rows.
        raise exception using errcode = 'lock_not_available';
    exception when lock_not_available then
        null;
    end;
    if v_alive @> v_parents and not p_failed then
        return '{}'::bigint[];
    end if;

    with parents as materialized (
        select p.id, p.ended, false as lives
        from pgqueue._find_parents(array(select u.id from unnest(v_parents) u (id) where u.id <> all (v_alive))) p
        left join lateral (select h.id from pgqueue.history h where h.id = p.id for key share skip locked) l on true
        -- Not one that history keeps, and another session may be retrying.
        where not p.lives and (l.id is not null or not exists (select from pgqueue.history h where h.id = p.id))
        union all
        select a.id, null, true from unnest(v_alive) a (id) where p_failed
    ),
    seen as materialized (
        select
            l.row_ctid, p.lives,
            case
                when p.lives then null
                when coalesce(p.ended, l.ended) is null and not l.traceless then 'deleted'
                when coalesce(p.ended, l.ended) <> 'succeeded' then coalesce(p.ended, l.ended)
            end as ended
        from unnest(p_children) w (id)
        cross join lateral (
            select d.parent, d.ended, d.traceless, d.ctid as row_ctid
            from pgqueue.dependencies d
            where d.child = w.id and coalesce(d.ended, '') = any (v_ended) and d.parent = any (array(select x.id from parents x))
            for update skip locked
        ) l
        join parents p on p.id = l.parent
    ),
    succeeded as (
        delete from pgqueue.dependencies d
        where d.ctid = any (array(select s.row_ctid from seen s where s.ended is null and not s.lives))
    ),
    -- The row of a parent that lives again is open again.
    others as (
        update pgqueue.dependencies d
        set ended = s.ended
        from seen s
        where d.ctid = s.row_ctid and (s.ended is not null or s.lives)
    )
    select coalesce(array_agg(p.id) filter (where not p.lives and p.ended is distinct from 'succeeded'), '{}') into v_failed
    from parents p;

    -- Also if another session has locked the row of a parent that has gone.
    return array(
        select w.id
        from unnest(p_children) w (id)
        where exists (
            select
            from pgqueue.dependencies d
            where d.child = w.id and coalesce(d.ended, '') = any (v_ended) and d.parent = any (v_parents)
                and d.parent <> all (case when p_failed then v_failed else v_alive end)
        )
    );
end
$$;

-- Inlined: no SET. Each child and each member advances the sequence before it is committed, and no snapshot hides that.
create or replace function pgqueue._ever_depended()
returns boolean
language sql parallel safe
as $$
    select pg_catalog.pg_sequence_last_value('pgqueue.notes_n_seq'::regclass) is not null
$$;
