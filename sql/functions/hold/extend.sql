-- extend: the worker is alive and still at it.
--
-- Takes rows FOR UPDATE SKIP LOCKED and never waits: a row that somebody holds (a handler's own completion, not yet
-- committed) counts as held, for expiry passes it over too, so one handler's open transaction cannot make its
-- worker's other leases lapse. The second statement sees what the first wrote, and locked rows as last committed.
-- LATERAL and a variable for the state: else a plan made while the table was empty reads every lease there is, once
-- for each id (the index of leases is small then, and a constant 'executing' makes it eligible).

create or replace function pgqueue.extend(
    job_ids bigint[], reservations bigint[], lease interval default '30 s', started boolean[] default null
)
returns table (job_id bigint, lease_expires_at timestamptz, cancel_requested boolean)
language plpgsql
volatile
parallel unsafe
security definer
rows 100
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
    v_until timestamptz;
begin
    perform pgqueue._check_pairs(extend.job_ids, extend.reservations);
    perform pgqueue._check_lease(extend.lease);

    if cardinality(extend.started) <> cardinality(extend.job_ids) then
        perform pgqueue._refuse(
            'started must match job_ids',
            format('There are %s of started and %s job ids.', cardinality(extend.started), cardinality(extend.job_ids)),
            'Say for each of job_ids whether its handler runs, or leave started out.'
        );
    end if;

    -- After its xid: see _heads.
    v_until := pgqueue._ready_at(null) + extend.lease;
    with held as materialized (
        select h.place, w.started
        from unnest(extend.job_ids, extend.reservations, extend.started) w (id, reservation, started)
        cross join lateral (
            select j.ctid as place
            from pgqueue.jobs j
            where j.id = w.id and j.reservation = w.reservation and j.state = v_executing
            for update skip locked
        ) h
    )
    update pgqueue.jobs j
    set
        lease = extend.lease,
        started = case when h.started then j.reservation else j.started end,
        -- The payloads that go with a leader have no lease of their own.
        lease_expires_at = case when j.leader is null or j.leader = j.id then v_until end
    from held h
    where j.ctid = h.place;

    return query
    select h.id, coalesce(h.lease_expires_at, v_until), h.cancel_requested_at is not null
    from unnest(extend.job_ids, extend.reservations) w (id, reservation)
    cross join lateral (
        select j.id, j.lease_expires_at, j.cancel_requested_at
        from pgqueue.jobs j
        where j.id = w.id and j.reservation = w.reservation and j.state = v_executing
        limit 1
    ) h;
end
$$;

comment on function pgqueue.extend(bigint[], bigint[], interval, boolean[]) is
    'Extend leases; started: of which jobs the handler runs (see started()). Returns the jobs that are still held, until when, and which of them somebody asked to cancel; '
    'a job that is not returned is lost: stop working on it.';
