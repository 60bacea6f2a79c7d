-- The fast path of a claim: two statements, one that finds and locks the jobs and one that takes them (_take).
--
-- It serves claims of up to 50 jobs, while there are no limits, no paused queues and no weights, maintenance ran within the
-- last two seconds and left nothing (no lapsed lease, no note of a key), and the jobs that it finds have no key,
-- limit_key or expires_at. Any other claim goes the long way, lane by lane: see _claim_lanes. Both claim the same jobs
-- in the same order (tests/sql/test_fast_path.py compares them), and set pgqueue.fast_path = off forces the long way. A
-- claim of one job that comes first in its transaction costs half as much: plpgsql prepares each statement and each
-- expression anew in each transaction, and the long way has some forty of them. If it finds other jobs, it has locked
-- them already; the long way locks them again, in the same transaction.

-- rows: the locked jobs, in serving order; null: go the long way. last_queue: the queue of the last one.
create or replace function pgqueue._find_plain(
    p_queues text[], p_max_jobs integer, p_now timestamptz, out rows tid[], out last_queue text
)
returns record
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
begin
    select
        case
            when a.yes and f.are_plain and (
                -- As on the long way, lapsed leases matter to a claim that comes up short.
                cardinality(f.rows) = p_max_jobs
                or not exists (
                    select
                    from pgqueue._head('', 0::smallint, false) h
                    cross join lateral (
                        select
                        from pgqueue.jobs j
                        where j.state = 'executing'
                            and (j.lease_expires_at, j.id) >= (h.head, h.head_id)
                            and j.lease_expires_at <= p_now
                        limit 1
                    ) lapsed
                )
            ) then f.rows
        end,
        f.queues[cardinality(f.queues)]
    into rows, last_queue
    from (
        select
            not exists (select from pgqueue.limits)
            and not exists (select from pgqueue.queues q where q.paused_at is not null or q.weight <> 1)
            and (
                select h.at between p_now - interval '2 s' and p_now
                from pgqueue.maintenance_runs h
                order by h.n desc
                limit 1
            ) is true
            and not exists (select from pgqueue.key_notes)
            and not exists (select from pgqueue.notes) as yes
        offset 0
    ) a
    left join lateral (
        select
            coalesce(array_agg(c.row_ctid), '{}') as rows,
            array_agg(c.queue) as queues,
            coalesce(bool_and(c.is_plain), true) as are_plain
        from (
            select d.queue, due.row_ctid, due.is_plain
            from (
                select l.queue, l.priority, l.resumed, l.head, l.head_id
                from pgqueue._due_lanes(p_queues, p_now) l
                where a.yes
                order by l.priority desc, l.lane_ready_at, l.queue, l.resumed desc
            ) d
            cross join lateral (
                select
                    j.ctid as row_ctid,
                    j.key is null and j.limit_key is null and j.expires_at is null as is_plain
                from pgqueue.jobs j
                where j.state in ('waiting', 'failed')
                    and j.queue = d.queue
                    and j.priority = d.priority
                    and j.resumed = d.resumed
                    and (j.ready_at, j.id) >= (d.head, d.head_id)
                    and j.ready_at <= p_now
                order by j.ready_at, j.id
                limit p_max_jobs
                for update skip locked
            ) due
            limit p_max_jobs
        ) c
    ) f on true;
end
$$;

comment on function pgqueue._find_plain(text[], integer, timestamptz) is
    'Private: locks up to p_max_jobs due jobs in serving order; rows is null where the claim has to go lane by lane.';

-- Inlined (no SET, and stable), so that its callers' plans contain its probes. `offset 0` computes each head once: else the
-- planner copies its expression to each place that uses it.
create or replace function pgqueue._due_lanes(p_queues text[], p_now timestamptz)
returns table (
    queue text, priority smallint, resumed boolean, lane_ready_at timestamptz, head timestamptz, head_id bigint,
    head_at timestamptz
)
language sql
stable
parallel safe
rows 10
as $$
    select
        a.queue, a.priority, r.resumed,
        first_value(f.ready_at) over (partition by a.queue, a.priority order by r.resumed),
        h.head, h.head_id, h.at
    from (
        select x.queue, x.priority
        from pgqueue.lanes x
        where p_queues is null
        union
        select x.queue, x.priority
        from unnest(p_queues) q (name)
        join pgqueue.lanes x on x.queue = q.name
    ) a
    cross join (values (false), (true)) r (resumed)
    cross join lateral (select x.* from pgqueue._head(a.queue, a.priority, r.resumed) x offset 0) h
    cross join lateral pgqueue._first_ready(a.queue, a.priority, r.resumed, h.head, h.head_id, p_now) f
$$;

comment on function pgqueue._due_lanes(text[], timestamptz) is
    'Private: the sub-lanes in which a job is due, with their heads; lane_ready_at: the time of the first job of the lane, which is '
    'one that never ran if such a job is due.';
