-- reserve: claims up to max_jobs due jobs for a worker, each under a lease and a new reservation.
--
-- It visits lanes one by one. Inside a lane it reads the ready index in order, by equality on the prefix and a
-- range on ready_at, locks what it takes with FOR UPDATE SKIP LOCKED (it never waits), and remembers the rows'
-- ctids; one UPDATE by ctid then claims them all. The obvious single statement, UPDATE ... FROM (SELECT ... LIMIT
-- $n), has a generic plan that guesses the limit and scans the table: 35 ms a call, against 1 ms. For the same
-- reason the plan is pinned here: always generic, never by scanning or sorting jobs, also where the table was
-- empty or never analysed when the plan was made.
-- Jobs past their expires_at are cancelled on the way. When it comes up short it takes back lapsed leases, so a
-- client that never calls maintain is rescued as well. After either it looks again, past what it has taken: until
-- the UPDATE those rows stand in the ready index, and its own locks do not hide them. (v_seen is empty in the first
-- look, for comparing each row with hundreds of others costs more than claiming it.)

create or replace function pgqueue.reserve(
    worker text,
    max_jobs integer default 1,
    queues text[] default null,
    weights integer[] default null,
    lease interval default '30 s',
    strategy text default 'weighted'
)
returns table (
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
    lease_expires_at timestamptz
)
language plpgsql
volatile
parallel unsafe
security definer
rows 100
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz;
    v_lane record;
    v_resumed boolean;
    v_rows tid[];
    v_taken tid[] := '{}';
    v_seen tid[] := '{}';
    v_left integer := reserve.max_jobs;
    v_pass_over boolean;
    v_expired boolean;
    v_last_queue text;
    v_rescued boolean := false;
begin
    perform pgqueue._require_read_committed('reserve');
    perform pgqueue._check_reserve(
        reserve.worker, reserve.max_jobs, reserve.queues, reserve.weights, reserve.lease, reserve.strategy
    );

    loop
        v_now := pgqueue._clock();
        for v_lane in
            select l.queue, l.priority, first.resumed
            from (
                select distinct a.queue, a.priority
                from pgqueue.lanes a
                where (reserve.queues is null or a.queue = any (reserve.queues))
                    and not exists (
                        select from pgqueue.queues q where q.name = a.queue and q.paused_at is not null
                    )
            ) l
            cross join lateral (
                (
                    select j.resumed, j.ready_at
                    from pgqueue.jobs j
                    where j.state in ('waiting', 'failed')
                        and j.queue = l.queue
                        and j.priority = l.priority
                        and j.resumed = true
                        and j.ready_at <= v_now
                    order by j.ready_at, j.id
                    limit 1
                )
                union all
                (
                    select j.resumed, j.ready_at
                    from pgqueue.jobs j
                    where j.state in ('waiting', 'failed')
                        and j.queue = l.queue
                        and j.priority = l.priority
                        and j.resumed = false
                        and j.ready_at <= v_now
                    order by j.ready_at, j.id
                    limit 1
                )
                limit 1
            ) first
            order by
                case when reserve.strategy = 'strict' then array_position(reserve.queues, l.queue) end,
                l.priority desc,
                first.resumed desc,
                first.ready_at
        loop
            v_resumed := v_lane.resumed;
            v_pass_over := false;
            loop
                select
                    array_agg(c.place) filter (where c.expires_at is null or c.expires_at > v_now),
                    coalesce(bool_or(c.expires_at <= v_now), false)
                into v_rows, v_expired
                from (
                    select j.ctid as place, j.expires_at
                    from pgqueue.jobs j
                    where j.state in ('waiting', 'failed')
                        and j.queue = v_lane.queue
                        and j.priority = v_lane.priority
                        and j.resumed = v_resumed
                        and j.ready_at <= v_now
                        and (not v_pass_over or j.expires_at is null or j.expires_at > v_now)
                        and j.ctid <> all (v_seen)
                    order by j.ready_at, j.id
                    limit v_left
                    for update skip locked
                ) c;
                v_taken := v_taken || v_rows;
                v_left := v_left - coalesce(cardinality(v_rows), 0);
                v_last_queue := v_lane.queue;
                if v_expired then
                    -- A bounded number is cancelled here; should there be more, they are passed over.
                    perform pgqueue._expire_jobs(1000);
                    v_pass_over := true;
                    v_seen := v_taken;
                elsif v_left > 0 and v_resumed then
                    v_resumed := false;
                else
                    exit;
                end if;
            end loop;
            exit when v_left = 0;
        end loop;

        exit when v_left = 0 or v_rescued;
        v_rescued := true;
        exit when not pgqueue._rescue_and_find(v_left = reserve.max_jobs);
        v_seen := v_taken;
    end loop;

    if v_left = 0 then
        -- There may be more than this worker can carry: pass the wake-up on.
        perform pgqueue._wake(v_last_queue, v_now, 1, reserve.worker);
    end if;

    return query
    with claimed as (
        update pgqueue.jobs j
        set
            state = 'executing',
            reservation = (((j.reservation >> 20) + 1) << 20) | floor(random() * 1048576)::bigint,
            attempts = j.attempts + 1,
            reserved_at = v_now,
            reserved_by = reserve.worker,
            lease = reserve.lease,
            lease_expires_at = v_now + reserve.lease,
            lease_prolonged = false
        from unnest(v_taken) with ordinality taken (place, ord)
        where j.ctid = taken.place
        returning
            taken.ord, j.id, j.task, j.args, j.headers, j.queue, j.key, j.priority, j.attempts, j.max_attempts,
            j.reservation, j.run_at, j.created_at, j.lease_expires_at
    )
    select
        c.id, c.task, c.args, c.headers, c.queue, c.key, c.priority::integer, c.attempts,
        coalesce(c.max_attempts, t.max_attempts, 11),
        c.reservation, c.run_at, c.created_at, c.lease_expires_at
    from claimed c
    left join pgqueue.effective_tasks t on t.name = c.task
    order by c.ord;
end
$$;

comment on function pgqueue.reserve(text, integer, text[], integer[], interval, text) is
    'Claim up to max_jobs due jobs for a worker, in claim order; no rows when there is nothing due. '
    'queues: which ones (null: all). lease: how long the reservation holds unless extended. '
    'strategy: weighted (highest priority first over all queues; weights raise 0A000 in this release) or strict '
    '(queues in the order given). Keep id and reservation: complete, fail, extend, release and snooze take both. '
    'select * from pgqueue.reserve(''my-worker'', 10);';

create or replace function pgqueue._check_reserve(
    p_worker text, p_max_jobs integer, p_queues text[], p_weights integer[], p_lease interval, p_strategy text
)
returns void
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgqueue._check_name('worker', p_worker, 256);
    perform pgqueue._check_queues(p_queues);
    perform pgqueue._check_lease(p_lease);
    if p_max_jobs is null or p_max_jobs not between 1 and 100000 then
        perform pgqueue._refuse(
            'max_jobs must be between 1 and 100000', format('It is %s.', coalesce(p_max_jobs::text, 'null')),
            'Give max_jobs as the number of jobs that the worker can start soon.'
        );
    end if;
    if p_strategy is null or p_strategy not in ('weighted', 'strict', 'lag', 'round_robin') then
        perform pgqueue._refuse(
            'strategy is unknown', format('It is %s.', coalesce(quote_literal(p_strategy), 'null')),
            'Give strategy as weighted, strict, lag or round_robin.'
        );
    end if;
    if p_strategy in ('lag', 'round_robin') then
        perform pgqueue._refuse(
            format('strategy %s is not built yet', p_strategy), 'Nothing was reserved.',
            'Give strategy as weighted or strict; a later release of pgqueue brings the others.', '0A000'
        );
    end if;
    if p_strategy = 'strict' and p_queues is null then
        perform pgqueue._refuse(
            'strategy strict needs queues', 'queues is null.', 'Give queues in the order in which to serve them.'
        );
    end if;
    if p_weights is not null then
        if p_queues is null or cardinality(p_weights) <> cardinality(p_queues) then
            perform pgqueue._refuse(
                'weights must match queues',
                format('There are %s weights and %s queues.', cardinality(p_weights),
                    coalesce(cardinality(p_queues)::text, 'no')),
                'Give weights as one positive number for each of queues.'
            );
        end if;
        if exists (select from unnest(p_weights) w (weight) where w.weight is null or w.weight < 1) then
            perform pgqueue._refuse(
                'weights must be positive', format('They are %s.', p_weights::text),
                'Give weights as one positive whole number for each of queues.'
            );
        end if;
        if exists (select from unnest(p_weights) w (weight) where w.weight <> p_weights[1]) then
            perform pgqueue._refuse(
                'weights that differ are not built yet', 'Nothing was reserved.',
                'Leave weights out; a later release of pgqueue brings them.', '0A000'
            );
        end if;
    end if;
end
$$;

comment on function pgqueue._check_reserve(text, integer, text[], integer[], interval, text) is
    'Private: refuses wrong arguments of reserve, each by its name.';

-- What reserve does when it comes up short. True when there is a reason to look at the lanes again.
create or replace function pgqueue._rescue_and_find(p_empty_handed boolean)
returns boolean
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_house_at timestamptz;
    v_rescued bigint;
    v_found integer := 0;
begin
    select r.rescued into v_rescued from pgqueue._rescue(100, null) r;
    if p_empty_handed then
        -- Nobody keeps house, so nobody looks for jobs in lanes that are not registered: look here.
        select h.at into v_house_at from pgqueue.housekeeping h order by h.n desc limit 1;
        if v_house_at is null or abs(extract(epoch from pgqueue._clock() - v_house_at)) > 5 then
            v_found := pgqueue._find_lanes();
        end if;
    end if;
    return v_rescued > 0 or v_found > 0;
end
$$;

comment on function pgqueue._rescue_and_find(boolean) is
    'Private: takes back lapsed leases and, where nobody keeps house, finds unregistered lanes.';
