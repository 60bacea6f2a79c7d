-- Finding in fair queues: the due jobs of a claim, locked, where tenants take turns. _lane_of.sql says what their lanes are.
--
-- A claim goes round the lanes of one queue and priority, as many jobs of each as its tenant's share says, from where the last
-- claim of this worker ended (pgqueue.turns; without a turn it draws a lane that is due): so a flood of one tenant delays no
-- other by more than one round. One statement is a pass: once through all lanes, or until the claim is full; each lane is one
-- probe. The next pass continues there, for as many rounds at once as the lanes need that have more: two a claim, as a rule.
-- Where it ended is written, unless the last claim ended there. What a tenant could not take because the claim was full it has
-- first in the next one. At most 64 lanes in which nothing is due are probed, then the claim ends where it is, and its worker is
-- woken to continue: until such claims have been once round and found nothing, for what is there may not start (turns.began).
-- Where handlers are long, a turn of starts would give a tenant with jobs of a minute all slots in the end: tenants whose long
-- jobs are more than their part come after all others.
-- Jobs that are in no lane come last; but in one claim of sixteen one of them comes first, so that no flood keeps them waiting.

-- p_busy: the lanes that come last, as _busy_tenants has them.
create or replace function pgqueue._find_in_turn(
    p_worker text, p_lane pgqueue.due_lane, p_busy text[], p_jobs integer, p_now timestamptz, p_skipped tid[], p_all boolean,
    out rows tid[], out candidates pgqueue.candidate[]
)
language plpgsql
as $$
declare
    v_heads constant text := pgqueue._head_name(p_lane.queue, '');
    v_want integer := case when p_lane.is_limited then pgqueue._queue_capacity(p_lane.queue, p_jobs, p_now) else p_jobs end;
    v_read bigint := pg_stat_get_xact_tuples_returned('pgqueue.jobs_in_lanes'::regclass);
    v_turn pgqueue.tenant_turn;
    -- The lanes of what its worker holds, where one has max_share.
    v_held text[];
    v_is_noted boolean;
    v_drawn text;
    v_walk record;
    v_others record;
    -- Whether the claim ends before it has been round, and where a round of such claims began.
    v_is_cut boolean := false;
    v_began text collate "C";
begin
    rows := '{}';
    candidates := '{}';
    if (v_want > 0) is not true then
        return;
    end if;
    select
        -- A round of claims that find nothing takes no pauses: after five seconds another one begins.
        t.lane_key, t.credit, case when t.at > p_now - interval '5 s' then t.began end,
        pg_sequence_last_value('pgqueue.shares_n_seq'::regclass) is not null,
        exists (select from pgqueue.queues q where q.name = p_lane.queue and q.max_share < 1),
        pgqueue._has_rules_of_tenants(p_now),
        -- The last one first: behind it may be many dead rows.
        (
            select v_heads
            from pgqueue.heads h
            where h.queue > v_heads and h.queue < v_heads || 'g'
            order by h.queue desc, h.priority desc, h.resumed desc, h.n desc
            limit 1
        )
    into v_turn
    from (select) one
    left join lateral (
        select x.lane_key, x.credit, x.began, x.at
        from pgqueue.turns x
        where x.worker = p_worker and x.queue = p_lane.queue and x.priority = p_lane.priority
        order by x.worker desc, x.queue desc, x.priority desc, x.n desc
        limit 1
    ) t on true;
    -- Else another claim of this worker is under way. Later statements count what had been claimed before the lock was free.
    if v_turn.is_shared and not pg_try_advisory_xact_lock(pgqueue._lock_class(), hashtext('share:' || p_worker) | -2147483648) then
        return;
    end if;
    if random() < 0.0625 then
        select coalesce(o.rows, '{}'), coalesce(o.candidates, '{}') into rows, candidates
        from pgqueue._lock_outside_lanes(p_lane, 1, p_now, p_skipped, p_all) o;
        v_want := v_want - cardinality(rows);
    end if;
    if v_turn.is_shared then
        select h.lanes, h.is_noted into v_held, v_is_noted from pgqueue._held_in(p_worker, p_lane.queue, p_skipped || rows) h;
    end if;
    if p_busy is not null then
        p_busy := array(select substr(b.name, length(v_heads) + 1) from unnest(p_busy) b (name) where starts_with(b.name, v_heads));
    end if;
    if v_turn.lane_key is null then
        -- The first claim of a worker: one of the lanes that are due, each by its share. See _draw_by_weight.
        v_drawn := (
            select d.lane_key
            from (
                select x.lane_key from pgqueue._lanes_in_turn(p_lane.queue, p_lane.priority, E'\x01', '{}', p_now) x limit 10000
            ) d
            order by case when v_turn.has_shares then -ln(1 - random()) / pgqueue._share_of(substr(d.lane_key, 9)) else random() end
            limit 1
        );
    end if;
    v_walk := pgqueue._walk_lanes(
        p_worker, p_lane, v_turn, p_busy, v_held, p_now, p_skipped, p_all, v_want, rows, candidates, coalesce(v_drawn, E'\x01')
    );
    rows := v_walk.rows;
    candidates := v_walk.candidates;
    if v_walk.is_stopped then
        v_began := case when rows = '{}' then coalesce(v_turn.began, v_walk.from_key) end;
        -- Else the next claim would begin where the round did, or behind that.
        v_is_cut := ((v_walk.next_key < v_began, v_walk.next_key collate "C") <= (v_walk.from_key < v_began, v_walk.from_key)) is not true;
        v_began := case when v_is_cut then v_began end;
        perform pg_notify(pgqueue._channel(p_worker), 'wake') where v_is_cut and pgqueue._may_notify();
    end if;
    if v_walk.lane_key is not null
        and (v_walk.lane_key, v_walk.credit, v_began) is distinct from (v_turn.lane_key, v_turn.credit, v_turn.began)
    then
        if random() < 0.0625 then
            -- A claim that looks for the newest row reads a whole page of the index.
            delete from pgqueue.turns t
            where t.ctid = any (array(
                select x.ctid
                from pgqueue.turns x
                where x.worker = p_worker and x.queue = p_lane.queue and x.priority = p_lane.priority
                limit 1000
                for update skip locked
            ));
        end if;
        insert into pgqueue.turns (worker, queue, priority, lane_key, credit, began, at)
        values (p_worker, p_lane.queue, p_lane.priority, v_walk.lane_key, v_walk.credit, v_began, p_now);
    end if;
    if v_walk.wanted > 0 and not v_is_cut then
        v_others := pgqueue._lock_outside_lanes(p_lane, v_walk.wanted, p_now, p_skipped || rows, p_all);
        rows := rows || v_others.rows;
        candidates := candidates || v_others.candidates;
    end if;
    -- Walking over 400 entries of an old snapshot, beyond the few that any claim walks, costs as much as moving a head.
    if rows <> '{}' and random() * (500 + 400 * cardinality(rows))
        < pg_stat_get_xact_tuples_returned('pgqueue.jobs_in_lanes'::regclass) - v_read - 5 * cardinality(rows)
    then
        perform pgqueue._move_heads_of(rows, -1, false, null, null);
    end if;
    if v_turn.is_shared and (rows <> '{}' or not v_is_noted) then
        perform pgqueue._note_held(p_worker, p_lane.queue, p_skipped || rows, p_now);
    end if;
end
$$;

-- Passes, until the claim is full. wanted: how many jobs are to be locked, and how many of these there are not; rows and candidates
-- are added to. from_key: where to begin without a turn, and where the last pass began. lane_key, credit: where the next claim goes
-- on. is_stopped: as many lanes as a pass may probe did not fill the claim, which ends at the last one, before next_key.
create or replace function pgqueue._walk_lanes(
    p_worker text, p_lane pgqueue.due_lane, p_turn pgqueue.tenant_turn, p_busy text[], p_held text[], p_now timestamptz,
    p_skipped tid[], p_all boolean, inout wanted integer, inout rows tid[], inout candidates pgqueue.candidate[],
    inout from_key text, out lane_key text, out credit integer, out is_stopped boolean, out next_key text
)
language plpgsql
as $$
declare
    v_queue constant text := p_lane.queue;
    v_priority constant smallint := p_lane.priority;
    v_busy text[] := coalesce(p_busy, '{}');
    v_rounds integer := 1;
    v_probes integer;
    v_skipped tid[];
    v_got record;
    -- The lanes of what this claim has locked, a job each.
    v_lanes text[] := '{}'::text[];
    -- The last lane that a pass may probe, if there are as many.
    v_last text;
    v_more bigint;
begin
    lane_key := p_turn.lane_key;
    credit := coalesce(p_turn.credit, 0);
    while wanted > 0 loop
        -- The name after another one is that with the first character that there is.
        from_key := coalesce(lane_key || case when credit = 0 then E'\x01' else '' end, from_key);
        v_probes := wanted + 64;
        v_skipped := p_skipped || rows;
        select
            array_agg(f.row_ctid) as rows,
            array_agg(
                row(f.row_ctid, f.id, v_queue, f.task, f.key, f.limit_key, f.is_expired, f.is_limited)::pgqueue.candidate
            ) filter (where p_all or f.is_limited or f.key is not null or f.is_expired) as candidates,
            array_agg(f.lane_key) as lanes,
            array_agg(f.quota) as quotas,
            array_agg(f.share) as shares
        into v_got
        from (
            select
                j.*, l.lane_key, l.quota, l.share,
                p_lane.is_limited or (p_turn.has_rules and j.limit_key is not null)
                    or j.task = any ((select pgqueue._ruled_tasks(p_now))::text[]) as is_limited
            from pgqueue._probed_lanes(
                v_queue, v_priority, p_turn.heads, from_key, v_busy, v_probes, p_turn.has_shares, credit, v_rounds, p_now
            ) l
            cross join lateral (
                select j.ctid as row_ctid, j.id, j.task, j.key, j.limit_key, j.expires_at <= p_now as is_expired
                from pgqueue.jobs j
                where j.state in ('waiting', 'failed') and j.lane_key is not null and not j.resumed
                    and j.queue = v_queue and j.priority = v_priority and j.lane_key = l.lane_key
                    -- The later one of the heads of this lane and of all jobs of the queue and priority. A job that an open
                    -- transaction commits below that since it was read is for the next claim.
                    and (j.ready_at, j.id) >= (
                        greatest(l.head, p_lane.head), case when l.head >= p_lane.head then l.head_id else p_lane.head_id end
                    )
                    and j.ready_at <= p_now and j.ctid <> all (v_skipped)
                order by j.ready_at, j.id
                limit least(l.quota, case when p_turn.has_rules or p_turn.is_shared then greatest(
                    (pgqueue._tenant_capacity(p_worker, v_queue, v_priority, substr(l.lane_key, 9), 1000000, p_now, p_held)).capacity
                        - cardinality(array_positions(v_lanes, l.lane_key)),
                    0
                ) end)
                for update skip locked
            ) j
            limit wanted
        ) f;
        if v_got.rows is not null then
            rows := rows || v_got.rows;
            candidates := candidates || v_got.candidates;
            v_lanes := v_lanes || v_got.lanes;
            wanted := wanted - cardinality(v_got.rows);
            lane_key := v_got.lanes[cardinality(v_got.lanes)];
            credit := (v_got.quotas[cardinality(v_got.quotas)] - cardinality(array_positions(v_got.lanes, lane_key)))
                % v_got.shares[cardinality(v_got.shares)];
            exit when wanted = 0;
        end if;
        select
            (
                select x.lane_key
                from pgqueue._lanes_in_turn(v_queue, v_priority, from_key, v_busy, p_now) x
                offset v_probes - 1
                limit 1
            ),
            -- The shares of those that gave all that they were asked for.
            (
                select coalesce(sum(g.share), 0)
                from (
                    select max(u.share) as share
                    from unnest(v_got.lanes, v_got.quotas, v_got.shares) u (lane_key, quota, share)
                    group by u.lane_key
                    having count(*) >= max(u.quota)
                ) g
            )
        into v_last, v_more;
        if v_more > 0 and v_last is null then
            v_rounds := greatest(wanted / v_more, 1)::integer;
        else
            -- Where no other of these lanes gave a job, no slot stays empty: once more, with those that come last.
            exit when v_busy = '{}' or (v_last is not null and rows <> '{}');
            v_busy := '{}';
            v_rounds := 1;
        end if;
    end loop;
    is_stopped := wanted > 0 and v_last is not null;
    if is_stopped then
        lane_key := v_last;
        next_key := v_last || E'\x01';
        credit := 0;
    end if;
end
$$;

-- Inlined. The lanes that a pass probes, p_most of them, for how many jobs each, and from where on. p_credit: what is left of the
-- turn of the first one. p_heads null: no lane of the queue has a head of its own, as beside no old snapshot, and none is looked for.
create or replace function pgqueue._probed_lanes(
    p_queue text, p_priority smallint, p_heads text, p_from text, p_busy text[], p_most integer, p_has_shares boolean,
    p_credit integer, p_rounds integer, p_now timestamptz
)
returns table (lane_key text, quota integer, share integer, head timestamptz, head_id bigint)
language sql stable parallel safe rows 100
as $$
    select
        d.lane_key, case when p_credit > 0 and d.lane_key = p_from then p_credit else d.share * p_rounds end, d.share,
        (d.at).head, (d.at).head_id
    from (
        select
            x.lane_key, case when p_has_shares then pgqueue._share_of(substr(x.lane_key, 9)) else 1 end as share,
            case when p_heads is not null then pgqueue._head_of_tenant(p_heads || x.lane_key, p_priority) end as at
        from pgqueue._lanes_in_turn(p_queue, p_priority, p_from, p_busy, p_now) x
        limit p_most
    ) d
$$;

-- Returns a row in which only the head counts. It is not in the plan of a pass, because few queues have heads of tenants.
create or replace function pgqueue._head_of_tenant(p_name text, p_priority smallint)
returns pgqueue.heads
language plpgsql stable parallel safe
as $$
declare
    v_head pgqueue.heads;
begin
    select h.head, h.head_id into v_head.head, v_head.head_id
    from pgqueue._head(p_name, (p_priority + 1000)::smallint, false) h;
    return v_head;
end
$$;

-- The lanes that may have something due, in their order from p_from on and round, without p_busy. Inlined.
create or replace function pgqueue._lanes_in_turn(p_queue text, p_priority smallint, p_from text, p_busy text[], p_now timestamptz)
returns table (lane_key text)
language sql stable parallel safe rows 100
as $$
    select x.lane_key
    from (values (p_from, 'g'), (E'\x01', p_from)) v (from_key, to_key)
    cross join lateral (
        select distinct on (t.lane_key) t.lane_key
        from pgqueue.tenant_lanes t
        where t.queue = p_queue and t.priority = p_priority and t.lane_key >= v.from_key and t.lane_key < v.to_key
            and t.due_from <= p_now and t.lane_key <> all (p_busy)
        order by t.lane_key
    ) x
$$;

-- Locks jobs of a fair queue that are in no lane, of the first hundred jobs of all. Null: there is none.
create or replace function pgqueue._lock_outside_lanes(
    p_lane pgqueue.due_lane, p_jobs integer, p_now timestamptz, p_skipped tid[], p_all boolean,
    out rows tid[], out candidates pgqueue.candidate[]
)
language plpgsql
as $$
begin
    if not exists (
        select from pgqueue.tenant_lanes t
        where t.queue = p_lane.queue and t.priority = p_lane.priority and t.lane_key = '' and t.due_from <= p_now
    ) then
        return;
    end if;
    select
        array_agg(f.row_ctid),
        array_agg(
            row(f.row_ctid, f.id, p_lane.queue, f.task, f.key, f.limit_key, f.is_expired, f.is_limited)::pgqueue.candidate
        ) filter (where p_all or f.is_limited or f.key is not null or f.is_expired)
    into rows, candidates
    from (
        select
            j.*,
            p_lane.is_limited or j.task = any ((select pgqueue._ruled_tasks(p_now))::text[])
                or (j.limit_key is not null and (select pgqueue._has_rules_of_tenants(p_now))) as is_limited
        from (
            select w.ctid as row_ctid
            from pgqueue.jobs w
            where w.state in ('waiting', 'failed') and w.queue = p_lane.queue and w.priority = p_lane.priority
                and w.resumed = false and (w.ready_at, w.id) >= (p_lane.head, p_lane.head_id) and w.ready_at <= p_now
            order by w.ready_at, w.id
            limit 100
        ) w
        cross join lateral (
            select j.ctid as row_ctid, j.id, j.task, j.key, j.limit_key, j.expires_at <= p_now as is_expired
            from pgqueue.jobs j
            -- What is locked may have moved since it was found.
            where j.ctid = w.row_ctid and j.state in ('waiting', 'failed') and j.lane_key is null and j.ready_at <= p_now
                and j.queue = p_lane.queue and j.priority = p_lane.priority and j.ctid <> all (p_skipped)
            for update skip locked
        ) j
        limit p_jobs
    ) f;
end
$$;
