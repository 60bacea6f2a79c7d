-- started: the handlers of these jobs are about to run. A worker reports it with every extend(), and at once for a job that
-- was lost before, so that a job that kills its process within a second is counted from its second run on.
--
-- Locks rows FOR UPDATE SKIP LOCKED, in the order given. A row that another session has locked stays unreported.

create or replace function pgqueue.started(job_ids bigint[], reservations bigint[])
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
begin
    perform pgqueue._check_pairs(started.job_ids, started.reservations);

    with held as materialized (
        select h.row_ctid
        from unnest(started.job_ids, started.reservations) w (id, reservation)
        cross join lateral (
            select j.ctid as row_ctid
            from pgqueue.jobs j
            where j.id = w.id and j.reservation = w.reservation and j.state = v_executing
            for update skip locked
        ) h
    )
    update pgqueue.jobs j set started = j.reservation from held h where j.ctid = h.row_ctid;

    return query
    select w.id
    from unnest(started.job_ids, started.reservations) with ordinality w (id, reservation, ord)
    where not exists (
        select from pgqueue.jobs j
        where j.id = w.id and j.reservation = w.reservation and j.state = v_executing
    )
    order by w.ord;
end
$$;

comment on function pgqueue.started(bigint[], bigint[]) is
    'Report that the handlers of these jobs run from now on. If the worker is gone (no beat()) when a lease lapses, that counts as a crash, '
    'and at max_crashes of its task (3) the job is dead. Returns the ids whose reservations were no longer held. [worker]';
