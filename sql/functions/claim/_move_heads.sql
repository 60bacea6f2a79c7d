-- Moving heads: a claim moves those of the lanes that it took from, maintain moves all. See _head for why a head may move.
-- Inserts rows of heads, none twice within 100 ms, and locks nothing.

-- p_claimed: jobs were claimed, so heads can move. Otherwise a lane in which nothing is due is left alone once its head has
-- moved past its last job: else a queue at rest would get new rows forever.
create or replace function pgqueue._move_heads(p_sub_lanes pgqueue.sub_lane[], p_claimed boolean)
returns void
language plpgsql
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_snapshot pg_snapshot;
    v_running xid8[];
    v_horizon record;
    v_newest_id bigint;
    v_part pgqueue.sub_lane;
    v_last pgqueue.heads;
    v_known boolean;
    -- Pairs of time and id.
    v_base record;
    v_head record;
    v_first record;
    v_safe record;
    v_idle_since timestamptz;
    -- The transactions that it does not wait for, with their fallbacks.
    v_open record;
begin
    if exists (select from pgqueue.head_marks m where m.reason = 'clock') then
        return;
    end if;
    select pg_current_snapshot() into v_snapshot;
    v_running := pgqueue._running_xids(v_snapshot);
    select h.* into v_horizon from pgqueue._safe_horizon(v_snapshot, v_running, v_now, true) h;
    -- Without a horizon no head moves, but after a step back of the clock some may have to be reset.
    select s.last_value into v_newest_id from pgqueue.jobs_id_seq s;

    foreach v_part in array p_sub_lanes loop
        select h.* into v_last
        from pgqueue.heads h
        where h.queue = v_part.queue and h.priority = v_part.priority and h.resumed = v_part.resumed
        order by h.queue desc, h.priority desc, h.resumed desc, h.n desc
        limit 1;
        v_known := found;
        continue when v_last.at > v_now - interval '100 ms';
        if not pg_visible_in_snapshot(v_last.xid, v_snapshot) and v_last.xid is distinct from pg_current_xact_id_if_assigned() then
            -- Another session has just moved it; or it comes from a restored dump.
            continue when pg_visible_in_snapshot(v_last.xid, pg_current_snapshot());
            v_known := false;
        end if;

        select array_agg(o.xid) as xids, array_agg(o.fallback_head) as heads, array_agg(o.fallback_id) as ids into v_open
        from unnest(v_last.open_xids, v_last.fallback_heads, v_last.fallback_ids) o (xid, fallback_head, fallback_id)
        where v_known and not pg_visible_in_snapshot(o.xid, v_snapshot);
        select coalesce(f.head, '-infinity') as at, coalesce(f.head_id, 0) as id into v_base
        from (select) one
        left join lateral pgqueue._fallback(
            v_last.open_xids, v_last.fallback_heads, v_last.fallback_ids, v_last.head, v_last.head_id, v_snapshot
        ) f on v_known;

        -- The first job now, by a snapshot later than the one that shows which transactions have ended.
        v_head := v_base;
        select null::timestamptz as at, null::bigint as id into v_first;
        if v_part.queue = '' and v_part.priority = 1 then
            continue when v_horizon.newest_id is null or exists (select from pgqueue.head_marks m where m.reason = 'key');
            select 'epoch'::timestamptz as at, v_horizon.newest_id + 1 as id into v_safe;
        else
            select v_horizon.at - interval '1 s' as at, 0::bigint as id into v_safe;
        end if;
        if (v_base.at, v_base.id) < (v_safe.at, v_safe.id) then
            select f.at, f.id into v_first
            from pgqueue._first_entry(v_part.queue, v_part.priority, v_part.resumed, v_base.at, v_base.id, v_safe.at, v_safe.id) f;
            select coalesce(v_first.at, v_safe.at) as at, coalesce(v_first.id, v_safe.id) as id into v_head;
        end if;
        continue when v_head = v_base and (v_base.at, v_base.id) = (coalesce(v_last.head, '-infinity'), coalesce(v_last.head_id, 0));

        v_idle_since := null;
        if not p_claimed then
            if v_first.at is null and not exists (
                select
                from pgqueue._first_entry(
                    v_part.queue, v_part.priority, v_part.resumed, v_head.at, v_head.id, v_now + interval '1 us', v_head.id
                )
            ) then
                v_idle_since := case when v_known then v_last.idle_since end;
                continue when v_idle_since is not null
                    and (v_base.at, v_base.id) = (v_last.head, v_last.head_id)
                    -- Leases, and jobs with keys, may end long after.
                    and v_last.head >= v_idle_since + case when v_part.queue = '' then interval '10 min' else '0' end
                    and v_last.at > v_now - case when v_last.newest_id = v_newest_id then interval '1 hour' else '1 min' end;
                v_idle_since := coalesce(v_idle_since, v_now);
            end if;
        end if;

        if v_head > v_base then
            select
                v_open.xids || array_agg(x.xid) as xids,
                v_open.heads || array_agg(case when v_known then v_last.head else '-infinity' end) as heads,
                v_open.ids || array_agg(case when v_known then v_last.head_id else 0 end) as ids
            into v_open
            from unnest(v_running) x (xid)
            where x.xid < v_horizon.xid and (v_open.xids is null or x.xid <> all (v_open.xids));
        end if;
        insert into pgqueue.heads (
            queue, priority, resumed, head, head_id, at, xid, idle_since, newest_id, open_xids, fallback_heads, fallback_ids
        )
        values (
            v_part.queue, v_part.priority, v_part.resumed, v_head.at, v_head.id, v_now, pg_current_xact_id(), v_idle_since,
            v_newest_id, v_open.xids, v_open.heads, v_open.ids
        );
    end loop;
end
$$;

-- The first entry of a sub-lane from one pair on to below another one. For jobs with keys it reads a thousand ids, including
-- live jobs without keys; if none has a key, it returns where to continue.
create or replace function pgqueue._first_entry(
    p_queue text, p_priority smallint, p_resumed boolean, p_head timestamptz, p_head_id bigint,
    p_below timestamptz, p_below_id bigint
)
returns table (at timestamptz, id bigint)
language plpgsql stable rows 1
as $$
declare
    -- See _head_name.
    v_queue constant text := case when p_priority > 800 then substr(p_queue, 4, left(p_queue, 3)::integer) end;
    v_lane_key constant text := substr(p_queue, 4 + length(v_queue));
begin
    if p_queue = '' and p_priority = 1 then
        return query
        select 'epoch'::timestamptz, f.id
        from (
            select coalesce(min(l.id) filter (where l.key is not null), case when count(*) = 1000 then max(l.id) + 1 end) as id
            from (
                select j.id, j.key from pgqueue.jobs j where j.id >= p_head_id and j.id < p_below_id order by j.id limit 1000
            ) l
        ) f
        where f.id is not null;
    elsif p_queue = '' then
        return query
        select j.lease_expires_at, j.id
        from pgqueue.jobs j
        where j.state = 'executing'
            and (j.lease_expires_at, j.id) >= (p_head, p_head_id) and (j.lease_expires_at, j.id) < (p_below, p_below_id)
        order by j.lease_expires_at, j.id
        limit 1;
    elsif p_priority > 800 then
        return query
        select j.ready_at, j.id
        from pgqueue.jobs j
        where j.state in ('waiting', 'failed') and j.lane_key is not null and not j.resumed and j.queue = v_queue
            and j.priority = (p_priority - 1000)::smallint and j.lane_key = v_lane_key
            and (j.ready_at, j.id) >= (p_head, p_head_id) and (j.ready_at, j.id) < (p_below, p_below_id)
        order by j.ready_at, j.id
        limit 1;
    else
        return query
        select f.ready_at, f.id
        from pgqueue._first_ready(p_queue, p_priority, p_resumed, p_head, p_head_id, p_below) f
        where (f.ready_at, f.id) < (p_below, p_below_id);
    end if;
end
$$;

-- With more than 500 lanes it moves the heads of some sixty.
create or replace function pgqueue._move_all_heads()
returns void
language plpgsql
as $$
declare
    v_parts integer := pgqueue._queue_parts() * case when pgqueue._queue_parts() > 1 then 4 else 1 end;
    v_part integer := floor(random() * v_parts)::integer;
begin
    perform pgqueue._renew_heads(pgqueue._clock());
    perform pgqueue._move_heads(
        array(
            select row(l.queue, l.priority, r.resumed)::pgqueue.sub_lane
            from (
                select distinct a.queue, a.priority from pgqueue.lanes a where pgqueue._is_in_part(a.queue, v_parts, v_part)
            ) l
            cross join (values (false), (true)) r (resumed)
        ) || array[row('', 0::smallint, false), row('', 1::smallint, false)]::pgqueue.sub_lane[],
        false
    );
end
$$;

-- The safety net, a step of maintain: finds jobs that a wrong head hides, and returns how many heads were wrong. One statement
-- reads heads and jobs, so that they are of one snapshot. With more than 500 lanes it reads the heads of a part.
create or replace function pgqueue._find_hidden()
returns integer
language plpgsql
as $$
declare
    v_parts integer := pgqueue._queue_parts();
    v_part integer := floor(random() * v_parts)::integer;
    v_found bigint;
begin
    insert into pgqueue.heads (queue, priority, resumed, head, at, xid)
    select p.queue, p.priority, p.resumed, '-infinity', pgqueue._clock(), pg_current_xact_id()
    from (
        select distinct h.queue, h.priority, h.resumed
        from pgqueue.heads h
        where h.queue = '' or pgqueue._is_in_part(h.queue, v_parts, v_part)
    ) p
    cross join lateral (select x.* from pgqueue._head(p.queue, p.priority, p.resumed) x offset 0) h
    where case
        when p.queue = '' and p.priority = 1 then (
            select true
            from pgqueue.jobs j
            where j.key is not null and j.id < (select k.id from pgqueue._key_head() k)
            order by j.id
            limit 1
        )
        else exists (select from pgqueue._first_entry(p.queue, p.priority, p.resumed, '-infinity', 0, h.head, h.head_id))
    end;
    get diagnostics v_found = row_count;
    return v_found::integer;
end
$$;
