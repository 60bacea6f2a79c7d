-- Heads: a lower bound for each lane, below which nothing is ready, so that no claim walks what others have claimed.
--
-- A claimed job leaves a dead entry in the ready index. Vacuum removes it, unless some session holds an old snapshot or
-- a long transaction open: then each claim would walk the entries of all jobs since. So claims begin at the head.
--
-- A head is a pair of time and id, compared as a row, as the ready index is ordered. A time alone could not pass jobs that
-- share their time: those of one bulk call, or of one run_at.
--
-- Why a head may move:
-- 1. Every statement that makes a job ready takes its xid, then reads the clock, and gives the job no earlier time
--    (_ready_at). A transaction without an xid reads the clock, t, takes an xid, m, and commits both as a horizon
--    (_propose). Transactions with a later xid make nothing ready before t.
-- 2. So once all transactions with an earlier xid have ended, no row comes in below t any more: t is the safe point. To
--    see who still runs, this asks a snapshot that has the horizon's own transaction as ended; such a snapshot lists every
--    running xid below m. (A snapshot does not list running xids above the last that ended.)
-- 3. Rows whose time is below the safe point only leave the index. That holds for each single time below it as well: no
--    id, low or high, is added to it. So the first row that is there *then*, as a pair, is a bound for good. (Read with
--    that snapshot or an earlier one, the first row might be one that has an elder, committed in between.)
-- 4. At the safe point and above, rows still come in, at any id. So the head never passes (safe point, 0).
-- A transaction open for a second or more is not waited for: the head's row names it, with the head before as its fallback mark.
-- Once it has ended, readers take that mark for the head by themselves, and the next move finds what it has left.
--
-- So each row of heads holds for ever, and it needs no lock to write one: rows are inserted in any order, and the newest is
-- read. Two things make rows wrong: a dump that is restored elsewhere, and a clock that steps back. Readers see the first
-- by an xid that there was not yet, and take such a lane from its beginning. Against the second stand four rules:
-- - The safe point is kept a second, the cadence of maintain, behind t: a smaller step makes nothing ready below it.
-- - A reader, a producer or maintain that sees a row from the future knows of a larger step. Readers take the lane from its
--   beginning. Producers write that down, in the transaction of their job, so the two are seen together (_register_lane).
--   So does the next move of heads. Where the clock went forward again before such a mark was committed, newer heads may
--   stand above it: maintain drops them, and the mark with them, within a second.
-- - Of horizons only those count that no later one is before.
-- - What is hidden all the same is found within a minute, and counted (_find_hidden).
-- The second costs a walk over the dead entries of the last second at most, and only beside an old snapshot. Jobs that are
-- older are passed one by one.
--
-- Two more indexes have the same trouble, and heads under the queue '':
-- - Leases (priority 0), by the time at which they end.
-- - Jobs with keys (priority 1), by id: no job with a key lives below that head (_key_head), so that no probe for what of a
--   key executes or waits walks what the key has had before. Its pair is (epoch, id), and its safe point the newest id of
--   jobs_id_seq, read together with the clock of a horizon: each statement that draws an id has its xid before. Only
--   _requeue gives a job an old id again. It writes a mark (sub-lane true) with it: while any mark is seen there is no
--   such head. maintain drops marks after ten seconds, and lets the head begin anew.

create or replace function pgqueue._head(p_queue text, p_priority smallint, p_resumed boolean)
returns table (head timestamptz, head_id bigint, at timestamptz)
language sql
stable
parallel safe
rows 1
as $$
    select
        case when l.is_void then '-infinity' else coalesce(f.fallback_head, l.head, '-infinity') end,
        case when l.is_void then 0 else coalesce(f.fallback_id, l.head_id, 0) end,
        l.at
    from (select) one
    left join lateral (
        select
            h.at, h.head, h.head_id, h.open_xids, h.fallback_heads, h.fallback_ids,
            -- Read after the row was seen: a clock before it has stepped back.
            h.at > (select pgqueue._clock())
            or (
                not pg_catalog.pg_visible_in_snapshot(h.xid, (select pg_catalog.pg_current_snapshot()))
                and h.xid is distinct from pg_catalog.pg_current_xact_id_if_assigned()
            ) as is_void
        from pgqueue.heads h
        where h.queue = p_queue and h.priority = p_priority and h.resumed = p_resumed
        order by h.queue desc, h.priority desc, h.resumed desc, h.n desc
        limit 1
    ) l on true
    left join lateral (
        select o.fallback_head, o.fallback_id
        from unnest(l.open_xids, l.fallback_heads, l.fallback_ids) o (xid, fallback_head, fallback_id)
        where l.open_xids is not null
            and pg_catalog.pg_visible_in_snapshot(o.xid, (select pg_catalog.pg_current_snapshot()))
            and (o.fallback_head, o.fallback_id) < (l.head, l.head_id)
        order by o.fallback_head, o.fallback_id
        limit 1
    ) f on true
$$;

comment on function pgqueue._head(text, smallint, boolean) is
    'Private: the head of a sub-lane, and when it was written (null: it has none).';

-- Inlined (no SET, and stable), so that its caller's plan has the one index range that it is. The row comparison is that
-- range's lower bound.
create or replace function pgqueue._first_ready(
    p_queue text, p_priority smallint, p_resumed boolean, p_head timestamptz, p_head_id bigint, p_until timestamptz
)
returns table (ready_at timestamptz, id bigint)
language sql
stable
parallel safe
rows 1
as $$
    select j.ready_at, j.id
    from pgqueue.jobs j
    where j.state in ('waiting', 'failed')
        and j.queue = p_queue
        and j.priority = p_priority
        and j.resumed = p_resumed
        and (j.ready_at, j.id) >= (p_head, p_head_id)
        and j.ready_at <= p_until
    order by j.ready_at, j.id
    limit 1
$$;

comment on function pgqueue._first_ready(text, smallint, boolean, timestamptz, bigint, timestamptz) is
    'Private: the first job of a sub-lane that is ready between its head and p_until.';

create or replace function pgqueue._lease_head()
returns timestamptz
language sql
stable
parallel safe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
    select h.head from pgqueue._head('', 0::smallint, false) h
$$;

comment on function pgqueue._lease_head() is 'Private: no lease ends before this.';

create or replace function pgqueue._key_head()
returns bigint
language sql
volatile
parallel safe
as $$
    select case
        when exists (
            select from pgqueue.heads m where m.queue = '' and m.priority = 1::smallint and m.resumed = true
        ) then 0::bigint
        else (select h.head_id from pgqueue._head('', 1::smallint, false) h)
    end
$$;

comment on function pgqueue._key_head() is 'Private: no job with a key that lives has an id below this.';

-- The caller has made a job with a key live again, under its old id.
create or replace function pgqueue._mark_old_key()
returns void
language sql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
    insert into pgqueue.heads (queue, priority, resumed, head, at, xid)
    values ('', 1::smallint, true, '-infinity', pgqueue._clock(), pg_current_xact_id())
$$;

comment on function pgqueue._mark_old_key() is 'Private: switches the head of jobs with keys off until maintain has read it anew.';

-- Ten seconds: by then every statement has ended that began before the mark was seen, and may yet write a head.
create or replace function pgqueue._renew_key_head(p_now timestamptz)
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
begin
    delete from pgqueue.heads h
    where h.queue = '' and h.priority = 1::smallint and h.resumed = true
        and h.at not between p_now - interval '10 s' and p_now;
    if found then
        insert into pgqueue.heads (queue, priority, resumed, head, at, xid)
        values ('', 1::smallint, false, '-infinity', p_now, pg_current_xact_id());
    end if;
end
$$;

comment on function pgqueue._renew_key_head(timestamptz) is 'Private: drops old marks, and lets the head of jobs with keys begin anew.';

-- p_began, p_newest_id: what the caller read while its transaction had no xid yet. p_began null: it had one; p_newest_id
-- null: unknown.
create or replace function pgqueue._propose(p_began timestamptz, p_newest_id bigint)
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_last record;
begin
    if p_began is null then
        return;
    end if;
    select h.at, h.newest_id, h.xid into v_last from pgqueue.horizons h order by h.n desc limit 1;
    if v_last.at is null or v_last.at < p_began - interval '100 ms' or v_last.at > pgqueue._clock() then
        insert into pgqueue.horizons (at, newest_id, xid)
        values (
            p_began,
            -- What holds for transactions later than an earlier one holds for those later than this.
            coalesce(p_newest_id, case when v_last.xid < pg_current_xact_id() then v_last.newest_id end),
            pg_current_xact_id()
        );
    end if;
end
$$;

comment on function pgqueue._propose(timestamptz, bigint) is
    'Private: notes that this transaction had no xid at p_began, unless a horizon was noted within 100 ms before.';

-- Called by claims, for the lanes that they took from, and by maintain for all. Moves no head twice within 100 ms.
-- p_claimed: something was claimed, so there is something to pass. Where nothing was, a lane in which nothing is due is left
-- alone as soon as its head has passed what was: else a queue at rest would be written on for ever.
create or replace function pgqueue._move_heads(p_sub_lanes pgqueue.sub_lane[], p_claimed boolean)
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
    v_due boolean;
    v_idle_since timestamptz;
    v_open_xids xid8[];
    v_fallback_heads timestamptz[];
    v_fallback_ids bigint[];
begin
    select pg_current_snapshot() into v_snapshot;
    v_running := pgqueue._running_xids(v_snapshot);
    select h.* into v_horizon from pgqueue._safe_horizon(v_snapshot, v_running, v_now) h;
    -- Without one no head moves; some may be wrong all the same, after a step back.
    select s.last_value into v_newest_id from pgqueue.jobs_id_seq s;

    foreach v_part in array p_sub_lanes loop
        select h.* into v_last
        from pgqueue.heads h
        where h.queue = v_part.queue and h.priority = v_part.priority and h.resumed = v_part.resumed
        order by h.queue desc, h.priority desc, h.resumed desc, h.n desc
        limit 1;
        v_known := found;
        if v_known then
            if v_last.at > pgqueue._clock() then
                v_known := false;
            elsif v_last.at > v_now - interval '100 ms' then
                continue;
            elsif not pg_visible_in_snapshot(v_last.xid, v_snapshot) and v_last.xid is distinct from pg_current_xact_id_if_assigned() then
                -- Somebody has just moved it; or it is from elsewhere.
                continue when pg_visible_in_snapshot(v_last.xid, pg_current_snapshot());
                v_known := false;
            end if;
        end if;

        if v_known and not p_claimed and v_part.queue <> '' then
            v_known := not pgqueue._drop_marks(v_part, v_last.n);
        end if;

        select '-infinity'::timestamptz as at, 0::bigint as id into v_base;
        v_open_xids := null;
        v_fallback_heads := null;
        v_fallback_ids := null;
        if v_known then
            select
                array_agg(o.xid), array_agg(o.fallback_head), array_agg(o.fallback_id)
            into v_open_xids, v_fallback_heads, v_fallback_ids
            from unnest(v_last.open_xids, v_last.fallback_heads, v_last.fallback_ids) o (xid, fallback_head, fallback_id)
            where not pg_visible_in_snapshot(o.xid, v_snapshot);
            select x.at, x.id into v_base
            from (
                select v_last.head, v_last.head_id
                union all
                select o.fallback_head, o.fallback_id
                from unnest(v_last.open_xids, v_last.fallback_heads, v_last.fallback_ids) o (xid, fallback_head, fallback_id)
                where pg_visible_in_snapshot(o.xid, v_snapshot)
            ) x (at, id)
            order by x.at, x.id
            limit 1;
        end if;

        -- What is there now, by a snapshot later than the one that says who has ended.
        v_head := v_base;
        select null::timestamptz as at, null::bigint as id into v_first;
        if v_part.queue = '' and v_part.priority = 1 then
            continue when v_horizon.newest_id is null or exists (
                select from pgqueue.heads m where m.queue = '' and m.priority = 1::smallint and m.resumed = true
            );
            select 'epoch'::timestamptz as at, v_horizon.newest_id + 1 as id into v_safe;
        else
            select v_horizon.at - interval '1 s' as at, 0::bigint as id into v_safe;
        end if;
        if (v_base.at, v_base.id) < (v_safe.at, v_safe.id) then
            select f.at, f.id into v_first
            from pgqueue._first_of(v_part.queue, v_part.priority, v_part.resumed, v_base.at, v_base.id, v_safe.at, v_safe.id) f;
            select coalesce(v_first.at, v_safe.at) as at, coalesce(v_first.id, v_safe.id) as id into v_head;
        end if;
        continue when v_head = v_base and (v_base.at, v_base.id) = (coalesce(v_last.head, '-infinity'), coalesce(v_last.head_id, 0));

        v_idle_since := null;
        if not p_claimed then
            v_due := v_first.at is not null or exists (
                select
                from pgqueue._first_of(
                    v_part.queue, v_part.priority, v_part.resumed, v_head.at, v_head.id, v_now + interval '1 us', v_head.id
                )
            );
            if not v_due then
                v_idle_since := case when v_known then v_last.idle_since end;
                continue when v_idle_since is not null
                    and (v_base.at, v_base.id) = (v_last.head, v_last.head_id)
                    -- What is leased now may lapse, or end, long after.
                    and v_last.head >= v_idle_since + case when v_part.queue = '' then interval '10 min' else '0' end
                    and v_last.at > v_now - case when v_last.newest_id = v_newest_id then interval '1 hour' else '1 min' end;
                v_idle_since := coalesce(v_idle_since, v_now);
            end if;
        end if;

        if v_head > v_base then
            select
                v_open_xids || array_agg(x.xid),
                v_fallback_heads || array_agg(case when v_known then v_last.head else '-infinity' end),
                v_fallback_ids || array_agg(case when v_known then v_last.head_id else 0 end)
            into v_open_xids, v_fallback_heads, v_fallback_ids
            from unnest(v_running) x (xid)
            where x.xid < v_horizon.xid and (v_open_xids is null or x.xid <> all (v_open_xids));
        end if;
        insert into pgqueue.heads (
            queue, priority, resumed, head, head_id, at, xid, idle_since, newest_id, open_xids, fallback_heads, fallback_ids
        )
        values (
            v_part.queue, v_part.priority, v_part.resumed, v_head.at, v_head.id, v_now, pg_current_xact_id(), v_idle_since,
            v_newest_id, v_open_xids, v_fallback_heads, v_fallback_ids
        );
    end loop;
end
$$;

comment on function pgqueue._move_heads(pgqueue.sub_lane[], boolean) is
    'Private: moves the heads of these sub-lanes as far as is safe.';

-- Snapshots list transactions of all databases. Those known to be of another one make nothing ready here.
create or replace function pgqueue._running_xids(p_snapshot pg_snapshot)
returns xid8[]
language sql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select array(
        select x.xid
        from pg_snapshot_xip(p_snapshot) x (xid)
        where not exists (
            select
            from pg_stat_activity a
            where a.backend_xid = x.xid::xid and a.datname <> current_database()
        )
        order by x.xid
    )
$$;

comment on function pgqueue._running_xids(pg_snapshot) is
    'Private: the transactions that a snapshot lists as running and that may be of this database.';

-- The newest horizon whose earlier transactions have all ended, save those that were running a second ago: see above.
create or replace function pgqueue._safe_horizon(p_snapshot pg_snapshot, p_running xid8[], p_now timestamptz)
returns table (at timestamptz, newest_id bigint, xid xid8)
language plpgsql
stable
parallel safe
rows 1
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_patient_from xid8;
    v_waited_for xid8;
begin
    select h.xid into v_patient_from
    from pgqueue.horizons h
    where h.at <= p_now - interval '1 s' and pg_visible_in_snapshot(h.xid, p_snapshot)
    order by h.n desc
    limit 1;
    select x.xid into v_waited_for
    from unnest(p_running) x (xid)
    where v_patient_from is null or x.xid >= v_patient_from
    order by x.xid
    limit 1;
    -- After a step back a horizon of before it is above those that came later, or above the clock.
    return query
    select h.at, h.newest_id, h.xid
    from (
        select x.n, x.at, x.newest_id, x.xid, min(x.at) over (order by x.n desc) as least_since from pgqueue.horizons x
    ) h
    where pg_visible_in_snapshot(h.xid, p_snapshot)
        and (v_waited_for is null or h.xid <= v_waited_for)
        and h.at <= least(h.least_since, p_now)
    order by h.n desc
    limit 1;
end
$$;

comment on function pgqueue._safe_horizon(pg_snapshot, xid8[], timestamptz) is
    'Private: the horizon whose time and newest id are safe points.';

-- Of jobs with keys: a look at a thousand ids, live jobs without keys among them; where that does not do, where to go on.
create or replace function pgqueue._first_of(
    p_queue text, p_priority smallint, p_resumed boolean, p_head timestamptz, p_head_id bigint,
    p_below timestamptz, p_below_id bigint
)
returns table (at timestamptz, id bigint)
language plpgsql
volatile
parallel unsafe
rows 1
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
begin
    if p_queue = '' and p_priority = 1 then
        return query
        select 'epoch'::timestamptz, f.id
        from (
            select coalesce(min(l.id) filter (where l.key is not null), case when count(*) = 1000 then max(l.id) + 1 end) as id
            from (
                select j.id, j.key
                from pgqueue.jobs j
                where j.id >= p_head_id and j.id < p_below_id
                order by j.id
                limit 1000
            ) l
        ) f
        where f.id is not null;
    elsif p_queue = '' then
        return query
        select j.lease_expires_at, j.id
        from pgqueue.jobs j
        where j.state = 'executing'
            and (j.lease_expires_at, j.id) >= (p_head, p_head_id)
            and j.lease_expires_at < p_below
        order by j.lease_expires_at, j.id
        limit 1;
    else
        return query
        select f.ready_at, f.id
        from pgqueue._first_ready(
            p_queue, p_priority, p_resumed, p_head, p_head_id, p_below - interval '1 us'
        ) f;
    end if;
end
$$;

comment on function pgqueue._first_of(text, smallint, boolean, timestamptz, bigint, timestamptz, bigint) is
    'Private: the first job of a sub-lane, or under a head of the queue '''', from a head on and below a pair of time and id.';

-- Only maintain calls it, which runs alone: it waits for no claim.
create or replace function pgqueue._drop_marks(p_sub_lane pgqueue.sub_lane, p_before bigint)
returns boolean
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
begin
    delete from pgqueue.heads h
    where h.queue = p_sub_lane.queue
        and h.priority = p_sub_lane.priority
        and h.resumed = p_sub_lane.resumed
        and h.n < p_before
        and h.head = '-infinity';
    return found;
end
$$;

comment on function pgqueue._drop_marks(pgqueue.sub_lane, bigint) is
    'Private: drops the marks of a sub-lane that stand below its newest head; true: there were some, and that head may be wrong.';

create or replace function pgqueue._move_all_heads()
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
    perform pgqueue._renew_key_head(pgqueue._clock());
    perform pgqueue._move_heads(
        array(
            select row(l.queue, l.priority, r.resumed)::pgqueue.sub_lane
            from (select distinct a.queue, a.priority from pgqueue.lanes a) l
            cross join (values (false), (true)) r (resumed)
            union all
            select row('', h.priority, false)::pgqueue.sub_lane
            from (values (0::smallint), (1::smallint)) h (priority)
        ),
        false
    );
end
$$;

comment on function pgqueue._move_all_heads() is 'Private: moves the heads of all lanes, of the leases, and of jobs with keys.';

-- The net. Each lane is asked in one statement: head and jobs are of one snapshot.
create or replace function pgqueue._find_hidden()
returns integer
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
    v_part record;
    v_hidden boolean;
    v_found integer := 0;
begin
    for v_part in select distinct h.queue, h.priority, h.resumed from pgqueue.heads h loop
        v_hidden := false;
        if v_part.queue = '' and v_part.priority = 1 then
            select true into v_hidden
            from (
                select
                from pgqueue.jobs j
                where j.key is not null and j.id < pgqueue._key_head()
                order by j.id
                limit 1
            ) below;
        elsif v_part.queue = '' then
            select true into v_hidden
            from pgqueue._head(v_part.queue, v_part.priority, v_part.resumed) h
            cross join lateral (
                select
                from pgqueue.jobs j
                where j.state = 'executing' and (j.lease_expires_at, j.id) < (h.head, h.head_id)
                order by j.lease_expires_at, j.id
                limit 1
            ) below;
        else
            select true into v_hidden
            from pgqueue._head(v_part.queue, v_part.priority, v_part.resumed) h
            cross join lateral (
                select
                from pgqueue.jobs j
                where j.state in ('waiting', 'failed')
                    and j.queue = v_part.queue
                    and j.priority = v_part.priority
                    and j.resumed = v_part.resumed
                    and (j.ready_at, j.id) < (h.head, h.head_id)
                order by j.ready_at, j.id
                limit 1
            ) below;
        end if;
        if v_hidden then
            insert into pgqueue.heads (queue, priority, resumed, head, at, xid)
            values (v_part.queue, v_part.priority, v_part.resumed, '-infinity', pgqueue._clock(), pg_current_xact_id());
            v_found := v_found + 1;
        end if;
    end loop;
    return v_found;
end
$$;

comment on function pgqueue._find_hidden() is
    'Private: takes lanes that have something ready below their heads from the beginning again; returns how many there were.';

create or replace function pgqueue._tidy_heads(p_now timestamptz)
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
begin
    -- The newest of each lane stays, whatever its age, and so do marks that no move has seen; of lanes that were dropped,
    -- none.
    delete from pgqueue.heads h
    where exists (
            select
            from pgqueue.heads x
            where x.queue = h.queue and x.priority = h.priority and x.resumed = h.resumed and x.n > h.n
        )
        and (h.head > '-infinity' or h.queue = '')
        or (
            h.queue <> ''
            and not exists (select from pgqueue.lanes a where a.queue = h.queue and a.priority = h.priority)
        );
    delete from pgqueue.horizons h where h.at not between p_now - interval '1 min' and p_now + interval '1 s';
end
$$;

comment on function pgqueue._tidy_heads(timestamptz) is 'Private: forgets heads that were moved, and horizons of the past.';
