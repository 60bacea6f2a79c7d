-- Blocks jobs of a key behind the job that is ahead of them, or defers them: by 50 ms, for that job mostly ends; the next time by a second.

-- p_ahead: for each row the job that it is to wait for. See _release_next: first the guards, then, in a later statement, a check of
-- those jobs as they are *now*. They must still hold their positions, in this queue, and no session may be ending them, which
-- would have locked them FOR UPDATE. The lock taken here ends with the exception block, so that they can end meanwhile.
create or replace function pgqueue._block_behind(p_rows tid[], p_ahead bigint[], p_now timestamptz)
returns void
language plpgsql
as $$
declare
    v_guarded bigint[] := array(
        select w.id from (select distinct a.id from unnest(p_ahead) a (id)) w where pgqueue._guard_position(w.id, true)
    );
    v_standing bigint[];
begin
    begin
        v_standing := array(
            select l.id
            from (
                select distinct a.id, r.queue
                from unnest(p_ahead, p_rows) a (id, row_ctid)
                cross join lateral (select j.queue from pgqueue.jobs j where j.ctid = a.row_ctid limit 1) r
                where a.id = any (v_guarded)
                order by a.id
            ) w
            cross join lateral (
                select j.id
                from pgqueue.jobs j
                where j.id = w.id and j.queue = w.queue and pgqueue._is_ahead(j, p_now)
                for key share skip locked
            ) l
        );
        raise exception using errcode = 'lock_not_available';
    exception when lock_not_available then
        null;
    end;
    update pgqueue.jobs j
    set state = 'blocked', resumed = false
    from unnest(p_rows, p_ahead) w (row_ctid, ahead)
    where j.ctid = w.row_ctid and w.ahead = any (v_standing);

    if exists (select from unnest(p_ahead) a (id) where a.id <> all (v_standing)) then
        -- Behind a job that another session has locked, or whose guard was not free. One that is gone, or gave up its position,
        -- blocks nothing: the next round sees that. The deferred job keeps its position: run_at says whether it is due.
        update pgqueue.jobs j
        set resumed = j.resumed and j.lane_key is not null,
            ready_at = pgqueue._ready_at(pgqueue._clock() + case when j.ready_at > greatest(j.run_at, j.created_at) then '1 s' else interval '50 ms' end)
        from unnest(p_rows, p_ahead) w (row_ctid, ahead)
        where j.ctid = w.row_ctid and w.ahead <> all (v_standing)
            and (
                select true
                from pgqueue.jobs a
                where a.id = w.ahead and a.queue = j.queue and pgqueue._is_ahead(a, p_now)
                limit 1
            );
    end if;
end
$$;
