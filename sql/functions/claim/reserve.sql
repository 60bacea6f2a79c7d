-- reserve: claims up to max_jobs due jobs for a worker, each under a lease and a new reservation.
--
-- Small claims of plain jobs take the fast path (_find_plain). Any other visits lanes one by one (_claim_lanes), in the
-- order of the strategy (_choose). Inside a lane it reads the ready index in order, by equality on the prefix and a
-- range from the lane's head to the present, locks its jobs with FOR UPDATE SKIP LOCKED (it never waits), and remembers
-- the rows' ctids (_claim_lane); one UPDATE by ctid then claims them all (_take). The obvious single statement, UPDATE
-- ... FROM (SELECT ... LIMIT $n), has a generic plan that guesses the limit and scans the table: 35 ms a call, against 1
-- ms. For the same reason the plan is pinned here: always generic, never by scanning or sorting jobs, even if the table
-- was empty or never analysed when the plan was made. Call it in a transaction of its own and commit at once: what it
-- locks is held until then. Jobs past their expires_at are cancelled on the way. When it comes up short it takes back
-- lapsed leases, so that jobs come back even where no client calls maintain. After either it reads again, without the
-- rows that it has taken: until the UPDATE those rows are in the ready index, and its own locks do not hide them. (The
-- first read excludes no rows, for comparing each row with hundreds of others costs more than claiming it.)

create or replace function pgqueue.reserve(
    worker text, max_jobs integer default 1, queues text[] default null, weights integer[] default null,
    lease interval default '30 s', strategy text default 'weighted'
)
returns table (
    id bigint, task text, args jsonb, headers jsonb, queue text, key text, priority integer, attempt integer,
    max_attempts integer, reservation bigint, run_at timestamptz, created_at timestamptz, lease_expires_at timestamptz,
    leader bigint, score numeric, timeout interval, losses integer, crashes integer, store_result boolean
)
language plpgsql
volatile
parallel unsafe
security definer
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
    v_now timestamptz;
    -- Moving a head pays for some fifty claimed jobs: of smaller claims one in a few does it, by chance.
    v_chance double precision := random() * 50;
    -- Read while the transaction has no xid: see _heads.
    v_began timestamptz;
    v_newest_id bigint;
    -- The locked rows; null: go lane by lane.
    v_rows tid[];
    v_queue text;
begin
    -- Nearly every claim has only these arguments: skip the calls that check the others.
    if pgqueue._old_snapshot()
        or (
            octet_length(reserve.worker) between 1 and 256
            and reserve.max_jobs between 1 and 50
            and reserve.lease > '0'
            and reserve.lease <= '1 day'
            and reserve.strategy = 'weighted'
            and reserve.weights is null
        ) is not true
    then
        perform pgqueue._require_read_committed('reserve');
        perform pgqueue._check_reserve(
            reserve.worker, reserve.max_jobs, reserve.queues, reserve.weights, reserve.lease, reserve.strategy
        );
    elsif reserve.queues is not null then
        perform pgqueue._check_queues(reserve.queues);
    end if;
    if v_chance < reserve.max_jobs and pg_current_xact_id_if_assigned() is null then
        v_began := pgqueue._clock();
        v_newest_id := pg_sequence_last_value('pgqueue.jobs_id_seq'::regclass);
    end if;
    if reserve.max_jobs <= 50
        and reserve.strategy = 'weighted'
        and reserve.weights is null
        and coalesce(current_setting('pgqueue.fast_path', true), '') <> 'off'
    then
        v_now := pgqueue._clock();
        select p.rows, p.last_queue into v_rows, v_queue
        from pgqueue._find_plain(reserve.queues, reserve.max_jobs, v_now) p;
        if v_rows = '{}' then
            return;
        end if;
        if v_rows is not null then
            if cardinality(v_rows) = reserve.max_jobs or v_chance < cardinality(v_rows) then
                perform pgqueue._claimed(
                    v_rows, reserve.max_jobs, v_queue, v_chance, v_began, v_newest_id, v_now, reserve.worker
                );
            end if;
            return query
            select t.*
            from pgqueue._take(v_rows, null, false, false, v_now, reserve.worker, reserve.lease) t;
            return;
        end if;
    end if;
    return query
    select c.*
    from pgqueue._claim_lanes(
        reserve.worker, reserve.max_jobs, reserve.queues, reserve.weights, reserve.lease, reserve.strategy, v_chance,
        v_began, v_newest_id
    ) c;
end
$$;

comment on function pgqueue.reserve(text, integer, text[], integer[], interval, text) is
    'Claim up to max_jobs due jobs for a worker, in claim order; no rows when there is nothing due. '
    'Call it in a transaction of its own and commit at once: what it locks is held until then. '
    'queues: the queues to claim from (null: all). lease: how long the reservation holds unless extended. '
    'strategy: weighted (each slot draws a queue by its weight, from weights or from pgqueue.queues; where all weights are equal, '
    'the highest priority over all queues goes first), strict (queues in the order given), lag (the queue whose oldest due job '
    'is oldest) or round_robin (queues in turn). Keep id and reservation: complete, fail, extend, release and snooze take both. '
    'select * from pgqueue.reserve(''my-worker'', 10);';

-- The long way: lane by lane, with slots, limits, keys and all else that the fast path leaves out.
create or replace function pgqueue._claim_lanes(
    p_worker text, p_max_jobs integer, p_queues text[], p_weights integer[], p_lease interval, p_strategy text,
    p_chance double precision, p_began timestamptz, p_newest_id bigint
)
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
as $$
#variable_conflict use_column
declare
    v_now timestamptz;
    -- The slots are the positions in the answer: the free ones, and the free ones that this queue may fill.
    v_free integer[];
    v_slots integer[];
    v_draws boolean;
    v_among text[];
    -- The rows that were taken, and the slot of each.
    v_rows tid[] := '{}'::tid[];
    v_row_slots integer[] := '{}'::integer[];
    v_is_keyed boolean := false;
    v_is_marked boolean := false;
    v_turn record;
    v_got record;
    v_queue text;
    -- A second read finds the rows that the first one locked, unless they are excluded.
    v_is_again boolean := false;
    v_has_rescued boolean := false;
    v_stale pgqueue.sub_lane[] := '{}'::pgqueue.sub_lane[];
    v_limited_tasks text[];
    v_limited_queues boolean := false;
    v_capacities jsonb := '{}'::jsonb;
    v_exhausted text[] := '{}'::text[];
    v_capacity integer;
begin
    v_free := array(select n from generate_series(1, p_max_jobs) n);
    v_draws := pgqueue._draws_slots(p_queues, p_weights, p_strategy);
    if exists (select from pgqueue.limits) then
        select array_agg(l.target) filter (where l.kind = 'task'), coalesce(bool_or(l.kind = 'queue'), false)
        into v_limited_tasks, v_limited_queues from pgqueue.limits l;
        perform pgqueue._recheck_limits(20, p_max_jobs);
    end if;

    -- Again after jobs were rescued, and, where slots draw their queues, for slots whose queue had too few jobs.
    loop
        if v_among is null or v_among = '{}' then
            v_now := pgqueue._clock();
            if v_limited_queues and v_capacities = '{}' then
                v_capacities := pgqueue._queue_capacities(p_queues, v_now);
                v_exhausted := array(select r.key from jsonb_each(v_capacities) r where (r.value ->> 'capacity')::integer = 0);
            end if;
            v_among := case when v_draws then pgqueue._queues_to_draw(p_queues, v_exhausted) end;
        end if;
        v_slots := v_free;
        v_free := '{}';
        v_queue := null;
        for v_turn in
            select c.*
            from pgqueue._choose(p_queues, p_weights, p_strategy, v_draws, v_slots, v_among, v_now, v_exhausted) c
        loop
            if v_draws and v_turn.queue is distinct from v_queue then
                if v_queue is not null and v_slots <> '{}' then
                    v_free := v_free || v_slots;
                    v_among := array_remove(v_among, v_queue);
                end if;
                v_slots := v_turn.slots;
            end if;
            v_queue := v_turn.queue;
            exit when v_slots = '{}' and not v_draws;
            if v_limited_queues then
                v_capacities := pgqueue._lock_queue(v_capacities, v_queue, v_now);
            end if;
            -- Null: the queue has no limit.
            v_capacity := (v_capacities -> v_queue ->> 'capacity')::integer;
            continue when v_capacity = 0 or v_slots = '{}';
            select c.rows, c.slots, c.used, c.keyed, c.marked, c.capacity
            into v_got
            from pgqueue._claim_lane(
                v_queue, v_turn.priority, v_turn.resumed, v_turn.head, v_turn.head_id, v_now,
                v_slots[:least(cardinality(v_slots), v_capacity)], case when v_is_again then v_rows else '{}' end, p_worker,
                p_lease, v_limited_tasks, v_capacity
            ) c;
            continue when v_got.used = 0;
            v_rows := v_rows || v_got.rows;
            v_row_slots := v_row_slots || v_got.slots;
            v_is_keyed := v_is_keyed or v_got.keyed;
            v_is_marked := v_is_marked or v_got.marked;
            v_slots := v_slots[v_got.used + 1:];
            if v_capacities ? v_queue then
                v_capacities := pgqueue._take_from_queue(v_capacities, v_queue, v_capacity - v_got.capacity, v_now);
            end if;
            if v_turn.head_at is null or v_turn.head_at < v_now - interval '100 ms' then
                v_stale := v_stale || row(v_queue, v_turn.priority, v_turn.resumed)::pgqueue.sub_lane;
            end if;
        end loop;
        if v_slots <> '{}' then
            v_free := v_free || v_slots;
            -- Without a turn no job is due in any queue.
            v_among := case when v_queue is not null then array_remove(v_among, v_queue) end;
        end if;
        exit when v_free = '{}';
        v_is_again := true;
        continue when v_among <> '{}';
        exit when v_has_rescued or not pgqueue._rescue_and_find(v_rows = '{}', cardinality(v_free), p_queues);
        v_has_rescued := true;
        if v_rows = '{}' then
            -- Taking leases back may have freed capacity. (Rows taken so far do not execute yet, and would not be counted.)
            v_capacities := '{}';
            v_exhausted := '{}';
        end if;
    end loop;
    if v_free = '{}' then
        -- There may be more than this worker can run: pass the wake-up on.
        perform pgqueue._wake(v_queue, v_now, 1, p_worker);
    end if;
    if v_rows = '{}' then
        return;
    end if;
    if v_stale <> '{}' and p_chance < cardinality(v_rows) then
        perform pgqueue._claimed_from(v_stale, v_is_keyed or v_is_marked, p_began, p_newest_id);
    end if;
    if v_draws and v_is_again then
        v_row_slots := pgqueue._in_turn(v_rows, v_row_slots);
    end if;
    return query
    select t.* from pgqueue._take(v_rows, v_row_slots, v_is_keyed, v_is_marked, v_now, p_worker, p_lease) t;
    perform pgqueue._check_clock(pgqueue._clock());
end
$$;

comment on function pgqueue._claim_lanes(
    text, integer, text[], integer[], interval, text, double precision, timestamptz, bigint
) is
    'Private: claims lane by lane, see reserve(). p_chance: move heads for more jobs than this, and use p_began and p_newest_id.';

-- p_rows: locked, and not yet taken.
create or replace function pgqueue._claimed(
    p_rows tid[], p_max_jobs integer, p_last_queue text, p_chance double precision, p_began timestamptz,
    p_newest_id bigint, p_now timestamptz, p_worker text
)
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
begin
    if cardinality(p_rows) = p_max_jobs then
        -- There may be more than this worker can run: pass the wake-up on.
        perform pgqueue._wake(p_last_queue, p_now, 1, p_worker);
    end if;
    if p_chance < cardinality(p_rows) then
        perform pgqueue._claimed_from(
            array(
                select distinct row(j.queue, j.priority, j.resumed)::pgqueue.sub_lane
                from unnest(p_rows) w (row_ctid)
                join pgqueue.jobs j on j.ctid = w.row_ctid
            ),
            false, p_began, p_newest_id
        );
    end if;
end
$$;

comment on function pgqueue._claimed(
    tid[], integer, text, double precision, timestamptz, bigint, timestamptz, text
) is
    'Private: ends a claim of the fast path: passes the wake-up on where more jobs may be due, and now and then moves heads.';

create or replace function pgqueue._check_reserve(
    p_worker text, p_max_jobs integer, p_queues text[], p_weights integer[], p_lease interval, p_strategy text
)
returns void
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgqueue._check_name('worker', p_worker, 256);
    perform pgqueue._check_queues(p_queues);
    perform pgqueue._check_lease(p_lease);
    if p_max_jobs is null or p_max_jobs not between 1 and 100000 then
        perform pgqueue._refuse(
            'max_jobs must be between 1 and 100000', format('It is %s.', coalesce(p_max_jobs::text, 'null')),
            'Give max_jobs as the number of jobs that the worker can start soon.'
        );
    end if;
    if p_strategy is null or p_strategy not in ('weighted', 'strict', 'lag', 'round_robin') then
        perform pgqueue._refuse(
            'strategy is unknown', format('It is %s.', coalesce(quote_literal(p_strategy), 'null')),
            'Give strategy as weighted, strict, lag or round_robin.'
        );
    end if;
    if p_strategy = 'strict' and p_queues is null then
        perform pgqueue._refuse(
            'strategy strict needs queues', 'queues is null.', 'Give queues in the order in which to serve them.'
        );
    end if;
    if p_weights is not null then
        if p_queues is null or cardinality(p_weights) <> cardinality(p_queues) then
            perform pgqueue._refuse(
                'weights must match queues',
                format('There are %s weights and %s queues.', cardinality(p_weights),
                    coalesce(cardinality(p_queues)::text, 'no')),
                'Give weights as one positive number for each of queues.'
            );
        end if;
        if exists (select from unnest(p_weights) w (weight) where w.weight is null or w.weight not between 1 and 1000000) then
            perform pgqueue._refuse(
                'weights must be between 1 and 1000000', format('They are %s.', p_weights::text),
                'Give weights as one positive whole number for each of queues.'
            );
        end if;
    end if;
end
$$;

comment on function pgqueue._check_reserve(text, integer, text[], integer[], interval, text) is
    'Private: refuses wrong arguments of reserve, each by its name.';

create or replace function pgqueue._take_from_queue(p_capacities jsonb, p_queue text, p_count integer, p_now timestamptz)
returns jsonb
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_count > 0 and (p_capacities -> p_queue ->> 'rate')::boolean then
        insert into pgqueue.limit_starts (name, at, started) values ('queue:' || p_queue, p_now, p_count);
    end if;
    return jsonb_set(
        p_capacities, array[p_queue, 'capacity'], to_jsonb((p_capacities -> p_queue ->> 'capacity')::integer - p_count)
    );
end
$$;

comment on function pgqueue._take_from_queue(jsonb, text, integer, timestamptz) is
    'Private: the capacities of queues after p_count starts in one, which are recorded if it has a rate.';

-- A claim in a transaction of its own moves heads under a lock that it only tries, so that not all workers do it at once. A
-- claim in a transaction that may stay open moves them without the lock.
create or replace function pgqueue._claimed_from(
    p_sub_lanes pgqueue.sub_lane[], p_keyed boolean, p_began timestamptz, p_newest_id bigint
)
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgqueue._propose(p_began, p_newest_id);
    if statement_timestamp() > transaction_timestamp() or pg_try_advisory_xact_lock(pgqueue._lock_class(), 4) then
        perform pgqueue._move_heads(
            p_sub_lanes
            || array(
                select row('', h.priority, false)::pgqueue.sub_lane
                from (values (0::smallint), (1::smallint)) h (priority)
                where h.priority = 0 or p_keyed
            ),
            true
        );
    end if;
end
$$;

comment on function pgqueue._claimed_from(pgqueue.sub_lane[], boolean, timestamptz, bigint) is
    'Private: moves the heads of sub-lanes that jobs were claimed from, unless another claim does so.';

-- Called when reserve comes up short. True: there is a reason to read the lanes again. It locks the jobs that it takes back
-- or releases until the claim commits, so it takes no more than the claim has slots for.
create or replace function pgqueue._rescue_and_find(p_empty_handed boolean, p_jobs integer, p_queues text[])
returns boolean
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_maintained_at timestamptz;
    v_rescued bigint;
    v_found integer := 0;
    v_noted boolean;
begin
    select r.rescued into v_rescued from pgqueue._rescue(least(100, p_jobs), null) r;
    v_noted := pgqueue._read_key_notes(least(100, p_jobs), p_queues);
    -- Jobs may still be blocked by a limit that was dropped.
    v_noted := pgqueue._recheck_limits(20, p_jobs) > 0 or v_noted;
    v_noted := pgqueue._read_notes(100) or v_noted;
    if p_empty_handed then
        -- No session runs maintenance, which finds jobs in unregistered lanes.
        select h.at into v_maintained_at from pgqueue.maintenance_runs h order by h.n desc limit 1;
        if v_maintained_at is null or abs(extract(epoch from pgqueue._clock() - v_maintained_at)) > 5 then
            v_found := pgqueue._find_lanes();
        end if;
    end if;
    return v_rescued > 0 or v_found > 0 or v_noted;
end
$$;

comment on function pgqueue._rescue_and_find(boolean, integer, text[]) is
    'Private: takes back lapsed leases, follows notes and, where no session runs maintenance, finds unregistered lanes.';
