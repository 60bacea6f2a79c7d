-- Keys: jobs of one queue with the same key run one at a time, in the order of their ids.
--
-- Enqueue knows nothing of it. A claim takes a keyed job only if nothing of its key executes or holds an earlier
-- place; else it parks it (blocked, out of the ready index) behind a row that it share-locks (see _claim_keyed in
-- reserve). Whatever makes a job stop holding its place first locks its row, and so waits for such a claim; then, in a
-- *later* statement, whose snapshot shows what that claim parked, it releases the first parked job of the key. It does
-- so whatever else it sees of the key: what looks as if it were still ahead may be leaving just now, and have looked
-- too early. A job that was released too soon is parked again by the next claim.
-- A parked row that somebody has locked (to cancel it, say) is not waited for: a note is left, and the next maintain,
-- or reserve that comes up short, looks again. So two jobs that end can never wait for each other here. Above READ
-- COMMITTED no later statement has a newer snapshot, so there a note is all that can be left.

create or replace function pgqueue._release_next(p_queues text[], p_keys text[])
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    -- A variable: see extend.
    v_blocked constant pgqueue.job_state := 'blocked'::pgqueue.job_state;
    v_old_snapshot constant boolean := pgqueue._old_snapshot();
    v_place record;
    v_id bigint;
    v_priority smallint;
    v_ready_at timestamptz;
    -- Told of already.
    v_lane_queue text;
    v_lane_priority smallint;
begin
    -- Most keys have nothing parked: one question for all of them, for a turn of this loop costs more than its answer.
    for v_place in
        select d.queue, d.key
        from (
            select distinct p.queue, p.key
            from unnest(p_queues, p_keys) p (queue, key)
            where p.key is not null
        ) d
        left join lateral (
            select j.id
            from pgqueue.jobs j
            where j.key is not null
                and (j.state = 'blocked' or (j.state in ('waiting', 'failed') and j.reservation > 0))
                and j.queue = d.queue
                and j.key = d.key
                and j.state = v_blocked
                and j.blocked_on is null
            order by j.queue, j.key, j.id
            limit 1
        ) f on true
        where f.id is not null or v_old_snapshot
        order by d.queue, d.key
    loop
        if v_old_snapshot then
            insert into pgqueue.key_notes (queue, key) values (v_place.queue, v_place.key);
            continue;
        end if;
        loop
            select j.id into v_id
            from pgqueue.jobs j
            where j.key is not null
                and (j.state = 'blocked' or (j.state in ('waiting', 'failed') and j.reservation > 0))
                and j.queue = v_place.queue
                and j.key = v_place.key
                and j.state = v_blocked
                and j.blocked_on is null
            order by j.queue, j.key, j.id
            limit 1;
            exit when not found;

            perform from pgqueue.jobs j
            where j.id = v_id and j.state = v_blocked and j.blocked_on is null
            for update skip locked;
            if found then
                v_ready_at := pgqueue._ready_at(null);
                update pgqueue.jobs j
                set
                    state = pgqueue._state_again(j.errors, j.attempts),
                    ready_at = v_ready_at,
                    resumed = true
                where j.id = v_id
                returning j.priority into v_priority;
                if (v_place.queue, v_priority) is distinct from (v_lane_queue, v_lane_priority) then
                    perform pgqueue._register_lane(v_place.queue, v_priority, v_ready_at);
                    perform pgqueue._wake(v_place.queue, v_ready_at, 2, null);
                    v_lane_queue := v_place.queue;
                    v_lane_priority := v_priority;
                end if;
                exit;
            end if;
            if exists (select from pgqueue.jobs j where j.id = v_id and j.state = v_blocked and j.blocked_on is null) then
                insert into pgqueue.key_notes (queue, key) values (v_place.queue, v_place.key);
                exit;
            end if;
            -- It was released, cancelled or deleted meanwhile: look for the next.
        end loop;
    end loop;
end
$$;

comment on function pgqueue._release_next(text[], text[]) is
    'Private: releases the first parked job of each of these keys, or leaves a note where it cannot. '
    'Call it in a statement after the one that locked and removed what was ahead.';

-- Jobs with a key have stopped executing, and keep the places of their ids. One of their keys that was parked behind
-- them may have an earlier place: it was not due, or not committed, when they started.
create or replace function pgqueue._release_earlier(p_job_ids bigint[])
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    -- Variables: see extend.
    v_blocked constant pgqueue.job_state := 'blocked'::pgqueue.job_state;
    v_old_snapshot constant boolean := pgqueue._old_snapshot();
    v_queues text[];
    v_keys text[];
begin
    select array_agg(b.queue), array_agg(b.key)
    into v_queues, v_keys
    from (
        select j.queue, j.key, min(j.id) as id
        from unnest(p_job_ids) w (id)
        cross join lateral (
            select x.id, x.queue, x.key from pgqueue.jobs x where x.id = w.id and x.key is not null
        ) j
        group by j.queue, j.key
    ) b
    where v_old_snapshot or exists (
        select
        from pgqueue.jobs f
        where f.key is not null
            and (f.state = 'blocked' or (f.state in ('waiting', 'failed') and f.reservation > 0))
            and f.queue = b.queue
            and f.key = b.key
            and f.id < b.id
            and f.state = v_blocked
            and f.blocked_on is null
    );
    if v_queues is not null then
        perform pgqueue._release_next(v_queues, v_keys);
    end if;
end
$$;

comment on function pgqueue._release_earlier(bigint[]) is
    'Private: releases the first parked job of the keys of these, which stopped executing, where its place is earlier than theirs.';

create or replace function pgqueue._read_key_notes(p_limit integer)
returns boolean
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_queues text[];
    v_keys text[];
begin
    with taken as (
        delete from pgqueue.key_notes k
        where k.n = any (
            array(select x.n from pgqueue.key_notes x order by x.n limit p_limit for update skip locked)
        )
        returning k.queue, k.key
    )
    select array_agg(t.queue), array_agg(t.key) into v_queues, v_keys from taken t;
    if v_queues is null then
        return false;
    end if;
    perform pgqueue._release_next(v_queues, v_keys);
    return true;
end
$$;

comment on function pgqueue._read_key_notes(integer) is
    'Private: does what up to p_limit notes ask for; false: there was none.';

-- The safety net. Looks at the first of each key that is parked or was ever reserved, p_limit keys from p_cursor on,
-- in one snapshot each: where that one is parked, something of its key must execute or be due before it.
create or replace function pgqueue._release_left_behind(
    p_limit integer, p_cursor text[], out released integer, out next_cursor text[]
)
returns record
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
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
                and not exists (
                    select
                    from pgqueue.jobs e
                    where e.state = 'executing'
                        and e.key is not null
                        and (e.leader is null or e.leader = e.id)
                        and e.queue = f.queue
                        and e.key = f.key
                )
                and not exists (
                    select
                    from pgqueue.jobs w
                    where w.key is not null
                        and w.state = 'waiting'
                        and w.reservation = 0
                        and w.queue = f.queue
                        and w.key = f.key
                        and w.id < f.id
                        -- Read after the snapshot: a job that came since v_now may have others behind it already.
                        and w.run_at <= (select pgqueue._clock())
                )
                -- Fresh payloads wait for the backoff of those that failed, later ones too.
                and not exists (
                    select
                    from pgqueue.jobs u
                    join pgqueue.effective_tasks t on t.name = u.task and t.accumulate
                    where u.key is not null
                        and u.state in ('waiting', 'failed')
                        and u.reservation > 0
                        and u.queue = f.queue
                        and u.key = f.key
                        and u.ready_at > v_now
                        and u.task = f.task
                    order by u.queue, u.key, u.ready_at
                    limit 1
                )
                -- Somebody asked for it already.
                and not exists (select from pgqueue.key_notes k where k.queue = f.queue and k.key = f.key) as is_left_behind
        into v_first
        from (
            select j.queue, j.key, j.id, j.task, j.state, j.blocked_on
            from pgqueue.jobs j
            where j.key is not null
                and (j.state = 'blocked' or (j.state in ('waiting', 'failed') and j.reservation > 0))
                and (j.queue, j.key) > (next_cursor[1], next_cursor[2])
            order by j.queue, j.key, j.id
            limit 1
        ) f;
        if not found then
            next_cursor := null;
            return;
        end if;
        next_cursor := array[v_first.queue, v_first.key];
        if v_first.is_left_behind then
            perform pgqueue._release_next(array[v_first.queue], array[v_first.key]);
            released := released + 1;
        end if;
    end loop;
end
$$;

comment on function pgqueue._release_left_behind(integer, text[]) is
    'Private: releases parked jobs that have nothing ahead of them, looking at p_limit keys from p_cursor on.';
