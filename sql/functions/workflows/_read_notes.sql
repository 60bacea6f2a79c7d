-- Notes: jobs to check again in a later transaction, whose snapshot shows rows that this one cannot see.
--
-- Functions that end, enqueue or retry jobs leave notes, and read none. Reserve, when it comes up short, and maintain read
-- notes. A note is deleted when it is read; a job that must be checked once more gets a new one. A transaction does not
-- read its own notes, for it does not see what concurrent transactions do.
-- Skips notes that another session is reading.

-- Follows up to p_limit notes; false: there was none.
create or replace function pgqueue._read_notes(p_limit integer)
returns boolean
language plpgsql
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_parents pgqueue.notes[];
    v_parent pgqueue.notes;
    v_children bigint[];
    v_waiting bigint[];
    v_retried bigint[];
    v_doubtful bigint[];
    v_groups bigint[];
    v_recount bigint[];
    v_cancelled bigint[];
    v_events text[];
    v_stepped bigint[];
    v_back pgqueue.notes[];
    v_left integer := 1000;
begin
    if not exists (select from pgqueue.notes) then
        return false;
    end if;
    with due as materialized (
        select k.n
        from pgqueue.notes k
        -- After the clock stepped back, a note from the far future is due as well.
        where (k.look_at <= v_now or k.look_at > v_now + interval '10 s')
            and k.xid is distinct from pg_current_xact_id_if_assigned()
        order by k.n
        limit p_limit
        for update skip locked
    ),
    taken as (
        delete from pgqueue.notes k
        where k.n = any (array(select d.n from due d))
        returning k.n, k.kind, k.id, k.after, k.name, k.look_at, k.xid
    )
    select
        array_agg(row(t.n, t.kind, t.id, t.after, t.name, t.look_at, t.xid)::pgqueue.notes order by t.n)
            filter (where t.kind = 'p'),
        array_agg(distinct t.id) filter (where t.kind = 'c'),
        array_agg(distinct t.id) filter (where t.kind = 'w'),
        array_agg(distinct t.id) filter (where t.kind = 'r'),
        array_agg(distinct t.id) filter (where t.kind = 'd'),
        array_agg(distinct t.id) filter (where t.kind = 'g'),
        array_agg(distinct t.id) filter (where t.kind = 'g' and t.name = 'back'),
        array_agg(distinct t.id) filter (where t.kind = 'm'),
        array_agg(distinct t.name) filter (where t.kind = 'e'),
        array_agg(row(t.n, t.kind, t.id, t.after, t.name, t.look_at, t.xid)::pgqueue.notes order by t.n)
            filter (where t.kind = 'b'),
        array_agg(distinct t.id) filter (where t.kind = 's')
    into
        v_parents, v_children, v_waiting, v_retried, v_doubtful, v_groups, v_recount, v_cancelled, v_events, v_back,
        v_stepped
    from taken t;
    if num_nonnulls(
        v_parents, v_children, v_waiting, v_retried, v_doubtful, v_groups, v_cancelled, v_events, v_back, v_stepped
    ) = 0 then
        return false;
    end if;

    foreach v_parent in array coalesce(v_parents, '{}') loop
        if v_left > 0 then
            v_left := v_left - pgqueue._close_more(v_parent);
        else
            perform pgqueue._leave_notes('p', array[v_parent.id], '0', v_parent.name, v_parent.after);
        end if;
    end loop;
    if v_retried is not null then
        perform pgqueue._reopen_children(v_retried);
    end if;
    if v_children is not null then
        perform pgqueue._leave_notes('c', pgqueue._check_parents(v_children), interval '200 ms');
        perform pgqueue._settle_and_follow(v_children, null);
        perform pgqueue._break_circles(v_children);
    end if;
    if v_waiting is not null then
        perform pgqueue._settle_and_follow(v_waiting, null);
        perform pgqueue._reopen_children(pgqueue._revive_children(v_waiting));
    end if;
    if v_doubtful is not null then
        perform pgqueue._check_failed_parents(v_doubtful);
    end if;
    if v_stepped is not null then
        perform pgqueue._move_steps(v_stepped);
    end if;
    perform pgqueue._wake_waiters(e.name) from unnest(v_events) e (name);
    perform pgqueue._cancel_members(c.id) from unnest(v_cancelled) c (id);
    perform pgqueue._revive_members(b.id, b.after) from unnest(v_back) b;
    if v_groups is not null then
        perform pgqueue._look_at_groups(v_groups);
        perform pgqueue._recount_groups(coalesce(v_recount, '{}'));
    end if;
    return true;
end
$$;
