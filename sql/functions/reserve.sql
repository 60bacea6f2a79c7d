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
    lease_expires_at timestamptz
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
    v_rows tid[];
    v_taken tid[] := '{}';
    v_places integer[] := '{}';
    v_owners text[] := '{}';
    v_free integer[];
    v_in_slots boolean;
    v_lane record;
    v_draw record;
    v_queues text[];
    v_last_queue text;
    -- A second look finds the rows that the first one locked, unless it is told of them.
    v_again boolean := false;
    v_rescued boolean := false;
begin
    perform pgqueue._require_read_committed('reserve');
    perform pgqueue._check_reserve(
        reserve.worker, reserve.max_jobs, reserve.queues, reserve.weights, reserve.lease, reserve.strategy
    );
    v_free := array(select n from generate_series(1, reserve.max_jobs) n);
    v_in_slots := pgqueue._draws_slots(reserve.queues, reserve.weights, reserve.strategy);

    loop
        v_now := pgqueue._clock();
        if v_in_slots then
            -- Each free slot draws a queue among those that have something due. A queue that gives less than was
            -- drawn is out, and the slots that it left free draw again among the others: shares hold within a batch,
            -- and an empty queue costs no turn.
            v_queues := pgqueue._due_queues(reserve.queues, v_now);
            while v_queues <> '{}' and v_free <> '{}' loop
                for v_draw in
                    select d.queue, d.slots
                    from pgqueue._draw(v_free, v_queues, reserve.queues, reserve.weights, reserve.strategy) d
                loop
                    v_rows := '{}';
                    for v_lane in
                        select a.priority, r.resumed
                        from (select distinct x.priority from pgqueue.lanes x where x.queue = v_draw.queue) a
                        cross join (values (true), (false)) r (resumed)
                        order by a.priority desc, r.resumed desc
                    loop
                        v_rows := v_rows || pgqueue._claim_lane(
                            v_draw.queue, v_lane.priority, v_lane.resumed, v_now,
                            cardinality(v_draw.slots) - cardinality(v_rows), case when v_again then v_taken else '{}' end
                        );
                        exit when cardinality(v_rows) = cardinality(v_draw.slots);
                    end loop;
                    v_taken := v_taken || v_rows;
                    v_places := v_places || v_draw.slots[1:cardinality(v_rows)];
                    v_owners := v_owners || array_fill(v_draw.queue, array[cardinality(v_rows)]);
                    v_last_queue := v_draw.queue;
                    if cardinality(v_rows) < cardinality(v_draw.slots) then
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
                select l.queue, l.priority, r.resumed
                from pgqueue._due_lanes(reserve.queues, v_now) l
                cross join (values (true), (false)) r (resumed)
                order by
                    case when reserve.strategy = 'strict' then array_position(reserve.queues, l.queue) end,
                    case when reserve.strategy = 'lag' then l.oldest_of_queue end,
                    case when reserve.strategy = 'lag' then l.queue end,
                    l.priority desc,
                    l.ready_at,
                    l.queue,
                    r.resumed desc
            loop
                v_rows := pgqueue._claim_lane(
                    v_lane.queue, v_lane.priority, v_lane.resumed, v_now, cardinality(v_free),
                    case when v_again then v_taken else '{}' end
                );
                v_taken := v_taken || v_rows;
                v_places := v_places || v_free[1:cardinality(v_rows)];
                v_free := v_free[cardinality(v_rows) + 1:];
                v_last_queue := v_lane.queue;
                exit when v_free = '{}';
            end loop;
        end if;

        exit when v_free = '{}' or v_rescued;
        v_rescued := true;
        v_again := true;
        exit when not pgqueue._rescue_and_find(v_taken = '{}');
    end loop;

    if v_free = '{}' then
        -- There may be more than this worker can carry: pass the wake-up on.
        perform pgqueue._wake(v_last_queue, v_now, 1, reserve.worker);
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
            lease_expires_at = v_now + reserve.lease,
            lease_prolonged = false
        from unnest(v_taken, v_places) taken (row_at, place)
        where j.ctid = taken.row_at
        returning
            taken.place, j.id, j.task, j.args, j.headers, j.queue, j.key, j.priority, j.attempts, j.max_attempts,
            j.reservation, j.run_at, j.created_at, j.lease_expires_at
    )
    select
        c.id, c.task, c.args, c.headers, c.queue, c.key, c.priority::integer, c.attempts,
        coalesce(c.max_attempts, t.max_attempts, 11),
        c.reservation, c.run_at, c.created_at, c.lease_expires_at
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

-- The lanes that have something due, each with the time of its first job, and of its queue's. No lane is scanned: a
-- probe of the ready index each, and a second one for a lane that has nothing due but what came back.
create or replace function pgqueue._due_lanes(p_queues text[], p_now timestamptz)
returns table (queue text, priority smallint, ready_at timestamptz, oldest_of_queue timestamptz)
language plpgsql
volatile
parallel unsafe
rows 10
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_paused text[] := array(select q.name from pgqueue.queues q where q.paused_at is not null);
begin
    return query
    select l.queue, l.priority, first.ready_at, min(first.ready_at) over (partition by l.queue)
    from (
        select a.queue, a.priority
        from pgqueue.lanes a
        where p_queues is null
        union
        select a.queue, a.priority
        from unnest(p_queues) q (name)
        join pgqueue.lanes a on a.queue = q.name
    ) l
    cross join lateral (
        (
            select j.ready_at
            from pgqueue.jobs j
            where j.state in ('waiting', 'failed')
                and j.queue = l.queue
                and j.priority = l.priority
                and j.resumed = false
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
                and j.ready_at <= p_now
            order by j.ready_at, j.id
            limit 1
        )
        limit 1
    ) first
    where l.queue <> all (v_paused);
end
$$;

comment on function pgqueue._due_lanes(text[], timestamptz) is
    'Private: the lanes of these queues (null: all) that have something due and are not paused.';

create or replace function pgqueue._due_queues(p_queues text[], p_now timestamptz)
returns text[]
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_paused text[] := array(select q.name from pgqueue.queues q where q.paused_at is not null);
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
        cross join lateral (
            (
                select j.ready_at
                from pgqueue.jobs j
                where j.state in ('waiting', 'failed')
                    and j.queue = a.queue
                    and j.priority = a.priority
                    and j.resumed = false
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
                    and j.ready_at <= p_now
                order by j.ready_at, j.id
                limit 1
            )
            limit 1
        ) first
        where a.queue = q.name
        limit 1
    ) due
    where q.name <> all (v_paused);
    return v_due;
end
$$;

comment on function pgqueue._due_queues(text[], timestamptz) is 'Private: the queues that have something due and are not paused.';

-- Locks up to p_limit due jobs of one lane, in order, passing over those in p_taken (this call has locked them before,
-- and its own locks hide nothing from it) and cancelling those past their expires_at.
create or replace function pgqueue._claim_lane(
    p_queue text, p_priority smallint, p_resumed boolean, p_now timestamptz, p_limit integer, p_taken tid[]
)
returns tid[]
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_rows tid[];
    v_claimed tid[] := '{}';
    v_expired boolean;
    v_pass_over boolean := false;
begin
    loop
        select
            array_agg(c.row_at) filter (where c.expires_at is null or c.expires_at > p_now),
            coalesce(bool_or(c.expires_at <= p_now), false)
        into v_rows, v_expired
        from (
            select j.ctid as row_at, j.expires_at
            from pgqueue.jobs j
            where j.state in ('waiting', 'failed')
                and j.queue = p_queue
                and j.priority = p_priority
                and j.resumed = p_resumed
                and j.ready_at <= p_now
                and (not v_pass_over or j.expires_at is null or j.expires_at > p_now)
                and j.ctid <> all (p_taken)
            order by j.ready_at, j.id
            limit p_limit - cardinality(v_claimed)
            for update skip locked
        ) c;
        v_claimed := v_claimed || v_rows;
        if not v_expired or v_pass_over then
            return v_claimed;
        end if;
        -- A bounded number is cancelled here; should there be more, they are passed over.
        perform pgqueue._expire_jobs(1000);
        v_pass_over := true;
        p_taken := p_taken || v_claimed;
    end loop;
end
$$;

comment on function pgqueue._claim_lane(text, smallint, boolean, timestamptz, integer, tid[]) is
    'Private: locks up to p_limit due jobs of one lane and returns where they stand.';

-- Whether the slots of a claim each draw a queue. With equal weights they need not: the highest priority over all
-- queues goes first.
create or replace function pgqueue._draws_slots(p_queues text[], p_weights integer[], p_strategy text)
returns boolean
language plpgsql
volatile
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
    v_start integer := floor(random() * cardinality(p_due));
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
begin
    select r.rescued into v_rescued from pgqueue._rescue(100, null) r;
    if p_empty_handed then
        -- Nobody keeps house, so nobody looks for jobs in lanes that are not registered: look here.
        select h.at into v_house_at from pgqueue.housekeeping h order by h.n desc limit 1;
        if v_house_at is null or abs(extract(epoch from pgqueue._clock() - v_house_at)) > 5 then
            v_found := pgqueue._find_lanes();
        end if;
    end if;
    return v_rescued > 0 or v_found > 0;
end
$$;

comment on function pgqueue._rescue_and_find(boolean) is
    'Private: takes back lapsed leases and, where nobody keeps house, finds unregistered lanes.';
