-- Keys: jobs of one queue with the same key run one at a time, in the order of their ids.
--
-- Enqueue does nothing for it. A claim takes a keyed job only if no job of its key executes or holds an earlier position;
-- else it blocks it (out of the ready index) behind that job. A transaction that makes a job leave its position (its end, a
-- cancel, a delete) first locks the job's row; then, in a *later* statement, it releases the first blocked job of the key.
-- It does so whatever else it sees of the key: a job that seems to be ahead still may be leaving at the same moment, after
-- its own check. The next claim blocks a job again that was released too soon.
--
-- The claim and the leaving job never wait for each other, and no release is lost. Each job can be guarded, by an advisory
-- lock that lasts until the transaction ends and is only ever tried:
--   the claim         1. guards the job ahead, shared  2. sees that its row is unlocked   3. blocks, commits
--   the leaving job   1. locks its row   2. tries the guard, exclusively  3. reads the blocked jobs
-- If the leaving job gets its guard, the claim has not guarded it yet, or has ended. Not yet: its step 2 will find the row
-- locked, and it defers its candidate instead of blocking it. Ended: step 3, which has a later snapshot, sees the jobs that
-- it blocked. If the leaving job does not get the guard, it leaves a note with its id. A reader of notes (maintain, and a
-- reserve that comes up short) tries the guard again before it reads: held, it writes the note again; free, the claim has ended.
-- So an open claim does not keep a job from ending, and each release comes at once, or soon after that claim has ended.
-- All jobs share 1,024 guards, so a claim of thousands cannot fill the table of locks. Two that share one cost a note at most.
-- Step 2 of the claim is a key share lock, SKIP LOCKED, in a block that is rolled back: it is held for that one statement.
-- What locks the row with less than FOR UPDATE, such as a step that is not committed, does not end the job.
--
-- A release does not wait for a blocked row that is locked (by a cancel, say), but leaves a note. Above READ COMMITTED no
-- later statement has a newer snapshot, so there a note is always left.

-- p_job_ids: for each key the job that leaves its position now, whose guard is tried here; null: none does, or it was tried.
create or replace function pgqueue._release_next(p_queues text[], p_keys text[], p_job_ids bigint[])
returns void
language plpgsql
set jit = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    v_blocked constant pgqueue.job_state := 'blocked'::pgqueue.job_state;
    v_position record;
    v_id bigint;
    v_priority smallint;
    v_ready_at timestamptz;
    -- Registered already.
    v_lane_queue text;
    v_lane_priority smallint;
begin
    if pgqueue._old_snapshot() then
        insert into pgqueue.key_notes (queue, key, job_id, next_at)
        select w.queue, w.key, w.id, pgqueue._clock() from unnest(p_queues, p_keys, p_job_ids) w (queue, key, id);
        return;
    end if;
    if p_job_ids is not null then
        perform pgqueue._note_open_claims(p_job_ids, p_queues, p_keys);
    end if;
    -- Most keys have no blocked job: one query asks for all, for a turn of this loop costs more. It reads the head here, so
    -- that it is not above a job that a claim, ended by now, has blocked.
    for v_position in
        select d.queue, d.key, h.id as head
        from (select k.id from pgqueue._key_head() k offset 0) h
        cross join (
            select distinct p.queue, p.key from unnest(p_queues, p_keys) p (queue, key) where p.key is not null
        ) d
        cross join lateral pgqueue._first_blocked(d.queue, d.key, h.id) f
        order by d.queue, d.key
    loop
        loop
            select f.id into v_id from pgqueue._first_blocked(v_position.queue, v_position.key, v_position.head) f;
            exit when not found;

            perform from pgqueue.jobs j
            where j.id = v_id and j.state = v_blocked and j.blocked_on is null
            for update skip locked;
            if found then
                v_ready_at := pgqueue._ready_at(null);
                update pgqueue.jobs j
                set state = pgqueue._state_again(j.errors, j.attempts), ready_at = v_ready_at, resumed = true
                where j.id = v_id
                returning j.priority into v_priority;
                if (v_position.queue, v_priority) is distinct from (v_lane_queue, v_lane_priority) then
                    perform pgqueue._register_lane(v_position.queue, v_priority, v_ready_at);
                    perform pgqueue._wake(v_position.queue, v_ready_at);
                    v_lane_queue := v_position.queue;
                    v_lane_priority := v_priority;
                end if;
                exit;
            end if;
            if exists (select from pgqueue.jobs j where j.id = v_id and j.state = v_blocked and j.blocked_on is null) then
                insert into pgqueue.key_notes (queue, key, next_at) values (v_position.queue, v_position.key, pgqueue._clock());
                exit;
            end if;
            -- It was released, cancelled or deleted meanwhile: try the next one.
        end loop;
    end loop;
end
$$;

-- p_shared: for a claim. Otherwise false: an open transaction is blocking jobs behind this one.
create or replace function pgqueue._guard_position(p_job_id bigint, p_shared boolean)
returns boolean
language sql
as $$
    select case
        when p_shared then pg_catalog.pg_try_advisory_xact_lock_shared(pgqueue._lock_class() + 1, (p_job_id % 1024)::integer)
        else pg_catalog.pg_try_advisory_xact_lock(pgqueue._lock_class() + 1, (p_job_id % 1024)::integer)
    end
$$;

-- The caller has locked the rows of p_job_ids, which have keys. Many guards at once could fill the table of locks, so
-- the guards of a large batch are released in hundreds.
create or replace function pgqueue._note_open_claims(p_job_ids bigint[], p_queues text[], p_keys text[])
returns void
language plpgsql
as $$
declare
    v_guarded bigint[] := '{}'::bigint[];
begin
    if cardinality(p_job_ids) = 1 and pgqueue._guard_position(p_job_ids[1], false) then
        return;
    elsif cardinality(p_job_ids) <= 10 then
        v_guarded := array(select w.id from unnest(p_job_ids) w (id) where not pgqueue._guard_position(w.id, false));
    else
        for v_from in 1..cardinality(p_job_ids) by 100 loop
            begin
                v_guarded := v_guarded || array(
                    select w.id from unnest(p_job_ids[v_from:v_from + 99]) w (id) where not pgqueue._guard_position(w.id, false)
                );
                raise exception using errcode = 'lock_not_available';
            exception when lock_not_available then
                null;
            end;
        end loop;
    end if;
    if v_guarded <> '{}' then
        insert into pgqueue.key_notes (queue, key, job_id, next_at)
        select w.queue, w.key, w.id, pgqueue._clock()
        from unnest(p_job_ids, p_queues, p_keys) w (id, queue, key)
        where w.id = any (v_guarded);
    end if;
end
$$;

-- Jobs with a key have stopped executing, and keep the positions of their ids. A job that was blocked behind them may have
-- an earlier position: it was not due, or not committed, when they started.
create or replace function pgqueue._release_earlier(p_job_ids bigint[])
returns void
language plpgsql
set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    v_of record;
begin
    select array_agg(j.id) as ids, array_agg(j.queue) as queues, array_agg(j.key) as keys into v_of
    from unnest(p_job_ids) w (id)
    cross join lateral (select x.id, x.queue, x.key from pgqueue.jobs x where x.id = w.id and x.key is not null) j;
    if pgqueue._old_snapshot() then
        perform pgqueue._release_next(v_of.queues, v_of.keys, v_of.ids);
    elsif v_of.ids is not null then
        perform pgqueue._note_open_claims(v_of.ids, v_of.queues, v_of.keys);
        perform pgqueue._release_next(array_agg(b.queue), array_agg(b.key), null)
        from (
            select w.queue, w.key, min(w.id) as id
            from unnest(v_of.ids, v_of.queues, v_of.keys) w (id, queue, key)
            group by w.queue, w.key
        ) b
        cross join lateral pgqueue._first_blocked(b.queue, b.key, 0, b.id) f
        having count(*) > 0;
    end if;
end
$$;

-- Follows a note that is a second overdue even if another transaction, which may stay open, has locked it. p_newest: how many.
create or replace function pgqueue._read_key_notes(p_limit integer, p_queues text[] default null, p_newest integer default null)
returns boolean
language plpgsql
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_from bigint := coalesce(pg_sequence_last_value('pgqueue.key_notes_n_seq') - p_newest, 0);
    v_note record;
    v_followed boolean := false;
begin
    for v_note in
        with due as materialized (
            select k.n, k.queue, k.key, k.job_id, k.next_at
            from pgqueue.key_notes k
            -- After the clock stepped back, a note from the far future is due as well.
            where k.n > v_from and (k.next_at <= v_now or k.next_at > v_now + interval '1 s')
                and (p_queues is null or k.queue = any (p_queues))
            order by k.n
            limit p_limit
        ),
        taken as (
            delete from pgqueue.key_notes k
            where k.n = any (
                array(
                    select l.n
                    from due d
                    cross join lateral (select x.n from pgqueue.key_notes x where x.n = d.n for update skip locked) l
                )
            )
            returning k.n
        )
        select d.queue, d.key, d.job_id, bool_or(t.n is not null) as is_taken
        from due d
        left join taken t on t.n = d.n
        where t.n is not null or d.next_at <= v_now - interval '1 s'
        group by d.queue, d.key, d.job_id
        order by d.queue, d.key
    loop
        if v_note.job_id is null or pgqueue._guard_position(v_note.job_id, false) then
            perform pgqueue._release_next(array[v_note.queue], array[v_note.key], null);
            v_followed := true;
        elsif v_note.is_taken then
            insert into pgqueue.key_notes (queue, key, job_id, next_at)
            values (v_note.queue, v_note.key, v_note.job_id, v_now + interval '100 ms');
        end if;
    end loop;
    return v_followed;
end
$$;

-- The safety net. Checks the first job of each key that is blocked or was ever reserved, p_limit keys from p_cursor on, in
-- one snapshot each: if it is blocked, a job of its key must execute or be due before it.
create or replace function pgqueue._release_left_behind(p_limit integer, p_cursor text[], out released integer, out next_cursor text[])
language plpgsql
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_first record;
begin
    released := 0;
    next_cursor := coalesce(p_cursor, array['', '']);
    for v_n in 1..p_limit loop
        select
            f.queue, f.key,
            f.state = 'blocked' and f.blocked_on is null
                -- Not by _key_positions: f is the first that holds its position, and the entries of those before it may all be dead.
                and not exists (select from pgqueue._executing_of_key(f.queue, f.key, 0))
                and not exists (
                    select
                    from pgqueue.jobs w
                    where pgqueue._is_new_of_key(w) and w.queue = f.queue and w.key = f.key and w.id < f.id
                        and w.run_at <= c.now
                )
                and not exists (
                    select
                    from pgqueue.effective_tasks t
                    cross join lateral pgqueue._ahead_of_payload(
                        true, f.queue, f.key, f.task, f.limit_key, true, f.has_steps, v_now
                    )
                    where t.name = f.task and t.accumulate
                )
                -- A note asks for it already.
                and not exists (select from pgqueue.key_notes k where k.queue = f.queue and k.key = f.key) as is_left_behind
        into v_first
        from (
            select j.queue, j.key, j.id, j.task, j.limit_key, j.has_steps, j.state, j.blocked_on
            from pgqueue.jobs j
            where pgqueue._holds_position(j) and (j.queue, j.key) > (next_cursor[1], next_cursor[2])
            order by j.queue, j.key, j.id
            limit 1
        ) f
        -- Read after the snapshot: a job that came since v_now may have others behind it already.
        cross join (select pgqueue._clock() as now offset 0) c;
        if not found then
            next_cursor := null;
            return;
        end if;
        next_cursor := array[v_first.queue, v_first.key];
        if v_first.is_left_behind then
            perform pgqueue._release_next(array[v_first.queue], array[v_first.key], null);
            released := released + 1;
        end if;
    end loop;
end
$$;
