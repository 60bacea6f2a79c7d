-- Rescue: takes back lapsed leases, cancels expired jobs, and brings forward jobs that a step back of the clock left for later.
--
-- Each step locks a bounded number of rows FOR UPDATE SKIP LOCKED: a row that another session has locked counts as held. A
-- lease that extend promised while its row was locked is written into the row here: see extend. A lease that could not be
-- extended because of an outage gets a grace period of one length, once for each reservation: taking all leases back at once
-- after an outage would run every job in flight twice. It could not be extended if maintenance had a gap of more than 8 s that
-- left it with less than half of its length: a live worker extends at a third, and reconnects within another. A lease that
-- began in the last 8 s of the gap shows that the gap was over: its worker reserved before it ran maintenance. If a worker is
-- gone, each job that it had reported as started counts one crash (see _put_back).

-- Takes back up to p_limit lapsed leases, or grants them a grace period after the gap that ended at p_gap_at (null: look it up).
create or replace function pgqueue._rescue(p_limit integer, p_gap_at timestamptz, out rescued bigint, out spared bigint)
language plpgsql
set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_lapsed_ids bigint[];
    v_spared_ids bigint[];
    v_crashed_ids bigint[];
begin
    rescued := 0;
    spared := 0;
    select array_agg(l.id) into v_lapsed_ids
    from (
        select j.id
        from pgqueue.jobs j
        where j.state = 'executing' and j.lease_expires_at >= pgqueue._lease_head() and j.lease_expires_at <= v_now
        order by j.lease_expires_at, j.id
        limit p_limit
        for update skip locked
    ) l;
    if v_lapsed_ids is null then
        return;
    end if;
    p_gap_at := coalesce(p_gap_at, pgqueue._gap_at(v_now));
    -- In a later statement than the one that locked the rows: each committed promise is kept.
    with promised as materialized (
        select p.*, h.row_ctid
        from unnest(v_lapsed_ids) w (id)
        cross join lateral (select j.id, j.reservation, j.ctid as row_ctid from pgqueue.jobs j where j.id = w.id limit 1) h
        cross join lateral (
            select x.job_id, x.until, x.lease
            from pgqueue.lease_promises x
            where x.job_id = h.id and x.until > v_now and x.reservation = h.reservation
            order by x.until desc
            limit 1
        ) p
    ),
    -- A promise from before the clock stepped back counts as one length from now, once.
    spent as (
        delete from pgqueue.lease_promises x
        using promised p
        where x.job_id = p.job_id and x.until > pgqueue._after(v_now, x.lease)
    ),
    kept as (
        update pgqueue.jobs j
        set
            lease = p.lease,
            -- Not below the clock of a transaction with an xid: see _head.
            lease_expires_at = greatest(least(p.until, pgqueue._after(v_now, p.lease)), pgqueue._ready_at(null))
        from promised p
        where j.ctid = p.row_ctid
        returning j.id
    )
    select array_agg(w.id) into v_lapsed_ids from unnest(v_lapsed_ids) w (id) where w.id not in (select k.id from kept k);

    select
        array_agg(l.id) filter (where not l.spared), array_agg(l.id) filter (where l.spared),
        array_agg(l.id) filter (
            where not l.spared and l.started
                and (select b.at < l.heard_at from pgqueue._last_heartbeat(l.reserved_by) b) is not false
        )
    into v_lapsed_ids, v_spared_ids, v_crashed_ids
    from (
        select
            j.id, j.reserved_by, j.started is not distinct from j.reservation as started,
            -- A live worker sends a heartbeat about as often as it extends, every third of a lease.
            j.lease_expires_at - j.lease / 2 as heard_at,
            (
                not j.grace_given and p_gap_at > j.lease_expires_at - j.lease / 2
                and p_gap_at > j.lease_expires_at - j.lease + interval '8 s'
            ) is true as spared
        from pgqueue.jobs j
        where j.id = any (v_lapsed_ids)
        order by j.lease_expires_at
    ) l;

    update pgqueue.jobs j
    set grace_given = true, lease_expires_at = pgqueue._after(pgqueue._ready_at(v_now), j.lease)
    where j.id = any (v_spared_ids);
    v_lapsed_ids := pgqueue._whole_batches(v_lapsed_ids);
    perform pgqueue._put_back(v_lapsed_ids, '0', true, true, v_crashed_ids);
    rescued := coalesce(cardinality(v_lapsed_ids), 0)::bigint;
    spared := coalesce(cardinality(v_spared_ids), 0)::bigint;
end
$$;

-- Cancels up to p_limit jobs that did not start before their expires_at.
create or replace function pgqueue._expire_jobs(p_limit integer, p_now timestamptz)
returns bigint
language plpgsql
as $$
declare
    v_ids bigint[];
    v_reservations bigint[];
begin
    select array_agg(e.id), array_agg(e.reservation) into v_ids, v_reservations
    from (
        select j.id, j.reservation
        from pgqueue.jobs j
        where j.expires_at is not null and j.state in ('waiting', 'failed', 'blocked') and j.expires_at <= p_now
        order by j.expires_at
        limit p_limit
        for update skip locked
    ) e;
    if v_ids is null then
        return 0::bigint;
    end if;
    return cardinality(
        pgqueue._finish(
            v_ids, v_reservations, false, 'cancelled', null,
            '{"class": "Expired", "message": "it did not start before its expires_at"}'
        )
    )::bigint;
end
$$;

-- The clock stepped back from p_from. Jobs that were due when they came (and were never reserved, or had come back) have a
-- time in the ready index that is in the future again: they get the present time, in their order. Leases are cut to one
-- length from now. Jobs that were scheduled for the future keep their instants. A call reads p_limit entries of the ready index
-- from p_cursor on (queue, priority, sub-lane, time, id) and returns where it stopped; null: at the end.
-- The cursor is read by other sessions, so it is written in one style of dates.
create or replace function pgqueue._bring_forward(p_from timestamptz, p_limit integer, p_cursor text[])
returns text[]
language plpgsql
set datestyle = 'ISO, YMD'
as $$
declare
    v_now timestamptz := pgqueue._ready_at(null);
    v_seen record;
begin
    with long as materialized (
        select j.ctid as place
        from pgqueue.jobs j
        where j.state = 'executing' and j.lease_expires_at > v_now and j.lease_expires_at > pgqueue._after(v_now, j.lease)
        order by j.lease_expires_at desc
        limit p_limit
        for update skip locked
    )
    update pgqueue.jobs j set lease_expires_at = pgqueue._after(v_now, j.lease) from long l where j.ctid = l.place;

    -- The times at which limits have capacity again were computed before the step.
    update pgqueue.limit_waits w
    set next_at = v_now
    where w.n = any (
        array(select x.n from pgqueue.limit_waits x where x.next_at > v_now + interval '1 s' for update skip locked)
    );
    -- Lanes of tenants may have something due earlier than that.
    update pgqueue.tenant_lanes t set due_from = v_now, until = v_now where t.due_from > v_now;

    with seen as materialized (
        select l.queue, l.priority, l.resumed, f.*
        from (
            select distinct a.queue, a.priority, r.resumed
            from pgqueue.lanes a
            cross join (values (true), (false)) r (resumed)
            where p_cursor is null
                or (a.queue, a.priority, r.resumed) >= (p_cursor[1] collate "C", p_cursor[2]::smallint, p_cursor[3]::boolean)
            order by a.queue, a.priority, r.resumed
        ) l
        left join lateral (
            select p_cursor[4]::timestamptz as ready_at, p_cursor[5]::bigint as id
            where (l.queue, l.priority, l.resumed) = (p_cursor[1], p_cursor[2]::smallint, p_cursor[3]::boolean)
            offset 0
        ) c on true
        cross join lateral (
            select
                j.ctid as row_ctid, j.ready_at, j.id, j.resumed or (j.reservation = 0 and j.run_at <= j.created_at) as was_due
            from pgqueue.jobs j
            where j.state in ('waiting', 'failed') and j.queue = l.queue and j.priority = l.priority and j.resumed = l.resumed
                and (j.ready_at, j.id) > (coalesce(c.ready_at, v_now + interval '1 s'), coalesce(c.id, 9223372036854775807))
                and j.ready_at <= p_from
            order by j.ready_at, j.id
            limit p_limit
        ) f
        limit p_limit
    ),
    held as materialized (
        select j.ctid as row_ctid
        from pgqueue.jobs j
        where j.ctid = any (array(select s.row_ctid from seen s where s.was_due))
        for update skip locked
    ),
    moved as (
        update pgqueue.jobs j
        set
            ready_at = v_now + a.ord * interval '1 us',
            -- The position in a key goes by run_at.
            run_at = case when j.key is null then j.run_at else least(j.run_at, v_now) end
        from (
            select h.row_ctid, row_number() over (order by s.ready_at, s.id) as ord
            from held h
            join seen s on s.row_ctid = h.row_ctid
        ) a
        where j.ctid = a.row_ctid
        returning j.queue, j.priority
    )
    select
        (select count(*) from seen) as rows,
        array(select distinct row(m.queue, m.priority, null)::pgqueue.sub_lane from moved m) as lanes,
        (
            select array[s.queue, s.priority::text, s.resumed::text, s.ready_at::text, s.id::text]
            from seen s
            order by s.queue desc, s.priority desc, s.resumed desc, s.ready_at desc, s.id desc
            limit 1
        ) as last
    into v_seen;
    perform pgqueue._register_lane(m.queue, m.priority, v_now), pgqueue._wake(m.queue, v_now)
    from unnest(v_seen.lanes) m;
    return case when v_seen.rows = p_limit then v_seen.last end;
end
$$;

create or replace function pgqueue._gap_at(p_now timestamptz)
returns timestamptz
language plpgsql stable parallel safe
as $$
declare
    v_run record;
begin
    select h.at, h.gap_at into v_run from pgqueue.maintenance_runs h order by h.n desc limit 1;
    -- A run that commits meanwhile may have a time slightly after ours; a step back is more than a second.
    return case when v_run.at between p_now - interval '8 s' and p_now + interval '1 s' then v_run.gap_at else p_now end;
end
$$;
