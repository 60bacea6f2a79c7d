-- Heads: a lower bound for each lane, below which nothing is ready, so that no claim walks the entries of claimed jobs.
--
-- A claimed job leaves a dead entry in the ready index. Vacuum removes it, unless some session holds an old snapshot or
-- a long transaction open: then each claim would walk the entries of all jobs since. So claims begin at the head.
--
-- A head is a pair of time and id, compared as a row, as the ready index is ordered. A time alone could not move past jobs
-- that share their time, such as the jobs of one bulk call or of one run_at.
--
-- Why a head may move:
-- 1. Every statement that makes a job ready takes its xid, then reads the clock, and gives the job no earlier time
--    (_ready_at). A transaction without an xid reads the clock, t, takes an xid, m, and commits both as a horizon
--    (_propose_horizon). Transactions with a later xid make nothing ready before t.
-- 2. So once all transactions with an earlier xid have ended, no row comes in below t any more: t is the safe point. A
--    snapshot that has the horizon's own transaction as ended lists every running xid below m. (A snapshot does not list
--    running xids above the last that ended.)
-- 3. Rows whose time is below the safe point only leave the index. That holds for each single time below it as well: no
--    id, low or high, is added to it. So the first row that is there *then*, as a pair, is a permanent bound. (With that
--    snapshot or an earlier one, a still earlier row, committed in between, could be missed.)
-- 4. At the safe point and above, rows still come in, at any id. So the head never passes (safe point, 0).
-- Nothing waits for a transaction that is open for 250 ms or more: the head's row names it, with the previous head as its
-- fallback. Once it has ended, readers use that as the head, and the next move starts from there.
--
-- So each row of heads stays true, and writing one needs no lock: rows are inserted in any order, and the newest is read.
-- Two events make rows wrong: a dump that is restored elsewhere, and a clock that steps back. Readers detect the first
-- by an xid that does not exist yet, and read such a lane from its beginning. Four rules deal with the second:
-- - The safe point is kept a second, the cadence of maintain, behind t: a smaller step makes nothing ready below it, for a walk
--   over the dead entries of that second, and only beside an old snapshot.
-- - Each transaction that makes a job ready, leases one or writes a horizon compares its clock with the newest horizon. One
--   from the future shows a larger step: it writes a mark. While there is one, no head counts and none moves (_check_clock.sql).
-- - A horizon counts only if no later one has an earlier time.
-- - Maintenance finds hidden jobs within a minute, and counts them (_find_hidden).
--
-- Two more indexes have the same trouble, and heads under the queue '':
-- - Leases (priority 0), by the time at which they end.
-- - Jobs with keys (priority 1), by id: no job with a key lives below that head (_key_head), so that a probe of
--   a key does not walk the entries of its former jobs. Its pair is (epoch, id), and its safe point is the newest id of
--   jobs_id_seq, read together with the clock of a horizon: each statement that draws an id has its xid before. Only
--   _requeue gives a job an old id again. It writes a mark with it (_check_clock.sql).

-- Inlined (no SET, and stable), and expanded in each claim: so it is small, and calls _fallback only where a head has one.
create or replace function pgqueue._head(p_queue text, p_priority smallint, p_resumed boolean)
returns table (head timestamptz, head_id bigint)
language sql stable parallel safe rows 1
as $$
    select
        case
            when l.is_void then '-infinity'
            when l.open_xids is null then coalesce(l.head, '-infinity')
            else (pgqueue._fallback(l.open_xids, l.fallback_heads, l.fallback_ids, l.head, l.head_id)).head
        end,
        case
            when l.is_void then 0
            when l.open_xids is null then coalesce(l.head_id, 0)
            else (pgqueue._fallback(l.open_xids, l.fallback_heads, l.fallback_ids, l.head, l.head_id)).head_id
        end
    from (select) one
    left join lateral (
        select
            h.head, h.head_id, h.open_xids, h.fallback_heads, h.fallback_ids,
            exists (select from pgqueue.head_marks m where m.reason = 'clock')
            -- Or the row comes from a restored dump.
            or (
                not pg_catalog.pg_visible_in_snapshot(h.xid, pg_catalog.pg_current_snapshot())
                and h.xid is distinct from pg_catalog.pg_current_xact_id_if_assigned()
            ) as is_void
        from pgqueue.heads h
        where h.queue = p_queue and h.priority = p_priority and h.resumed = p_resumed
        order by h.queue desc, h.priority desc, h.resumed desc, h.n desc
        limit 1
    ) l on true
$$;

-- Stable: it sees the snapshot of the statement that reads the head.
create or replace function pgqueue._fallback(
    p_open_xids xid8[], p_heads timestamptz[], p_ids bigint[], inout head timestamptz, inout head_id bigint,
    p_snapshot pg_snapshot default null
)
language sql stable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select f.at, f.id
    from (
        select _fallback.head as at, _fallback.head_id as id
        union all
        select o.at, o.id
        from unnest(p_open_xids, p_heads, p_ids) o (xid, at, id)
        where pg_visible_in_snapshot(o.xid, coalesce(p_snapshot, pg_current_snapshot()))
    ) f
    order by f.at, f.id
    limit 1
$$;

-- Inlined: its caller's plan reads one range of the index, of which the row comparison is the lower bound.
create or replace function pgqueue._first_ready(
    p_queue text, p_priority smallint, p_resumed boolean, p_head timestamptz, p_head_id bigint, p_until timestamptz
)
returns table (ready_at timestamptz, id bigint)
language sql stable parallel safe rows 1
as $$
    select j.ready_at, j.id
    from pgqueue.jobs j
    where j.state in ('waiting', 'failed') and j.queue = p_queue and j.priority = p_priority and j.resumed = p_resumed
        and (j.ready_at, j.id) >= (p_head, p_head_id) and j.ready_at <= p_until
    order by j.ready_at, j.id
    limit 1
$$;

-- The first jobs of each lane of a queue (null: of all queues) that are ready by a time, p_most of each sub-lane, in the order of
-- claims. Inlined: it reads only the columns that its caller uses.
create or replace function pgqueue._ready_jobs(p_queue text, p_most integer, p_until timestamptz)
returns setof pgqueue.jobs
language sql stable parallel safe rows 100
as $$
    select j.*
    from (
        select distinct x.priority, x.queue
        from pgqueue.lanes x
        -- One plan for all calls reads these by the index.
        where x.queue = any (case when p_queue is null then array(select y.queue from pgqueue.lanes y) else array[p_queue] end)
        order by x.priority desc, x.queue
    ) l
    cross join (values (true), (false)) s (resumed)
    cross join lateral pgqueue._head(l.queue, l.priority, s.resumed) h
    cross join lateral (
        select x.*
        from pgqueue.jobs x
        where x.state in ('waiting', 'failed') and x.queue = l.queue and x.priority = l.priority and x.resumed = s.resumed
            and (x.ready_at, x.id) >= (h.head, h.head_id) and x.ready_at <= p_until
        order by x.ready_at, x.id
        limit p_most
    ) j
$$;

-- PL/pgSQL keeps the plan for the session. SQL functions with settings are planned again in each call before PostgreSQL 18.
create or replace function pgqueue._lease_head()
returns timestamptz
language plpgsql stable parallel safe
as $$
begin
    return (select h.head from pgqueue._head('', 0::smallint, false) h);
end
$$;
