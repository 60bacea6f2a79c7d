-- release: gives jobs back uncounted, as if they had not been reserved.
--
-- Takes rows FOR UPDATE SKIP LOCKED: a row that somebody holds stays as it is and comes back with its lease.
-- LATERAL and a variable for the state: see extend.
-- _put_back is the one way from executing back into the ready index, also for snooze and for lapsed leases.

create or replace function pgqueue.release(job_ids bigint[], reservations bigint[], delay interval default '0')
returns setof bigint
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
    v_held bigint[];
begin
    perform pgqueue._check_pairs(release.job_ids, release.reservations);
    perform pgqueue._check_delay(release.delay);

    select array_agg(h.id) into v_held
    from (
        select l.id
        from unnest(release.job_ids, release.reservations) w (id, reservation)
        cross join lateral (
            select j.id
            from pgqueue.jobs j
            where j.id = w.id and j.reservation = w.reservation and j.state = v_executing
            for update skip locked
        ) l
    ) h;
    v_held := pgqueue._whole_calls(v_held);
    perform pgqueue._put_back(v_held, release.delay, false);

    return query
    select w.id
    from unnest(release.job_ids, release.reservations) with ordinality w (id, reservation, ord)
    where w.id <> all (coalesce(v_held, '{}'))
        and not exists (
            select from pgqueue.jobs j
            where j.id = w.id and j.reservation = w.reservation and j.state = v_executing
        )
    order by w.ord;
end
$$;

comment on function pgqueue.release(bigint[], bigint[], interval) is
    'Give jobs back, uncounted, to run again at once or after delay. Returns the ids whose reservations were not held any more.';

-- Locks the payloads that go with these as well, SKIP LOCKED: where somebody holds one of them, the whole call counts
-- as held.
create or replace function pgqueue._whole_calls(p_job_ids bigint[])
returns bigint[]
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_payloads bigint[];
    v_broken bigint[];
begin
    select array_agg(f.id) into v_payloads
    from unnest(p_job_ids) w (id)
    cross join lateral (
        select j.followers from pgqueue.jobs j where j.id = w.id and j.followers is not null limit 1
    ) l
    cross join lateral unnest(l.followers) f (id);
    if v_payloads is null then
        return p_job_ids;
    end if;
    with locked as materialized (
        select l.id
        from (select u.id from unnest(v_payloads) u (id) order by u.id) f
        cross join lateral (
            select j.id from pgqueue.jobs j where j.id = f.id and j.leader is not null for update skip locked
        ) l
    )
    select array_agg(distinct s.leader) into v_broken
    from unnest(v_payloads) f (id)
    cross join lateral (
        select j.leader from pgqueue.jobs j where j.id = f.id and j.leader is not null limit 1
    ) s
    where f.id not in (select l.id from locked l);
    if v_broken is null then
        return p_job_ids;
    end if;
    return (select array_agg(w.id order by w.n) from unnest(p_job_ids) with ordinality w (id, n) where w.id <> all (v_broken));
end
$$;

comment on function pgqueue._whole_calls(bigint[]) is
    'Private: these executing jobs without those of whose calls somebody holds a payload.';

create or replace function pgqueue._check_delay(p_delay interval)
returns void
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_delay is null or not isfinite(p_delay) or p_delay not between '0' and '10 years' then
        perform pgqueue._refuse(
            'delay must be between zero and ten years', format('It is %s.', coalesce(p_delay::text, 'null')),
            'Give delay as an interval, such as ''5 min''.'
        );
    end if;
end
$$;

comment on function pgqueue._check_delay(interval) is 'Private: refuses delays that are null, negative or very long.';

-- The caller has locked the rows, in executing. What comes back at once is read first in its lane, in the order of
-- return; what comes back later takes its place by its time. A job that somebody asked to cancel ends here.
-- p_crashed: those of p_job_ids whose worker died while it ran them. At max_crashes of its task such a job is dead, instead
-- of killing worker after worker. Of a call of an accumulating task the leader alone counts, and the others go back.
create or replace function pgqueue._put_back(
    p_job_ids bigint[], p_delay interval, p_lost boolean, p_crashed bigint[] default null
)
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_ready_at timestamptz;
    v_cancelled_ids bigint[];
    v_cancelled_reservations bigint[];
    v_gathered boolean;
    v_poison record;
    v_poisoned bigint[] := '{}'::bigint[];
    v_keyed boolean;
    v_back bigint[] := p_job_ids;
    v_lane record;
    v_tasks text[];
    v_keys text[];
    v_limit_keys text[];
begin
    if p_job_ids is null then
        return;
    end if;
    v_ready_at := pgqueue._ready_at(pgqueue._clock() + p_delay);

    select bool_or(j.followers is not null), bool_or(j.key is not null)
    into v_gathered, v_keyed
    from pgqueue.jobs j
    where j.id = any (p_job_ids);
    if v_gathered then
        -- The payloads of one key come and go together.
        v_back := p_job_ids || array(
            select f.id
            from pgqueue._lock_followers(
                array(select unnest(j.followers) from pgqueue.jobs j where j.id = any (p_job_ids))
            ) f
        );
    end if;

    select array_agg(j.id), array_agg(j.reservation)
    into v_cancelled_ids, v_cancelled_reservations
    from pgqueue.jobs j
    where j.id = any (v_back) and j.cancel_requested_at is not null;

    if p_crashed is not null then
        update pgqueue.jobs j set crashed_on = j.crashed_on || j.reserved_by
        where j.id = any (p_crashed) and j.id = any (p_job_ids);
        v_poisoned := array(
            select j.id
            from pgqueue.jobs j
            left join pgqueue.effective_tasks t on t.name = j.task
            where j.id = any (p_crashed)
                and cardinality(j.crashed_on) >= coalesce(t.max_crashes, 3)
                and j.cancel_requested_at is null
        );
    end if;

    for v_lane in
        with back as (
            update pgqueue.jobs j
            set
                state = pgqueue._state_again(j.errors, j.attempts - 1),
                ready_at = v_ready_at,
                resumed = (p_delay <= '0'),
                attempts = greatest(j.attempts - 1, 0),
                losses = j.losses + p_lost::integer,
                lease_expires_at = null,
                leader = null,
                followers = null
            where j.id = any (v_back) and j.id <> all (v_poisoned || coalesce(v_cancelled_ids, '{}'))
            returning j.queue, j.priority
        )
        select distinct b.queue, b.priority from back b
    loop
        perform pgqueue._register_lane(v_lane.queue, v_lane.priority, v_ready_at);
        perform pgqueue._wake(v_lane.queue, v_ready_at, 2, null);
    end loop;
    if v_keyed then
        perform pgqueue._release_earlier(v_back);
    end if;
    -- Only now: the leader of a call would take all payloads that are still in it along.
    if v_cancelled_ids is not null then
        perform pgqueue._finish(v_cancelled_ids, v_cancelled_reservations, true, 'cancelled');
    end if;

    for v_poison in
        select j.id, j.reservation, j.crashed_on from pgqueue.jobs j where j.id = any (v_poisoned) order by j.id
    loop
        perform pgqueue._finish(
            array[v_poison.id], array[v_poison.reservation], true, 'dead', null,
            jsonb_build_object(
                'class', 'Poison',
                'message', format(
                    'its worker died while it ran it, %s times: %s',
                    cardinality(v_poison.crashed_on), array_to_string(v_poison.crashed_on, ', ')
                )
            )
        );
    end loop;

    if exists (select from pgqueue.limits l where l.kind in ('task', 'key', 'limit_key')) then
        select array_agg(j.task), array_agg(j.key), array_agg(j.limit_key)
        into v_tasks, v_keys, v_limit_keys
        from pgqueue.jobs j
        where j.id = any (p_job_ids);
        perform pgqueue._leave_limits(v_tasks, v_keys, v_limit_keys);
    end if;
end
$$;

comment on function pgqueue._put_back(bigint[], interval, boolean, bigint[]) is
    'Private: puts executing jobs, locked by the caller, back into the ready index.';

-- Out of the history a job comes back with its errors and a fresh count: it has not failed since. Inlined: no SET.
create or replace function pgqueue._state_again(p_errors jsonb, p_attempts integer)
returns pgqueue.job_state
language sql
immutable
parallel safe
as $$
    select case
        when p_errors is null or p_attempts <= 0 then 'waiting'::pgqueue.job_state
        else 'failed'::pgqueue.job_state
    end
$$;

comment on function pgqueue._state_again(jsonb, integer) is
    'Private: the state of a job that can be claimed again, by its errors and by how many of its tries have counted.';
