-- reserve: claims up to max_jobs due jobs for a worker, each under a lease and a new reservation.
--
-- In rounds of three steps, which sql/README.md reads from top to bottom: find (_find_due), decide (_decide_starts), take (_take_jobs).
-- Most claims are one round without a decision.
-- The obvious single statement, UPDATE ... FROM (SELECT ... LIMIT $n), has a generic plan that guesses the limit and scans
-- the table: 35 ms a call, against 1 ms. For the same reason the plan is pinned: see sql/README.md.

create or replace function pgqueue.reserve(
    worker text, max_jobs integer default 1, queues text[] default null, weights integer[] default null,
    lease interval default '30 s', strategy text default 'weighted'
)
returns table (
    id bigint, task text, args jsonb, headers jsonb, queue text, key text, priority integer, attempt integer,
    max_attempts integer, reservation bigint, run_at timestamptz, created_at timestamptz, lease_expires_at timestamptz,
    leader bigint, score numeric, timeout interval, losses integer, crashes integer, store_result boolean
)
language plpgsql security definer rows 100
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    v_now timestamptz;
    v_since timestamptz := clock_timestamp();
    -- Moving a head pays for some fifty claimed jobs: of smaller claims one in a few does it, by chance.
    v_chance double precision := random() * 50;
    -- Read while the transaction has no xid: see _head.
    v_began timestamptz := case when v_chance < reserve.max_jobs and pg_current_xact_id_if_assigned() is null then pgqueue._clock() end;
    v_newest_id bigint := case when v_began is not null then pg_sequence_last_value('pgqueue.jobs_id_seq'::regclass) end;
    v_draws boolean; -- Whether slots draw their queues (null: where one of them has a weight), and what they drew.
    v_draw pgqueue.draw;
    v_one_by_one boolean := reserve.strategy = 'lag';
    -- How many slots are free, and how many of them this round is for.
    v_free integer := reserve.max_jobs;
    v_want integer := reserve.max_jobs;
    v_size integer; -- How many jobs to read, all as candidates. Null: v_want.
    v_found record;
    v_rows tid[];
    v_starts pgqueue.start[];
    v_keyed boolean;
    v_jobs pgqueue.claimed_job[];
    v_started integer;
    v_again boolean := false; -- Some did not start: read on, without locked rows that stay in the ready index.
    v_skipped tid[];
    v_round pgqueue.lane_round;
    v_goes_on boolean := false;
    v_rounds integer := 0;
    v_has_rescued boolean := false;
begin
    -- Nearly every claim has only these arguments: skip the calls that check the others.
    if pgqueue._old_snapshot() or (
        octet_length(reserve.worker) between 1 and 256 and reserve.max_jobs between 1 and 50
        and reserve.lease > '0' and reserve.lease <= '1 day' and reserve.strategy = 'weighted' and reserve.weights is null
    ) is not true then
        v_draws := pgqueue._check_reserve(worker, max_jobs, reserve.queues, reserve.weights, lease, strategy);
        if v_draws then
            v_draw := pgqueue._next_turn(null, v_want, reserve.queues, reserve.weights, reserve.strategy, pgqueue._clock());
            v_want := coalesce(cardinality(v_draw.turns[1].slots), v_free);
        end if;
    elsif reserve.queues is not null then
        perform pgqueue._check_queues(reserve.queues);
    end if;
    loop
        v_now := pgqueue._clock();
        if v_goes_on then
            v_round := pgqueue._next_lanes(v_round, reserve.queues, false, v_now);
        end if;
        if v_draw.turns <> '{}' and not v_one_by_one then
            select f.* into v_found from pgqueue._find_turns(v_draw, reserve.worker, v_now, v_skipped) f;
            v_one_by_one := v_found.candidates is not null;
            continue when v_one_by_one;
            v_draw := v_found.draw;
        else
            v_found := pgqueue._find_due(
                reserve.worker, case when v_draw.turns is null then reserve.queues else array[v_draw.turns[1].queue] end,
                reserve.strategy, v_draws, coalesce(v_size, v_want), v_now, v_skipped, v_size is not null,
                case when v_draw.turns is null then v_round.lanes else pgqueue._lanes_of(array[v_draw.turns[1].queue], v_now) end
            );
            v_goes_on := v_found.is_unread and not coalesce(v_draws, pgqueue._draws_slots(reserve.queues, 'weighted'));
            continue when v_goes_on;
        end if;
        v_rows := v_found.rows;
        v_starts := null;
        v_keyed := false;
        v_started := 0;
        if v_found.candidates is not null then
            select d.rows, d.starts, d.keyed, v_skipped || d.skipped, d.size
            into v_rows, v_starts, v_keyed, v_skipped, v_size
            from pgqueue._decide_starts(v_rows, v_found.candidates, v_want, v_size, v_now) d;
            continue when v_rows is null; -- Payloads: v_size of them are read first.
            v_again := cardinality(v_rows) < cardinality(v_found.rows);
        end if;
        if v_rows <> '{}' then
            if v_chance < cardinality(v_rows) then
                perform pgqueue._move_heads_of(v_rows, v_chance, v_keyed, v_began, v_newest_id);
                v_chance := 'infinity';
            end if;
            if not v_keyed and (v_draw.turns <> '{}') is not true then
                return query select t.* from pgqueue._take_jobs(v_rows, v_now, reserve.worker, reserve.lease) t;
                get diagnostics v_started = row_count;
            else
                select t.jobs, t.started, v_again or t.skipped is not null, v_skipped || t.skipped
                into v_jobs, v_started, v_again, v_skipped
                from pgqueue._take_keyed(v_rows, v_found.candidates, v_starts, v_now, reserve.worker, reserve.lease) t;
                if v_draw.turns <> '{}' then
                    v_draw.jobs := v_draw.jobs || v_jobs;
                else
                    return query select j.* from unnest(v_jobs) j;
                end if;
            end if;
            v_free := v_free - v_started;
            v_want := v_want - v_started;
            exit when v_free = 0 or (not v_again and not v_found.short and v_round.is_whole is not false and v_draw.turns is null);
        end if;
        -- A few rounds in any case: the first of a session makes its plans, which alone may take as long.
        v_rounds := v_rounds + v_again::integer;
        v_size := case when v_again and v_want > 0 and (v_rounds <= 2 or clock_timestamp() <= v_since + interval '20 ms')
            then least(500, v_want + 4 + v_want::bigint * cardinality(v_found.rows) / greatest(v_started, 1))::integer end;
        exit when v_again and v_want > 0 and v_size is null and v_draw.turns is null;
        v_again := false;
        continue when v_size is not null;
        if v_draw.turns is not null or (v_rows = '{}' and coalesce(v_draws, pgqueue._draws_slots(reserve.queues, 'weighted'))) then
            v_draw := pgqueue._next_turn(v_draw, v_want, reserve.queues, reserve.weights, reserve.strategy, v_now);
            v_want := coalesce(cardinality(v_draw.turns[1].slots), v_free);
            -- In the end nothing is drawn, and a last round finds the reasons to look further.
            continue when v_draw.turns <> '{}' or v_rows <> '{}';
        end if;
        v_goes_on := not v_round.is_whole and v_rows <> '{}' and clock_timestamp() <= v_since + interval '20 ms';
        continue when v_goes_on;
        exit when v_has_rescued or not v_found.short
            or not pgqueue._rescue_and_find(v_free = reserve.max_jobs, v_free, reserve.queues, v_found.unmaintained);
        v_has_rescued := true;
        v_draw.turns := null;
        v_goes_on := v_round.lanes is not null;
        v_round.turn := null;
        v_want := v_free;
    end loop;
    v_round := coalesce(v_draw.round, v_round);
    if v_round.turn is not null then
        perform pgqueue._keep_turn(v_round, v_free < reserve.max_jobs);
    end if;
    -- There may be more than this worker can run: pass the wake-up on. Or more in other lanes, or behind jobs that it blocked.
    if v_free = 0 then
        perform pgqueue._wake(v_found.last_queue, v_now, p_count => 1, p_except => reserve.worker);
    elsif (not v_round.is_whole or (v_again and v_free = reserve.max_jobs and exists (
        select from unnest(v_found.candidates) c where c.is_expired or (c.row_ctid = any (v_skipped)) is not true
    ))) and pgqueue._may_notify() then
        perform pg_notify(pgqueue._channel(reserve.worker), 'wake');
    end if;
    if v_draw.jobs is not null then
        return query select t.* from pgqueue._jobs_by_slot(v_draw) t;
    end if;
    if v_found.unmaintained then
        perform pgqueue._check_clock(pgqueue._clock());
    end if;
end
$$;

comment on function pgqueue.reserve(text, integer, text[], integer[], interval, text) is
    'Claim up to max_jobs due jobs for a worker, in claim order; no rows when there is nothing due. '
    'Call it in a separate transaction and commit at once: what it locks is held until then. '
    'queues: the queues to claim from (null: all). lease: how long the reservation holds unless extended. '
    'strategy: weighted (each slot draws a queue by its weight, from weights or from pgqueue.queues; where all weights are equal, '
    'the highest priority over all queues goes first), strict (queues in the order given), lag (the queue whose oldest due job '
    'is oldest) or round_robin (queues in turn). Keep id and reservation: complete, fail, extend, release and snooze take both. '
    'select * from pgqueue.reserve(''my-worker'', 10); [worker]';

-- Returns whether each slot draws its queue; null: if one of the queues has a weight. See _draws_slots.
create or replace function pgqueue._check_reserve(
    p_worker text, p_max_jobs integer, p_queues text[], p_weights integer[], p_lease interval, p_strategy text
)
returns boolean
language plpgsql stable parallel safe
as $$
declare
    v_wrong text[] := case
        when p_strategy is null or p_strategy not in ('weighted', 'strict', 'lag', 'round_robin') then array[
            'strategy is unknown', format('It is %s.', coalesce(quote_literal(p_strategy), 'null')),
            'Give strategy as weighted, strict, lag or round_robin.']
        when p_strategy = 'strict' and p_queues is null then array[
            'strategy strict needs queues', 'queues is null.', 'Give queues in the order in which to serve them.']
        when p_weights is not null and (p_queues is null or cardinality(p_weights) <> cardinality(p_queues)) then array[
            'weights must match queues',
            format('There are %s weights and %s queues.', cardinality(p_weights), coalesce(cardinality(p_queues)::text, 'no')),
            'Give weights as one positive number for each of queues.']
        when p_weights is not null and (1 <= all (p_weights) and 1000000 >= all (p_weights)) is not true then array[
            'weights must be between 1 and 1000000', format('They are %s.', p_weights::text),
            'Give weights as one positive whole number for each of queues.']
    end;
begin
    perform pgqueue._require_read_committed('reserve');
    perform pgqueue._check_name('worker', p_worker, 256);
    perform pgqueue._check_queues(p_queues);
    perform pgqueue._check_lease(p_lease);
    perform pgqueue._check_range('max_jobs', p_max_jobs, 1, 100000, 'Give max_jobs as the number of jobs that the worker can start soon.');
    if v_wrong is not null then
        perform pgqueue._refuse(v_wrong[1], v_wrong[2], v_wrong[3]);
    end if;
    return case
        when p_strategy <> 'weighted' then p_strategy <> 'strict'
        when p_weights is not null then coalesce(p_weights[1] <> any (p_weights), false)
    end;
end
$$;

-- Moves the heads of the sub-lanes of p_rows, which are locked, and not yet taken: of one row in some fifty, from p_chance on. By
-- a prime number, for queues may take turns in them. Below zero it is of all rows, and those of tenants too, for _find_in_turn,
-- which knows whether it had to walk. A claim in a transaction of its own does it under a lock that it only tries, so that not
-- all workers do it at once. A claim in a transaction that may stay open does it without the lock.
create or replace function pgqueue._move_heads_of(
    p_rows tid[], p_chance double precision, p_keyed boolean, p_began timestamptz, p_newest_id bigint
)
returns void
language plpgsql
as $$
begin
    perform pgqueue._propose_horizon(p_began, p_newest_id);
    if statement_timestamp() > transaction_timestamp() or pg_try_advisory_xact_lock(pgqueue._lock_class(), 4) then
        perform pgqueue._move_heads(
            array(
                select distinct row(l.queue, l.priority, l.resumed)::pgqueue.sub_lane
                from generate_series(
                    greatest(floor(p_chance)::integer, 0) + 1, cardinality(p_rows), case when p_chance < 0 then 1 else 47 end
                ) w (n)
                join pgqueue.jobs j on j.ctid = p_rows[w.n]
                cross join lateral (
                    select j.queue, j.priority, j.resumed
                    union all
                    select pgqueue._head_name(j.queue, j.lane_key), (j.priority + 1000)::smallint, false
                    where p_chance < 0 and j.lane_key is not null and not j.resumed
                ) l
            )
            || row('', 0::smallint, false)::pgqueue.sub_lane
            || case when p_keyed then array[row('', 1::smallint, false)::pgqueue.sub_lane] end,
            true
        );
    end if;
end
$$;

-- Called when reserve comes up short. True: there is a reason to read the lanes again. It locks the jobs that it takes back
-- or releases until the claim commits, so it takes no more than the claim has slots for. Beside an old snapshot it would walk all
-- waits and notes that are gone: what is older than ten seconds, as after a step of the clock, maintenance finds, if it runs.
create or replace function pgqueue._rescue_and_find(p_empty_handed boolean, p_jobs integer, p_queues text[], p_unmaintained boolean)
returns boolean
language plpgsql
as $$
declare
    v_found boolean := (select r.rescued > 0 from pgqueue._rescue(least(100, p_jobs), null) r);
begin
    v_found := pgqueue._read_key_notes(least(100, p_jobs), p_queues, case when not p_unmaintained then 1000 end) or v_found;
    -- Jobs may still be blocked by a limit that was dropped.
    v_found := pgqueue._recheck_limits(
        20, p_jobs, case when p_unmaintained then '-infinity' else pgqueue._clock() - interval '10 s' end
    ) > 0 or v_found;
    v_found := pgqueue._read_notes(100) or v_found;
    -- No session runs maintenance, which finds jobs in unregistered lanes.
    if p_empty_handed and (
        select abs(extract(epoch from pgqueue._clock() - h.at)) <= 5 from pgqueue.maintenance_runs h order by h.n desc limit 1
    ) is not true then
        v_found := pgqueue._find_lanes() > 0 or v_found;
    end if;
    return v_found;
end
$$;
