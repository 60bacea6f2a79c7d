-- reserve: claims up to max_jobs due jobs for a worker, each under a lease and a new reservation.
--
-- It visits lanes one by one, in the order that the strategy says. Inside a lane it reads the ready index in order, by equality on the prefix and a
-- range on ready_at, locks what it takes with FOR UPDATE SKIP LOCKED (it never waits), and remembers the rows'
-- ctids; one UPDATE by ctid then claims them all. The obvious single statement, UPDATE ... FROM (SELECT ... LIMIT
-- $n), has a generic plan that guesses the limit and scans the table: 35 ms a call, against 1 ms. For the same
-- reason the plan is pinned here: always generic, never by scanning or sorting jobs, also where the table was
-- empty or never analysed when the plan was made.
-- Jobs past their expires_at are cancelled on the way. When it comes up short it takes back lapsed leases, so a
-- client that never calls maintain is rescued as well. After either it looks again, past what it has taken: until
-- the UPDATE those rows stand in the ready index, and its own locks do not hide them. (v_seen is empty in the first
-- look, for comparing each row with hundreds of others costs more than claiming it.)

create or replace function pgqueue.reserve(
    worker text,
    max_jobs integer default 1,
    queues text[] default null,
    weights integer[] default null,
    lease interval default '30 s',
    strategy text default 'weighted'
)
returns table (
    id bigint,
    task text,
    args jsonb,
    headers jsonb,
    queue text,
    key text,
    priority integer,
    attempt integer,
    max_attempts integer,
    reservation bigint,
    run_at timestamptz,
    created_at timestamptz,
    lease_expires_at timestamptz,
    leader bigint,
    score numeric,
    timeout interval,
    losses integer,
    crashes integer,
    store_result boolean
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
    v_got record;
    v_taken tid[] := '{}'::tid[];
    -- The call that each job of v_taken belongs to: an accumulating task has several in one. Of each call, its place.
    v_calls integer[] := '{}'::integer[];
    v_places integer[] := '{}'::integer[];
    v_used integer;
    v_room integer;
    -- A variable: see extend.
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
    v_marked boolean := false;
    v_keyed boolean := false;
    v_owners text[] := '{}'::text[];
    v_free integer[];
    v_in_slots boolean;
    v_lane record;
    v_draw record;
    v_queues text[];
    v_last_queue text;
    -- A second look finds the rows that the first one locked, unless it is told of them.
    v_again boolean := false;
    v_rescued boolean := false;
    v_limited_tasks text[];
    v_limited_queues boolean := false;
    -- Parts of lanes that it took from whose heads are old; v_began: when it had no xid yet.
    v_began timestamptz;
    -- What leases are counted from: later than v_now, at which it looked, and which starts and rates are counted by.
    v_leased_at timestamptz;
    v_stale_queues text[] := '{}'::text[];
    v_stale_priorities smallint[] := '{}'::smallint[];
    v_stale_parts boolean[] := '{}'::boolean[];
    v_rooms jsonb := '{}'::jsonb;
    v_full text[] := '{}'::text[];
begin
    perform pgqueue._require_read_committed('reserve');
    perform pgqueue._check_reserve(
        reserve.worker, reserve.max_jobs, reserve.queues, reserve.weights, reserve.lease, reserve.strategy
    );
    if pg_current_xact_id_if_assigned() is null then
        v_began := pgqueue._clock();
    end if;
    v_free := array(select n from generate_series(1, reserve.max_jobs) n);
    v_in_slots := pgqueue._draws_slots(reserve.queues, reserve.weights, reserve.strategy);

    if exists (select from pgqueue.limits) then
        select array_agg(l.target) filter (where l.kind = 'task'), coalesce(bool_or(l.kind = 'queue'), false)
        into v_limited_tasks, v_limited_queues
        from pgqueue.limits l;
        perform pgqueue._look_at_limits(20);
    end if;

    loop
        v_now := pgqueue._clock();
        if v_limited_queues and v_rooms = '{}' then
            v_rooms := pgqueue._queue_rooms(reserve.queues, v_now);
            v_full := array(select r.key from jsonb_each(v_rooms) r where (r.value ->> 'room')::integer = 0);
        end if;
        if v_in_slots then
            -- Each free slot draws a queue among those that have something due. A queue that gives less than was
            -- drawn is out, and the slots that it left free draw again among the others: shares hold within a batch,
            -- and an empty queue costs no turn.
            v_queues := pgqueue._due_queues(reserve.queues, v_now, v_full);
            while v_queues <> '{}' and v_free <> '{}' loop
                for v_draw in
                    select d.queue, d.slots
                    from pgqueue._draw(v_free, v_queues, reserve.queues, reserve.weights, reserve.strategy) d
                loop
                    v_used := 0;
                    v_room := least(cardinality(v_draw.slots), (v_rooms -> v_draw.queue ->> 'room')::integer);
                    for v_lane in
                        select a.priority, r.resumed, coalesce(h.head, '-infinity') as head, h.at as head_at
                        from (select distinct x.priority from pgqueue.lanes x where x.queue = v_draw.queue) a
                        cross join (values (true), (false)) r (resumed)
                        left join lateral pgqueue._head(v_draw.queue, a.priority, r.resumed) h on true
                        order by a.priority desc, r.resumed desc
                    loop
                        exit when v_used = v_room;
                        select c.rows, c.calls, c.used, c.keyed
                        into v_got
                        from pgqueue._claim_lane(
                            v_draw.queue, v_lane.priority, v_lane.resumed, v_lane.head, v_now, v_room - v_used,
                            case when v_again then v_taken else '{}' end, reserve.worker, reserve.lease, v_limited_tasks
                        ) c;
                        if v_got.used > 0 and (v_lane.head_at is null or v_lane.head_at < v_now - interval '100 ms') then
                            v_stale_queues := v_stale_queues || v_draw.queue;
                            v_stale_priorities := v_stale_priorities || v_lane.priority;
                            v_stale_parts := v_stale_parts || v_lane.resumed;
                        end if;
                        v_taken := v_taken || v_got.rows;
                        v_keyed := v_keyed or v_got.keyed;
                        if v_marked or v_got.calls is not null then
                            v_calls := pgqueue._with_calls(v_calls, v_got.calls, cardinality(v_places), v_got.used);
                            v_marked := true;
                        end if;
                        v_places := v_places || v_draw.slots[v_used + 1:v_used + v_got.used];
                        v_used := v_used + v_got.used;
                    end loop;
                    v_owners := v_owners || array_fill(v_draw.queue, array[v_used]);
                    if v_rooms ? v_draw.queue then
                        v_rooms := pgqueue._take_rooms(v_rooms, v_draw.queue, v_used, v_now);
                    end if;
                    v_last_queue := v_draw.queue;
                    if v_used < cardinality(v_draw.slots) then
                        v_queues := array_remove(v_queues, v_draw.queue);
                    end if;
                end loop;
                if v_again then
                    v_places := pgqueue._in_turn(v_owners, v_places);
                end if;
                v_again := true;
                v_free := (
                    select coalesce(array_agg(f.slot order by f.slot), '{}')
                    from unnest(v_free) f (slot)
                    where f.slot <> all (v_places)
                );
            end loop;
        else
            for v_lane in
                select l.queue, l.priority, r.resumed, r.head, r.head_at
                from pgqueue._due_lanes(reserve.queues, v_now, v_full) l
                cross join lateral (
                    values (true, l.resumed_head, l.resumed_head_at), (false, l.head, l.head_at)
                ) r (resumed, head, head_at)
                order by
                    case when reserve.strategy = 'strict' then array_position(reserve.queues, l.queue) end,
                    case when reserve.strategy = 'lag' then l.oldest_of_queue end,
                    case when reserve.strategy = 'lag' then l.queue end,
                    l.priority desc,
                    l.ready_at,
                    l.queue,
                    r.resumed desc
            loop
                v_room := least(cardinality(v_free), (v_rooms -> v_lane.queue ->> 'room')::integer);
                continue when v_room = 0;
                select c.rows, c.calls, c.used, c.keyed
                into v_got
                from pgqueue._claim_lane(
                    v_lane.queue, v_lane.priority, v_lane.resumed, v_lane.head, v_now, v_room,
                    case when v_again then v_taken else '{}' end, reserve.worker, reserve.lease, v_limited_tasks
                ) c;
                if v_got.used > 0 and (v_lane.head_at is null or v_lane.head_at < v_now - interval '100 ms') then
                    v_stale_queues := v_stale_queues || v_lane.queue;
                    v_stale_priorities := v_stale_priorities || v_lane.priority;
                    v_stale_parts := v_stale_parts || v_lane.resumed;
                end if;
                v_taken := v_taken || v_got.rows;
                v_keyed := v_keyed or v_got.keyed;
                if v_marked or v_got.calls is not null then
                    v_calls := pgqueue._with_calls(v_calls, v_got.calls, cardinality(v_places), v_got.used);
                    v_marked := true;
                end if;
                v_places := v_places || v_free[1:v_got.used];
                v_free := v_free[v_got.used + 1:];
                if v_rooms ? v_lane.queue then
                    v_rooms := pgqueue._take_rooms(v_rooms, v_lane.queue, v_got.used, v_now);
                end if;
                v_last_queue := v_lane.queue;
                exit when v_free = '{}';
            end loop;
        end if;

        exit when v_free = '{}' or v_rescued;
        v_rescued := true;
        v_again := true;
        exit when not pgqueue._rescue_and_find(v_taken = '{}');
        if v_taken = '{}' then
            -- What was taken back may have left room. (What is taken does not execute yet, and would not be counted.)
            v_rooms := '{}';
            v_full := '{}';
        end if;
    end loop;

    if v_free = '{}' then
        -- There may be more than this worker can carry: pass the wake-up on.
        perform pgqueue._wake(v_last_queue, v_now, 1, reserve.worker);
    end if;

    -- A head is worth moving for some fifty jobs: claims of fewer leave it to one among them.
    if v_stale_queues <> '{}' and random() * 50 < cardinality(v_taken) then
        perform pgqueue._claimed_from(v_stale_queues, v_stale_priorities, v_stale_parts, v_began);
    end if;
    -- Where leases end must not be below the clock of a transaction with an xid: see _heads.
    if v_taken <> '{}' then
        v_leased_at := pgqueue._ready_at(v_now);
    end if;

    if v_keyed and not v_marked then
        begin
            return query
            select t.* from pgqueue._take(v_taken, v_places, v_now, reserve.worker, reserve.lease) t;
            return;
        exception when unique_violation or lock_not_available or deadlock_detected then
            null;
        end;
    end if;
    if v_keyed then
        -- Claims of other keys stand in the way of some, or another lane had jobs that are marked already.
        select m.rows, m.calls
        into v_taken, v_calls
        from pgqueue._mark(
            v_taken,
            case when v_marked then v_calls else array(select n from generate_series(1, cardinality(v_taken)) n) end,
            array(
                select case when j.state = v_executing or j.key is null then 'plain' else 'keyed' end
                from unnest(v_taken) with ordinality t (row_at, n)
                join pgqueue.jobs j on j.ctid = t.row_at
                order by t.n
            ),
            v_now, reserve.worker, reserve.lease
        ) m;
        v_marked := true;
    end if;
    if v_marked then
        -- What had a key or a limit is executing already.
        return query
        with taken as materialized (
            select t.row_at, v_places[t.call] as place, t.n
            from unnest(v_taken, v_calls) with ordinality t (row_at, call, n)
        ),
        claimed as (
            update pgqueue.jobs j
            set
                state = 'executing',
                reservation = (((j.reservation >> 20) + 1) << 20) | floor(random() * 1048576)::bigint,
                attempts = j.attempts + 1,
                reserved_at = v_now,
                reserved_by = reserve.worker,
                lease = reserve.lease,
                lease_expires_at = v_leased_at + reserve.lease,
                lease_prolonged = false
            from taken t
            where j.ctid = t.row_at and j.state in ('waiting', 'failed')
            returning t.place, t.n, j.*
        ),
        held as (
            select c.* from claimed c
            union all
            select t.place, t.n, j.*
            from taken t
            join pgqueue.jobs j on j.ctid = t.row_at and j.state = v_executing
        )
        select
            h.id, h.task, h.args, h.headers, h.queue, h.key, h.priority::integer, h.attempts,
            coalesce(h.max_attempts, t.max_attempts, case when t.accumulate then 26 else 11 end),
            h.reservation, h.run_at, h.created_at, coalesce(h.lease_expires_at, v_leased_at + reserve.lease),
            case when h.leader is not null then first_value(h.id) over (partition by h.place order by h.n) end,
            h.score, coalesce(h.timeout, t.timeout), h.losses, coalesce(cardinality(h.crashed_on), 0),
            coalesce(t.store_result, false)
        from held h
        left join pgqueue.effective_tasks t on t.name = h.task
        order by h.place, h.n;
        return;
    end if;

    return query
    with claimed as (
        update pgqueue.jobs j
        set
            state = 'executing',
            reservation = (((j.reservation >> 20) + 1) << 20) | floor(random() * 1048576)::bigint,
            attempts = j.attempts + 1,
            reserved_at = v_now,
            reserved_by = reserve.worker,
            lease = reserve.lease,
            lease_expires_at = v_leased_at + reserve.lease,
            lease_prolonged = false
        from unnest(v_taken, v_places) taken (row_at, place)
        where j.ctid = taken.row_at
        returning
            taken.place, j.id, j.task, j.args, j.headers, j.queue, j.key, j.priority, j.attempts, j.max_attempts,
            j.reservation, j.run_at, j.created_at, j.lease_expires_at, j.timeout, j.losses, j.crashed_on
    )
    select
        c.id, c.task, c.args, c.headers, c.queue, c.key, c.priority::integer, c.attempts,
        coalesce(c.max_attempts, t.max_attempts, 11),
        c.reservation, c.run_at, c.created_at, c.lease_expires_at, null::bigint, null::numeric,
        coalesce(c.timeout, t.timeout), c.losses, coalesce(cardinality(c.crashed_on), 0), coalesce(t.store_result, false)
    from claimed c
    left join pgqueue.effective_tasks t on t.name = c.task
    order by c.place;
end
$$;

comment on function pgqueue.reserve(text, integer, text[], integer[], interval, text) is
    'Claim up to max_jobs due jobs for a worker, in claim order; no rows when there is nothing due. '
    'queues: which ones (null: all). lease: how long the reservation holds unless extended. '
    'strategy: weighted (each slot draws a queue by its weight, from weights or from pgqueue.queues; where all weights are equal, '
    'the highest priority over all queues goes first), strict (queues in the order given), lag (the queue whose oldest due job '
    'is oldest) or round_robin (queues in turn). Keep id and reservation: complete, fail, extend, release and snooze take both. '
    'select * from pgqueue.reserve(''my-worker'', 10);';

-- The lanes that have something due, each with the time of its first job, and of its queue's, and with the heads of its
-- two parts. No lane is scanned: a probe of the ready index each, and a second one for a lane that has nothing due but
-- what came back.
create or replace function pgqueue._due_lanes(p_queues text[], p_now timestamptz, p_without text[])
returns table (
    queue text, priority smallint, ready_at timestamptz, oldest_of_queue timestamptz,
    head timestamptz, head_at timestamptz, resumed_head timestamptz, resumed_head_at timestamptz
)
language plpgsql
volatile
parallel unsafe
rows 10
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_without text[] := p_without || array(select q.name from pgqueue.queues q where q.paused_at is not null);
begin
    return query
    select
        l.queue, l.priority, first.ready_at, min(first.ready_at) over (partition by l.queue),
        coalesce(h.head, '-infinity'), h.at, coalesce(r.head, '-infinity'), r.at
    from (
        select a.queue, a.priority
        from pgqueue.lanes a
        where p_queues is null
        union
        select a.queue, a.priority
        from unnest(p_queues) q (name)
        join pgqueue.lanes a on a.queue = q.name
    ) l
    left join lateral pgqueue._head(l.queue, l.priority, false) h on true
    left join lateral pgqueue._head(l.queue, l.priority, true) r on true
    cross join lateral (
        (
            select j.ready_at
            from pgqueue.jobs j
            where j.state in ('waiting', 'failed')
                and j.queue = l.queue
                and j.priority = l.priority
                and j.resumed = false
                and j.ready_at >= coalesce(h.head, '-infinity')
                and j.ready_at <= p_now
            order by j.ready_at, j.id
            limit 1
        )
        union all
        (
            select j.ready_at
            from pgqueue.jobs j
            where j.state in ('waiting', 'failed')
                and j.queue = l.queue
                and j.priority = l.priority
                and j.resumed = true
                and j.ready_at >= coalesce(r.head, '-infinity')
                and j.ready_at <= p_now
            order by j.ready_at, j.id
            limit 1
        )
        limit 1
    ) first
    where l.queue <> all (v_without);
end
$$;

comment on function pgqueue._due_lanes(text[], timestamptz, text[]) is
    'Private: the lanes of these queues (null: all) that have something due, without those in p_without and paused ones.';

create or replace function pgqueue._due_queues(p_queues text[], p_now timestamptz, p_without text[])
returns text[]
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_without text[] := p_without || array(select q.name from pgqueue.queues q where q.paused_at is not null);
    v_due text[];
begin
    -- The first lane of a queue that has something will do.
    select coalesce(array_agg(q.name), '{}') into v_due
    from (
        select a.queue as name
        from pgqueue.lanes a
        where p_queues is null
        union
        select u.name from unnest(p_queues) u (name)
    ) q
    cross join lateral (
        select
        from pgqueue.lanes a
        left join lateral pgqueue._head(a.queue, a.priority, false) h on true
        left join lateral pgqueue._head(a.queue, a.priority, true) r on true
        cross join lateral (
            (
                select j.ready_at
                from pgqueue.jobs j
                where j.state in ('waiting', 'failed')
                    and j.queue = a.queue
                    and j.priority = a.priority
                    and j.resumed = false
                    and j.ready_at >= coalesce(h.head, '-infinity')
                    and j.ready_at <= p_now
                order by j.ready_at, j.id
                limit 1
            )
            union all
            (
                select j.ready_at
                from pgqueue.jobs j
                where j.state in ('waiting', 'failed')
                    and j.queue = a.queue
                    and j.priority = a.priority
                    and j.resumed = true
                    and j.ready_at >= coalesce(r.head, '-infinity')
                    and j.ready_at <= p_now
                order by j.ready_at, j.id
                limit 1
            )
            limit 1
        ) first
        where a.queue = q.name
        limit 1
    ) due
    where q.name <> all (v_without);
    return v_due;
end
$$;

comment on function pgqueue._due_queues(text[], timestamptz, text[]) is
    'Private: the queues that have something due, without those in p_without and paused ones.';

-- The calls of jobs claimed in one lane, behind those before; p_base: how many calls there were. Null: a call each.
create or replace function pgqueue._with_calls(p_before integer[], p_calls integer[], p_base integer, p_used integer)
returns integer[]
language sql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select
        case when p_before = '{}' then array(select n from generate_series(1, p_base) n) else p_before end
        || case
            when p_calls is null then array(select n from generate_series(p_base + 1, p_base + p_used) n)
            else array(select p_base + c.call from unnest(p_calls) with ordinality c (call, n) order by c.n)
        end
$$;

comment on function pgqueue._with_calls(integer[], integer[], integer, integer) is
    'Private: the numbers of the calls that claimed jobs belong to.';

create or replace function pgqueue._take_rooms(p_rooms jsonb, p_queue text, p_count integer, p_now timestamptz)
returns jsonb
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_count > 0 and (p_rooms -> p_queue ->> 'rate')::boolean then
        insert into pgqueue.limit_starts (name, at, started) values ('queue:' || p_queue, p_now, p_count);
    end if;
    return jsonb_set(
        p_rooms, array[p_queue, 'room'], to_jsonb((p_rooms -> p_queue ->> 'room')::integer - p_count)
    );
end
$$;

comment on function pgqueue._take_rooms(jsonb, text, integer, timestamptz) is
    'Private: what room the queues have left after p_count starts of one, which are noted if it has a rate.';

-- Whether the slots of a claim each draw a queue. With equal weights they need not: the highest priority over all
-- queues goes first.
create or replace function pgqueue._draws_slots(p_queues text[], p_weights integer[], p_strategy text)
returns boolean
language plpgsql
stable
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_strategy <> 'weighted' then
        return p_strategy = 'round_robin';
    end if;
    if p_weights is not null then
        return exists (select from unnest(p_weights) w (weight) where w.weight <> p_weights[1]);
    end if;
    -- Queues that an operator gave a weight are few; one of weight 1 is as good as none.
    return exists (
        select
        from pgqueue.queues q
        where q.weight <> 1 and (p_queues is null or q.name = any (p_queues))
    );
end
$$;

comment on function pgqueue._draws_slots(text[], integer[], text) is
    'Private: true where each slot of a claim draws its queue.';

-- Slots that drew again may stand before those that their new queue had already got. Its jobs must come in its order.
create or replace function pgqueue._in_turn(p_owners text[], p_places integer[])
returns integer[]
language sql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(array_agg(p.place order by p.n), '{}')
    from (
        select unnest(s.numbers) as n, unnest(s.places) as place
        from (
            select
                array_agg(o.n order by o.owner, o.n) as numbers,
                array_agg(o.place order by o.owner, o.place) as places
            from unnest(p_owners, p_places) with ordinality o (owner, place, n)
        ) s
    ) p
$$;

comment on function pgqueue._in_turn(text[], integer[]) is
    'Private: the places of claimed jobs, given anew so that those of one queue stand in the order in which they were claimed.';

-- weighted: every slot is an independent draw, a queue's chance being its share of the weights. It is the first pick
-- of Efraimidis and Spirakis (Weighted random sampling with a reservoir, 2006: the largest of u^(1/w)), drawn here by
-- its distribution, which costs one random number for a slot instead of one for each queue and slot.
-- round_robin: from a random queue on, in turn.
create or replace function pgqueue._draw(
    p_slots integer[], p_due text[], p_queues text[], p_weights integer[], p_strategy text
)
returns table (queue text, slots integer[])
language plpgsql
volatile
parallel unsafe
rows 10
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_due text[];
    v_bounds double precision[];
    v_start integer := floor(random() * cardinality(p_due))::integer;
begin
    if p_strategy = 'round_robin' then
        return query
        select p_due[1 + (v_start + s.n::integer) % cardinality(p_due)], array_agg(s.slot order by s.slot)
        from unnest(p_slots) with ordinality s (slot, n)
        group by 1;
        return;
    end if;
    select array_agg(w.queue order by w.queue), array_agg(w.bound order by w.queue)
    into v_due, v_bounds
    from (
        select
            d.queue,
            sum(coalesce(p_weights[array_position(p_queues, d.queue)], q.weight, 1)) over (order by d.queue)
                ::double precision as bound
        from unnest(p_due) d (queue)
        left join pgqueue.queues q on q.name = d.queue
    ) w;
    return query
    select v_due[1 + width_bucket(s.point, v_bounds)], array_agg(s.slot order by s.slot)
    from (
        select u.slot, random() * v_bounds[cardinality(v_bounds)] as point from unnest(p_slots) u (slot)
    ) s
    group by 1;
end
$$;

comment on function pgqueue._draw(integer[], text[], text[], integer[], text) is
    'Private: gives each free slot of a claim a queue among those that have something due.';

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

-- A claim of a transaction that holds for this statement alone moves heads under a lock that others do not wait for, so
-- that not all workers do it at once. One that may stay open for long does without.
create or replace function pgqueue._claimed_from(
    p_queues text[], p_priorities smallint[], p_parts boolean[], p_began timestamptz
)
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgqueue._propose(p_began);
    if statement_timestamp() > transaction_timestamp() or pg_try_advisory_xact_lock(pgqueue._lock_class(), 4) then
        perform pgqueue._move_heads(p_queues || ''::text, p_priorities || 0::smallint, p_parts || false, true);
    end if;
end
$$;

comment on function pgqueue._claimed_from(text[], smallint[], boolean[], timestamptz) is
    'Private: moves the heads of parts of lanes that jobs were claimed from, unless somebody is at it.';

-- What reserve does when it comes up short. True when there is a reason to look at the lanes again.
create or replace function pgqueue._rescue_and_find(p_empty_handed boolean)
returns boolean
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_house_at timestamptz;
    v_rescued bigint;
    v_found integer := 0;
    v_noted boolean;
begin
    select r.rescued into v_rescued from pgqueue._rescue(100, null) r;
    v_noted := pgqueue._read_key_notes(100);
    -- Jobs may be parked under the last limit that there was.
    v_noted := pgqueue._look_at_limits(20) > 0 or v_noted;
    if p_empty_handed then
        -- Nobody keeps house, so nobody looks for jobs in lanes that are not registered: look here.
        select h.at into v_house_at from pgqueue.housekeeping h order by h.n desc limit 1;
        if v_house_at is null or abs(extract(epoch from pgqueue._clock() - v_house_at)) > 5 then
            v_found := pgqueue._find_lanes();
        end if;
    end if;
    return v_rescued > 0 or v_found > 0 or v_noted;
end
$$;

comment on function pgqueue._rescue_and_find(boolean) is
    'Private: takes back lapsed leases, releases what notes say and, where nobody keeps house, finds unregistered lanes.';
