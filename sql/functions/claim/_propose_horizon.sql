-- Horizons: a time, and a transaction that had no xid then. One of them is the safe point of all heads: see _head.

-- p_began, p_newest_id: what the caller read while its transaction had no xid yet; null: it had one, or has not read the id.
create or replace function pgqueue._propose_horizon(p_began timestamptz, p_newest_id bigint)
returns void
language plpgsql
set enable_seqscan = off set jit = off
as $$
declare
    v_last record;
begin
    if p_began is null then
        return;
    end if;
    select h.at, h.newest_id, h.xid into v_last from pgqueue.horizons h order by h.n desc limit 1;
    if v_last.at > p_began then
        perform pgqueue._check_clock(pgqueue._clock());
    end if;
    if v_last.at is null or v_last.at not between p_began - interval '100 ms' and p_began then
        insert into pgqueue.horizons (at, newest_id, xid)
        values (
            p_began,
            -- A newest id that holds after an earlier horizon's transaction holds after this one too.
            coalesce(p_newest_id, case when v_last.xid < pg_current_xact_id() then v_last.newest_id end),
            pg_current_xact_id()
        );
    end if;
end
$$;

-- In order. A snapshot lists the transactions of all databases. Those that are known to be of another database are left out.
create or replace function pgqueue._running_xids(p_snapshot pg_snapshot)
returns xid8[]
language plpgsql stable parallel safe
as $$
begin
    return array(
        select x.xid
        from pg_snapshot_xip(p_snapshot) x (xid)
        where not exists (
            select from pg_stat_activity a where a.backend_xid = x.xid::xid and a.datname <> current_database()
        )
        order by x.xid
    );
end
$$;

-- The newest horizon whose earlier transactions have all ended; p_exempts: except those that were running 250 ms ago: see _head.
create or replace function pgqueue._safe_horizon(p_snapshot pg_snapshot, p_running xid8[], p_now timestamptz, p_exempts boolean)
returns table (at timestamptz, newest_id bigint, xid xid8)
language plpgsql stable parallel safe rows 1
as $$
declare
    v_patient_from xid8;
    v_waited_for xid8;
begin
    select h.xid into v_patient_from
    from pgqueue.horizons h
    where p_exempts and h.at <= p_now - interval '250 ms' and pg_visible_in_snapshot(h.xid, p_snapshot)
    order by h.n desc
    limit 1;
    select x.xid into v_waited_for
    from unnest(p_running) x (xid)
    where v_patient_from is null or x.xid >= v_patient_from
    order by x.xid
    limit 1;
    -- After the clock stepped back, horizons from before the step are later than newer ones, or than the clock.
    return query
    select h.at, h.newest_id, h.xid
    from (select x.n, x.at, x.newest_id, x.xid, min(x.at) over (order by x.n desc) as least_since from pgqueue.horizons x) h
    where pg_visible_in_snapshot(h.xid, p_snapshot)
        and (v_waited_for is null or h.xid <= v_waited_for)
        and h.at <= least(h.least_since, p_now)
    order by h.n desc
    limit 1;
end
$$;

-- A time before which all transactions that are running by now had no xid yet: what relied on a row of lanes or tenant_lanes that
-- ended before is visible to the next statement. None is exempted, however long it has been open. Null: none is known.
create or replace function pgqueue._ended_before(p_now timestamptz)
returns timestamptz
language plpgsql stable parallel safe
as $$
begin
    -- As for heads, a second behind.
    return (
        select h.at - interval '1 s'
        from pgqueue._safe_horizon(pg_current_snapshot(), pgqueue._running_xids(pg_current_snapshot()), p_now, false) h
        where not exists (select from pgqueue.head_marks m where m.reason = 'clock')
    );
end
$$;
