-- Choosing: which lanes a claim visits, in which order, and which of its slots each queue may fill.

-- No lane is scanned: each costs two probes of the ready index, one for each of its sub-lanes.
-- Where slots draw their queues, slots holds the slots that drew this queue; else every queue may fill all slots, and slots
-- is null.
create or replace function pgqueue._choose(
    p_queues text[], p_weights integer[], p_strategy text, p_draws boolean, p_slots integer[], p_among text[],
    p_now timestamptz, p_without text[]
)
returns table (
    queue text, priority smallint, resumed boolean, head timestamptz, head_id bigint, head_at timestamptz, slots integer[]
)
language plpgsql
volatile
parallel unsafe
rows 10
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_without text[];
begin
    if p_draws then
        if p_among <> '{}' then
            return query
            select d.queue, a.priority, r.resumed, h.head, h.head_id, h.at, d.slots
            from pgqueue._draw(p_slots, p_among, p_queues, p_weights, p_strategy, p_now) d
            cross join lateral (select distinct x.priority from pgqueue.lanes x where x.queue = d.queue) a
            cross join (values (true), (false)) r (resumed)
            cross join lateral pgqueue._head(d.queue, a.priority, r.resumed) h
            order by d.queue, a.priority desc, r.resumed desc;
        end if;
        return;
    end if;
    v_without := p_without || array(select q.name from pgqueue.queues q where q.paused_at is not null);
    return query
    select l.queue, l.priority, l.resumed, l.head, l.head_id, l.head_at, null::integer[]
    from (
        select a.*, min(a.lane_ready_at) over (partition by a.queue) as oldest_of_queue
        from pgqueue._due_lanes(p_queues, p_now) a
        where a.queue <> all (v_without)
    ) l
    order by
        case when p_strategy = 'strict' then array_position(p_queues, l.queue) end,
        case when p_strategy = 'lag' then l.oldest_of_queue end,
        case when p_strategy = 'lag' then l.queue end,
        l.priority desc,
        l.lane_ready_at,
        l.queue,
        l.resumed desc;
end
$$;

comment on function pgqueue._choose(text[], integer[], text, boolean, integer[], text[], timestamptz, text[]) is
    'Private: the sub-lanes to claim from, in serving order, with their heads; without paused queues and those in p_without. p_among: the queues to draw from.';

create or replace function pgqueue._queues_to_draw(p_queues text[], p_without text[])
returns text[]
language plpgsql
stable
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
begin
    return array(
        select distinct a.queue
        from pgqueue.lanes a
        where (p_queues is null or a.queue = any (p_queues))
            and a.queue <> all (p_without)
            and not exists (select from pgqueue.queues q where q.name = a.queue and q.paused_at is not null)
    );
end
$$;

comment on function pgqueue._queues_to_draw(text[], text[]) is
    'Private: the queues in which a job may be due, without paused queues and those in p_without.';

create or replace function pgqueue._due_of(p_queues text[], p_now timestamptz)
returns text[]
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
begin
    -- One lane with a due job is enough for its queue.
    return array(
        select q.name
        from unnest(p_queues) q (name)
        cross join lateral (
            select
            from pgqueue.lanes a
            cross join lateral pgqueue._head(a.queue, a.priority, false) h
            cross join lateral pgqueue._head(a.queue, a.priority, true) r
            cross join lateral (
                (select f.ready_at from pgqueue._first_ready(a.queue, a.priority, false, h.head, h.head_id, p_now) f)
                union all
                (select f.ready_at from pgqueue._first_ready(a.queue, a.priority, true, r.head, r.head_id, p_now) f)
                limit 1
            ) first
            where a.queue = q.name
            limit 1
        ) due
    );
end
$$;

comment on function pgqueue._due_of(text[], timestamptz) is 'Private: those of p_queues in which a job is due.';

-- Whether each slot of a claim draws a queue. With equal weights none does: the highest priority over all queues goes
-- first.
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
    -- Few queues have a weight; a weight of 1 is the default.
    return exists (
        select
        from pgqueue.queues q
        where q.weight <> 1 and (p_queues is null or q.name = any (p_queues))
    );
end
$$;

comment on function pgqueue._draws_slots(text[], integer[], text) is
    'Private: true where each slot of a claim draws its queue.';

-- weighted: every slot is an independent draw, a queue's chance being its share of the weights of the queues in which a
-- job is due. Asking each queue whether one is costs most of a claim where there are hundreds. So each slot draws three times
-- among all queues, only drawn ones are asked, and the first draw with a due job counts; a slot without one draws among
-- all that are due. Leaving out draws that do not count changes no share.
-- round_robin: from a random queue on, in turn.
create or replace function pgqueue._draw(
    p_slots integer[], p_among text[], p_queues text[], p_weights integer[], p_strategy text, p_now timestamptz
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
    v_start integer;
begin
    if p_strategy = 'round_robin' then
        v_due := pgqueue._due_of(p_among, p_now);
        v_start := floor(random() * cardinality(v_due))::integer;
        return query
        select v_due[1 + (v_start + s.n::integer) % cardinality(v_due)], array_agg(s.slot order by s.slot)
        from unnest(p_slots) with ordinality s (slot, n)
        where v_due <> '{}'
        group by 1;
        return;
    end if;
    if cardinality(p_among) <= 3 * cardinality(p_slots) then
        -- Few queues: asking all of them costs less.
        return query
        select d.queue, array_agg(d.slot order by d.slot)
        from pgqueue._draw_by_weight(p_slots, pgqueue._due_of(p_among, p_now), p_queues, p_weights) d
        group by d.queue;
        return;
    end if;
    return query
    with drawn as materialized (
        select d.*
        from pgqueue._draw_by_weight(
            array(select s.slot from unnest(p_slots) s (slot) cross join generate_series(1, 3)),
            p_among, p_queues, p_weights
        ) with ordinality d (slot, queue, n)
    ),
    placed as materialized (
        select distinct on (d.slot) d.slot, d.queue
        from drawn d
        join unnest(pgqueue._due_of(array(select distinct x.queue from drawn x), p_now)) u (queue) on u.queue = d.queue
        order by d.slot, d.n
    ),
    left_over as (
        select array_agg(s.slot) as slots
        from unnest(p_slots) s (slot)
        where s.slot not in (select p.slot from placed p)
    ),
    filled as (
        select p.slot, p.queue from placed p
        union all
        select d.slot, d.queue
        from left_over l
        cross join lateral pgqueue._draw_by_weight(l.slots, pgqueue._due_of(p_among, p_now), p_queues, p_weights) d
        where l.slots is not null
    )
    select f.queue, array_agg(f.slot order by f.slot) from filled f group by f.queue;
end
$$;

comment on function pgqueue._draw(integer[], text[], text[], integer[], text, timestamptz) is
    'Private: gives each free slot of a claim a queue in which a job is due; no rows where no job is due in p_among.';

-- The first pick of Efraimidis and Spirakis (Weighted random sampling with a reservoir, 2006: the largest of u^(1/w)),
-- drawn here by its distribution, which costs one random number for a slot instead of one for each queue and slot.
create or replace function pgqueue._draw_by_weight(
    p_slots integer[], p_among text[], p_queues text[], p_weights integer[]
)
returns table (slot integer, queue text)
language plpgsql
volatile
parallel unsafe
rows 10
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_names text[];
    v_bounds double precision[];
begin
    select array_agg(w.queue order by w.queue), array_agg(w.bound order by w.queue)
    into v_names, v_bounds
    from (
        select
            d.queue,
            sum(coalesce(p_weights[array_position(p_queues, d.queue)], q.weight, 1)) over (order by d.queue)
                ::double precision as bound
        from unnest(p_among) d (queue)
        left join pgqueue.queues q on q.name = d.queue
    ) w;
    return query
    select u.slot, v_names[1 + width_bucket(random() * v_bounds[cardinality(v_bounds)], v_bounds)]
    from unnest(p_slots) u (slot)
    where v_names is not null;
end
$$;

comment on function pgqueue._draw_by_weight(integer[], text[], text[], integer[]) is
    'Private: a queue of p_among for each slot, drawn by weight; no rows where p_among is empty.';

-- A slot that drew again may come before the slots that its new queue already has. The jobs of a queue must keep their
-- order. p_rows: in the order in which they were taken.
create or replace function pgqueue._in_turn(p_rows tid[], p_slots integer[])
returns integer[]
language plpgsql
stable
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
begin
    return array(
        with taken as (
            select w.slot, w.n, j.queue
            from unnest(p_rows, p_slots) with ordinality w (row_ctid, slot, n)
            join pgqueue.jobs j on j.ctid = w.row_ctid
        ),
        batches as (
            select
                t.queue, t.slot,
                row_number() over (partition by t.queue order by min(t.n)) as taken_as,
                row_number() over (partition by t.queue order by t.slot) as stands_as
            from taken t
            group by t.queue, t.slot
        )
        select b.slot
        from taken t
        join batches a on a.queue = t.queue and a.slot = t.slot
        join batches b on b.queue = a.queue and b.stands_as = a.taken_as
        order by t.n
    );
end
$$;

comment on function pgqueue._in_turn(tid[], integer[]) is
    'Private: the slots of claimed jobs, permuted so that the jobs of a queue keep the order in which they were claimed.';
