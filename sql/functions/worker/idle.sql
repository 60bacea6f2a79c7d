-- idle: what a worker says when reserve came back with nothing. It writes that the worker sleeps; from its commit
-- on, every enqueue that this worker could serve wakes it.
--
-- The order matters. A producer asks "who sleeps?" at its enqueue and commits later. So the worker first calls
-- idle, *then* looks again at short pauses for about a second, and only then blocks: what was enqueued before the
-- row stood is found by a look, what comes after is announced. Looks before the row find neither.
-- It is the one thing that a sleeping worker says, so it does all that such a worker owes: a sign of life, and
-- housekeeping. Whoever kept house is told to call again in a second and does so again; the others, told to come back
-- later, take over when nobody did for two. (Taking turns instead, each of 200 sessions plans every step for itself.)
-- It looks as well whether something is due, and says so with next_due: then reserve. Where others sleep, what is due for
-- less than 250 ms was announced to them, and is about to be taken. It claims nothing itself, and asks for the limits of
-- queues alone (what another limit stops is parked by the first reserve that meets it): a reserve after it may come back
-- empty.
-- Inserts only; rows end by their time, so that readers of the index never visit old ones. Each waiting due time
-- is reported with a small delay by rank, so that a thousand workers do not jump at one job.

create or replace function pgqueue.idle(worker text, queues text[] default null, "for" interval default '5 s')
returns table (channel text, next_due timestamptz, call_again_in interval, registered boolean)
language plpgsql
volatile
parallel unsafe
security definer
rows 1
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := pgqueue._clock();
    v_house bigint;
    v_house_at timestamptz;
    v_kept_house boolean := false;
    v_until timestamptz;
    v_next_due timestamptz;
    v_due boolean;
    v_rank bigint;
    v_registered boolean;
    v_beat_at timestamptz;
    v_limited boolean;
    v_rated boolean;
    v_full text[] := '{}'::text[];
begin
    perform pgqueue._check_name('worker', idle.worker, 256);
    perform pgqueue._check_queues(idle.queues);
    if idle."for" is null or not isfinite(idle."for") or idle."for" <= '0' or idle."for" > '1 hour' then
        perform pgqueue._refuse(
            '"for" must be above zero and at most one hour', format('It is %s.', coalesce(idle."for"::text, 'null')),
            'Give "for" as the interval after which the worker looks by itself, such as ''5 s''.'
        );
    end if;

    -- First, for it may find work. maintain refuses an old snapshot.
    select h.n, h.at into v_house, v_house_at from pgqueue.housekeeping h order by h.n desc limit 1;
    if not pgqueue._old_snapshot() and (
        v_house_at is null
        or v_house_at not between v_now - interval '2 s' and v_now
        or v_house_at < v_now - interval '0.8 s' and current_setting('pgqueue.house', true) = concat(v_house, ' ', idle.worker)
    ) then
        select m.ran into v_kept_house from pgqueue.maintain('0.8 s') m;
        v_now := pgqueue._clock();
        if v_kept_house then
            -- So that it is known as the one who did, by this session.
            select h.n into v_house from pgqueue.housekeeping h order by h.n desc limit 1;
            perform set_config('pgqueue.house', concat(v_house, ' ', idle.worker), false);
        end if;
    end if;

    -- A little beyond, so that a worker that renews its nap in time is asleep without a gap.
    v_until := v_now + idle."for" + interval '1 s';

    insert into pgqueue.sleepers (queue, until, worker, channel)
    select q.name, v_until, idle.worker, pgqueue._channel(idle.worker)
    from unnest(coalesce(idle.queues, array[''])) q (name);

    select
        exists (select from pgqueue.workers w where w.name = idle.worker),
        (select b.at from pgqueue.beats b where b.worker = idle.worker order by b.n desc limit 1),
        exists (select from pgqueue.limits l where l.kind = 'queue'),
        exists (select from pgqueue.limits l where l.rate is not null)
    into v_registered, v_beat_at, v_limited, v_rated;
    -- See beat. A clock that stepped back leaves none of the future in the way.
    if v_registered and (v_beat_at between v_now - interval '9 s' and v_now) is not true then
        insert into pgqueue.beats (worker, at) values (idle.worker, v_now);
    end if;

    if v_limited then
        v_full := array(
            select r.key
            from jsonb_each(pgqueue._queue_rooms(idle.queues, v_now)) r
            where (r.value ->> 'room')::integer = 0
        );
    end if;
    -- The first of each lane is due, or it says when the lane is. Where a queue is full what is due waits, and what comes
    -- later waits behind it.
    select min(first.ready_at) into v_next_due
    from (
        select distinct a.queue, a.priority
        from pgqueue.lanes a
        where (idle.queues is null or a.queue = any (idle.queues))
            and not exists (select from pgqueue.queues q where q.name = a.queue and q.paused_at is not null)
    ) l
    left join lateral pgqueue._head(l.queue, l.priority, false) h on true
    left join lateral pgqueue._head(l.queue, l.priority, true) r on true
    cross join lateral (
        (
            select j.ready_at
            from pgqueue.jobs j
            where j.state in ('waiting', 'failed')
                and j.queue = l.queue
                and j.priority = l.priority
                and j.resumed = false
                and j.ready_at >= coalesce(h.head, '-infinity')
            order by j.ready_at, j.id
            limit 1
        )
        union all
        (
            select j.ready_at
            from pgqueue.jobs j
            where j.state in ('waiting', 'failed')
                and j.queue = l.queue
                and j.priority = l.priority
                and j.resumed = true
                and j.ready_at >= coalesce(r.head, '-infinity')
            order by j.ready_at, j.id
            limit 1
        )
    ) first
    where first.ready_at > v_now or l.queue <> all (v_full);
    v_due := coalesce(v_next_due <= v_now, false);
    if v_rated and not v_due then
        v_next_due := least(v_next_due, pgqueue._next_room(idle.queues, v_now));
    end if;

    if v_next_due is not null then
        -- Asked for only here: it costs as much as all the rest, and most of the time there is nothing to wait for.
        select count(distinct asleep.worker) into v_rank
        from (
            select s.worker
            from pgqueue.sleepers s
            where s.queue = coalesce(idle.queues[1], '')
                and s.until > v_now
                and s.worker <> idle.worker
            limit case when v_due then 1 else 100 end
        ) asleep;
        v_next_due := greatest(
            v_next_due + v_rank * case when v_due then interval '250 ms' else interval '20 ms' end, v_now
        );
    end if;

    return query
    select
        pgqueue._channel(idle.worker),
        v_next_due,
        case
            when v_kept_house then (1 + 0.5 * random()) * interval '1 s'
            else pgqueue._call_again_in(v_now)
        end,
        v_registered;
end
$$;

comment on function pgqueue.idle(text, text[], interval) is
    'Nothing to do: the worker will sleep, for at most "for". Call it, then reserve again a few times (after 2 ms, 4 ms, ... about a second in all), '
    'then wait for NOTIFY on channel, for next_due (reserve then; now, where something is due already), or for call_again_in or "for" to pass, '
    'and call it again. It beats and keeps house as well. registered: false where hello() is to be said again.';

-- The fleet as a whole is to call maintain about once a second, whatever its size, with nobody in charge.
create or replace function pgqueue._call_again_in(p_now timestamptz)
returns interval
language plpgsql
volatile
parallel safe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_workers bigint;
    v_at timestamptz;
begin
    select h.at into v_at from pgqueue.housekeeping h order by h.n desc limit 1;
    if v_at is null or v_at not between p_now - interval '2 s' and p_now + interval '1 s' then
        return random() * interval '200 ms';
    end if;
    select count(*) into v_workers from (select from pgqueue.workers limit 7) w;
    -- Not rarer than every 5 s each: whoever was killed still counts for a while, and a gap of 5 s costs leases
    -- their punctuality. maintain itself skips a call that comes too soon after another. A worker alone says nothing
    -- else while it sleeps, and should not say more than one thing a second.
    return least(greatest(v_workers * (0.75 + 0.5 * random()), 1 + 0.5 * random()), 5) * interval '1 s';
end
$$;

comment on function pgqueue._call_again_in(timestamptz) is 'Private: when one worker should call idle() or maintain() again.';
