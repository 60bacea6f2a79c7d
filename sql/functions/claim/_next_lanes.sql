-- Which lanes a claim visits where there are more than 64: the next 64 in turn of those that have something due.
--
-- The highest priority comes first, and within a priority the lanes go round by `turn`, a random number of their row, so that
-- no name comes first. Where the round is goes from call to call in a setting of the session, which is only a
-- hint. A claim that found something begins again at the highest priority, behind the last lane; one that draws (is_drawn) goes
-- on, for a draw is over all priorities. A claim that found nothing goes on below that lane as well, so that each gets its visit,
-- though some are empty or at their limits: see the end of reserve. A worker that names its queues visits all of them. Reads only.

-- turn: the last lane's turn, where the round began, the priority, and a + if a draw has found something since the top.
-- is_whole: no lane is left below.
create or replace function pgqueue._next_lanes(
    p_last pgqueue.lane_round, p_queues text[], p_is_drawn boolean, p_now timestamptz,
    out lanes pgqueue.due_lane[], out turn text, out is_drawn boolean, out is_whole boolean
)
language plpgsql
as $$
declare
    v_turn text[] := string_to_array(nullif(coalesce(
        p_last.turn, current_setting(case when p_is_drawn then 'pgqueue.drawn' else 'pgqueue.turn' end, true)
    ), ''), ' ');
    v_last double precision := coalesce(v_turn[1]::double precision, random());
    v_start double precision := coalesce(v_turn[2]::double precision, v_last);
    v_priority smallint := coalesce(v_turn[3]::smallint, 32767::smallint);
    v_pauses boolean := exists (select from pgqueue.pauses p where p.kind = 'queue' and p.until > p_now);
begin
    if p_queues is not null then
        lanes := pgqueue._lanes_of(p_queues, p_now);
        return;
    end if;
    is_drawn := p_is_drawn;
    with recursive priorities as (
        (
            select l.priority
            from pgqueue.lanes l
            where l.due_from = '-infinity' and l.priority <= v_priority
            order by l.priority desc
            limit 1
        )
        union all
        select b.priority
        from priorities p
        cross join lateral (
            select l.priority
            from pgqueue.lanes l
            where l.due_from = '-infinity' and l.priority < p.priority
            order by l.priority desc
            limit 1
        ) b
    )
    select
        array_agg(row(v.queue, v.priority, v.is_fair, null, null, null, null)::pgqueue.due_lane), count(*) < 64, min(v.priority),
        (array_agg(v.turn order by v.n desc))[1]
    into lanes, is_whole, v_priority, v_last
    from (
        select w.queue, p.priority, w.is_fair, w.turn, row_number() over () as n
        from priorities p
        -- With the priority in it, so that the round of one ends before that of the next begins.
        cross join lateral (values (p.priority, v_start, 'infinity'), (p.priority, '-infinity', v_start)) r (priority, low, top)
        cross join lateral (
            select l.queue, l.is_fair, l.turn
            from pgqueue.lanes l
            where l.due_from = '-infinity' and l.priority = r.priority and l.turn > r.low and l.turn <= r.top
            order by l.turn
        ) w
        where (p.priority < v_priority or v_turn[3] is null or (w.turn <= v_start, w.turn) > (v_last <= v_start, v_last))
            and (not v_pauses or exists (
                select from pgqueue.pauses x where x.kind = 'queue' and x.target = w.queue and x.until > p_now
            ) is not true)
        limit 64
    ) v;
    turn := concat_ws(' ', v_last, v_start, v_priority, v_turn[4]);
    if is_whole and v_turn[4] is not null then
        -- Once more, from the top. No v_last: the lanes ended with the last visit.
        turn := coalesce(v_last, v_start)::text;
        is_whole := false;
    end if;
    -- Some lanes are registered twice.
    lanes := array(
        select row(x.queue, x.priority, bool_or(x.is_fair), null, null, null, null)::pgqueue.due_lane
        from (
            select l.queue, l.priority, l.is_fair from unnest(lanes) l
            union all
            -- Their time has come; maintenance moves them in a second.
            select c.queue, c.priority, c.is_fair
            from (
                select l.queue, l.priority, l.is_fair
                from pgqueue.lanes l
                where l.due_from > '-infinity' and l.due_from <= p_now
                limit 64
            ) c
            where v_turn[3] is null and (is_whole or c.priority >= v_priority)
        ) x
        group by x.queue, x.priority
    );
end
$$;

-- Keeps for the next claim of the session where the round is.
create or replace function pgqueue._keep_turn(p_round pgqueue.lane_round, p_has_found boolean)
returns void
language plpgsql
as $$
begin
    perform set_config(
        case when p_round.is_drawn then 'pgqueue.drawn' else 'pgqueue.turn' end,
        case
            when p_round.is_whole or (p_has_found and not p_round.is_drawn) then split_part(p_round.turn, ' ', 1)
            when p_has_found and p_round.turn like '% %' and p_round.turn not like '%+' then p_round.turn || ' +'
            else p_round.turn
        end,
        false
    );
end
$$;

-- The lanes of these queues that have something due.
create or replace function pgqueue._lanes_of(p_queues text[], p_now timestamptz)
returns pgqueue.due_lane[]
language plpgsql stable parallel safe
as $$
begin
    return array(
        select row(l.queue, l.priority, bool_or(l.is_fair), null, null, null, null)::pgqueue.due_lane
        from unnest(p_queues) q (name)
        join pgqueue.lanes l on l.queue = q.name
        where l.due_from <= p_now
        group by l.queue, l.priority
    );
end
$$;
