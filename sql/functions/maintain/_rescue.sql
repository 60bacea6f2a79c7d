-- Rescue: what time does to jobs. Lapsed leases are taken back, expired jobs cancelled, and jobs that a clock
-- stepping back left in the future brought forward.
--
-- All take rows FOR UPDATE SKIP LOCKED and a bounded number of them: they never wait, and a row that somebody
-- holds counts as held. A lease that lapsed while nobody kept house (outage, failover, clock step) first gets
-- one full length more, once for each reservation: its worker had no chance to extend it, and taking everything
-- back at once would run all that is in flight twice.
-- A job that was lost with a worker that had said that it runs, and is gone, counts one crash (see _put_back).

create or replace function pgqueue._gap_at(p_now timestamptz)
returns timestamptz
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_at timestamptz;
    v_gap_at timestamptz;
begin
    select h.at, h.gap_at into v_at, v_gap_at from pgqueue.housekeeping h order by h.n desc limit 1;
    -- A run that commits while we look may carry a time slightly after ours; a step back is more than a second.
    if v_at is null or v_at < p_now - interval '5 s' or v_at > p_now + interval '1 s' then
        return p_now;
    end if;
    return v_gap_at;
end
$$;

comment on function pgqueue._gap_at(timestamptz) is
    'Private: when the last gap in housekeeping ended; p_now if this call ends one.';

create or replace function pgqueue._rescue(p_limit integer, p_gap_at timestamptz, out rescued bigint, out prolonged bigint)
returns record
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_gap_at timestamptz;
    v_lapsed_ids bigint[];
    v_spared_ids bigint[];
    v_crashed_ids bigint[];
    v_head timestamptz := pgqueue._lease_head();
begin
    rescued := 0;
    prolonged := 0;
    if not exists (
        select
        from pgqueue.jobs j
        where j.state = 'executing' and j.lease_expires_at >= v_head and j.lease_expires_at <= v_now
    ) then
        return;
    end if;
    v_gap_at := coalesce(p_gap_at, pgqueue._gap_at(v_now));

    select
        array_agg(l.id) filter (where not l.spared),
        array_agg(l.id) filter (where l.spared),
        array_agg(l.id) filter (where not l.spared and l.started and pgqueue._is_gone(l.reserved_by, l.heard_at))
    into v_lapsed_ids, v_spared_ids, v_crashed_ids
    from (
        select
            j.id, j.reserved_by,
            j.started is not distinct from j.reservation as started,
            -- It beats about as often as it extends, every third of a lease: a living one was heard of since.
            j.lease_expires_at - j.lease / 2 as heard_at,
            not j.lease_prolonged and coalesce(v_gap_at > j.lease_expires_at - j.lease, false) as spared
        from pgqueue.jobs j
        where j.state = 'executing' and j.lease_expires_at >= v_head and j.lease_expires_at <= v_now
        order by j.lease_expires_at
        limit p_limit
        for update skip locked
    ) l;

    update pgqueue.jobs j
    set
        lease_prolonged = true,
        lease_expires_at = pgqueue._ready_at(v_now) + j.lease
    where j.id = any (v_spared_ids);
    v_lapsed_ids := pgqueue._whole_calls(v_lapsed_ids);
    perform pgqueue._put_back(v_lapsed_ids, '0', true, v_crashed_ids);
    rescued := coalesce(cardinality(v_lapsed_ids), 0)::bigint;
    prolonged := coalesce(cardinality(v_spared_ids), 0)::bigint;
end
$$;

comment on function pgqueue._rescue(integer, timestamptz) is
    'Private: takes back up to p_limit lapsed leases, or prolongs them once if they began before the gap in housekeeping at p_gap_at (null: look it up).';

create or replace function pgqueue._is_gone(p_worker text, p_since timestamptz)
returns boolean
language sql
stable
parallel safe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
    select coalesce(
        (select b.at < p_since from pgqueue.beats b where b.worker = p_worker order by b.n desc limit 1),
        true
    )
$$;

comment on function pgqueue._is_gone(text, timestamptz) is 'Private: whether nothing was heard of a worker since then.';

create or replace function pgqueue._expire_jobs(p_limit integer)
returns bigint
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_ids bigint[];
    v_reservations bigint[];
begin
    select array_agg(e.id), array_agg(e.reservation)
    into v_ids, v_reservations
    from (
        select j.id, j.reservation
        from pgqueue.jobs j
        where j.expires_at is not null
            and j.state in ('waiting', 'failed', 'blocked')
            and j.expires_at <= v_now
        order by j.expires_at
        limit p_limit
        for update skip locked
    ) e;
    if v_ids is null then
        return 0::bigint;
    end if;
    return cardinality(pgqueue._finish_expired(v_ids, v_reservations))::bigint;
end
$$;

comment on function pgqueue._expire_jobs(integer) is 'Private: cancels up to p_limit jobs that did not start before their expires_at.';

-- The clock stepped back from p_from. Jobs that were due when they came (and nobody has tried yet, or that had
-- come back) stand in the ready index at a time that will be reached again only later: they are given the present
-- one, in their order. Leases are cut to one length from now. Jobs that were put into the future on purpose keep
-- their instants: only the clock decides.
create or replace function pgqueue._bring_forward(p_from timestamptz, p_limit integer)
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_now timestamptz := pgqueue._ready_at(null);
    v_lane record;
begin
    with long as materialized (
        select j.ctid as place
        from pgqueue.jobs j
        where j.state = 'executing' and j.lease_expires_at > v_now
            and j.lease_expires_at > v_now + j.lease
        order by j.lease_expires_at desc
        limit p_limit
        for update skip locked
    )
    update pgqueue.jobs j
    set lease_expires_at = v_now + j.lease
    from long l
    where j.ctid = l.place;

    -- When a rate has room again was said in the other time.
    update pgqueue.limit_waits w set next_at = v_now where w.next_at > v_now + interval '1 s';

    for v_lane in select distinct a.queue, a.priority, r.resumed from pgqueue.lanes a, (values (true), (false)) r (resumed) loop
        with ahead as materialized (
            select a.place, row_number() over (order by a.ready_at, a.id) as ord
            from (
                select j.ctid as place, j.ready_at, j.id
                from pgqueue.jobs j
                where j.state in ('waiting', 'failed')
                    and j.queue = v_lane.queue
                    and j.priority = v_lane.priority
                    and j.resumed = v_lane.resumed
                    and j.ready_at > v_now + interval '1 s'
                    and j.ready_at <= p_from
                    and (j.resumed or (j.reservation = 0 and j.run_at <= j.created_at))
                order by j.ready_at, j.id
                limit p_limit
                for update skip locked
            ) a
        )
        update pgqueue.jobs j
        set
            ready_at = v_now + a.ord * interval '1 us',
            -- A place in a key goes by run_at.
            run_at = case when j.key is null then j.run_at else least(j.run_at, v_now) end
        from ahead a
        where j.ctid = a.place;
        if found then
            perform pgqueue._wake(v_lane.queue, v_now, 2, null);
        end if;
    end loop;
end
$$;

comment on function pgqueue._bring_forward(timestamptz, integer) is
    'Private: makes ready what was ready before the clock stepped back from p_from.';
