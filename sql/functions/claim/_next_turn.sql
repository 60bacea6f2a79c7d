-- Drawing: which queue each slot of a claim serves, where queues have weights or the strategy asks for it.
-- What goes from round to round is a pgqueue.draw. turns: the queues to serve, in order, each with the slots that drew it; the
-- first one is being served. among: the queues in which a job may be due. undrawn: slots that draw again once all turns are
-- over. jobs: what was claimed; filled: the slots that each queue filled in earlier turns.
-- Where there are more than 64 lanes, a claim that serves all queues draws among those of the next 64 in turn, over all
-- priorities (round), and, by weight, also among all that have one. share: how many each of the 64 without one stands for.

-- p_free: how many slots of the first turn are free, or, if there is none yet, how many draw. In the end turns is empty.
create or replace function pgqueue._next_turn(
    p_draw pgqueue.draw, p_free integer, p_queues text[], p_weights integer[], p_strategy text, p_now timestamptz
)
returns pgqueue.draw
language plpgsql
as $$
declare
    v_draw pgqueue.draw := p_draw;
    v_turn pgqueue.turn;
    v_used integer;
    v_due_lanes integer;
    v_lanes pgqueue.due_lane[];
    v_round pgqueue.lane_round;
begin
    if v_draw.turns is null then
        v_draw.undrawn := array(select generate_series(1, p_free));
        if p_queues is null then
            v_due_lanes := (select h.due_lanes from pgqueue.maintenance_runs h order by h.n desc limit 1);
        end if;
        if v_due_lanes is not null then
            select n.* into v_round from pgqueue._next_lanes(null, null, true, p_now) n;
            v_draw.round := v_round;
            v_lanes := v_round.lanes;
            v_draw.share := greatest(v_due_lanes / 64, 1);
            if p_strategy = 'weighted' then
                v_lanes := v_lanes || pgqueue._lanes_of(array(select q.name from pgqueue.queues q where q.weight <> 1), p_now);
            end if;
        end if;
        v_draw.among := array(
            select distinct a.queue
            from (
                select x.queue
                from pgqueue.lanes x
                where v_lanes is null and (p_queues is null or x.queue = any (p_queues))
                union all
                select x.queue from unnest(v_lanes) x
            ) a
            where not exists (select from pgqueue.pauses p where p.kind = 'queue' and p.target = a.queue and p.until > p_now)
        );
    elsif v_draw.turns <> '{}' then
        v_turn := v_draw.turns[1];
        v_used := cardinality(v_turn.slots) - p_free;
        v_draw.filled := v_draw.filled || row(v_turn.queue, v_turn.slots[:v_used])::pgqueue.turn;
        if p_free > 0 then
            -- The queue has too few jobs.
            v_draw.among := array_remove(v_draw.among, v_turn.queue);
            if p_strategy = 'lag' and cardinality(v_draw.turns) > 1 then
                v_draw.turns[2].slots := v_turn.slots[v_used + 1:];
            else
                v_draw.undrawn := v_draw.undrawn || v_turn.slots[v_used + 1:];
            end if;
        end if;
    end if;
    v_draw.turns := coalesce(v_draw.turns[2:], '{}');
    if v_draw.turns = '{}' and v_draw.undrawn <> '{}' and v_draw.among <> '{}' then
        v_draw.turns := array(
            select row(d.queue, d.slots)::pgqueue.turn
            from pgqueue._draw(v_draw, p_queues, p_weights, p_strategy, p_now) d
        );
        v_draw.undrawn := '{}';
    end if;
    return v_draw;
end
$$;

-- Plain jobs of all turns at once: one query finds them, in the order of their slots, for one take. candidates: a rule may
-- touch some of them. Then each turn is found and taken by itself, for what a limit lets one start depends on those before.
create or replace function pgqueue._find_turns(
    inout draw pgqueue.draw, p_worker text, p_now timestamptz, p_skipped tid[],
    out rows tid[], out candidates pgqueue.candidate[], out last_queue text, out short boolean, out unmaintained boolean
)
language plpgsql
as $$
begin
    with found as materialized (
        select t.queue, t.slots, f.*
        from unnest(draw.turns) t
        cross join lateral pgqueue._find_due(
            p_worker, array[t.queue], null, null, cardinality(t.slots), p_now, p_skipped, false,
            pgqueue._lanes_of(array[t.queue], p_now)
        ) f
    )
    select
        array(
            select u.row_ctid
            from found x
            cross join lateral unnest(x.rows, x.slots) u (row_ctid, slot)
            where u.row_ctid is not null
            order by u.slot
        ),
        (select x.candidates from found x where x.candidates is not null limit 1),
        max(f.last_queue), bool_or(f.short), bool_or(f.unmaintained),
        array(select unnest(x.slots[cardinality(x.rows) + 1:]) from found x),
        array(select unnest(draw.among) except select x.queue from found x where cardinality(x.rows) < cardinality(x.slots))
    into rows, candidates, last_queue, short, unmaintained, draw.undrawn, draw.among
    from found f;
    draw.turns := '{}';
end
$$;

-- A slot that drew again may come before the slots that its new queue has. The jobs of a queue keep their order, and those of
-- a batch share their slot. A claim that is full ends within a turn, of which each slot is filled then.
create or replace function pgqueue._jobs_by_slot(p_draw pgqueue.draw)
returns setof pgqueue.claimed_job
language plpgsql immutable parallel safe rows 100
-- reserve has it off: each job would be compared with each slot.
set enable_hashjoin = on
as $$
begin
    return query
    select (j.job).*
    from (
        select b.job, b.n, dense_rank() over (partition by (b.job).queue order by b.first_n) as k
        from (
            select u.job, u.n, min(u.n) over (partition by coalesce((u.job).leader, (u.job).id)) as first_n
            from (select p_draw.jobs[i] as job, i as n from generate_subscripts(p_draw.jobs, 1) i) u
        ) b
    ) j
    join (
        select f.queue, s.slot, row_number() over (partition by f.queue order by s.slot) as k
        from unnest(p_draw.filled || p_draw.turns[1]) f
        cross join lateral unnest(f.slots) s (slot)
    ) s on s.queue = (j.job).queue and s.k = j.k
    order by s.slot, j.n;
end
$$;

-- Those of p_queues in which a job is due.
create or replace function pgqueue._due_queues(p_queues text[], p_now timestamptz)
returns text[]
language plpgsql
as $$
begin
    -- One lane with a due job is enough for its queue.
    return array(
        select q.name
        from unnest(p_queues) q (name)
        cross join lateral (
            select
            from pgqueue.lanes a
            cross join (values (false), (true)) r (resumed)
            cross join lateral (select x.* from pgqueue._head(a.queue, a.priority, r.resumed) x offset 0) h
            cross join lateral pgqueue._first_ready(a.queue, a.priority, r.resumed, h.head, h.head_id, p_now)
            where a.queue = q.name
            limit 1
        ) due
    );
end
$$;

-- Whether each slot of a claim draws a queue. With equal weights none does: the highest priority over all queues is first.
create or replace function pgqueue._draws_slots(p_queues text[], p_strategy text)
returns boolean
language plpgsql stable parallel safe
as $$
begin
    -- Few queues have a weight; a weight of 1 is the default.
    return p_strategy = 'round_robin' or (
        p_strategy = 'weighted'
        and exists (select from pgqueue.queues q where q.weight <> 1 and (p_queues is null or q.name = any (p_queues)))
    );
end
$$;

-- weighted: every slot is an independent draw, a queue's chance being its share of the weights of the queues in which a
-- job is due. Asking each queue whether one is costs most of a claim where there are hundreds. So each slot draws three times
-- among all queues, only drawn ones are asked, and the first draw with a due job counts; a slot without one draws among
-- all that are due. Leaving out draws that do not count changes no share.
-- round_robin: from a random queue on, in turn.
create or replace function pgqueue._draw(p_draw pgqueue.draw, p_queues text[], p_weights integer[], p_strategy text, p_now timestamptz)
returns table (queue text, slots integer[])
language plpgsql rows 10
as $$
declare
    v_share integer := coalesce(p_draw.share, 1);
    v_due text[];
    v_start integer;
    v_slots integer[];
    v_placed integer[];
    v_queues text[];
begin
    if p_strategy = 'lag' then
        return query
        select l.queue, p_draw.undrawn
        from pgqueue._due_lanes(p_draw.among, null, p_now) l
        group by l.queue
        order by min(l.lane_ready_at), l.queue;
        return;
    elsif p_strategy = 'round_robin' then
        v_due := pgqueue._due_queues(p_draw.among, p_now);
        v_start := floor(random() * cardinality(v_due))::integer;
        return query
        select v_due[1 + (v_start + s.n::integer) % cardinality(v_due)], array_agg(s.slot order by s.slot)
        from unnest(p_draw.undrawn) with ordinality s (slot, n)
        where v_due <> '{}'
        group by 1;
        return;
    end if;
    v_slots := p_draw.undrawn;
    -- Where there are few queues, asking all of them costs less.
    if cardinality(p_draw.among) > 3 * cardinality(v_slots) then
        with drawn as materialized (
            select d.*
            from pgqueue._draw_by_weight(
                array(select s.slot from unnest(v_slots) s (slot) cross join generate_series(1, 3)),
                p_draw.among, p_queues, p_weights, v_share
            ) with ordinality d (slot, queue, n)
        )
        select array_agg(p.slot), array_agg(p.queue) into v_placed, v_queues
        from (
            select distinct on (d.slot) d.slot, d.queue
            from drawn d
            join unnest(pgqueue._due_queues(array(select distinct x.queue from drawn x), p_now)) u (queue) on u.queue = d.queue
            order by d.slot, d.n
        ) p;
        v_slots := array(select s.slot from unnest(v_slots) s (slot) where (s.slot = any (v_placed)) is not true);
    end if;
    return query
    select f.queue, array_agg(f.slot order by f.slot)
    from (
        select p.slot, p.queue from unnest(v_placed, v_queues) p (slot, queue)
        union all
        select d.slot, d.queue
        from pgqueue._draw_by_weight(v_slots, pgqueue._due_queues(p_draw.among, p_now), p_queues, p_weights, v_share) d
        where v_slots <> '{}'
    ) f
    group by f.queue;
end
$$;

-- The first pick of Efraimidis and Spirakis (Weighted random sampling with a reservoir, 2006: the largest of u^(1/w)),
-- drawn here by its distribution, which costs one random number for a slot instead of one for each queue and slot.
create or replace function pgqueue._draw_by_weight(
    p_slots integer[], p_among text[], p_queues text[], p_weights integer[], p_share integer
)
returns table (slot integer, queue text)
language plpgsql rows 10
as $$
declare
    v_names text[];
    v_bounds double precision[];
begin
    select array_agg(w.queue order by w.queue), array_agg(w.bound order by w.queue) into v_names, v_bounds
    from (
        select
            d.queue,
            sum(coalesce(p_weights[array_position(p_queues, d.queue)], nullif(q.weight, 1), p_share)) over (order by d.queue)
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
