-- exchange: everything that a busy worker reports and asks for, in one call and one commit: these jobs are done, these
-- failed, these continue, give me the next ones.
--
-- In this order, so that the next job of a key, or one blocked by a limit, comes with the same call as the end of the
-- job that it waited for: complete, fail, extend, reserve. Jobs that end are locked in id order; if some failed, all first.
-- No job spoils the others. It waits 100 ms at most for each lock that another session has: extend, or a call to cancel, is
-- over by then, and it gives way before deadlock_timeout. Then the free ones end (FOR UPDATE SKIP LOCKED); it reports the others.
-- The claim comes last, and in a subtransaction when there are ends to keep: neither an error nor a statement_timeout undoes one.

create or replace function pgqueue.exchange(
    worker text, max_jobs integer default 0, queues text[] default null, weights integer[] default null,
    lease interval default '30 s', strategy text default 'weighted', completed bigint[] default '{}',
    completed_reservations bigint[] default '{}', results jsonb[] default null, failed bigint[] default '{}',
    failed_reservations bigint[] default '{}', errors jsonb[] default null, retry_in interval[] default null,
    retry boolean[] default null, policies text[] default null, cancel boolean[] default null,
    extended bigint[] default '{}', extended_reservations bigint[] default '{}', started boolean[] default null,
    ask boolean default true
)
returns table (
    outcome text, id bigint, task text, args jsonb, headers jsonb, queue text, key text, priority integer,
    attempt integer, max_attempts integer, reservation bigint, run_at timestamptz, created_at timestamptz,
    lease_expires_at timestamptz, leader bigint, score numeric, timeout interval, losses integer, crashes integer,
    store_result boolean, note text
)
language plpgsql security definer rows 100
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
declare
    -- Read without an xid: see _head. Reserve will have one.
    v_began timestamptz;
    v_newest_id bigint;
    v_failures pgqueue.failure[];
    v_reports pgqueue.end_report[];
begin
    if pgqueue._old_snapshot() then
        perform pgqueue._require_read_committed('exchange');
    end if;
    -- The end of a single job, and all arguments right. Any other call is checked below, each argument by its name.
    if exchange.max_jobs = 0 and octet_length(exchange.worker) between 1 and 256
        and exchange.lease > '0' and exchange.lease <= '1 day'
        and (array_length(exchange.completed, 1), array_length(exchange.completed_reservations, 1)) = (1, 1)
        and coalesce(cardinality(exchange.results), 1) = 1
        and (exchange.failed, exchange.failed_reservations) = ('{}', '{}')
        and (exchange.extended, exchange.extended_reservations) = ('{}', '{}')
        and num_nonnulls(
            exchange.errors, exchange.retry_in, exchange.retry, exchange.policies, exchange.cancel, exchange.started
        ) = 0
        and pgqueue._end_one(exchange.completed[1], exchange.completed_reservations[1], exchange.results[1])
    then
        return;
    end if;
    perform pgqueue._check_exchange(
        exchange.worker, exchange.max_jobs, exchange.lease, exchange.completed, exchange.completed_reservations,
        exchange.results, exchange.failed, exchange.failed_reservations, exchange.extended,
        exchange.extended_reservations, exchange.started
    );
    if exchange.failed <> '{}'
        or num_nonnulls(exchange.errors, exchange.retry_in, exchange.retry, exchange.policies, exchange.cancel) > 0
    then
        v_failures := pgqueue._failures(
            exchange.failed, exchange.failed_reservations, exchange.errors, exchange.retry_in, exchange.retry,
            exchange.policies, exchange.cancel
        );
    end if;
    if exchange.max_jobs <> 0
        and (num_nonnulls(exchange.queues, exchange.weights) > 0 or exchange.strategy is distinct from 'weighted')
    then
        -- Checked here, before anything is changed.
        perform pgqueue._check_reserve(
            exchange.worker, exchange.max_jobs, exchange.queues, exchange.weights, exchange.lease, exchange.strategy
        );
    end if;

    if exchange.completed <> '{}' or exchange.failed <> '{}' then
        -- Moving a head pays for some fifty claimed jobs: see reserve.
        if exchange.max_jobs > 0 and random() * 50 < cardinality(exchange.completed) + cardinality(exchange.failed)
            and pg_current_xact_id_if_assigned() is null
        then
            v_began := pgqueue._clock();
            v_newest_id := pg_sequence_last_value('pgqueue.jobs_id_seq'::regclass);
        end if;
        v_reports := pgqueue._end_jobs(
            exchange.completed, exchange.completed_reservations, exchange.results,
            coalesce(v_failures, '{}'), exchange.lease, exchange.ask
        );
        if v_reports is not null then
            return query
            select e.outcome, j.*, e.note
            from unnest(v_reports) with ordinality e (outcome, job_id, reservation, lease_expires_at, note, n)
            cross join lateral pgqueue._no_claimed_job(e.job_id, e.reservation, e.lease_expires_at) j
            order by e.n;
        end if;
    end if;

    if exchange.extended <> '{}' then
        return query
        select case when e.job_id is null then 'lost' when e.cancel_requested then 'cancel' else 'extended' end, j.*, null::text
        from (
            -- A reservation is greater than those before it.
            select u.*, max(u.reservation) over (partition by u.id) as newest
            from unnest(exchange.extended, exchange.extended_reservations) with ordinality u (id, reservation, n)
        ) w
        left join pgqueue.extend(
            exchange.extended, exchange.extended_reservations, exchange.lease, exchange.started
        ) e on e.job_id = w.id and w.reservation = w.newest
        cross join lateral pgqueue._no_claimed_job(w.id, w.reservation, e.lease_expires_at) j
        order by w.n;
    end if;

    if exchange.max_jobs = 0 then
        return;
    elsif exchange.completed = '{}' and exchange.failed = '{}' and exchange.extended = '{}' then
        return query
        select 'reserved', r.*, null::text
        from pgqueue.reserve(
            exchange.worker, exchange.max_jobs, exchange.queues, exchange.weights, exchange.lease, exchange.strategy
        ) r;
        return;
    end if;
    begin
        perform pgqueue._propose_horizon(v_began, v_newest_id);
        -- All of reserve's rows are collected first, so that none of a failed claim is reported.
        return query
        select 'reserved', r.*, null::text
        from pgqueue.reserve(
            exchange.worker, exchange.max_jobs, exchange.queues, exchange.weights, exchange.lease, exchange.strategy
        ) r;
    exception when others or query_canceled then
        return query
        select 'unclaimed', j.*, pgqueue.legible(to_jsonb(sqlstate || ': ' || sqlerrm)) #>> '{}'
        from pgqueue._no_claimed_job(null, null, null) j;
    end;
end
$$;

comment on function pgqueue.exchange(
    text, integer, text[], integer[], interval, text, bigint[], bigint[], jsonb[], bigint[], bigint[], jsonb[], interval[],
    boolean[], text[], boolean[], bigint[], bigint[], boolean[], boolean
) is
    'complete_many(), fail_many(), extend() and reserve() in one call and one commit, for a busy worker; each part may be left out. '
    'outcome: reserved, a new job, as reserve() returns it (in claim order, after all others); '
    'failed, dead or cancelled for each job that failed (note: its policy_error); undecided, if ask is false, for one on which a retry '
    'function is to decide: nothing of it was stored, report it again with ask, apart from others, for such a function may not return; '
    'extended, or cancel if it is asked to cancel, '
    'for each job that continues; lost: its reservation is no longer held; locked: another session has locked the row of this ended job: '
    'nothing was stored, its lease is extended, report it again. Jobs that were completed have no row. '
    'unclaimed, last: the claim failed, for the reason in note, and the rest is stored. '
    'Call it in a separate transaction and commit at once: what it locks is held until then. '
    'select * from pgqueue.exchange(''my-worker'', 10, completed => array[17], completed_reservations => array[1048577]); [worker]';

-- What a row of exchange has of a job that it did not claim.
create or replace function pgqueue._no_claimed_job(p_id bigint, p_reservation bigint, p_lease_expires_at timestamptz)
returns setof pgqueue.claimed_job
language sql immutable parallel safe rows 1
as $$
    select (
        row(
            p_id, null, null, null, null, null, null, null, null, p_reservation, null, null, p_lease_expires_at,
            null, null, null, null, null, null
        )::pgqueue.claimed_job
    ).*
$$;

-- Refuses wrong arguments of exchange, each by its name.
create or replace function pgqueue._check_exchange(
    p_worker text, p_max_jobs integer, p_lease interval, p_completed bigint[], p_completed_reservations bigint[],
    p_results jsonb[], p_failed bigint[], p_failed_reservations bigint[], p_extended bigint[],
    p_extended_reservations bigint[], p_started boolean[]
)
returns void
language plpgsql stable parallel safe
as $$
begin
    -- An IF costs a tenth of the call that it saves, and each end of a single job comes through here.
    if (
        octet_length(p_worker) between 1 and 256 and p_lease > '0' and p_lease <= '1 day' and p_max_jobs between 0 and 100000
    ) is not true then
        perform pgqueue._check_name('worker', p_worker, 256);
        perform pgqueue._check_lease(p_lease);
        perform pgqueue._check_range('max_jobs', p_max_jobs, 0, 100000, 'Give max_jobs as the number of jobs that the worker can start soon, 0 for none.');
    end if;
    -- As a rule most parts are left out.
    if (p_completed, p_completed_reservations) is distinct from ('{}', '{}') then
        perform pgqueue._check_pairs(p_completed, p_completed_reservations);
    end if;
    if (p_failed, p_failed_reservations) is distinct from ('{}', '{}') then
        perform pgqueue._check_pairs(p_failed, p_failed_reservations);
    end if;
    if (p_extended, p_extended_reservations) is distinct from ('{}', '{}') then
        perform pgqueue._check_pairs(p_extended, p_extended_reservations);
    end if;
    if cardinality(p_results) <> cardinality(p_completed) then
        perform pgqueue._refuse(
            'results must match completed',
            format('There are %s results and %s completed jobs.', cardinality(p_results), cardinality(p_completed)),
            'Give one result for each of completed (null for none), or leave results out.'
        );
    end if;
    if cardinality(p_started) <> cardinality(p_extended) then
        perform pgqueue._refuse(
            'started must match extended',
            format('There are %s of started and %s extended jobs.', cardinality(p_started), cardinality(p_extended)),
            'Give for each of extended whether its handler runs, or leave started out.'
        );
    end if;
end
$$;

-- Stores how attempts ended, and returns a report of each that failed, and of each that could not be stored; null: there is none.
create or replace function pgqueue._end_jobs(
    p_completed bigint[], p_reservations bigint[], p_results jsonb[], p_failures pgqueue.failure[], p_lease interval,
    p_ask boolean
)
returns pgqueue.end_report[]
language plpgsql
as $$
declare
    v_attempt integer := 1;
    v_completed bigint[] := p_completed;
    v_reservations bigint[] := p_reservations;
    v_results jsonb[] := p_results;
    v_failures pgqueue.failure[] := p_failures;
    v_finished bigint[] := '{}'::bigint[];
    v_failed pgqueue.failed_attempt[] := '{}'::pgqueue.failed_attempt[];
    -- Null until some rows are found locked; then the jobs that no other session has locked.
    v_free bigint[];
begin
    loop
        begin
            if v_attempt > 1 then
                -- The third time without the failed ones: perhaps they need something locked, such as a retry budget.
                v_free := pgqueue._lock_ending(
                    p_completed || array(select f.job_id from unnest(p_failures) f where v_attempt = 2), true
                );
                select array_agg(w.id), array_agg(w.reservation), array_agg(w.result)
                into v_completed, v_reservations, v_results
                from unnest(p_completed, p_reservations, p_results) w (id, reservation, result)
                where w.id = any (v_free);
                v_failures := array(select f from unnest(p_failures) f where f.job_id = any (v_free));
            elsif p_failures <> '{}' then
                perform pgqueue._lock_ending(p_completed || array(select f.job_id from unnest(p_failures) f), false);
            end if;
            if v_completed <> '{}' then
                v_finished := pgqueue._finish(v_completed, v_reservations, true, 'succeeded', v_results);
            end if;
            if v_failures <> '{}' then
                v_failed := pgqueue._fail(v_failures, false, p_ask);
            end if;
            exit;
        exception when lock_not_available or deadlock_detected then
            v_attempt := v_attempt + 1;
            v_free := '{}';
            v_finished := '{}';
            v_failed := '{}';
            exit when v_attempt > 3;
        end;
    end loop;

    -- As a rule all were held, and there is nothing to report.
    if p_failures = '{}' and cardinality(v_finished) = cardinality(p_completed) then
        return null;
    end if;
    return (
        with ended as (
            select c.id, c.reservation, 1 as part, c.n, null::text as state, null::text as note
            from unnest(p_completed, p_reservations) with ordinality c (id, reservation, n)
            where c.id <> all (v_finished)
            union all
            select f.job_id, f.reservation, 2, f.n, a.state, a.policy_error
            from unnest(p_failures) f
            left join unnest(v_failed) a on a.n = f.n
        ),
        -- Extended, so that their worker can report them again. A job that is no longer held is lost.
        locked as (
            select x.job_id, x.lease_expires_at
            from (
                select array_agg(e.id) as ids, array_agg(e.reservation) as reservations
                from ended e
                where e.state is null and v_free is not null
            ) l
            cross join lateral pgqueue.extend(l.ids, l.reservations, p_lease) x
            where l.ids is not null
        )
        select array_agg(
            row(
                coalesce(e.state, case when l.job_id is null then 'lost' else 'locked' end),
                e.id, e.reservation, l.lease_expires_at, e.note
            )::pgqueue.end_report
            order by e.part, e.n
        )
        from ended e
        left join locked l on l.job_id = e.id and e.state is null
    );
end
$$;

-- Locks jobs in id order, and returns their ids. p_free: those alone that no other session has locked, and whole batches.
create or replace function pgqueue._lock_ending(p_job_ids bigint[], p_free boolean)
returns bigint[]
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_free bigint[];
begin
    if not p_free then
        perform l.id
        from (select distinct u.id from unnest(p_job_ids) u (id) order by u.id) w
        cross join lateral (select j.id from pgqueue.jobs j where j.id = w.id for update) l;
        return p_job_ids;
    end if;
    select array_agg(l.id) into v_free
    from (select distinct u.id from unnest(p_job_ids) u (id) order by u.id) w
    cross join lateral (select j.id from pgqueue.jobs j where j.id = w.id for update skip locked) l;
    return coalesce(pgqueue._whole_batches(v_free), '{}');
end
$$;
