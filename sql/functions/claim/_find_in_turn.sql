-- Finding in fair queues: the due jobs of a claim, locked, where tenants take turns. _tenant_lanes says what their lanes are.
--
-- A claim goes round the lanes of one queue and priority, as many jobs of each as its tenant's share says, from where the last
-- claim of this worker ended (pgqueue.turns; without a turn it draws a lane that is due): so a flood of one tenant delays no
-- other by more than one round. One statement is a pass: once through all lanes, or until the claim is full; each lane is one
-- probe. The next pass continues there, for as many rounds at once as the lanes need that have more: two a claim, as a rule.
-- What a tenant could not take because the claim was full it has first in the next one. At most 64 lanes in which nothing is
-- due are probed, then the claim ends where it is, and its worker is woken to continue.
-- Where handlers are long, a turn of starts would give a tenant with jobs of a minute all slots in the end: tenants whose long
-- jobs are more than their part come after all others.
-- Jobs that are in no lane come last; but in one claim of sixteen one of them comes first, so that no flood keeps them waiting.

create or replace function pgqueue._find_in_turn(
    p_worker text, p_lane pgqueue.due_lane, p_jobs integer, p_now timestamptz, p_skipped tid[], p_all boolean,
    out rows tid[], out candidates pgqueue.candidate[]
)
language plpgsql
as $$
declare
    v_want integer := case when p_lane.is_limited then pgqueue._queue_capacity(p_lane.queue, p_jobs, p_now) else p_jobs end;
    v_rounds integer := 1;
    v_busy_too boolean := false;
    -- Whether jobs of this worker are counted under max_share: no other claim of it does so meanwhile.
    v_counts boolean := false;
    v_lanes text[] := '{}'::text[];
    v_got record;
begin
    rows := '{}';
    candidates := '{}';
    if v_want > 0 and random() < 0.0625 then
        v_got := pgqueue._lock_others(p_lane, 1, p_now, p_skipped || rows, p_all);
        rows := v_got.rows;
        candidates := v_got.candidates;
        v_want := v_want - cardinality(rows);
    end if;
    while v_want > 0 loop
        v_got := pgqueue._lock_pass(
            p_worker, p_lane, v_rounds, v_busy_too, v_counts, v_want, v_lanes, p_now, p_skipped || rows, p_all
        );
        if v_got.must_count then
            -- Else another claim of this worker is under way, whose jobs cannot be counted yet.
            if not pg_try_advisory_xact_lock(pgqueue._lock_class(), hashtext('share:' || p_worker) | -2147483648) then
                return;
            end if;
            v_counts := true;
            v_lanes := array(
                select pgqueue._lane_of(j.limit_key)
                from unnest(p_skipped || rows) s (row_ctid)
                join pgqueue.jobs j on j.ctid = s.row_ctid
                where j.queue = p_lane.queue
            );
            continue;
        end if;
        rows := rows || v_got.rows;
        candidates := candidates || v_got.candidates;
        v_want := v_want - cardinality(v_got.rows);
        if v_want = 0 or v_got.is_cut then
            return;
        end if;
        v_lanes := v_lanes || v_got.lanes;
        if v_got.more > 0 then
            v_rounds := greatest(v_want / v_got.more, 1)::integer;
        else
            exit when v_busy_too or not v_got.has_busy;
            v_busy_too := true;
            v_rounds := 1;
        end if;
    end loop;
    if v_want > 0 then
        v_got := pgqueue._lock_others(p_lane, v_want, p_now, p_skipped || rows, p_all);
        rows := rows || v_got.rows;
        candidates := candidates || v_got.candidates;
    end if;
end
$$;

-- Locks the jobs of a pass, p_rounds times the share of each lane. p_lanes: the lane of each job that this claim has locked
-- before. Only if the claim is not full then: lanes; more, the shares of those that gave all that they were asked for; has_busy:
-- lanes were left for the end; is_cut: it has probed as many lanes as it may. must_count: nothing was locked, for the queue has a
-- max_share, and p_counts is false.
create or replace function pgqueue._lock_pass(
    p_worker text, p_lane pgqueue.due_lane, p_rounds integer, p_busy_too boolean, p_counts boolean, p_jobs integer,
    p_lanes text[], p_now timestamptz, p_skipped tid[], p_all boolean,
    out rows tid[], out candidates pgqueue.candidate[], out lanes text[], out more bigint, out has_busy boolean,
    out is_cut boolean, out must_count boolean
)
language plpgsql
as $$
declare
    v_queue constant text := p_lane.queue;
    v_priority constant smallint := p_lane.priority;
    v_heads constant text := pgqueue._head_name(p_lane.queue, '');
    v_got record;
    v_stop text;
begin
    with turn as materialized (
        select
            coalesce(
                -- The name after another one is that with the first character that there is.
                t.lane_key || case when t.credit = 0 then E'\x01' else '' end,
                pgqueue._draw_lane(v_queue, v_priority, p_now),
                E'\x01'
            ) as start_key,
            t.credit,
            exists (select from pgqueue.shares) as has_shares,
            exists (select from pgqueue.queues q where q.name = v_queue and q.max_share < 1) as is_shared,
            exists (
                select from pgqueue.limits x where x.kind = 'limit_key' and num_nonnulls(x.max_executing, x.rate, x.max_cost) > 0
            )
            or exists (select from pgqueue.pauses p where p.kind = 'limit_key' and p.until > p_now) as has_rules,
            -- See _note_busy_tenants.
            case when p_busy_too then '{}' else array(
                select b.lane_key
                from (
                    select x.lane_key, x.at
                    from pgqueue.turns x
                    where x.worker = '' and x.queue = v_queue and x.priority = 0
                    order by x.worker desc, x.queue desc, x.priority desc, x.n desc
                    limit 64
                ) b
                where b.at between p_now - interval '3 s' and p_now
            ) end as busy
        from (select) one
        left join lateral (
            select x.lane_key, x.credit
            from pgqueue.turns x
            where x.worker = p_worker and x.queue = v_queue and x.priority = v_priority
            order by x.worker desc, x.queue desc, x.priority desc, x.n desc
            limit 1
        ) t on true
    ),
    got as materialized (
        select
            array_agg(f.row_ctid) as rows,
            array_agg(
                row(f.row_ctid, f.id, v_queue, f.task, f.key, f.limit_key, f.is_expired, f.is_limited)::pgqueue.candidate
            ) filter (where p_all or f.is_limited or f.key is not null or f.is_expired) as candidates,
            array_agg(f.lane_key) as lanes,
            array_agg(f.quota) as quotas,
            array_agg(f.share) as shares
        from (
            select j.*, l.lane_key, l.quota, l.share, t.is_limited
            from turn u
            cross join lateral (
                select
                    d.lane_key, d.share,
                    case when u.credit > 0 and d.lane_key = u.start_key then u.credit else d.share * p_rounds end as quota
                from (
                    select
                        x.lane_key, case when u.has_shares then pgqueue._share_of(substr(x.lane_key, 9)) else 1 end as share
                    from pgqueue._lanes_in_turn(v_queue, v_priority, u.start_key, u.busy, p_now) x
                    limit case when u.is_shared and not p_counts then 0 else p_jobs + 64 end
                ) d
            ) l
            cross join lateral (
                select x.* from pgqueue._head(v_heads || l.lane_key, (v_priority + 1000)::smallint, false) x offset 0
            ) h
            cross join lateral (
                select j.ctid as row_ctid, j.id, j.task, j.key, j.limit_key, j.expires_at <= p_now as is_expired
                from pgqueue.jobs j
                where j.state in ('waiting', 'failed') and j.lane_key is not null and not j.resumed
                    and j.queue = v_queue and j.priority = v_priority and j.lane_key = l.lane_key
                    and (j.ready_at, j.id) >= (h.head, h.head_id) and j.ready_at <= p_now
                    and j.ctid <> all (p_skipped)
                order by j.ready_at, j.id
                limit case
                    when u.has_rules or u.is_shared
                        then pgqueue._quota_within(p_worker, v_queue, l.lane_key, l.quota, p_lanes, p_now)
                    else l.quota
                end
                for update skip locked
            ) j
            cross join lateral pgqueue._may_be_limited(
                p_lane.is_limited or (u.has_rules and j.limit_key is not null), j.task, p_now
            ) t
            limit p_jobs
        ) f
    ),
    kept as (
        insert into pgqueue.turns (worker, queue, priority, lane_key, credit, at)
        select
            p_worker, v_queue, v_priority, e.lane_key,
            (e.quota - cardinality(array_positions(g.lanes, e.lane_key))) % e.share, p_now
        from got g
        cross join lateral (
            select
                g.lanes[cardinality(g.lanes)] as lane_key, g.quotas[cardinality(g.lanes)] as quota,
                g.shares[cardinality(g.lanes)] as share
        ) e
        where g.rows is not null
    )
    select g.*, u.start_key, u.busy, u.is_shared into v_got from got g cross join turn u;
    rows := coalesce(v_got.rows, '{}');
    candidates := coalesce(v_got.candidates, '{}');
    must_count := v_got.is_shared and not p_counts;
    if cardinality(rows) < p_jobs and not must_count then
        lanes := v_got.lanes;
        more := (
            select coalesce(sum(g.share), 0)
            from (
                select max(u.share) as share
                from unnest(lanes, v_got.quotas, v_got.shares) u (lane_key, quota, share)
                group by u.lane_key
                having count(*) >= max(u.quota)
            ) g
        );
        has_busy := v_got.busy <> '{}';
        v_stop := (
            select x.lane_key
            from pgqueue._lanes_in_turn(v_queue, v_priority, v_got.start_key, v_got.busy, p_now) x
            offset p_jobs + 63
            limit 1
        );
        is_cut := v_stop is not null;
        if is_cut then
            insert into pgqueue.turns (worker, queue, priority, lane_key, credit, at)
            values (p_worker, v_queue, v_priority, v_stop, 0, p_now);
            if pgqueue._may_notify() then
                perform pg_notify(pgqueue._channel(p_worker), 'wake');
            end if;
        end if;
    end if;
end
$$;

-- The lanes that may have something due, in their order from p_from on and round, without p_busy. Inlined.
create or replace function pgqueue._lanes_in_turn(
    p_queue text, p_priority smallint, p_from text, p_busy text[], p_now timestamptz
)
returns table (lane_key text)
language sql stable parallel safe rows 100
as $$
    (
        select distinct on (t.lane_key) t.lane_key
        from pgqueue.tenant_lanes t
        where t.queue = p_queue and t.priority = p_priority and t.lane_key >= p_from and t.due_from <= p_now
            and t.lane_key <> all (p_busy)
        order by t.lane_key
    )
    union all
    (
        select distinct on (t.lane_key) t.lane_key
        from pgqueue.tenant_lanes t
        where t.queue = p_queue and t.priority = p_priority and t.lane_key > '' and t.lane_key < p_from and t.due_from <= p_now
            and t.lane_key <> all (p_busy)
        order by t.lane_key
    )
$$;

-- One of the lanes that are due, each by its share: see _draw_by_weight. Called by the first claim of a worker alone.
create or replace function pgqueue._draw_lane(p_queue text, p_priority smallint, p_now timestamptz)
returns text
language plpgsql
as $$
begin
    return (
        select d.lane_key
        from (select x.lane_key from pgqueue._lanes_in_turn(p_queue, p_priority, E'\x01', '{}', p_now) x limit 10000) d
        order by
            case
                when exists (select from pgqueue.shares) then -ln(1 - random()) / pgqueue._share_of(substr(d.lane_key, 9))
                else random()
            end
        limit 1
    );
end
$$;

-- How many of p_quota jobs of a lane may start beside those that are locked: p_lanes has the lane of each.
create or replace function pgqueue._quota_within(
    p_worker text, p_queue text, p_lane_key text, p_quota integer, p_lanes text[], p_now timestamptz
)
returns integer
language plpgsql stable
as $$
declare
    v_locked integer := cardinality(array_positions(p_lanes, p_lane_key));
begin
    return (
        select greatest(c.capacity - v_locked, 0)
        from pgqueue._tenant_capacity(p_worker, p_queue, substr(p_lane_key, 9), p_quota + v_locked, p_now) c
    );
end
$$;

-- Locks jobs of a fair queue that are in no lane, of the first hundred jobs of all.
create or replace function pgqueue._lock_others(
    p_lane pgqueue.due_lane, p_jobs integer, p_now timestamptz, p_skipped tid[], p_all boolean,
    out rows tid[], out candidates pgqueue.candidate[]
)
language plpgsql
as $$
begin
    rows := '{}';
    candidates := '{}';
    if not exists (
        select
        from pgqueue.tenant_lanes t
        where t.queue = p_lane.queue and t.priority = p_lane.priority and t.lane_key = '' and t.due_from <= p_now
    ) then
        return;
    end if;
    select
        coalesce(array_agg(f.row_ctid), '{}'),
        coalesce(
            array_agg(
                row(f.row_ctid, f.id, p_lane.queue, f.task, f.key, f.limit_key, f.is_expired, f.is_limited)::pgqueue.candidate
            ) filter (where p_all or f.is_limited or f.key is not null or f.is_expired),
            '{}'
        )
    into rows, candidates
    from (
        select j.*, t.is_limited
        from pgqueue._head(p_lane.queue, p_lane.priority, false) h
        cross join lateral (
            select w.ctid as row_ctid
            from pgqueue.jobs w
            where w.state in ('waiting', 'failed') and w.queue = p_lane.queue and w.priority = p_lane.priority
                and w.resumed = false and (w.ready_at, w.id) >= (h.head, h.head_id) and w.ready_at <= p_now
            order by w.ready_at, w.id
            limit 100
        ) w
        cross join lateral (
            select j.ctid as row_ctid, j.id, j.task, j.key, j.limit_key, j.expires_at <= p_now as is_expired
            from pgqueue.jobs j
            -- What is locked may have moved since it was found.
            where j.ctid = w.row_ctid and j.state in ('waiting', 'failed') and j.lane_key is null and j.ready_at <= p_now
                and j.queue = p_lane.queue and j.priority = p_lane.priority
                and j.ctid <> all (p_skipped)
            for update skip locked
        ) j
        cross join lateral pgqueue._may_be_limited(p_lane.is_limited or j.limit_key is not null, j.task, p_now) t
        limit p_jobs
    ) f;
end
$$;
