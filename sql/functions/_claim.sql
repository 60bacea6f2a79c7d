-- Claiming inside one lane: which of the due jobs may start, and what becomes of those that may not.
--
-- Jobs without a key or a limit are only locked here (FOR UPDATE SKIP LOCKED, in the order of the ready index);
-- reserve claims them all in one UPDATE at its end. As soon as a lane holds one with a key or under a limit, its rows
-- are sorted out in rounds: taken, parked (blocked, out of the ready index), put off by a second, or left alone.
-- What is taken of those is marked as executing at once, for the questions of the next round must see it; save where the
-- first round was enough.
-- A row is parked behind one that is share-locked, SKIP LOCKED: whoever ends that one waits for this claim, and sees
-- what it parked. Where somebody holds that row the candidate is put off, so that a locked row never stops a lane.
-- Nothing here waits, save, 20 ms at most, for another claim of the same key that is not committed yet: the unique
-- index decides, and the loser's candidate is dropped. No call spends more than about 50 ms on parking; one that comes
-- back empty because of that wakes its own worker.

create or replace function pgqueue._claim_lane(
    p_queue text,
    p_priority smallint,
    p_resumed boolean,
    p_head timestamptz,
    p_now timestamptz,
    p_limit integer,
    p_taken tid[],
    p_worker text,
    p_lease interval,
    p_limited_tasks text[],
    out rows tid[],
    out calls integer[],
    out used integer,
    out keyed boolean
)
returns record
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_rows tid[];
    v_expired boolean;
    v_special boolean;
    v_pass_over boolean := false;
begin
    rows := '{}';
    used := 0;
    keyed := false;
    loop
        select
            array_agg(c.row_at) filter (where c.expires_at is null or c.expires_at > p_now),
            coalesce(bool_or(c.expires_at <= p_now), false),
            coalesce(
                bool_or(c.key is not null or c.limit_key is not null or c.task = any (p_limited_tasks)), false
            )
        into v_rows, v_expired, v_special
        from (
            select j.ctid as row_at, j.expires_at, j.key, j.limit_key, j.task
            from pgqueue.jobs j
            where j.state in ('waiting', 'failed')
                and j.queue = p_queue
                and j.priority = p_priority
                and j.resumed = p_resumed
                and j.ready_at >= p_head
                and j.ready_at <= p_now
                and (not v_pass_over or j.expires_at is null or j.expires_at > p_now)
                and j.ctid <> all (p_taken)
            order by j.ready_at, j.id
            limit p_limit - cardinality(rows)
            for update skip locked
        ) c;
        if v_special then
            if v_expired then
                perform pgqueue._expire_jobs(1000);
            end if;
            select s.rows, s.calls, s.used, s.keyed
            into rows, calls, used, keyed
            from pgqueue._sort_out(
                p_queue, p_priority, p_resumed, p_head, p_now, p_limit, p_taken, rows, v_rows, p_worker, p_lease
            ) s;
            return;
        end if;
        rows := rows || v_rows;
        used := cardinality(rows);
        if not v_expired or v_pass_over then
            return;
        end if;
        -- A bounded number is cancelled here; should there be more, they are passed over.
        perform pgqueue._expire_jobs(1000);
        v_pass_over := true;
        p_taken := p_taken || rows;
    end loop;
end
$$;

comment on function pgqueue._claim_lane(
    text, smallint, boolean, timestamptz, timestamptz, integer, tid[], text, interval, text[]
) is
    'Private: takes up to p_limit due calls of one lane; returns where their jobs stand and, unless each job is a call of its own, the number of the call of each.';

-- p_plain: rows locked before, neither keyed nor limited: taken. p_rows: the first to sort out, locked as well.
create or replace function pgqueue._sort_out(
    p_queue text,
    p_priority smallint,
    p_resumed boolean,
    p_head timestamptz,
    p_now timestamptz,
    p_limit integer,
    p_passed tid[],
    p_plain tid[],
    p_rows tid[],
    p_worker text,
    p_lease interval,
    out rows tid[],
    out calls integer[],
    out used integer,
    out keyed boolean
)
returns record
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_started timestamptz := clock_timestamp();
    v_rows tid[] := coalesce(p_rows, '{}');
    v_size integer := p_limit;
    v_rounds integer := 0;
    -- Rows that stay in the ready index: the next round must not meet them again.
    v_passed tid[] := p_passed || p_plain;
    v_row record;
    v_ahead bigint;
    v_names text[];
    v_full text;
    v_rooms jsonb := '{}'::jsonb;
    v_gathers boolean := exists (select from pgqueue.effective_tasks t where t.accumulate);
    v_limited boolean := exists (select from pgqueue.limits l where l.kind in ('task', 'key', 'limit_key'));
    v_call integer;
    v_spare integer[] := '{}'::integer[];
    v_park_rows tid[];
    v_park_ahead bigint[];
    v_full_rows tid[];
    v_full_names text[];
    v_take_rows tid[];
    v_take_calls integer[];
    v_take_kinds text[];
    v_take_keys text[];
    -- Calls of accumulating tasks that have room for more keys.
    v_open jsonb := '{}'::jsonb;
    v_got record;
begin
    keyed := false;
    rows := p_plain;
    used := cardinality(p_plain);
    calls := array(select n from generate_series(1, used) n);
    loop
        v_park_rows := '{}';
        v_park_ahead := '{}';
        v_full_rows := '{}';
        v_full_names := '{}';
        v_take_rows := '{}';
        v_take_calls := '{}';
        v_take_kinds := '{}';
        v_take_keys := '{}';
        for v_row in
            select * from pgqueue._places(p_queue, v_rows, p_now, v_gathers)
        loop
            -- Of an accumulating task the payloads of a key go together, whatever their order; but fresh ones wait for
            -- the backoff of those that failed. Its payloads are not asked for the order among themselves.
            v_ahead := case
                when v_row.key is null then null
                when v_row.executing_id is not null then v_row.executing_id
                when not v_row.accumulate then case when v_row.first_id < v_row.id then v_row.first_id end
                when v_row.undue_id is not null then v_row.undue_id
                when v_row.first_task <> v_row.task and v_row.first_id < v_row.id then v_row.first_id
            end;
            if v_ahead is not null then
                v_park_rows := v_park_rows || v_row.row_at;
                v_park_ahead := v_park_ahead || v_ahead;
                continue;
            end if;
            if v_row.accumulate and v_row.key = any (v_take_keys) then
                -- It goes with the first of its key.
                continue;
            end if;
            v_call := null;
            if v_row.accumulate and v_row.key is not null and v_open ? v_row.task then
                v_call := (v_open -> v_row.task ->> 0)::integer;
            elsif cardinality(v_spare) = 0 and used >= p_limit then
                v_passed := v_passed || v_row.row_at;
                continue;
            end if;

            v_names := null;
            if v_limited then
                select r.names, r.full_name, r.rooms
                into v_names, v_full, v_rooms
                from pgqueue._rooms_of(v_row.task, v_row.key, v_row.limit_key, p_now, v_rooms) r;
                if v_full is not null then
                    v_full_rows := v_full_rows || v_row.row_at;
                    v_full_names := v_full_names || v_full;
                    continue;
                elsif v_names is null then
                    -- Another claim is looking at one of its limits.
                    v_passed := v_passed || v_row.row_at;
                    continue;
                end if;
            end if;

            if v_call is null then
                if cardinality(v_spare) > 0 then
                    v_call := v_spare[1];
                    v_spare := v_spare[2:];
                else
                    used := used + 1;
                    v_call := used;
                end if;
                if v_row.accumulate and v_row.key is not null and v_row.batch_size > 1 then
                    v_open := v_open || jsonb_build_object(v_row.task, jsonb_build_array(v_call, v_row.batch_size - 1));
                end if;
            elsif (v_open -> v_row.task ->> 1)::integer > 1 then
                v_open := jsonb_set(v_open, array[v_row.task, '1'], to_jsonb((v_open -> v_row.task ->> 1)::integer - 1));
            else
                v_open := v_open - v_row.task;
            end if;
            v_take_rows := v_take_rows || v_row.row_at;
            v_take_calls := v_take_calls || v_call;
            v_take_keys := v_take_keys || v_row.key;
            v_take_kinds := v_take_kinds || case
                when v_row.accumulate and v_row.key is not null then 'gather'
                when v_names <> '{}' then 'mark'
                when v_row.key is not null then 'keyed'
                else 'plain'
            end;
        end loop;

        if v_park_rows <> '{}' then
            perform pgqueue._park(v_park_rows, v_park_ahead, p_now);
        end if;
        if v_full_rows <> '{}' then
            perform pgqueue._park_on_limits(v_full_rows, v_full_names, v_rooms, p_now);
        end if;
        if v_rounds = 0 and used >= greatest(p_limit, 20) and 'gather' <> all (v_take_kinds) and 'mark' <> all (v_take_kinds) then
            -- Nobody looks at this lane again: reserve claims them with all others, in one statement. Few are marked here,
            -- so that a claim of one job goes on to the next should it be dropped.
            rows := rows || v_take_rows;
            calls := null;
            keyed := 'keyed' = any (v_take_kinds);
            return;
        end if;
        if v_take_kinds && array['gather', 'mark', 'keyed'] then
            select m.rows, m.calls, m.dropped_rows, m.dropped_calls
            into v_got
            from pgqueue._mark(v_take_rows, v_take_calls, v_take_kinds, p_now, p_worker, p_lease) m;
            rows := rows || v_got.rows;
            calls := calls || v_got.calls;
            v_passed := v_passed || v_got.dropped_rows;
            v_spare := v_spare || v_got.dropped_calls;
            -- A call that lost its first key may go to anything: no key of an accumulating task must join it.
            v_open := (
                select coalesce(jsonb_object_agg(o.key, o.value), '{}')
                from jsonb_each(v_open) o
                where (o.value ->> 0)::integer <> all (v_spare)
            );
            v_passed := v_passed || array(
                select t.row_at
                from unnest(v_take_rows, v_take_kinds) t (row_at, kind)
                where t.kind = 'plain'
            );
        else
            rows := rows || v_take_rows;
            calls := calls || v_take_calls;
            v_passed := v_passed || v_take_rows;
        end if;

        exit when used >= p_limit and v_spare = '{}' and v_open = '{}';
        -- A few rounds in any case: the first of a session makes its plans, which alone may take as long.
        v_rounds := v_rounds + 1;
        if v_rounds > 2 and clock_timestamp() > v_started + interval '20 ms' then
            if used = 0 and pgqueue._may_notify() then
                -- There may be something behind what it parked: the worker is to come again at once.
                perform pg_notify(pgqueue._channel(p_worker), 'wake');
            end if;
            exit;
        end if;
        v_size := least(500, greatest(p_limit - used, v_size * 4, 20));
        select array_agg(c.row_at)
        into v_rows
        from (
            select j.ctid as row_at
            from pgqueue.jobs j
            where j.state in ('waiting', 'failed')
                and j.queue = p_queue
                and j.priority = p_priority
                and j.resumed = p_resumed
                and j.ready_at >= p_head
                and j.ready_at <= p_now
                and (j.expires_at is null or j.expires_at > p_now)
                and j.ctid <> all (v_passed)
            order by j.ready_at, j.id
            limit v_size
            for update skip locked
        ) c;
        exit when v_rows is null;
    end loop;
    if v_rooms <> '{}' then
        perform pgqueue._note_starts(v_rooms, p_now);
    end if;
end
$$;

comment on function pgqueue._sort_out(
    text, smallint, boolean, timestamptz, timestamptz, integer, tid[], tid[], tid[], text, interval
) is 'Private: takes what may start of a lane that holds jobs with keys or limits, and parks or puts off what may not.';

-- What is asked of each candidate, with one look for all of one key: does something of its key execute, and which job
-- holds the first place? A probe of an index each, never an ordered scan over two states.
-- Who asks stands inside the probes: in a join's condition it would be asked after them, for every row of a key.
create or replace function pgqueue._places(p_queue text, p_rows tid[], p_now timestamptz, p_gathers boolean)
returns table (
    row_at tid, id bigint, key text, task text, limit_key text, accumulate boolean, batch_size integer,
    executing_id bigint, first_id bigint, first_task text, undue_id bigint
)
language plpgsql
volatile
parallel unsafe
rows 100
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
begin
    return query
    select
        c.row_at, c.id, c.key, c.task, c.limit_key,
        c.batch_size is not null,
        c.batch_size,
        max(e.id) over of_key,
        min(f.id) over of_key,
        min(f.task) over of_key,
        u.id
    from (
        select
            w.n, j.ctid as row_at, j.id, j.key, j.task, j.limit_key, j.reservation,
            row_number() over (partition by j.key order by w.n) = 1 as asks,
            -- Most have no accumulating task at all, and need not be asked for each job.
            case when p_gathers then (
                select coalesce(t.batch_size, 1) from pgqueue.effective_tasks t where t.name = j.task and t.accumulate
            ) end as batch_size
        from unnest(p_rows) with ordinality w (row_at, n)
        join pgqueue.jobs j on j.ctid = w.row_at
    ) c
    left join lateral (
        select x.id
        from pgqueue.jobs x
        where c.asks
            and x.state = 'executing'
            and x.key is not null
            and (x.leader is null or x.leader = x.id)
            and x.queue = p_queue
            and x.key = c.key
        limit 1
    ) e on true
    left join lateral (
        select p.id, p.task
        from (
            (
                select x.id, x.task
                from pgqueue.jobs x
                where c.asks
                    and e.id is null
                    and x.key is not null
                    and (x.state = 'blocked' or (x.state in ('waiting', 'failed') and x.reservation > 0))
                    and x.queue = p_queue
                    and x.key = c.key
                order by x.queue, x.key, x.id
                limit 1
            )
            union all
            (
                select x.id, x.task
                from pgqueue.jobs x
                where c.asks
                    and e.id is null
                    and x.key is not null
                    and x.state = 'waiting'
                    and x.reservation = 0
                    and x.queue = p_queue
                    and x.key = c.key
                    and x.run_at <= p_now
                order by x.queue, x.key, x.id
                limit 1
            )
        ) p
        order by p.id
        limit 1
    ) f on true
    left join lateral (
        select x.id
        from pgqueue.jobs x
        where c.batch_size is not null
            and c.reservation = 0
            and e.id is null
            and x.key is not null
            and x.state in ('waiting', 'failed')
            and x.reservation > 0
            and x.queue = p_queue
            and x.key = c.key
            and x.ready_at > p_now
            and x.task = c.task
        order by x.queue, x.key, x.ready_at
        limit 1
    ) u on true
    window of_key as (partition by c.key)
    order by c.n;
end
$$;

comment on function pgqueue._places(text, tid[], timestamptz, boolean) is
    'Private: for each of these jobs, what of its key executes, and who holds the first place.';

-- p_ahead: for each row the job that it is to wait for. The share lock is taken on that job as it is *now*: it must
-- still hold its place.
create or replace function pgqueue._park(p_rows tid[], p_ahead bigint[], p_now timestamptz)
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
    v_standing bigint[];
    v_held bigint[];
begin
    select coalesce(array_agg(s.id), '{}') into v_standing
    from (
        select l.id
        from (select distinct a.id from unnest(p_ahead) a (id) order by a.id) w
        cross join lateral (
            select j.id
            from pgqueue.jobs j
            where j.id = w.id
                and (j.state in ('executing', 'blocked') or j.reservation > 0 or j.run_at <= p_now)
            for share skip locked
        ) l
    ) s;
    update pgqueue.jobs j
    set
        state = 'blocked',
        resumed = false
    from unnest(p_rows, p_ahead) w (row_at, ahead)
    where j.ctid = w.row_at and w.ahead = any (v_standing);

    if exists (select from unnest(p_ahead) a (id) where a.id <> all (v_standing)) then
        -- Those that somebody holds; one that is gone, or gave its place up, stops nobody: the next round sees it.
        select coalesce(array_agg(l.id), '{}') into v_held
        from (select distinct a.id from unnest(p_ahead) a (id) where a.id <> all (v_standing)) w
        cross join lateral (
            select j.id
            from pgqueue.jobs j
            where j.id = w.id
                and (j.state in ('executing', 'blocked') or j.reservation > 0 or j.run_at <= p_now)
            limit 1
        ) l;
        -- It keeps its place in its key, which goes by run_at.
        update pgqueue.jobs j
        set
            ready_at = pgqueue._ready_at(pgqueue._clock() + interval '1 s'),
            resumed = false
        from unnest(p_rows, p_ahead) w (row_at, ahead)
        where j.ctid = w.row_at and w.ahead = any (v_held);
    end if;
end
$$;

comment on function pgqueue._park(tid[], bigint[], timestamptz) is
    'Private: parks jobs behind those that hold earlier places of their keys, or puts them off by a second where these are locked.';

-- Kinds: plain (left for the end of reserve), mark and keyed, gather (with all other payloads of its key). Where the unique index
-- says that another claim was first, the row is dropped: it is neither taken nor touched. Where that claim is not
-- committed yet, it is waited for, once and briefly; should it stay open its key is put off by a second, as behind any
-- locked row, so that the next call does not meet it again.
create or replace function pgqueue._mark(
    p_rows tid[],
    p_calls integer[],
    p_kinds text[],
    p_now timestamptz,
    p_worker text,
    p_lease interval,
    out rows tid[],
    out calls integer[],
    out dropped_rows tid[],
    out dropped_calls integer[]
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
set enable_hashjoin = off
set enable_mergejoin = off
set lock_timeout = '20ms'
as $$
declare
    v_started timestamptz := clock_timestamp();
    -- Of the leases: see _heads.
    v_leased_at timestamptz := pgqueue._ready_at(p_now);
    v_waited boolean := false;
    v_row record;
    v_marked tid[];
begin
    dropped_rows := '{}';
    dropped_calls := '{}';
    if 'gather' <> all (p_kinds) then
        begin
            with marked as (
                update pgqueue.jobs j
                set
                    state = 'executing',
                    reservation = (((j.reservation >> 20) + 1) << 20) | floor(random() * 1048576)::bigint,
                    attempts = j.attempts + 1,
                    reserved_at = p_now,
                    reserved_by = p_worker,
                    lease = p_lease,
                    lease_expires_at = v_leased_at + p_lease,
                    lease_prolonged = false
                from unnest(p_rows, p_calls, p_kinds) with ordinality w (row_at, call, kind, n)
                where j.ctid = w.row_at and w.kind <> 'plain'
                returning w.n, w.call, j.ctid as row_at
            )
            -- No join of what was marked with what was asked for: hundreds by hundreds.
            select array_agg(x.row_at order by x.n), array_agg(x.call order by x.n)
            into rows, calls
            from (
                select m.n, m.row_at, m.call from marked m
                union all
                select w.n, w.row_at, w.call
                from unnest(p_rows, p_calls, p_kinds) with ordinality w (row_at, call, kind, n)
                where w.kind = 'plain'
            ) x;
            return;
        exception
            -- One of them: take them one by one.
            when unique_violation then
                null;
            when lock_not_available or deadlock_detected then
                v_waited := true;
                perform set_config('lock_timeout', '1ms', true);
        end;
    end if;

    rows := '{}';
    calls := '{}';
    for v_row in
        select w.row_at, w.call, w.kind from unnest(p_rows, p_calls, p_kinds) with ordinality w (row_at, call, kind, n) order by w.n
    loop
        if v_row.kind = 'plain' then
            rows := rows || v_row.row_at;
            calls := calls || v_row.call;
            continue;
        end if;
        if v_waited and clock_timestamp() > v_started + interval '40 ms' then
            dropped_rows := dropped_rows || v_row.row_at;
            dropped_calls := dropped_calls || v_row.call;
            continue;
        end if;
        begin
            if v_row.kind = 'gather' then
                v_marked := pgqueue._gather(v_row.row_at, p_now, p_worker, p_lease);
            else
                with marked as (
                    update pgqueue.jobs j
                    set
                        state = 'executing',
                        reservation = (((j.reservation >> 20) + 1) << 20) | floor(random() * 1048576)::bigint,
                        attempts = j.attempts + 1,
                        reserved_at = p_now,
                        reserved_by = p_worker,
                        lease = p_lease,
                        lease_expires_at = v_leased_at + p_lease,
                        lease_prolonged = false
                    where j.ctid = v_row.row_at
                    returning j.ctid as row_at
                )
                select array_agg(m.row_at) into v_marked from marked m;
            end if;
            rows := rows || v_marked;
            calls := calls || array_fill(v_row.call, array[cardinality(v_marked)]);
        exception
            when unique_violation then
                dropped_rows := dropped_rows || v_row.row_at;
                dropped_calls := dropped_calls || v_row.call;
            when lock_not_available or deadlock_detected then
                v_waited := true;
                perform set_config('lock_timeout', '1ms', true);
                dropped_calls := dropped_calls || v_row.call;
                update pgqueue.jobs j
                set
                    ready_at = pgqueue._ready_at(pgqueue._clock() + interval '1 s'),
                    resumed = false
                where j.ctid = v_row.row_at;
        end;
    end loop;
    -- A call that kept another of its keys is still in use.
    dropped_calls := array(
        select distinct d.call from unnest(dropped_calls) d (call) where d.call <> all (calls)
    );
end
$$;

comment on function pgqueue._mark(tid[], integer[], text[], timestamptz, text, interval) is
    'Private: makes jobs with keys or limits executing, and drops those that another claim of the same key was faster with.';

-- All payloads of a key that are due, or parked (under a limit too: there is room for the call, and it counts once), or
-- failed together with the one that came: at most 1,000, the oldest.
-- Equal ones become one, the one with the smallest score; the others end as succeeded, merged into it. All count from
-- the most tries that one of them has. The first by score leads: it carries the lease, and the others share its fate.
create or replace function pgqueue._gather(p_row_at tid, p_now timestamptz, p_worker text, p_lease interval)
returns tid[]
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
    -- See _heads.
    v_leased_at timestamptz := pgqueue._ready_at(p_now);
    v_job record;
    v_rows tid[];
    v_more tid[];
    v_ids bigint[];
    v_attempts integer;
    v_merged_ids bigint[];
    v_merged_reservations bigint[];
    v_kept_ids bigint[];
    v_marked tid[];
begin
    select j.id, j.queue, j.key, j.task into v_job from pgqueue.jobs j where j.ctid = p_row_at;

    select array_agg(h.row_at) into v_rows
    from (
        select j.ctid as row_at
        from pgqueue.jobs j
        where j.key is not null
            and (j.state = 'blocked' or (j.state in ('waiting', 'failed') and j.reservation > 0))
            and j.queue = v_job.queue
            and j.key = v_job.key
            and j.task = v_job.task
            and (j.expires_at is null or j.expires_at > p_now)
            and j.ctid <> p_row_at
        order by j.queue, j.key, j.id
        limit 999
        for update skip locked
    ) h;
    v_rows := p_row_at || coalesce(v_rows, '{}');
    if cardinality(v_rows) < 1000 then
        select array_agg(w.row_at) into v_more
        from (
            select j.ctid as row_at
            from pgqueue.jobs j
            where j.key is not null
                and j.state = 'waiting'
                and j.reservation = 0
                and j.queue = v_job.queue
                and j.key = v_job.key
                and j.run_at <= p_now
                and j.task = v_job.task
                and (j.expires_at is null or j.expires_at > p_now)
                and j.ctid <> p_row_at
            order by j.queue, j.key, j.id
            limit 1000 - cardinality(v_rows)
            for update skip locked
        ) w;
        v_rows := v_rows || v_more;
    end if;

    select
        array_agg(g.id order by g.score, g.id) filter (where g.id = g.kept_id),
        max(g.attempts),
        array_agg(g.id) filter (where g.id <> g.kept_id),
        array_agg(g.reservation) filter (where g.id <> g.kept_id),
        array_agg(g.kept_id) filter (where g.id <> g.kept_id)
    into v_ids, v_attempts, v_merged_ids, v_merged_reservations, v_kept_ids
    from (
        select p.*, first_value(p.id) over (partition by p.args order by p.score, p.id) as kept_id
        from (
            select j.id, j.args, j.attempts, j.reservation, coalesce(j.score, extract(epoch from j.created_at)) as score
            from unnest(v_rows) w (row_at)
            join pgqueue.jobs j on j.ctid = w.row_at
        ) p
    ) g;

    with marked as (
        update pgqueue.jobs j
        set
            state = 'executing',
            leader = v_ids[1],
            followers = case when w.n = 1 then nullif(v_ids[2:], '{}') end,
            blocked_on = null,
            reservation = (((j.reservation >> 20) + 1) << 20) | floor(random() * 1048576)::bigint,
            attempts = v_attempts + 1,
            reserved_at = p_now,
            reserved_by = p_worker,
            lease = p_lease,
            lease_expires_at = case when w.n = 1 then v_leased_at + p_lease end,
            lease_prolonged = false
        from unnest(v_ids) with ordinality w (id, n)
        where j.id = w.id
        returning w.n, j.ctid as row_at
    )
    select array_agg(m.row_at order by m.n) into v_marked from marked m;
    if v_merged_ids is not null then
        perform pgqueue._finish(
            v_merged_ids, v_merged_reservations, false, 'succeeded', null, null, v_kept_ids
        );
    end if;
    return v_marked;
end
$$;

comment on function pgqueue._gather(tid, timestamptz, text, interval) is
    'Private: makes one call of all payloads of a key of an accumulating task, and returns where its jobs stand, by score.';

-- The claim of what stands at p_rows, in one statement. Where the unique index says that another claim of some key was
-- first, or is about to be, it raises that, and nothing was claimed.
create or replace function pgqueue._take(p_rows tid[], p_places integer[], p_now timestamptz, p_worker text, p_lease interval)
returns table (
    id bigint, task text, args jsonb, headers jsonb, queue text, key text, priority integer, attempt integer,
    max_attempts integer, reservation bigint, run_at timestamptz, created_at timestamptz, lease_expires_at timestamptz,
    leader bigint, score numeric, timeout interval, losses integer, crashes integer, store_result boolean
)
language plpgsql
volatile
parallel unsafe
rows 100
set search_path = pg_catalog, pg_temp
set lock_timeout = '20ms'
as $$
#variable_conflict use_column
declare
    -- See _heads.
    v_leased_at timestamptz := pgqueue._ready_at(p_now);
begin
    return query
    with claimed as (
        update pgqueue.jobs j
        set
            state = 'executing',
            reservation = (((j.reservation >> 20) + 1) << 20) | floor(random() * 1048576)::bigint,
            attempts = j.attempts + 1,
            reserved_at = p_now,
            reserved_by = p_worker,
            lease = p_lease,
            lease_expires_at = v_leased_at + p_lease,
            lease_prolonged = false
        from unnest(p_rows, p_places) taken (row_at, place)
        where j.ctid = taken.row_at
        returning
            taken.place, j.id, j.task, j.args, j.headers, j.queue, j.key, j.priority, j.attempts, j.max_attempts,
            j.reservation, j.run_at, j.created_at, j.lease_expires_at, j.score, j.timeout, j.losses, j.crashed_on
    )
    select
        c.id, c.task, c.args, c.headers, c.queue, c.key, c.priority::integer, c.attempts,
        coalesce(c.max_attempts, t.max_attempts, case when t.accumulate then 26 else 11 end),
        c.reservation, c.run_at, c.created_at, c.lease_expires_at, null::bigint, c.score, coalesce(c.timeout, t.timeout),
        c.losses, coalesce(cardinality(c.crashed_on), 0), coalesce(t.store_result, false)
    from claimed c
    left join pgqueue.effective_tasks t on t.name = c.task
    order by c.place;
end
$$;

comment on function pgqueue._take(tid[], integer[], timestamptz, text, interval) is
    'Private: claims jobs with keys that nothing stands in the way of, all or none.';
