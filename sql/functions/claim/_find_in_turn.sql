-- Finding in fair queues: the due jobs of a claim, locked, where tenants take turns. _tenant_lanes says what their lanes are.
--
-- Among the lanes of one queue and priority a claim goes round, as many jobs of each as its tenant's share says, from where
-- the last claim of this worker ended (pgqueue.turns; a worker without a turn draws one of the lanes that are due): so a
-- flood of one tenant delays no other by more than one round. One statement is a pass to the end of the order, each lane one
-- probe from its head on, and another one from its beginning. Only where a round did not fill the claim there are further
-- passes, of as many rounds at once as those need that have more: three a claim, as a rule.
-- What a tenant could not take because the claim was full it has first in the next one.
-- A lane whose tenant is at a limit, or paused, is skipped, and nothing is written. At most 64 lanes in which nothing is due are
-- probed, then the claim ends where it is, and its worker is woken to continue.
-- Where handlers are long, a turn of starts would give a tenant with jobs of a minute all slots in the end: tenants whose long jobs
-- are more than their part come after all others.
-- Jobs that are in no lane have a turn of one at the end of the order.
-- p_lanes come in the order of any claim: see _find.

create or replace function pgqueue._find_in_turn(
    p_worker text, p_lanes pgqueue.due_lane[], p_jobs integer, p_now timestamptz, p_skipped tid[], p_all boolean,
    out rows tid[], out candidates pgqueue.candidate[], out last_queue text
)
language plpgsql
as $$
declare
    v_lane pgqueue.due_lane;
    v_want integer;
    v_got record;
begin
    rows := '{}';
    candidates := '{}';
    foreach v_lane in array p_lanes loop
        v_want := p_jobs - cardinality(rows);
        exit when v_want <= 0;
        if v_lane.is_limited then
            v_want := pgqueue._queue_capacity(v_lane.queue, v_want, p_now);
            continue when v_want = 0;
        end if;
        if v_lane.is_fair then
            v_got := pgqueue._go_round(p_worker, v_lane, v_want, p_now, p_skipped, p_all);
        else
            v_got := pgqueue._lock_plain(v_lane, false, v_want, p_now, p_skipped, p_all);
        end if;
        rows := rows || v_got.rows;
        candidates := candidates || v_got.candidates;
        last_queue := case when v_got.rows <> '{}' then v_lane.queue else last_queue end;
    end loop;
end
$$;

create or replace function pgqueue._go_round(
    p_worker text, p_lane pgqueue.due_lane, p_jobs integer, p_now timestamptz, p_skipped tid[], p_all boolean,
    out rows tid[], out candidates pgqueue.candidate[]
)
language plpgsql
as $$
declare
    v_queue constant text := p_lane.queue;
    v_priority constant smallint := p_lane.priority;
    v_passed tid[] := p_skipped;
    v_turn record;
    -- Lanes that are left for the end.
    v_busy text[];
    v_want integer := p_jobs;
    v_got record;
    v_lanes text[] := '{}'::text[];
    -- How many rounds the next pass is, and how many jobs a round is.
    v_rounds integer := 1;
    v_round bigint;
    v_last text;
    v_credit integer := 0;
    v_cut_at text;
    v_others boolean;
    v_others_got record;
begin
    rows := '{}';
    candidates := '{}';
    v_turn := pgqueue._turn_of(p_worker, v_queue, v_priority, p_now);
    v_busy := v_turn.busy;
    loop
        v_round := 0;
        for v_part in 1..2 loop
            select
                array_agg(f.row_ctid) as rows, coalesce(array_agg(f.job) filter (where p_all or f.is_touched), '{}') as candidates,
                array_agg(f.lane_key) as lanes, array_agg(f.quota) as quotas, array_agg(f.share) as shares,
                count(*)::integer as started
            into v_got
            from (
                select
                    row(j.row_ctid, j.id, v_queue, j.task, j.key, j.limit_key, j.is_expired, j.is_limited)::pgqueue.candidate as job,
                    j.row_ctid, j.is_limited or j.key is not null or j.is_expired as is_touched, l.lane_key, l.quota, l.share
                from (
                    select
                        d.lane_key, d.share,
                        case
                            when v_turn.credit > 0 and v_lanes = '{}' and d.lane_key = v_turn.start_key then v_turn.credit
                            else d.share * v_rounds
                        end as quota
                    from (
                        select distinct on (t.lane_key)
                            t.lane_key, case when v_turn.has_shares then pgqueue._share_of(substr(t.lane_key, 9)) else 1 end as share
                        from pgqueue.tenant_lanes t
                        where t.queue = v_queue and t.priority = v_priority and t.due_from <= p_now
                            and t.lane_key >= case when v_part = 1 then v_turn.start_key else E'\x01' end
                            and t.lane_key < case when v_part = 1 then 'g' else v_turn.start_key end
                            and (v_busy is null or t.lane_key <> all (v_busy))
                        order by t.lane_key
                        limit v_want + 64
                    ) d
                ) l
                cross join lateral (
                    select x.* from pgqueue._head(pgqueue._head_name(v_queue, l.lane_key), (v_priority + 1000)::smallint, false) x
                    offset 0
                ) h
                cross join lateral (
                    select
                        j.ctid as row_ctid, j.id, j.task, j.key, j.limit_key, j.expires_at <= p_now as is_expired,
                        p_lane.is_limited or (v_turn.has_rules and j.limit_key is not null)
                        or j.task = any (array(select x.target from pgqueue.limits x where x.kind = 'task'))
                        or j.task = any (array(select p.target from pgqueue.pauses p where p.kind = 'task' and p.until > p_now))
                        as is_limited
                    from pgqueue.jobs j
                    where j.state in ('waiting', 'failed') and j.lane_key is not null and not j.resumed
                        and j.queue = v_queue and j.priority = v_priority and j.lane_key = l.lane_key
                        and (j.ready_at, j.id) >= (h.head, h.head_id) and j.ready_at <= p_now
                        and (v_passed is null or j.ctid <> all (v_passed))
                    order by j.ready_at, j.id
                    limit case
                        when v_turn.has_rules then pgqueue._quota_within(l.lane_key, l.quota, v_lanes, p_now)
                        else l.quota
                    end
                    for update skip locked
                ) j
                limit v_want
            ) f;
            if v_got.started > 0 then
                rows := rows || v_got.rows;
                candidates := candidates || v_got.candidates;
                v_lanes := v_lanes || v_got.lanes;
                v_last := v_got.lanes[v_got.started];
                v_credit := (v_got.quotas[v_got.started] - cardinality(array_positions(v_got.lanes, v_last)))
                    % v_got.shares[v_got.started];
            end if;
            exit when v_got.started = v_want;
            -- It has come to the end of this part of the order, or not.
            v_cut_at := case
                when v_part = 1 then pgqueue._lane_at(v_queue, v_priority, v_turn.start_key, 'g', v_want + 64, p_now, v_busy)
                else pgqueue._lane_at(v_queue, v_priority, E'\x01', v_turn.start_key, v_want + 64, p_now, v_busy)
            end;
            v_want := v_want - v_got.started;
            exit when v_cut_at is not null;
            v_others := coalesce(v_others, pgqueue._lane_at(v_queue, v_priority, '', E'\x01', 1, p_now, null) is not null);
            if v_part = 1 and v_others and v_passed is not distinct from p_skipped then
                v_others_got := pgqueue._lock_plain(p_lane, true, 1, p_now, p_skipped, p_all);
                rows := rows || v_others_got.rows;
                candidates := candidates || v_others_got.candidates;
                v_want := p_jobs - cardinality(rows);
                if v_want = 0 then
                    v_last := '';
                    v_credit := 0;
                    exit;
                end if;
            end if;
            v_round := v_round + pgqueue._shares_of_more(v_got.lanes, v_got.quotas, v_got.shares);
        end loop;
        exit when cardinality(rows) = p_jobs or v_cut_at is not null or (v_round = 0 and v_busy is null);
        if v_round = 0 then
            v_busy := null;
            v_round := v_want::bigint;
        end if;
        -- More rounds of those that gave all that they were asked for: whole ones, and in the end a part of one.
        v_rounds := greatest(v_want / v_round, 1)::integer;
        v_passed := p_skipped || rows;
    end loop;
    if v_others and cardinality(rows) < p_jobs and v_cut_at is null then
        v_others_got := pgqueue._lock_plain(p_lane, true, p_jobs - cardinality(rows), p_now, p_skipped || rows, p_all);
        rows := rows || v_others_got.rows;
        candidates := candidates || v_others_got.candidates;
    end if;
    if v_cut_at is not null then
        v_last := v_cut_at;
        v_credit := 0;
        if pgqueue._may_notify() then
            perform pg_notify(pgqueue._channel(p_worker), 'wake');
        end if;
    end if;
    if v_last is not null then
        insert into pgqueue.turns (worker, queue, priority, lane_key, credit, at)
        values (p_worker, v_queue, v_priority, v_last, v_credit, p_now);
    end if;
end
$$;

-- From where a claim goes round: the first lane, or what comes after the last one; how many jobs that lane may still start (null:
-- its share); and which lanes come last.
create or replace function pgqueue._turn_of(
    p_worker text, p_queue text, p_priority smallint, p_now timestamptz,
    out start_key text, out credit integer, out has_shares boolean, out has_rules boolean, out busy text[]
)
language plpgsql
as $$
begin
    select
        -- The name after another one is that with the first character that there is.
        t.lane_key || case when t.credit = 0 then E'\x01' else '' end, t.credit,
        exists (select from pgqueue.shares),
        exists (select from pgqueue.limits x where x.kind = 'limit_key')
        or exists (select from pgqueue.pauses p where p.kind = 'limit_key' and p.until > p_now),
        -- See _note_busy_tenants.
        (
            select array_agg(b.lane_key) filter (where b.at between p_now - interval '3 s' and p_now)
            from (
                select x.lane_key, x.at
                from pgqueue.turns x
                where x.worker = '' and x.queue = p_queue and x.priority = 0
                order by x.worker desc, x.queue desc, x.priority desc, x.n desc
                limit 64
            ) b
        )
    into start_key, credit, has_shares, has_rules, busy
    from (values (1)) one (row)
    left join lateral (
        select x.lane_key, x.credit
        from pgqueue.turns x
        where x.worker = p_worker and x.queue = p_queue and x.priority = p_priority
        order by x.worker desc, x.queue desc, x.priority desc, x.n desc
        limit 1
    ) t on true;
    start_key := coalesce(start_key, pgqueue._draw_lane(p_queue, p_priority, p_now, has_shares), E'\x01');
end
$$;

-- One of the lanes that are due, each by its share: see _draw_by_weight. Called by the first claim of a worker alone.
create or replace function pgqueue._draw_lane(p_queue text, p_priority smallint, p_now timestamptz, p_has_shares boolean)
returns text
language plpgsql
as $$
begin
    return (
        select d.lane_key
        from (
            select distinct t.lane_key
            from pgqueue.tenant_lanes t
            where t.queue = p_queue and t.priority = p_priority and t.lane_key > '' and t.due_from <= p_now
            order by t.lane_key
            limit 10000
        ) d
        order by case when p_has_shares then -ln(1 - random()) / pgqueue._share_of(substr(d.lane_key, 9)) else random() end
        limit 1
    );
end
$$;

-- The p_n-th of the lanes from p_from to below p_below that are due, without p_busy; null: there are fewer.
create or replace function pgqueue._lane_at(
    p_queue text, p_priority smallint, p_from text, p_below text, p_n integer, p_now timestamptz, p_busy text[]
)
returns text
language plpgsql stable
as $$
begin
    return (
        select d.lane_key
        from (
            select distinct t.lane_key
            from pgqueue.tenant_lanes t
            where t.queue = p_queue and t.priority = p_priority and t.due_from <= p_now
                and t.lane_key >= p_from and t.lane_key < p_below and (p_busy is null or t.lane_key <> all (p_busy))
            order by t.lane_key
            offset p_n - 1
            limit 1
        ) d
    );
end
$$;

-- The shares of those lanes that gave all that they were asked for. Each array has an element for each job.
create or replace function pgqueue._shares_of_more(p_lanes text[], p_quotas integer[], p_shares integer[])
returns bigint
language plpgsql immutable
as $$
begin
    return (
        select coalesce(sum(g.share), 0)
        from (
            select max(u.share) as share
            from unnest(p_lanes, p_quotas, p_shares) u (lane_key, quota, share)
            group by u.lane_key
            having count(*) >= max(u.quota)
        ) g
    );
end
$$;

-- How many of p_quota jobs of a lane may start beside those that are locked: p_lanes has the lane of each.
create or replace function pgqueue._quota_within(p_lane_key text, p_quota integer, p_lanes text[], p_now timestamptz)
returns integer
language plpgsql stable
as $$
declare
    v_locked integer := cardinality(array_positions(p_lanes, p_lane_key));
begin
    return (
        select greatest(c.capacity - v_locked, 0)
        from pgqueue._tenant_capacity(substr(p_lane_key, 9), p_quota + v_locked, p_now) c
    );
end
$$;

-- Locks the first due jobs that are in no lane of a tenant; p_others: of a fair queue, and among the first hundred jobs alone.
create or replace function pgqueue._lock_plain(
    p_lane pgqueue.due_lane, p_others boolean, p_jobs integer, p_now timestamptz, p_skipped tid[], p_all boolean,
    out rows tid[], out candidates pgqueue.candidate[]
)
language plpgsql
as $$
declare
    v_head record;
    v_last record;
begin
    select h.* into v_head from pgqueue._head(p_lane.queue, p_lane.priority, false) h;
    select p_now as ready_at, 9223372036854775807 as id into v_last;
    if p_others then
        select coalesce(max(w.ready_at), p_now) as ready_at, coalesce(max(w.id), v_last.id) as id into v_last
        from (
            select j.ready_at, j.id
            from pgqueue.jobs j
            where j.state in ('waiting', 'failed') and j.queue = p_lane.queue and j.priority = p_lane.priority and j.resumed = false
                and (j.ready_at, j.id) >= (v_head.head, v_head.head_id) and j.ready_at <= p_now
            order by j.ready_at, j.id
            offset 100
            limit 1
        ) w;
    end if;
    candidates := array(
        select
            row(
                j.ctid, j.id, j.queue, j.task, j.key, j.limit_key, j.expires_at <= p_now,
                p_lane.is_limited or j.limit_key is not null
                or j.task = any (array(select x.target from pgqueue.limits x where x.kind = 'task'))
                or j.task = any (array(select p.target from pgqueue.pauses p where p.kind = 'task' and p.until > p_now))
            )::pgqueue.candidate
        from pgqueue.jobs j
        where j.state in ('waiting', 'failed') and j.queue = p_lane.queue and j.priority = p_lane.priority and j.resumed = false
            and (j.ready_at, j.id) >= (v_head.head, v_head.head_id)
            and (j.ready_at, j.id) <= (v_last.ready_at, v_last.id) and j.ready_at <= p_now
            and (p_skipped is null or j.ctid <> all (p_skipped)) and (not p_others or j.lane_key is null)
        order by j.ready_at, j.id
        limit p_jobs
        for update skip locked
    );
    rows := array(select c.row_ctid from unnest(candidates) c);
    if not p_all then
        candidates := array(select c from unnest(candidates) c where c.is_limited or c.key is not null or c.is_expired);
    end if;
end
$$;
