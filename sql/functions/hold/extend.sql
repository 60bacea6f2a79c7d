-- extend: the worker is alive and still runs these jobs.
--
-- Locks rows FOR UPDATE SKIP LOCKED and never waits. A row that another session has locked cannot be updated, so its new lease
-- is inserted into lease_promises, and _rescue respects it: a job that this function reports as held stays held until the
-- reported time, whenever that lock ends. A promise counts only if it is committed before the lease lapses, for only then does
-- every rescue see it. So a locked row whose lease has lapsed gets none: rescue may be taking it back.
-- A later statement makes the report: it sees these changes, and locked rows as last committed. It reports no lease
-- longer than the one asked for: after the clock stepped back maintain cuts longer ones, and may hold the row now.

create or replace function pgqueue.extend(
    job_ids bigint[], reservations bigint[], lease interval default '30 s', started boolean[] default null
)
returns table (job_id bigint, lease_expires_at timestamptz, cancel_requested boolean)
language plpgsql security definer rows 100
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
    v_until timestamptz;
    v_extended bigint;
    v_now timestamptz;
begin
    perform pgqueue._check_pairs(extend.job_ids, extend.reservations);
    perform pgqueue._check_lease(extend.lease);
    if cardinality(extend.started) <> cardinality(extend.job_ids) then
        perform pgqueue._refuse(
            'started must match job_ids',
            format('There are %s of started and %s job ids.', cardinality(extend.started), cardinality(extend.job_ids)),
            'Give for each of job_ids whether its handler runs, or leave started out.'
        );
    end if;

    -- Read after the xid: see _head.
    v_until := pgqueue._after(pgqueue._ready_at(null), extend.lease);
    with held as materialized (
        select h.row_ctid, w.started
        from unnest(extend.job_ids, extend.reservations, extend.started) w (id, reservation, started)
        cross join lateral (
            select j.ctid as row_ctid
            from pgqueue.jobs j
            where j.id = w.id and j.reservation = w.reservation and j.state = v_executing
            for update skip locked
        ) h
    )
    update pgqueue.jobs j
    set
        lease = extend.lease,
        started = case when h.started then j.reservation else j.started end,
        -- The members of a batch have no lease of their own: they share their leader's.
        lease_expires_at = case when j.leader is null or j.leader = j.id then v_until end
    from held h
    where j.ctid = h.row_ctid;
    get diagnostics v_extended = row_count;

    v_now := pgqueue._clock();
    if v_extended < cardinality(extend.job_ids) then
        -- Rows that were updated have v_until already. A promise that is shorter than the lease does no harm: the longest counts.
        insert into pgqueue.lease_promises (job_id, reservation, until, lease)
        select h.id, h.reservation, v_until, extend.lease
        from unnest(extend.job_ids, extend.reservations) w (id, reservation)
        cross join lateral (
            select j.id, j.reservation
            from pgqueue.jobs j
            where j.id = w.id and j.reservation = w.reservation and j.state = v_executing
                and j.lease_expires_at <> v_until
            limit 1
        ) h
        where pgqueue._held_until(h.id, v_now) is not null;
    end if;

    return query
    select
        h.id,
        -- Not least(), which takes null for no bound.
        case when u.until > v_until then v_until else u.until end,
        h.cancel_requested_at is not null
            or exists (select from pgqueue.notes n where n.kind = 'superseded' and n.id = h.id)
    from unnest(extend.job_ids, extend.reservations) w (id, reservation)
    cross join lateral (
        select j.id, j.leader, j.lease_expires_at, j.cancel_requested_at
        from pgqueue.jobs j
        where j.id = w.id and j.reservation = w.reservation and j.state = v_executing
        limit 1
    ) h
    cross join lateral (
        select case
            when h.lease_expires_at = v_until then v_until
            else pgqueue._held_until(coalesce(h.leader, h.id), v_now)
        end as until
    ) u;
end
$$;

comment on function pgqueue.extend(bigint[], bigint[], interval, boolean[]) is
    'Extend leases; started: which of the jobs have a running handler (see started()). Returns the jobs that are still held, until when, and which of them '
    'are asked to cancel; a job that is not returned is lost: stop working on it. lease_expires_at is null where another session has locked the '
    'row of a job whose lease had lapsed: nothing is granted, so call again soon. Commit at once. [worker]';

-- Until when the reservation of an executing job holds, by its row or by a promise; null: it has lapsed.
create or replace function pgqueue._held_until(p_job_id bigint, p_now timestamptz)
returns timestamptz
language sql stable parallel safe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
as $$
    select case when h.until > p_now then h.until end
    from (
        select greatest(
            j.lease_expires_at,
            (
                select p.until
                from pgqueue.lease_promises p
                where p.job_id = j.id and p.until > p_now and p.reservation = j.reservation
                order by p.until desc
                limit 1
            )
        ) as until
        from pgqueue.jobs j
        where j.id = p_job_id
    ) h
$$;
