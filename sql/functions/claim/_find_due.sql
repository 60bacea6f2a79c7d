-- Finding: the due jobs of a claim, locked, in serving order. The first step of a round; then come _decide_starts and _take_jobs.
--
-- What rules touch is known from the rows that are read with a lane and with a job: sql/README.md lists them. The lanes of a
-- paused queue are left out, those of a queue under a limit give what it has capacity for, and where slots draw their queues
-- nothing is locked. Each node of this plan costs every claim about a microsecond or three, whether it runs or not: what few
-- claims need stands in functions, which cost nothing unless they are called.
--
-- Its first statement, from the inside out: run is what maintenance left; lanes are the sub-lanes that have something due, in
-- serving order, each with what a claim must know of its queue; c are their jobs, locked up to p_jobs; f makes arrays of them.
-- Beside it go those lanes in which tenants take turns, which are found one by one afterwards.

-- p_lanes: only these, of p_queues. rows: the locked jobs. candidates: those of them that a rule may touch, or all if p_all;
-- null: none. short: there are fewer, and a reason to look for more. unmaintained: no session runs maintenance. is_unread: there
-- are more than 64 lanes and none were given, so nothing was read: see _next_lanes.
create or replace function pgqueue._find_due(
    p_worker text, p_queues text[], p_strategy text, p_draws boolean, p_jobs integer, p_now timestamptz, p_skipped tid[],
    p_all boolean, p_lanes pgqueue.due_lane[],
    out rows tid[], out candidates pgqueue.candidate[], out last_queue text, out short boolean, out unmaintained boolean,
    out is_unread boolean
)
language plpgsql
as $$
declare
    v_lanes pgqueue.due_lane[];
    v_lane pgqueue.due_lane;
    v_busy text[];
    v_more record;
begin
    with run as materialized (
        select h.at between p_now - interval '2 s' and p_now as is_current, h.due_lanes, h.busy_lanes
        from (values (1)) one (row)
        left join lateral (
            select r.at, r.due_lanes, r.busy_lanes from pgqueue.maintenance_runs r order by r.n desc limit 1
        ) h on true
    ),
    lanes as materialized (
        select
            l.queue, l.priority, l.resumed, l.head, l.head_id, l.is_fair,
            exists (select from pgqueue.limits x where x.kind = 'queue' and x.target = l.queue) as is_limited,
            -- Where slots draw their queues, each is found by itself.
            min(l.queue) over () <> max(l.queue) over () and coalesce(
                p_draws,
                (select true from pgqueue.queues q where q.weight <> 1 and (p_queues is null or q.name = any (p_queues)) limit 1),
                false
            ) as is_drawn,
            bool_or(l.is_fair) over () as takes_turns
        from run m
        cross join lateral pgqueue._due_lanes(
            p_queues, case when m.due_lanes is null then p_lanes else coalesce(p_lanes, '{}') end, p_now
        ) l
        where exists (
            select from pgqueue.pauses p where p.kind = 'queue' and p.target = l.queue and p.until > p_now
        ) is not true
        order by
            case when p_strategy = 'strict' then array_position(p_queues, l.queue) end,
            l.priority desc, l.lane_ready_at, l.queue, l.resumed desc
    )
    select
        f.rows,
        f.candidates,
        f.queues[cardinality(f.queues)],
        m.is_current is not true,
        p_lanes is null and m.due_lanes is not null,
        (
            select array_agg(row(t.queue, t.priority, t.is_fair, t.is_limited, t.resumed, t.head, t.head_id)::pgqueue.due_lane)
            from lanes t
            where t.takes_turns and not t.is_drawn and (t.resumed or cardinality(f.rows) < p_jobs)
        ),
        case when m.is_current then m.busy_lanes end
    into rows, candidates, last_queue, unmaintained, is_unread, v_lanes, v_busy
    from run m
    cross join (
        select
            coalesce(array_agg(c.row_ctid), '{}') as rows,
            array_agg(c.queue) as queues,
            array_agg(
                row(c.row_ctid, c.id, c.queue, c.task, c.key, c.limit_key, c.is_expired, c.is_limited)::pgqueue.candidate
            ) filter (where p_all or c.is_limited or c.key is not null or c.is_expired) as candidates
        from (
            select
                j.*,
                l.is_limited or j.task = any ((select pgqueue._ruled_tasks(p_now))::text[])
                    or (j.limit_key is not null and (select pgqueue._has_rules_of_tenants(p_now))) as is_limited
            from lanes l
            cross join lateral (
                select j.ctid as row_ctid, j.id, j.queue, j.task, j.key, j.limit_key, j.expires_at <= p_now as is_expired
                from pgqueue.jobs j
                where j.state in ('waiting', 'failed') and j.queue = l.queue and j.priority = l.priority
                    and j.resumed = l.resumed and (j.ready_at, j.id) >= (l.head, l.head_id) and j.ready_at <= p_now
                    and (p_skipped is null or j.ctid <> all (p_skipped))
                    and (l.resumed or not l.takes_turns) and not l.is_drawn
                order by j.ready_at, j.id
                limit case
                    when not l.is_limited then p_jobs
                    -- All candidates go through _within_limits.
                    when p_all then p_jobs * sign(pgqueue._queue_capacity(l.queue, 1, p_now))::integer
                    else pgqueue._queue_capacity(l.queue, p_jobs, p_now)
                end
                for update skip locked
            ) j
            limit p_jobs
        ) c
    ) f;
    if v_lanes is not null then
        foreach v_lane in array v_lanes loop
            if v_lane.resumed and v_lane.is_fair and rows <> '{}' then
                -- What came back is locked by now, and takes slots of its tenant.
                perform pgqueue._note_held(p_worker, v_lane.queue, p_skipped || rows, p_now);
            end if;
            continue when v_lane.resumed or cardinality(rows) = p_jobs;
            if v_lane.is_fair then
                v_more := pgqueue._find_in_turn(p_worker, v_lane, v_busy, p_jobs - cardinality(rows), p_now, p_skipped || rows, p_all);
            else
                v_more := pgqueue._find_due(
                    p_worker, array[v_lane.queue], null, false, p_jobs - cardinality(rows), p_now, p_skipped || rows, p_all,
                    array[v_lane]
                );
            end if;
            rows := rows || v_more.rows;
            candidates := nullif(candidates || v_more.candidates, '{}');
            last_queue := case when v_more.rows <> '{}' then v_lane.queue else last_queue end;
        end loop;
    end if;
    short := cardinality(rows) < p_jobs;
    if short and not unmaintained then
        short := exists (
            -- Lapsed leases matter to a claim that comes up short.
            select
            from pgqueue._head('', 0::smallint, false) h
            cross join lateral (
                select
                from pgqueue.jobs j
                where j.state = 'executing' and (j.lease_expires_at, j.id) >= (h.head, h.head_id) and j.lease_expires_at <= p_now
                limit 1
            ) lapsed
        )
        -- What is older is for maintenance: see _rescue_and_find.
        or exists (select from pgqueue.key_notes k where k.n > (select pg_sequence_last_value('pgqueue.key_notes_n_seq')) - 1000)
        or exists (select from pgqueue.notes)
        -- No EXISTS: that would have no order, and any index.
        or (
            select true from pgqueue.limit_waits w where w.next_at between p_now - interval '10 s' and p_now order by w.next_at limit 1
        ) is not null;
    end if;
end
$$;

-- The tasks that have a limit or are paused. A sequence says whether there ever was a row: until then no table is read.
create or replace function pgqueue._ruled_tasks(p_now timestamptz)
returns text[]
language plpgsql stable parallel safe
as $$
begin
    if num_nulls(pg_sequence_last_value('pgqueue.limits_n_seq'::regclass), pg_sequence_last_value('pgqueue.pauses_n_seq'::regclass)) = 2 then
        return '{}'::text[];
    end if;
    return array(
        select x.target from pgqueue.limits x where x.kind = 'task' and num_nonnulls(x.max_executing, x.rate, x.max_cost) > 0
        union all
        select p.target from pgqueue.pauses p where p.kind = 'task' and p.until > p_now
    );
end
$$;

-- Whether a limit_key has a limit or is paused.
create or replace function pgqueue._has_rules_of_tenants(p_now timestamptz)
returns boolean
language plpgsql stable parallel safe
as $$
begin
    if num_nulls(pg_sequence_last_value('pgqueue.limits_n_seq'::regclass), pg_sequence_last_value('pgqueue.pauses_n_seq'::regclass)) = 2 then
        return false;
    end if;
    return exists (
            select from pgqueue.limits x where x.kind = 'limit_key' and num_nonnulls(x.max_executing, x.rate, x.max_cost) > 0
        )
        or exists (select from pgqueue.pauses p where p.kind = 'limit_key' and p.until > p_now);
end
$$;

-- Inlined. p_lanes null: all lanes of p_queues.
create or replace function pgqueue._due_lanes(p_queues text[], p_lanes pgqueue.due_lane[], p_now timestamptz)
returns table (
    queue text, priority smallint, resumed boolean, lane_ready_at timestamptz, head timestamptz, head_id bigint, is_fair boolean
)
language sql stable parallel safe rows 10
as $$
    select
        a.queue, a.priority, r.resumed,
        first_value(f.ready_at) over (partition by a.queue, a.priority order by r.resumed),
        h.head, h.head_id, a.is_fair
    from (
        select x.queue, x.priority, bool_or(x.is_fair) as is_fair
        from pgqueue.lanes x
        where p_lanes is null and (p_queues is null or x.queue = any (p_queues))
        group by x.queue, x.priority
        union all
        select y.queue, y.priority, y.is_fair from unnest(p_lanes) y
    ) a
    cross join (values (false), (true)) r (resumed)
    cross join lateral (select x.* from pgqueue._head(a.queue, a.priority, r.resumed) x offset 0) h
    cross join lateral pgqueue._first_ready(a.queue, a.priority, r.resumed, h.head, h.head_id, p_now) f
$$;
