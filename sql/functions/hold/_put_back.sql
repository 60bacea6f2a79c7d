-- The one way from executing back into the ready index, for release, snooze, crashed workers and lapsed leases.
--
-- The caller has locked the rows, in executing, and with _whole_batches the members of their batches. A job that comes
-- back at once is read first in its lane, in the order of return; a later one at its time. One asked to cancel ends here.
-- p_began: the handler may have run. Then the job no longer expires, because expires_at bounds the wait for the first start.
-- p_crashed: the ids of p_job_ids whose worker died while it ran them. After max_crashes of its task such a job is dead, so
-- that it cannot kill worker after worker. A batch counts for its leader alone; the members go back.

create or replace function pgqueue._put_back(
    p_job_ids bigint[], p_delay interval, p_began boolean, p_lost boolean, p_crashed bigint[] default null,
    p_throttled_since timestamptz default null
)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
declare
    v_ready_at timestamptz;
    v_cancelled record;
    v_members bigint[];
    v_poisoned bigint[] := '{}'::bigint[];
    v_keyed boolean;
    v_back bigint[] := p_job_ids;
    v_lane record;
    v_limited record;
begin
    if p_job_ids is null then
        return;
    end if;
    v_ready_at := pgqueue._ready_at(pgqueue._after(pgqueue._clock(), p_delay));

    select array_agg(m.id) filter (where m.id is not null), bool_or(j.key is not null) into v_members, v_keyed
    from pgqueue.jobs j
    left join lateral unnest(j.followers) m (id) on true
    where j.id = any (p_job_ids);
    if v_members is not null then
        v_back := p_job_ids || array(select f.id from pgqueue._lock_members(v_members) f);
    end if;

    -- A request that found the row locked: see _supersede.
    perform pgqueue._request_cancel(array_agg(n.id))
    from pgqueue.notes n where n.kind = 'superseded' and n.id = any (v_back) having count(*) > 0;
    select array_agg(j.id) as ids, array_agg(j.reservation) as reservations into v_cancelled
    from pgqueue.jobs j
    where j.id = any (v_back) and j.cancel_requested_at is not null;

    if p_crashed is not null then
        update pgqueue.jobs j set crashed_on = j.crashed_on || j.reserved_by
        where j.id = any (p_crashed) and j.id = any (p_job_ids);
        v_poisoned := array(
            select j.id
            from pgqueue.jobs j
            left join pgqueue.effective_tasks t on t.name = j.task
            where j.id = any (p_crashed) and j.id = any (p_job_ids)
                and cardinality(j.crashed_on) >= coalesce(t.max_crashes, 3) and j.cancel_requested_at is null
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
                expires_at = case when not p_began then j.expires_at end,
                lease_expires_at = null,
                throttled_since = case when p_began then p_throttled_since else j.throttled_since end,
                -- A batch that has a step stays together.
                leader = case when j.has_steps then nullif(j.leader, j.id) end,
                followers = case when j.has_steps then j.followers end
            where j.id = any (v_back) and j.id <> all (v_poisoned || coalesce(v_cancelled.ids, '{}'))
            returning j.queue, j.priority, j.resumed, j.lane_key
        )
        select b.queue, b.priority, array_agg(distinct b.lane_key) filter (where not b.resumed) as lane_keys
        from back b
        group by b.queue, b.priority
    loop
        perform pgqueue._register_lane(v_lane.queue, v_lane.priority, v_ready_at, v_lane.lane_keys);
        perform pgqueue._wake(v_lane.queue, v_ready_at);
    end loop;
    perform pgqueue._release_earlier(v_back) where v_keyed;
    -- Only now, because a leader ends together with the members that are still in its batch.
    perform pgqueue._finish(v_cancelled.ids, v_cancelled.reservations, true, 'cancelled') where v_cancelled.ids is not null;

    perform pgqueue._finish(
        array[j.id], array[j.reservation], true, 'dead', null,
        jsonb_build_object(
            'class', 'Poison',
            'message', format(
                'its worker died while it ran it, %s times: %s', cardinality(j.crashed_on), array_to_string(j.crashed_on, ', ')
            )
        )
    )
    from pgqueue.jobs j
    where j.id = any (v_poisoned)
    order by j.id;

    select array_agg(j.task) as tasks, array_agg(j.key) as keys, array_agg(j.limit_key) as limit_keys into v_limited
    from pgqueue.jobs j
    where j.id = any (p_job_ids);
    if exists (select from pgqueue._limits_among(v_limited.tasks, v_limited.keys, v_limited.limit_keys)) then
        perform pgqueue._leave_limits(v_limited.tasks, v_limited.keys, v_limited.limit_keys);
    end if;
end
$$;

-- Also locks the members of the batches of these leaders: if another session has locked one of them, the whole batch is held.
create or replace function pgqueue._whole_batches(p_job_ids bigint[])
returns bigint[]
language plpgsql
set plan_cache_mode = force_generic_plan set enable_bitmapscan = off set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_members bigint[];
    v_broken bigint[];
begin
    select array_agg(f.id) into v_members
    from unnest(p_job_ids) w (id)
    cross join lateral (select j.followers from pgqueue.jobs j where j.id = w.id and j.followers is not null limit 1) l
    cross join lateral unnest(l.followers) f (id);
    if v_members is null then
        return p_job_ids;
    end if;
    with locked as materialized (
        select l.id
        from (select u.id from unnest(v_members) u (id) order by u.id) f
        cross join lateral (select j.id from pgqueue.jobs j where j.id = f.id and j.leader is not null for update skip locked) l
    )
    select coalesce(array_agg(distinct s.leader), '{}') into v_broken
    from unnest(v_members) f (id)
    cross join lateral (select j.leader from pgqueue.jobs j where j.id = f.id and j.leader is not null limit 1) s
    where f.id not in (select l.id from locked l);
    return (select array_agg(w.id order by w.n) from unnest(p_job_ids) with ordinality w (id, n) where w.id <> all (v_broken));
end
$$;
