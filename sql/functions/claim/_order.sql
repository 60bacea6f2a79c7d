-- Claiming inside one lane: which of the due jobs may start, and what becomes of those that may not.
--
-- Jobs without a key or a limit are only locked here (FOR UPDATE SKIP LOCKED, in the order of the ready index); reserve
-- claims them all in one UPDATE at its end (_take). As soon as a lane holds one with a key or under a limit, its rows go
-- through rounds (_sort_out): each gets a verdict (_order), and is started, parked (blocked, out of the ready index),
-- deferred by a second, or skipped. What starts is marked as executing at once (_mark), for the probes of the next round
-- must see it; save where the first round was enough.
-- A row is parked behind one that nobody is ending, and keeps no lock on that one (see _keys). Where that row is locked the
-- candidate is deferred, so that a locked row never stops a lane.
-- Nothing here waits, save, 20 ms at most, for another claim of the same key that is not committed yet: the unique index
-- decides, and the loser's candidate is dropped. No call spends more than about 50 ms on parking; one that comes back empty
-- because of that wakes its own worker.

-- p_plain: rows locked before, neither keyed nor limited: they start. p_rows: the first candidates, locked as well.
create or replace function pgqueue._sort_out(
    p_queue text,
    p_priority smallint,
    p_resumed boolean,
    p_head timestamptz,
    p_head_id bigint,
    p_now timestamptz,
    p_slots integer[],
    p_passed tid[],
    p_plain tid[],
    p_rows tid[],
    p_worker text,
    p_lease interval,
    out rows tid[],
    out slots integer[],
    out used integer,
    out keyed boolean,
    out marked boolean
)
returns record
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_started timestamptz := clock_timestamp();
    v_limit integer := cardinality(p_slots);
    v_rows tid[] := coalesce(p_rows, '{}');
    v_size integer := v_limit;
    v_rounds integer := 0;
    -- Rows that stay in the ready index: the next round must not meet them again.
    v_passed tid[] := p_passed || p_plain;
    v_gathers boolean := exists (select from pgqueue.effective_tasks t where t.accumulate);
    v_limited boolean := exists (select from pgqueue.limits l where l.kind in ('task', 'key', 'limit_key'));
    -- Slots whose job was dropped, and batches that have capacity for more keys.
    v_spare integer[] := '{}'::integer[];
    v_open pgqueue.open_batch[] := '{}'::pgqueue.open_batch[];
    v_rooms jsonb := '{}'::jsonb;
    v_verdicts pgqueue.verdict[];
    v_found record;
    v_got record;
begin
    keyed := false;
    marked := false;
    rows := p_plain;
    used := cardinality(p_plain);
    slots := p_slots[:used];
    loop
        select o.used, o.spare, o.open, o.rooms, o.verdicts
        into used, v_spare, v_open, v_rooms, v_verdicts
        from pgqueue._order(p_queue, v_rows, p_now, p_slots, v_gathers, v_limited, used, v_spare, v_open, v_rooms) o;

        select
            array_agg(v.row_ctid) filter (where v.kind = 'park') as parked,
            array_agg(v.ahead) filter (where v.kind = 'park') as ahead,
            array_agg(v.row_ctid) filter (where v.kind = 'full') as full_rows,
            array_agg(v.limit_name) filter (where v.kind = 'full') as full_names,
            array_agg(v.row_ctid) filter (where v.kind in ('plain', 'skip')) as unmarked,
            array_agg(v.row_ctid) filter (where v.slot is not null) as started,
            array_agg(v.slot) filter (where v.slot is not null) as slots,
            coalesce(bool_or(v.kind = 'keyed'), false) as has_keyed,
            coalesce(bool_or(v.kind in ('gather', 'mark')), false) as has_more
        into v_found
        from unnest(v_verdicts) v;
        if v_found.parked is not null then
            perform pgqueue._block_behind(v_found.parked, v_found.ahead, p_now);
        end if;
        if v_found.full_rows is not null then
            perform pgqueue._block_on_limits(v_found.full_rows, v_found.full_names, v_rooms);
        end if;
        v_passed := v_passed || v_found.unmarked;

        if v_rounds = 0 and used >= greatest(v_limit, 20) and not v_found.has_more then
            -- This lane is not read again: reserve claims these with all others, in one statement. Few are marked here, so
            -- that a claim of one job goes on to the next if it is dropped.
            rows := rows || v_found.started;
            slots := slots || v_found.slots;
            keyed := v_found.has_keyed;
            exit;
        end if;
        if v_found.has_keyed or v_found.has_more then
            select m.rows, m.slots, m.dropped_rows, m.dropped_slots
            into v_got
            from pgqueue._mark(v_verdicts, p_now, p_worker, p_lease) m;
            rows := rows || v_got.rows;
            slots := slots || v_got.slots;
            marked := true;
            v_passed := v_passed || v_got.dropped_rows;
            v_spare := v_spare || v_got.dropped_slots;
            -- A batch that lost its first key may become anything: no key of an accumulating task must join it.
            v_open := array(select o from unnest(v_open) o where o.slot <> all (v_spare));
        else
            rows := rows || v_found.started;
            slots := slots || v_found.slots;
        end if;

        exit when used >= v_limit and v_spare = '{}' and v_open = '{}';
        -- A few rounds in any case: the first of a session makes its plans, which alone may take as long.
        v_rounds := v_rounds + 1;
        if v_rounds > 2 and clock_timestamp() > v_started + interval '20 ms' then
            if used = 0 and pgqueue._may_notify() then
                -- There may be something behind what it parked: the worker is to come again at once.
                perform pg_notify(pgqueue._channel(p_worker), 'wake');
            end if;
            exit;
        end if;
        v_size := least(500, greatest(v_limit - used, v_size * 4, 20));
        select array_agg(c.row_ctid)
        into v_rows
        from (
            select j.ctid as row_ctid
            from pgqueue.jobs j
            where j.state in ('waiting', 'failed')
                and j.queue = p_queue
                and j.priority = p_priority
                and j.resumed = p_resumed
                and (j.ready_at, j.id) >= (p_head, p_head_id)
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
    text, smallint, boolean, timestamptz, bigint, timestamptz, integer[], tid[], tid[], tid[], text, interval
) is 'Private: takes what may start of a sub-lane that holds jobs with keys or limits, and parks or defers what may not.';

-- The kinds of verdicts: park (behind ahead); full (parks on the limit); skip (stays, for another claim or none); and what
-- starts, in a slot: plain, keyed, mark (under a limit), gather (with all other payloads of its key). A row without a
-- verdict starts with the first of its key.
create or replace function pgqueue._order(
    p_queue text,
    p_rows tid[],
    p_now timestamptz,
    p_slots integer[],
    p_gathers boolean,
    p_limited boolean,
    inout used integer,
    inout spare integer[],
    inout open pgqueue.open_batch[],
    inout rooms jsonb,
    out verdicts pgqueue.verdict[]
)
returns record
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_row record;
    v_verdict pgqueue.verdict;
    v_open pgqueue.open_batch;
    v_names text[];
    v_is_payload boolean;
    -- Keys of payloads that start.
    v_keys text[] := '{}'::text[];
begin
    verdicts := '{}';
    for v_row in
        select k.* from pgqueue._key_positions(p_queue, p_rows, p_now, p_gathers) k
    loop
        v_verdict := null;
        v_verdict.row_ctid := v_row.row_ctid;
        v_is_payload := v_row.accumulate and v_row.key is not null;
        -- The payloads of a key of an accumulating task start together, in any order; but new ones wait for the backoff of
        -- those that failed. They are not asked for the order among themselves.
        v_verdict.ahead := case
            when v_row.key is null then null
            when v_row.executing_id is not null then v_row.executing_id
            when not v_row.accumulate then case when v_row.first_id < v_row.id then v_row.first_id end
            when v_row.undue_id is not null then v_row.undue_id
            when v_row.first_task <> v_row.task and v_row.first_id < v_row.id then v_row.first_id
        end;
        if v_verdict.ahead is not null then
            v_verdict.kind := 'park';
            verdicts := verdicts || v_verdict;
            continue;
        end if;
        continue when v_is_payload and v_row.key = any (v_keys);

        v_open := null;
        if v_is_payload and open <> '{}' then
            select o.* into v_open from unnest(open) o where o.task = v_row.task;
        end if;
        if v_open.slot is null and spare = '{}' and used >= cardinality(p_slots) then
            v_verdict.kind := 'skip';
            verdicts := verdicts || v_verdict;
            continue;
        end if;

        v_names := null;
        if p_limited then
            select r.names, r.full_name, r.rooms
            into v_names, v_verdict.limit_name, rooms
            from pgqueue._take_capacity(v_row.task, v_row.key, v_row.limit_key, p_now, rooms) r;
            -- Neither: another claim starts jobs under one of its limits.
            if v_names is null then
                v_verdict.kind := case when v_verdict.limit_name is not null then 'full' else 'skip' end;
                verdicts := verdicts || v_verdict;
                continue;
            end if;
        end if;

        if v_open.slot is not null then
            v_verdict.slot := v_open.slot;
            open := array(
                select o from unnest(open) o where o.task <> v_row.task
                union all
                select row(v_open.task, v_open.slot, v_open.capacity - 1)::pgqueue.open_batch
                where v_open.capacity > 1
            );
        else
            if spare <> '{}' then
                v_verdict.slot := spare[1];
                spare := spare[2:];
            else
                used := used + 1;
                v_verdict.slot := p_slots[used];
            end if;
            if v_is_payload and v_row.batch_size > 1 then
                open := open || row(v_row.task, v_verdict.slot, v_row.batch_size - 1)::pgqueue.open_batch;
            end if;
        end if;
        if v_is_payload then
            v_keys := v_keys || v_row.key;
        end if;
        v_verdict.kind := case
            when v_is_payload then 'gather'
            when v_names <> '{}' then 'mark'
            when v_row.key is not null then 'keyed'
            else 'plain'
        end;
        verdicts := verdicts || v_verdict;
    end loop;
end
$$;

comment on function pgqueue._order(
    text, tid[], timestamptz, integer[], boolean, boolean, integer, integer[], pgqueue.open_batch[], jsonb
) is
    'Private: says of each of these candidates whether it may start, and in which slot; used, spare, open and rooms go from round to round.';

-- Asks for each candidate, once for all of one key: does a job of its key execute, and which one holds the first position?
-- A probe of an index each, never an ordered scan over two states, from the head of jobs with keys on (see _heads).
-- "asks" stands inside the probes: in a join's condition it would be checked after them, for every row of a key.
create or replace function pgqueue._key_positions(p_queue text, p_rows tid[], p_now timestamptz, p_gathers boolean)
returns table (
    row_ctid tid, id bigint, key text, task text, limit_key text, accumulate boolean, batch_size integer,
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
declare
    v_head bigint := pgqueue._key_head();
begin
    return query
    select
        c.row_ctid, c.id, c.key, c.task, c.limit_key,
        c.batch_size is not null,
        c.batch_size,
        max(e.id) over of_key,
        min(f.id) over of_key,
        min(f.task) over of_key,
        u.id
    from (
        select
            w.n, j.ctid as row_ctid, j.id, j.key, j.task, j.limit_key, j.reservation,
            row_number() over (partition by j.key order by w.n) = 1 as asks,
            -- Most installations have no accumulating task, and need no lookup for each job.
            case when p_gathers then (
                select coalesce(t.batch_size, 1) from pgqueue.effective_tasks t where t.name = j.task and t.accumulate
            ) end as batch_size
        from unnest(p_rows) with ordinality w (row_ctid, n)
        join pgqueue.jobs j on j.ctid = w.row_ctid
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
            and x.id >= least(v_head, c.id)
        order by x.queue, x.key, x.id
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
                    and x.blocked_on is distinct from '@parents'
                    and x.queue = p_queue
                    and x.key = c.key
                    and x.id >= least(v_head, c.id)
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
                    and x.id >= least(v_head, c.id)
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

comment on function pgqueue._key_positions(text, tid[], timestamptz, boolean) is
    'Private: for each of these jobs, what of its key executes, and which job holds the first position.';

-- p_ahead: for each row the job that it is to wait for. See _keys: first the marks, then, in a later statement, the look at
-- those jobs as they are *now*. They must still hold their positions, and no session may be ending them. The share lock goes with
-- the block, so that they can end while this transaction is open.
create or replace function pgqueue._block_behind(p_rows tid[], p_ahead bigint[], p_now timestamptz)
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
    v_marked bigint[];
    v_standing bigint[];
    v_held bigint[];
begin
    v_marked := array(
        select w.id from (select distinct a.id from unnest(p_ahead) a (id)) w where pgqueue._mark_ahead(w.id)
    );
    begin
        select coalesce(array_agg(s.id), '{}') into v_standing
        from (
            select l.id
            from (select m.id from unnest(v_marked) m (id) order by m.id) w
            cross join lateral (
                select j.id
                from pgqueue.jobs j
                where j.id = w.id
                    and (j.state in ('executing', 'blocked') or j.reservation > 0 or j.run_at <= p_now)
                for share skip locked
            ) l
        ) s;
        raise exception using errcode = 'lock_not_available';
    exception when lock_not_available then
        null;
    end;
    update pgqueue.jobs j
    set
        state = 'blocked',
        resumed = false
    from unnest(p_rows, p_ahead) w (row_ctid, ahead)
    where j.ctid = w.row_ctid and w.ahead = any (v_standing);

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
        from unnest(p_rows, p_ahead) w (row_ctid, ahead)
        where j.ctid = w.row_ctid and w.ahead = any (v_held);
    end if;
end
$$;

comment on function pgqueue._block_behind(tid[], bigint[], timestamptz) is
    'Private: parks jobs behind those that hold earlier places of their keys, or defers them by a second where these are locked.';
