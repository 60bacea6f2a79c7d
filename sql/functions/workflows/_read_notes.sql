-- Notes: jobs to check again in a later transaction, whose snapshot shows rows that this one cannot see.
--
-- Functions that end, enqueue or retry jobs leave notes, and read none. Reserve, when it comes up short, and maintain read
-- notes. A note is deleted when it is read; a job that must be checked once more gets a new one. A transaction does not
-- read its own notes, for it does not see what concurrent transactions do, and skips what another session is reading.

create or replace function pgqueue._read_notes(p_limit integer)
returns boolean
language plpgsql
set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_notes pgqueue.notes[];
    v_found record;
    v_note pgqueue.notes;
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
    taken as (delete from pgqueue.notes k where k.n = any (array(select d.n from due d)) returning k as note)
    select array_agg(t.note) into v_notes from taken t;
    if v_notes is null then
        return false;
    end if;

    for v_found in
        select t.kind, array_agg(distinct t.id) as ids, array_agg(distinct t.name) as names, array_agg(t order by t.n) as notes
        from unnest(v_notes) t
        group by t.kind
        order by array_position(
            '{ended,retried,parents,settle,doubtful,steps,event,cancel,superseded,revive,group,recount}'::text[], t.kind
        )
    loop
        case v_found.kind
            when 'ended' then
                foreach v_note in array v_found.notes loop
                    if v_left > 0 then
                        v_left := v_left - pgqueue._close_more(v_note);
                    else
                        perform pgqueue._leave_notes('ended', array[v_note.id], '0', v_note.name, v_note.after);
                    end if;
                end loop;
            when 'retried' then
                perform pgqueue._reopen_children(v_found.ids);
            when 'parents' then
                perform pgqueue._leave_notes('parents', pgqueue._check_parents(v_found.ids, false), interval '200 ms');
                perform pgqueue._end_parents(pgqueue._settle_children(v_found.ids, null), 'cancelled');
                perform pgqueue._break_circles(v_found.ids);
            when 'settle' then
                perform pgqueue._end_parents(pgqueue._settle_children(v_found.ids, null), 'cancelled');
                perform pgqueue._reopen_children(pgqueue._revive_children(v_found.ids));
            when 'doubtful' then
                perform pgqueue._leave_notes('doubtful', pgqueue._check_parents(v_found.ids, true), interval '200 ms');
                -- Live children have an open parent more, or none.
                perform pgqueue._leave_notes('parents', v_found.ids);
                perform pgqueue._reopen_children(pgqueue._revive_children(v_found.ids));
            when 'steps' then
                perform pgqueue._move_steps(v_found.ids);
            when 'event' then
                perform pgqueue._wake_waiters(e.name) from unnest(v_found.names) e (name);
            when 'cancel' then
                perform pgqueue._cancel_members(c.id) from unnest(v_found.ids) c (id);
            when 'revive' then
                perform pgqueue._revive_members(r.id, r.after) from unnest(v_found.notes) r;
            when 'superseded' then
                perform pgqueue._supersede(s.id, true) from unnest(v_found.ids) s (id);
            when 'group', 'recount' then
                perform pgqueue._look_at_groups(v_found.ids, v_found.kind = 'recount');
        end case;
    end loop;
    return true;
end
$$;
