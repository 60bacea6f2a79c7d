-- exchange: what a busy worker says and asks, in one call and one commit: these are done, these failed, these go on,
-- give me the next ones.
--
-- In this order, so that the next job of a key, or one parked under a limit, comes with the same call as the end of the
-- job that it waited for: complete, fail, extend, reserve. Of what ends, rows are locked in the order of their ids:
-- those that succeeded in one pass, before it, when there are any, those that failed with them.
-- No job spoils the others. One whose reservation is over is told as lost. A row that somebody holds is waited for
-- 100 ms at most: extend, or a call to cancel, is over by then. After that whatever is free ends (FOR UPDATE SKIP
-- LOCKED), and what is held is told as locked: nothing was changed of it, say it again later. That is below
-- deadlock_timeout, so a circle of waits is broken by this call giving way. Reserve never waits for a row.

create or replace function pgqueue.exchange(
    worker text,
    max_jobs integer default 0,
    queues text[] default null,
    weights integer[] default null,
    lease interval default '30 s',
    strategy text default 'weighted',
    completed bigint[] default '{}',
    completed_reservations bigint[] default '{}',
    results jsonb[] default null,
    failed bigint[] default '{}',
    failed_reservations bigint[] default '{}',
    errors jsonb[] default null,
    retry_in interval[] default null,
    retry boolean[] default null,
    policies text[] default null,
    cancel boolean[] default null,
    extended bigint[] default '{}',
    extended_reservations bigint[] default '{}',
    started boolean[] default null
)
returns table (
    outcome text,
    id bigint,
    task text,
    args jsonb,
    headers jsonb,
    queue text,
    key text,
    priority integer,
    attempt integer,
    max_attempts integer,
    reservation bigint,
    run_at timestamptz,
    created_at timestamptz,
    lease_expires_at timestamptz,
    leader bigint,
    score numeric,
    timeout interval,
    losses integer,
    crashes integer,
    store_result boolean,
    note text
)
language plpgsql
volatile
parallel unsafe
security definer
rows 100
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
#variable_conflict use_column
declare
    v_try integer := 1;
    v_finished bigint[] := '{}'::bigint[];
    v_failures jsonb;
    -- Where somebody held a row: those that nobody holds.
    v_free bigint[];
    -- Read without an xid: see _heads. Reserve will have one.
    v_began timestamptz;
begin
    perform pgqueue._require_read_committed('exchange');
    perform pgqueue._check_exchange(
        exchange.worker, exchange.max_jobs, exchange.lease, exchange.completed, exchange.completed_reservations,
        exchange.results, exchange.failed, exchange.failed_reservations, exchange.extended,
        exchange.extended_reservations, exchange.started
    );
    perform pgqueue._check_failures(
        cardinality(exchange.failed), exchange.errors, exchange.retry_in, exchange.retry, exchange.policies, exchange.cancel
    );

    if pg_current_xact_id_if_assigned() is null then
        v_began := pgqueue._clock();
    end if;
    if exchange.completed <> '{}' or exchange.failed <> '{}' then
        loop
            begin
                if v_try > 1 then
                    -- At last without those that failed: perhaps what they need is held, such as a retry budget.
                    v_free := pgqueue._lock_free(
                        exchange.completed || case when v_try = 2 then exchange.failed else '{}' end
                    );
                elsif exchange.failed <> '{}' then
                    perform pgqueue._lock_ending(exchange.completed || exchange.failed);
                end if;
                select e.finished, e.failures into v_finished, v_failures
                from pgqueue._end_tries(
                    exchange.completed, exchange.completed_reservations, exchange.results, exchange.failed,
                    exchange.failed_reservations, exchange.errors, exchange.retry_in, exchange.retry, exchange.policies,
                    exchange.cancel, v_free
                ) e;
                exit;
            exception when lock_not_available or deadlock_detected then
                v_try := v_try + 1;
                v_free := '{}';
                exit when v_try > 3;
            end;
        end loop;

        -- As a rule all were held, and then there is nothing to tell.
        if v_free is not null or cardinality(v_finished) < cardinality(exchange.completed) then
            return query
            select
                case when pgqueue._is_held_by(w.id, w.reservation) then 'locked' else 'lost' end,
                w.id, null::text, null::jsonb, null::jsonb, null::text, null::text, null::integer, null::integer,
                null::integer, w.reservation, null::timestamptz, null::timestamptz, null::timestamptz, null::bigint,
                null::numeric, null::interval, null::integer, null::integer, null::boolean, null::text
            from unnest(exchange.completed, exchange.completed_reservations) with ordinality w (id, reservation, n)
            where w.id <> all (v_finished)
            order by w.n;
        end if;
        if exchange.failed <> '{}' then
            return query
            select
                coalesce(
                    f.value ->> 'state',
                    case when pgqueue._is_held_by(w.id, w.reservation) then 'locked' else 'lost' end
                ),
                w.id, null::text, null::jsonb, null::jsonb, null::text, null::text, null::integer, null::integer,
                null::integer, w.reservation, null::timestamptz, null::timestamptz, null::timestamptz, null::bigint,
                null::numeric, null::interval, null::integer, null::integer, null::boolean, f.value ->> 'policy_error'
            from unnest(exchange.failed, exchange.failed_reservations) with ordinality w (id, reservation, n)
            left join jsonb_each(v_failures) f on f.key = w.n::text
            order by w.n;
        end if;
    end if;

    if exchange.extended <> '{}' then
        return query
        select
            case when e.job_id is null then 'lost' when e.cancel_requested then 'cancel' else 'extended' end,
            w.id, null::text, null::jsonb, null::jsonb, null::text, null::text, null::integer, null::integer,
            null::integer, w.reservation, null::timestamptz, null::timestamptz, e.lease_expires_at, null::bigint,
            null::numeric, null::interval, null::integer, null::integer, null::boolean, null::text
        from unnest(exchange.extended, exchange.extended_reservations) with ordinality w (id, reservation, n)
        left join pgqueue.extend(
            exchange.extended, exchange.extended_reservations, exchange.lease, exchange.started
        ) e on e.job_id = w.id
        order by w.n;
    end if;

    if exchange.max_jobs <> 0 then
        perform pgqueue._propose(v_began);
        return query
        select
            'reserved', r.id, r.task, r.args, r.headers, r.queue, r.key, r.priority, r.attempt, r.max_attempts,
            r.reservation, r.run_at, r.created_at, r.lease_expires_at, r.leader, r.score, r.timeout, r.losses, r.crashes,
            r.store_result, null::text
        from pgqueue.reserve(
            exchange.worker, exchange.max_jobs, exchange.queues, exchange.weights, exchange.lease, exchange.strategy
        ) r;
    end if;
end
$$;

comment on function pgqueue.exchange(
    text, integer, text[], integer[], interval, text, bigint[], bigint[], jsonb[], bigint[], bigint[], jsonb[], interval[],
    boolean[], text[], boolean[], bigint[], bigint[], boolean[]
) is
    'complete_many(), fail_many(), extend() and reserve() in one call and one commit, for a busy worker; each part may be left out. '
    'Rows say with outcome what they are: reserved, a new job, as reserve() returns it (in claim order, after all others); '
    'failed, dead or cancelled for each job that failed (note: its policy_error); extended, or cancel where somebody asked for that, '
    'for each job that goes on; lost: its reservation is no longer held; locked: somebody else holds the row of this job, '
    'which ended, and nothing was changed: say it again later. Jobs that were completed have no row. '
    'select * from pgqueue.exchange(''my-worker'', 10, completed => array[17], completed_reservations => array[1048577]);';

create or replace function pgqueue._check_exchange(
    p_worker text,
    p_max_jobs integer,
    p_lease interval,
    p_completed bigint[],
    p_completed_reservations bigint[],
    p_results jsonb[],
    p_failed bigint[],
    p_failed_reservations bigint[],
    p_extended bigint[],
    p_extended_reservations bigint[],
    p_started boolean[]
)
returns void
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgqueue._check_name('worker', p_worker, 256);
    perform pgqueue._check_lease(p_lease);
    if p_max_jobs is null or p_max_jobs not between 0 and 100000 then
        perform pgqueue._refuse(
            'max_jobs must be between 0 and 100000', format('It is %s.', coalesce(p_max_jobs::text, 'null')),
            'Give max_jobs as the number of jobs that the worker can start soon, 0 for none.'
        );
    end if;
    perform pgqueue._check_pairs(p_completed, p_completed_reservations);
    perform pgqueue._check_pairs(p_failed, p_failed_reservations);
    perform pgqueue._check_pairs(p_extended, p_extended_reservations);
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
            'Say for each of extended whether its handler runs, or leave started out.'
        );
    end if;
end
$$;

comment on function pgqueue._check_exchange(
    text, integer, interval, bigint[], bigint[], jsonb[], bigint[], bigint[], bigint[], bigint[], boolean[]
) is 'Private: refuses wrong arguments of exchange, each by its name.';

-- What p_free does not name is left as it is; null: all of them are free.
create or replace function pgqueue._end_tries(
    p_completed bigint[],
    p_completed_reservations bigint[],
    p_results jsonb[],
    p_failed bigint[],
    p_failed_reservations bigint[],
    p_errors jsonb[],
    p_retry_in interval[],
    p_retry boolean[],
    p_policies text[],
    p_cancel boolean[],
    p_free bigint[],
    out finished bigint[],
    out failures jsonb
)
returns record
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_completed bigint[] := p_completed;
    v_reservations bigint[] := p_completed_reservations;
    v_results jsonb[] := p_results;
    v_failed bigint[] := p_failed;
begin
    if p_free is not null then
        select array_agg(w.id), array_agg(w.reservation), array_agg(w.result)
        into v_completed, v_reservations, v_results
        from unnest(p_completed, p_completed_reservations, p_results) w (id, reservation, result)
        where w.id = any (p_free);
        -- No job has this id.
        v_failed := array(
            select case when w.id = any (p_free) then w.id else 0 end
            from unnest(p_failed) with ordinality w (id, n)
            order by w.n
        );
    end if;
    finished := '{}';
    if v_completed <> '{}' then
        finished := pgqueue._finish(v_completed, v_reservations, true, 'succeeded', v_results);
    end if;
    if p_failed <> '{}' then
        failures := (
            select jsonb_object_agg(f.n, jsonb_build_object('state', f.state, 'policy_error', f.policy_error))
            from pgqueue._fail(
                v_failed, p_failed_reservations, p_errors, p_retry_in, p_retry, p_policies, p_cancel, false
            ) f
        );
    end if;
end
$$;

comment on function pgqueue._end_tries(
    bigint[], bigint[], jsonb[], bigint[], bigint[], jsonb[], interval[], boolean[], text[], boolean[], bigint[]
) is 'Private: completes and fails those jobs that are in p_free; the ids that were completed, and what became of the failed ones by their place.';

create or replace function pgqueue._lock_ending(p_job_ids bigint[])
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    perform l.id
    from (select distinct u.id from unnest(p_job_ids) u (id) order by u.id) w
    cross join lateral (select j.id from pgqueue.jobs j where j.id = w.id for update) l;
end
$$;

comment on function pgqueue._lock_ending(bigint[]) is 'Private: locks jobs in the order of their ids.';

create or replace function pgqueue._lock_free(p_job_ids bigint[])
returns bigint[]
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_free bigint[];
begin
    select array_agg(l.id)
    into v_free
    from (select distinct u.id from unnest(p_job_ids) u (id) order by u.id) w
    cross join lateral (select j.id from pgqueue.jobs j where j.id = w.id for update skip locked) l;
    return coalesce(pgqueue._whole_calls(v_free), '{}');
end
$$;

comment on function pgqueue._lock_free(bigint[]) is
    'Private: locks those of these jobs that nobody holds, with the payloads of their calls, and returns their ids.';

create or replace function pgqueue._is_held_by(p_job_id bigint, p_reservation bigint)
returns boolean
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    -- A variable: see extend.
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
begin
    return exists (
        select from pgqueue.jobs j where j.id = p_job_id and j.reservation = p_reservation and j.state = v_executing
    );
end
$$;

comment on function pgqueue._is_held_by(bigint, bigint) is 'Private: whether a job executes under this reservation.';
