-- Heads: a lower bound for each lane, below which nothing is ready, so that no claim walks what others have claimed.
--
-- A claimed job leaves a dead entry in the ready index. Vacuum removes it, unless some session holds an old snapshot or
-- a long transaction open: then each claim would walk the entries of all jobs since. So claims begin at the head.
--
-- Why a head may move. Whatever makes a job ready takes its xid, then reads the clock, and gives the job no earlier time
-- (_ready_at). Somebody without an xid reads the clock, t, takes an xid, m, and commits both as a horizon (_propose).
-- Transactions with a later xid make nothing ready before t. So once all with an earlier one have ended, nothing comes
-- in below t any more: the new head is t, or the first job below it that is there *then*. To see who is still running
-- this asks a snapshot that has the horizon's own transaction as ended; such a snapshot lists every running xid below m.
-- (A snapshot does not list running xids above the last that ended. And a look at the jobs from before the question
-- would miss what was committed in between.)
-- A transaction open for a second or more is not waited for: the head's row names it, and the head before as its floor.
-- Once it has ended, readers take the floor for the head by themselves, and the next move finds what it has left.
--
-- So each row holds for ever, and it needs no lock to write one: rows are inserted in any order, and the newest is read.
-- Two things make rows wrong: a clock that steps back and a dump that is restored elsewhere. Readers see either: a row
-- from the future, or an xid that there was not yet. They take such a lane from its beginning.
-- The index of leases has the same trouble, and its head: that of the queue ''.

create or replace function pgqueue._head(p_queue text, p_priority smallint, p_resumed boolean)
returns table (head timestamptz, at timestamptz)
language sql
stable
parallel safe
rows 1
as $$
    select
        case
            -- Read after the row was seen: a clock before it has stepped back.
            when h.at > (select pgqueue._clock()) then '-infinity'::timestamptz
            when not pg_catalog.pg_visible_in_snapshot(h.xid, (select pg_catalog.pg_current_snapshot()))
                and h.xid is distinct from pg_catalog.pg_current_xact_id_if_assigned()
            then '-infinity'::timestamptz
            when h.open_xids is null then h.head
            else least(
                h.head,
                (
                    select min(o.floor)
                    from unnest(h.open_xids, h.floors) o (xid, floor)
                    where pg_catalog.pg_visible_in_snapshot(o.xid, (select pg_catalog.pg_current_snapshot()))
                )
            )
        end,
        h.at
    from pgqueue.heads h
    where h.queue = p_queue and h.priority = p_priority and h.resumed = p_resumed
    order by h.queue desc, h.priority desc, h.resumed desc, h.n desc
    limit 1
$$;

comment on function pgqueue._head(text, smallint, boolean) is
    'Private: where a part of a lane begins, and when that was found; no row: nobody knows.';

create or replace function pgqueue._lease_head()
returns timestamptz
language sql
stable
parallel safe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
    select coalesce((select h.head from pgqueue._head('', 0::smallint, false) h), '-infinity')
$$;

comment on function pgqueue._lease_head() is 'Private: no lease ends before this.';

-- p_began: a time that the caller read while its transaction had no xid; null: it had one.
create or replace function pgqueue._propose(p_began timestamptz)
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_at timestamptz;
begin
    if p_began is null then
        return;
    end if;
    select h.at into v_at from pgqueue.horizons h order by h.n desc limit 1;
    if v_at is null or v_at < p_began - interval '100 ms' or v_at > pgqueue._clock() then
        insert into pgqueue.horizons (at, xid) values (p_began, pg_current_xact_id());
    end if;
end
$$;

comment on function pgqueue._propose(timestamptz) is
    'Private: notes that this transaction had no xid at p_began, unless somebody noted such a time within 100 ms before.';

-- Called by claims, for the lanes that they took from, and by maintain for all. Moves no head twice within 100 ms.
-- p_claimed: something was claimed, so there is something to pass. Where nothing was, a lane in which nothing is due is left
-- alone as soon as its head has passed what was: else a queue at rest would be written on for ever.
create or replace function pgqueue._move_heads(
    p_queues text[], p_priorities smallint[], p_parts boolean[], p_claimed boolean
)
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
    v_patient_from xid8;
    v_waited_for xid8;
    v_horizon record;
    v_newest_id bigint;
    v_part record;
    v_last pgqueue.heads;
    v_known boolean;
    v_base timestamptz;
    v_head timestamptz;
    v_first timestamptz;
    v_due boolean;
    v_idle_since timestamptz;
    v_open_xids xid8[];
    v_floors timestamptz[];
begin
    select pg_current_snapshot() into v_snapshot;
    -- Snapshots list transactions of all databases. Those known to be of another concern nobody here.
    v_running := array(
        select x.xid
        from pg_snapshot_xip(v_snapshot) x (xid)
        where not exists (
            select
            from pg_stat_activity a
            where a.backend_xid = x.xid::xid and a.datname <> current_database()
        )
        order by x.xid
    );
    -- Who was running a second ago is not waited for.
    select h.xid into v_patient_from
    from pgqueue.horizons h
    where h.at <= v_now - interval '1 s' and pg_visible_in_snapshot(h.xid, v_snapshot)
    order by h.n desc
    limit 1;
    select x.xid into v_waited_for
    from unnest(v_running) x (xid)
    where v_patient_from is null or x.xid >= v_patient_from
    order by x.xid
    limit 1;
    -- After a step back a horizon of before it is above those that came later, or above the clock.
    select h.at, h.xid into v_horizon
    from (
        select x.n, x.at, x.xid, min(x.at) over (order by x.n desc) as least_since from pgqueue.horizons x
    ) h
    where pg_visible_in_snapshot(h.xid, v_snapshot)
        and (v_waited_for is null or h.xid <= v_waited_for)
        and h.at <= least(h.least_since, v_now)
    order by h.n desc
    limit 1;
    -- Without one no head moves; some may be wrong all the same, after a step back.
    select s.last_value into v_newest_id from pgqueue.jobs_id_seq s;

    for v_part in select * from unnest(p_queues, p_priorities, p_parts) p (queue, priority, resumed) loop
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

        v_base := '-infinity';
        v_open_xids := null;
        v_floors := null;
        if v_known then
            select
                least(v_last.head, min(o.floor) filter (where pg_visible_in_snapshot(o.xid, v_snapshot))),
                array_agg(o.xid) filter (where not pg_visible_in_snapshot(o.xid, v_snapshot)),
                array_agg(o.floor) filter (where not pg_visible_in_snapshot(o.xid, v_snapshot))
            into v_base, v_open_xids, v_floors
            from unnest(v_last.open_xids, v_last.floors) o (xid, floor);
        end if;

        -- What is there now, by a snapshot later than the one that says who has ended.
        v_head := v_base;
        v_first := null;
        if v_base < v_horizon.at then
            v_first := pgqueue._first_of(v_part.queue, v_part.priority, v_part.resumed, v_base, v_horizon.at);
            v_head := coalesce(v_first, v_horizon.at);
        end if;
        continue when v_head = v_base and v_base = coalesce(v_last.head, '-infinity');

        v_idle_since := null;
        if not p_claimed then
            v_due := v_first is not null
                or pgqueue._first_of(v_part.queue, v_part.priority, v_part.resumed, v_head, v_now) is not null;
            if not v_due then
                v_idle_since := case when v_known then v_last.idle_since end;
                continue when v_idle_since is not null
                    and v_base = v_last.head
                    -- What is leased now may lapse, or end, long after.
                    and v_last.head >= v_idle_since + case when v_part.queue = '' then interval '10 min' else '0' end
                    and v_last.at > v_now - case when v_last.newest_id = v_newest_id then interval '1 hour' else '1 min' end;
                v_idle_since := coalesce(v_idle_since, v_now);
            end if;
        end if;

        if v_head > v_base then
            select
                v_open_xids || array_agg(x.xid),
                v_floors || array_agg(case when v_known then v_last.head else '-infinity' end)
            into v_open_xids, v_floors
            from unnest(v_running) x (xid)
            where x.xid < v_horizon.xid and (v_open_xids is null or x.xid <> all (v_open_xids));
        end if;
        insert into pgqueue.heads (
            queue, priority, resumed, head, at, xid, idle_since, newest_id, open_xids, floors
        )
        values (
            v_part.queue, v_part.priority, v_part.resumed, v_head, v_now, pg_current_xact_id(), v_idle_since, v_newest_id,
            v_open_xids, v_floors
        );
    end loop;
end
$$;

comment on function pgqueue._move_heads(text[], smallint[], boolean[], boolean) is
    'Private: moves the heads of these parts of lanes as far as is safe.';

create or replace function pgqueue._first_of(
    p_queue text, p_priority smallint, p_resumed boolean, p_from timestamptz, p_until timestamptz
)
returns timestamptz
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
    v_first timestamptz;
begin
    if p_queue = '' then
        select j.lease_expires_at into v_first
        from pgqueue.jobs j
        where j.state = 'executing' and j.lease_expires_at >= p_from and j.lease_expires_at < p_until
        order by j.lease_expires_at
        limit 1;
    else
        select j.ready_at into v_first
        from pgqueue.jobs j
        where j.state in ('waiting', 'failed')
            and j.queue = p_queue
            and j.priority = p_priority
            and j.resumed = p_resumed
            and j.ready_at >= p_from
            and j.ready_at < p_until
        order by j.ready_at, j.id
        limit 1;
    end if;
    return v_first;
end
$$;

comment on function pgqueue._first_of(text, smallint, boolean, timestamptz, timestamptz) is
    'Private: the first time at which something stands in a part of a lane, from p_from to below p_until.';

create or replace function pgqueue._move_all_heads()
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_queues text[];
    v_priorities smallint[];
    v_parts boolean[];
begin
    select array_agg(l.queue), array_agg(l.priority), array_agg(r.resumed)
    into v_queues, v_priorities, v_parts
    from (select distinct a.queue, a.priority from pgqueue.lanes a) l
    cross join (values (false), (true)) r (resumed);
    perform pgqueue._move_heads(v_queues || ''::text, v_priorities || 0::smallint, v_parts || false, false);
end
$$;

comment on function pgqueue._move_all_heads() is 'Private: moves the heads of all lanes, and of the leases.';

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
        if v_part.queue = '' then
            select true into v_hidden
            from pgqueue._head(v_part.queue, v_part.priority, v_part.resumed) h
            cross join lateral (
                select
                from pgqueue.jobs j
                where j.state = 'executing' and j.lease_expires_at < h.head
                order by j.lease_expires_at
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
                    and j.ready_at < h.head
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
    -- The newest of each lane stays, whatever its age; of lanes that were dropped, none.
    delete from pgqueue.heads h
    where exists (
            select
            from pgqueue.heads x
            where x.queue = h.queue and x.priority = h.priority and x.resumed = h.resumed and x.n > h.n
        )
        or (
            h.queue <> ''
            and not exists (select from pgqueue.lanes a where a.queue = h.queue and a.priority = h.priority)
        );
    delete from pgqueue.horizons h where h.at not between p_now - interval '1 min' and p_now + interval '1 s';
end
$$;

comment on function pgqueue._tidy_heads(timestamptz) is 'Private: forgets heads that were moved, and horizons of the past.';
