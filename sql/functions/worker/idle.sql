-- idle: a worker registers as idle after reserve returned nothing. From its commit on, every enqueue of a job that this
-- worker could run wakes it.
--
-- The order matters. A producer reads which workers are idle when it enqueues, and commits later. So the worker calls
-- idle first, *then* polls for about a second, and only then waits for a notification: a poll finds jobs that were enqueued
-- before the registration, a notification announces later ones. In the other order a producer that saw no idle worker could
-- commit after the last poll.
--
-- While a worker stays idle it makes no other call, so idle also reports a heartbeat and runs maintenance, except for the
-- steps that create and drop tables. The worker that ran maintenance is asked to call again in a second, and then runs it
-- again. The others call later; one of them takes over if maintenance has not run for two seconds. (If workers took turns,
-- each of 200 sessions would have to plan every step.)
--
-- next_due, when the worker should call reserve, is a little late on purpose, so that a thousand workers do not claim one job.
-- For a later job the delay grows with the number of idle workers. For a job that is due already it is 250 ms if another
-- worker is idle: that one was notified, and is about to claim it. A reserve at next_due may still return nothing: idle claims
-- nothing, and checks only which queues are at their limits and when a rate allows the next start.
--
-- With handoff_channel and listener the worker takes jobs that are reserved for it at a commit: see _hand_off. It must own
-- slots for them, hold each as if it had claimed it, and give back with release() what it cannot start. A notification may
-- be lost with its connection: so the worker calls held_by() a second after such a registration ended and after its
-- listener was replaced. It lasts 5 s at most, and the second in which it is renewed: one that hangs is handed nothing after that.

create or replace function pgqueue.idle(
    worker text, queues text[] default null, "for" interval default '5 s', memory bigint default null,
    handoff_channel text default null, listener integer default null, lease interval default '30 s'
)
returns table (channel text, next_due timestamptz, call_again_in interval, registered boolean)
language plpgsql security definer rows 1
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_wrong text[];
    -- Its due_lanes are null, unless there are more than 64 lanes.
    v_run record;
    v_has_run boolean := false;
    v_until timestamptz;
    v_next_due timestamptz;
    v_due boolean;
    v_rank bigint;
    v_known record;
begin
    -- An IF costs a tenth of the call that it saves, and a large fleet calls idle all the time.
    perform pgqueue._check_name('worker', idle.worker, 256) where octet_length(idle.worker) between 1 and 256 is not true;
    if idle.queues is not null then
        perform pgqueue._check_queues(idle.queues);
    end if;
    v_wrong := case
        when (isfinite(idle."for") and idle."for" > '0' and idle."for" <= '1 hour') is not true then array[
            '"for" must be above zero and at most one hour', format('It is %s.', coalesce(idle."for"::text, 'null')),
            'Give "for" as the interval after which the worker polls by itself, such as ''5 s''.']
        -- It carries jobs, and any role may listen on a channel whose name it knows. 32 digits are not found by trying.
        when octet_length(idle.handoff_channel) not between 32 and 63 then array[
            'handoff_channel must have 32 to 63 bytes', format('It has %s.', octet_length(idle.handoff_channel)),
            'Give handoff_channel as a random name that only this worker knows, or leave it out.']
        when idle.handoff_channel is not null and idle.listener is null then array[
            'handoff_channel was given without listener', null,
            'Give listener as pg_backend_pid() of the session that listens on handoff_channel.']
    end;
    perform pgqueue._refuse(v_wrong[1], v_wrong[2], v_wrong[3]) where v_wrong is not null;
    if idle.handoff_channel is not null then
        perform pgqueue._check_lease(idle.lease);
    end if;

    -- Maintenance first, because it may make jobs ready; but not under an old snapshot, which it cannot work with.
    select h.n, h.at, h.due_lanes into v_run from pgqueue.maintenance_runs h order by h.n desc limit 1;
    if not pgqueue._old_snapshot() and (
        v_run.at is null
        or v_run.at not between v_now - interval '2 s' and v_now
        or v_run.at < v_now - interval '0.8 s' and current_setting('pgqueue.maintenance_run', true) = concat(v_run.n, ' ', idle.worker)
    ) then
        select m.ran into v_has_run from pgqueue._run_maintenance('0.8 s', '1 day') m;
        v_now := pgqueue._clock();
        -- If not, another session has run it meanwhile.
        select h.n, h.at, h.due_lanes into v_run from pgqueue.maintenance_runs h order by h.n desc limit 1;
        if v_has_run then
            perform set_config('pgqueue.maintenance_run', concat(v_run.n, ' ', idle.worker), false);
        end if;
    end if;

    -- A second longer than asked, so that a worker that renews its registration in time leaves no gap.
    v_until := v_now + least(idle."for", case when idle.handoff_channel is not null then interval '5 s' end) + interval '1 s';

    insert into pgqueue.idle_workers (queue, until, worker, channel, handoff_channel, listener, lease)
    select
        q.name, v_until, idle.worker, pgqueue._channel(idle.worker), idle.handoff_channel, idle.listener,
        case when idle.handoff_channel is not null then idle.lease end
    from unnest(coalesce(idle.queues, array[''])) q (name);

    select
        exists (
            select from pgqueue.workers w
            where w.name = idle.worker and coalesce(w.server_started_at, pg_postmaster_start_time()) = pg_postmaster_start_time()
        ) as is_registered,
        (select b.at from pgqueue.heartbeats b where b.worker = idle.worker order by b.n desc limit 1) as beat_at,
        exists (select from pgqueue.limits l where l.kind = 'queue') as limits_queues,
        exists (select from pgqueue.limits l where l.rate is not null)
        or exists (select from pgqueue.pauses p where p.until > v_now) as has_times
    into v_known;
    -- A heartbeat about every ten seconds: see beat. One in the future is from before the clock stepped back, and does
    -- not count.
    if v_known.is_registered and (v_known.beat_at between v_now - interval '9 s' and v_now) is not true then
        insert into pgqueue.heartbeats (worker, at, memory) values (idle.worker, v_now, case when idle.memory >= 0 then idle.memory end);
    end if;

    v_next_due := pgqueue._next_due(
        idle.worker, idle.queues, v_known.limits_queues, v_known.has_times, v_run.due_lanes is not null, v_now
    );
    if v_next_due is not null then
        v_due := v_next_due <= v_now;
        -- The worker's rank: how many other workers are idle. Counted only here, because the count costs as much as all
        -- the rest, and mostly there is no job.
        select count(distinct asleep.worker) into v_rank
        from (
            select s.worker
            from pgqueue.idle_workers s
            where s.queue = coalesce(idle.queues[1], '') and s.until > v_now and s.worker <> idle.worker
            limit case when v_due then 1 else 100 end
        ) asleep;
        v_next_due := greatest(v_next_due + v_rank * case when v_due then interval '250 ms' else interval '20 ms' end, v_now);
    end if;

    return query
    select
        pgqueue._channel(idle.worker),
        v_next_due,
        case
            -- So an idle worker makes less than one call a second, its heartbeat and its listener included.
            when v_has_run then (1.1 + 0.5 * random()) * interval '1 s'
            else pgqueue._call_again_in(v_now, v_run.at)
        end,
        v_known.is_registered;
end
$$;

comment on function pgqueue.idle(text, text[], interval, bigint, text, integer, interval) is
    'Register a worker that has nothing to do as idle, for at most "for". Call it in a separate transaction and commit at once: '
    'what it locks is held until then. Then reserve again a few times (after 2 ms, 4 ms, ... about a second in all). '
    'Then wait for NOTIFY on channel, for next_due (reserve then; now, where something is due already), or for call_again_in or "for" to pass, '
    'and call it again. It reports a heartbeat and runs maintenance as well. registered: false: call hello() again. memory: as in beat(). '
    'handoff_channel: a random channel on which the session with the process id listener listens: a job that is enqueued may be reserved for this worker, with this lease, '
    'and sent there; the registration then lasts 5 s at most, and a second after it ended held_by() says what did not arrive. [worker]';

-- When a worker of these queues should claim next: when a job is due, or may start under its limits. p_limited: some queues
-- have limits; p_timed: some limits have rates, or something is paused. p_many: there are more than 64 lanes, and those that a
-- claim visits first are read; in others something may be due, which reserve visits next.
create or replace function pgqueue._next_due(
    p_worker text, p_queues text[], p_limited boolean, p_timed boolean, p_many boolean, p_now timestamptz
)
returns timestamptz
language plpgsql
as $$
declare
    v_round pgqueue.lane_round;
    v_at_limit text[] := '{}'::text[];
    v_next_due timestamptz;
    v_turn_due timestamptz;
begin
    if p_many then
        v_round.turn := split_part(current_setting('pgqueue.turn', true), ' ', 1);
        v_round := pgqueue._next_lanes(v_round, p_queues, false, p_now);
    end if;
    if p_limited then
        v_at_limit := array(
            select l.target
            from pgqueue.limits l
            where l.kind = 'queue' and (p_queues is null or l.target = any (p_queues))
                and (not p_many or l.target = any (array(select x.queue from unnest(v_round.lanes) x)))
                and pgqueue._queue_capacity(l.target, 1, p_now) = 0
        );
    end if;
    -- The first job of each lane decides when the lane is due. In a queue at its limit a lane whose first job is due does
    -- not count: that job waits for the limit, and the later ones wait behind it.
    select
        -- What comes back at once waits for no turn.
        min(first.ready_at) filter (where not l.is_fair or r.resumed),
        min(first.ready_at) filter (where l.is_fair and not r.resumed)
    into v_next_due, v_turn_due
    from (
        select a.*
        from (
            select x.queue, x.priority, bool_or(x.is_fair) as is_fair
            from pgqueue.lanes x
            where not p_many and (p_queues is null or x.queue = any (p_queues))
            group by x.queue, x.priority
            union all
            select x.queue, x.priority, x.is_fair from unnest(v_round.lanes) x
        ) a
        where not exists (select from pgqueue.pauses p where p.kind = 'queue' and p.target = a.queue and p.until > p_now)
    ) l
    cross join (values (false), (true)) r (resumed)
    cross join lateral (select x.* from pgqueue._head(l.queue, l.priority, r.resumed) x offset 0) h
    cross join lateral pgqueue._first_ready(l.queue, l.priority, r.resumed, h.head, h.head_id, 'infinity') first
    where first.ready_at > p_now or l.queue <> all (v_at_limit);
    if v_turn_due <= p_now and (
        pgqueue._has_rules_of_tenants(p_now)
        or exists (select from pgqueue.queues q where q.max_share < 1)
    ) then
        -- Not where all that is due is of tenants at their limits, paused, or with their part of the worker's slots. The first
        -- 1,000 lanes are asked. What the worker holds is read once a queue, not once a lane.
        with waiting as materialized (
            select x.queue, x.priority, x.lane_key, min(x.due_from) as due_from
            from (select * from pgqueue.tenant_lanes y where p_queues is null or y.queue = any (p_queues) limit 1000) x
            group by x.queue, x.priority, x.lane_key
        ),
        held as materialized (
            select q.name, (pgqueue._held_in(p_worker, q.name, null)).lanes
            from pgqueue.queues q
            where q.max_share < 1 and q.name = any (array(select w.queue from waiting w))
        )
        select min(case when t.due_from > p_now then t.due_from when c.capacity > 0 then p_now else c.next_at end) into v_turn_due
        from waiting t
        cross join lateral (
            select from pgqueue._first_in_lane(t.queue, t.priority, t.lane_key, greatest(t.due_from, p_now))
            union all
            select where t.due_from > p_now
            limit 1
        ) due
        cross join lateral pgqueue._tenant_capacity(
            p_worker, t.queue, t.priority, substr(t.lane_key, 9), 1, p_now, (select h.lanes from held h where h.name = t.queue)
        ) c;
    end if;
    v_next_due := least(v_next_due, v_turn_due);
    if p_many then
        v_next_due := least(
            v_next_due, case when not v_round.is_whole then p_now + interval '1 s' end,
            (
                select l.due_from
                from pgqueue.lanes l
                where l.due_from > p_now and l.due_from > '-infinity' and (p_queues is null or l.queue = any (p_queues))
                order by l.due_from
                limit 1
            )
        );
    end if;
    if p_timed and (v_next_due <= p_now) is not true then
        -- For blocked jobs the time that their rate gives, for a queue that has used up its rate the time at which its first job
        -- may start. And when the next pause ends.
        v_next_due := least(
            v_next_due,
            (select w.next_at from pgqueue.limit_waits w where w.timed and w.next_at > p_now order by w.next_at limit 1),
            (
                select nullif(min(coalesce(p.half_open_at, p.until)), 'infinity')
                from pgqueue.pauses p
                where coalesce(p.half_open_at, p.until) > p_now and p.until > p_now
                    and (p.kind <> 'queue' or p_queues is null or p.target = any (p_queues))
            ),
            (
                select min(c.next_at)
                from pgqueue.limits l
                cross join lateral pgqueue._capacity_of(
                    row('queue:' || l.target, l.kind, l.target, null, l.rate, l.per, null, l.burst, null, null)::pgqueue.rule,
                    p_now, p_now
                ) c
                where l.kind = 'queue' and l.rate is not null and (p_queues is null or l.target = any (p_queues))
                    and c.units < pgqueue._wanted_units('queue:' || l.target, p_now)
            )
        );
    end if;
    return v_next_due;
end
$$;
