-- Limits at work: how much capacity each has, which jobs it blocks, and which it releases.
--
-- A claim counts what executes under a limit (lapsed leases included), and the starts within the period of a rate. At the
-- limit it blocks the job, and takes no lock. Below it, it takes the limit's advisory lock and counts again, in a statement
-- after the one that took the lock, so that no two claims start jobs by the same count. It only tries: where another
-- claim has the lock, these jobs are skipped this time. The lock is held until the transaction ends, for only then can
-- others count what it started. Nothing else takes it: blocking, releasing and maintenance do without.
-- A job without capacity is blocked under the limit's name (kind:target). A job that ends releases as many as leave with it,
-- in a statement after the one that ended it. It cannot see what a claim blocks at the same moment; so each claim that
-- blocks jobs inserts a row of limit_waits, due soon after, in its own transaction. Whatever reads that row deletes it, and
-- then checks the limit in a later statement, whose snapshot shows what was blocked with the row. Rates, whose capacity
-- comes with time, go the same way. Claims and maintain read the rows that are due.
-- Jobs over a rate are blocked as well, and not deferred to the next free start: a million of them would all come due, and
-- be deferred again, with each one.

create or replace function pgqueue._limits_of(p_task text, p_key text, p_limit_key text)
returns table (name text, kind text, target text, max_executing integer, rate integer, per interval)
language sql
volatile
parallel unsafe
rows 2
set search_path = pg_catalog, pg_temp
as $$
    select 'task:' || l.target, l.kind, l.target, l.max_executing, l.rate, l.per
    from pgqueue.limits l
    where l.kind = 'task' and l.target = p_task
    union all
    select 'key:' || l.target, l.kind, l.target, l.max_executing, l.rate, l.per
    from pgqueue.limits l
    where l.kind = 'key' and starts_with(p_key, l.target)
    union all
    -- The value itself, else the longest beginning of it that has a limit for each of its values.
    (
        select 'limit_key:' || p_limit_key, l.kind, p_limit_key, l.max_executing, l.rate, l.per
        from pgqueue.limits l
        where l.kind = 'limit_key'
            and (l.target = p_limit_key or (right(l.target, 1) = '*' and starts_with(p_limit_key, left(l.target, -1))))
        order by l.target = p_limit_key desc, length(l.target) desc
        limit 1
    )
$$;

comment on function pgqueue._limits_of(text, text, text) is
    'Private: the limits that apply to a job, save that of its queue, each with its name.';

-- Counts by the snapshot of its own statements: see above.
create or replace function pgqueue._capacity(
    p_name text, p_kind text, p_target text, p_max_executing integer, p_rate integer, p_per interval, p_now timestamptz,
    out room integer, out next_at timestamptz, out timed boolean
)
returns record
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_started bigint;
    v_first timestamptz;
begin
    room := 1000000;
    next_at := p_now + interval '100 ms';
    timed := false;
    if p_max_executing is not null then
        room := p_max_executing - pgqueue._count_executing(p_kind, p_target, p_max_executing);
    end if;
    if p_rate is not null and room > 0 then
        -- Starts in the future were recorded before the clock stepped back.
        select coalesce(sum(s.started), 0), min(s.at)
        into v_started, v_first
        from pgqueue.limit_starts s
        where s.name = p_name and s.at > p_now - p_per and s.at <= p_now + interval '1 s';
        if p_rate - v_started <= room then
            -- Also below the limit: the claim may use the capacity up, and block the other jobs.
            next_at := coalesce(v_first, p_now) + p_per;
            timed := true;
        end if;
        room := least(room, p_rate - v_started)::integer;
    end if;
end
$$;

comment on function pgqueue._capacity(text, text, text, integer, integer, interval, timestamptz) is
    'Private: how many more jobs may start under a limit, by what is committed, and when to check it again if none may.';

create or replace function pgqueue._lock_limit(p_name text)
returns boolean
language sql
volatile
parallel unsafe
as $$
    -- Limits have the negative half of the second keys. Two limits of one hash take turns without need.
    select pg_catalog.pg_try_advisory_xact_lock(pgqueue._lock_class(), pg_catalog.hashtext(p_name) | -2147483648)
$$;

comment on function pgqueue._lock_limit(text) is
    'Private: takes the lock of a limit, under which jobs are started, until the transaction ends; false: another claim has it.';

-- p_rooms remembers, within one claim, what is left of each limit: {name: {room, next_at, timed, rate, started, locked}}.
-- Room is null where another claim has the lock. All limits of the job are counted before one is locked: a job that one
-- of them blocks takes no lock of another. JSON, because it is a map: a claim may meet a limit_key with each of its jobs.
create or replace function pgqueue._take_capacity(
    p_task text, p_key text, p_limit_key text, p_now timestamptz, p_rooms jsonb,
    out names text[], out full_name text, out rooms jsonb
)
returns record
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_limit record;
    v_name text;
    v_room jsonb;
    v_unlocked boolean := false;
    v_busy boolean := false;
    v_rooms jsonb;
begin
    rooms := p_rooms;
    names := '{}';
    for v_limit in
        select l.* from pgqueue._limits_of(p_task, p_key, p_limit_key) l order by l.name
    loop
        v_room := rooms -> v_limit.name;
        if v_room is null then
            v_room := pgqueue._capacity_as_json(
                v_limit.name, v_limit.kind, v_limit.target, v_limit.max_executing, v_limit.rate, v_limit.per, p_now
            );
            rooms := jsonb_set(rooms, array[v_limit.name], v_room);
        end if;
        if (v_room ->> 'room')::integer <= 0 then
            full_name := v_limit.name;
            names := null;
            return;
        end if;
        v_busy := v_busy or v_room ->> 'room' is null;
        v_unlocked := v_unlocked or not (v_room ->> 'locked')::boolean;
        names := names || v_limit.name;
    end loop;
    if v_busy then
        names := null;
        return;
    end if;

    if v_unlocked then
        v_rooms := rooms;
        begin
            for v_limit in
                select l.* from pgqueue._limits_of(p_task, p_key, p_limit_key) l order by l.name
            loop
                continue when (rooms -> v_limit.name ->> 'locked')::boolean;
                v_name := v_limit.name;
                v_room := null;
                if pgqueue._lock_limit(v_name) then
                    v_room := pgqueue._capacity_as_json(
                        v_name, v_limit.kind, v_limit.target, v_limit.max_executing, v_limit.rate, v_limit.per, p_now
                    );
                end if;
                if v_room is null or (v_room ->> 'room')::integer <= 0 then
                    -- The end of this block releases the locks that it took.
                    raise exception using errcode = 'lock_not_available';
                end if;
                rooms := jsonb_set(rooms, array[v_name], v_room || '{"locked": true}');
            end loop;
        exception when lock_not_available then
            rooms := jsonb_set(v_rooms, array[v_name], coalesce(v_room, v_rooms -> v_name || '{"room": null}'));
            if v_room is not null then
                full_name := v_name;
            end if;
            names := null;
            return;
        end;
    end if;

    foreach v_name in array names loop
        rooms := jsonb_set(
            rooms,
            array[v_name],
            rooms -> v_name || jsonb_build_object(
                'room', (rooms -> v_name ->> 'room')::integer - 1,
                'started', (rooms -> v_name ->> 'started')::integer + 1
            )
        );
    end loop;
end
$$;

comment on function pgqueue._take_capacity(text, text, text, timestamptz, jsonb) is
    'Private: takes capacity for one start under each limit of a job: their names; or the one that is at its limit; or neither, while another claim starts jobs under one.';

create or replace function pgqueue._capacity_as_json(
    p_name text, p_kind text, p_target text, p_max_executing integer, p_rate integer, p_per interval, p_now timestamptz
)
returns jsonb
language sql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
    select jsonb_build_object(
        'room', r.room, 'next_at', r.next_at, 'timed', r.timed, 'rate', p_rate is not null, 'started', 0, 'locked', false
    )
    from pgqueue._capacity(p_name, p_kind, p_target, p_max_executing, p_rate, p_per, p_now) r
$$;

comment on function pgqueue._capacity_as_json(text, text, text, integer, integer, interval, timestamptz) is
    'Private: _room, as a claim remembers it.';

create or replace function pgqueue._note_starts(p_rooms jsonb, p_now timestamptz)
returns void
language sql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
    insert into pgqueue.limit_starts (name, at, started)
    select r.key, p_now, (r.value ->> 'started')::integer
    from jsonb_each(p_rooms) r
    where (r.value ->> 'rate')::boolean and (r.value ->> 'started')::integer > 0
$$;

comment on function pgqueue._note_starts(jsonb, timestamptz) is 'Private: records the starts of a claim under limits with a rate.';

create or replace function pgqueue._block_on_limits(p_rows tid[], p_names text[], p_rooms jsonb)
returns void
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
begin
    update pgqueue.jobs j
    set
        state = 'blocked',
        blocked_on = w.name,
        resumed = false
    from unnest(p_rows, p_names) w (row_at, name)
    where j.ctid = w.row_at;
    -- Also where the limit has such a row: another transaction, which does not see these jobs, may be deleting that one.
    insert into pgqueue.limit_waits (name, next_at, timed)
    select
        n.name,
        (p_rooms -> n.name ->> 'next_at')::timestamptz,
        (p_rooms -> n.name ->> 'timed')::boolean
    from (select distinct u.name from unnest(p_names) u (name)) n;
end
$$;

comment on function pgqueue._block_on_limits(tid[], text[], jsonb) is
    'Private: blocks jobs under the names of the limits that have no capacity for them.';

create or replace function pgqueue._unblock(p_name text, p_count integer)
returns integer
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
    v_rows tid[];
    v_ready_at timestamptz;
    v_lane record;
begin
    select array_agg(p.row_at) into v_rows
    from (
        select j.ctid as row_at
        from pgqueue.jobs j
        where j.state = 'blocked'
            and j.blocked_on is not null
            and j.blocked_on = p_name
        order by j.blocked_on, j.priority desc, j.ready_at, j.id
        limit p_count
        for update skip locked
    ) p;
    if v_rows is null then
        return 0;
    end if;
    v_ready_at := pgqueue._ready_at(null);
    for v_lane in
        with back as (
            update pgqueue.jobs j
            set
                state = pgqueue._state_again(j.errors, j.attempts),
                blocked_on = null,
                -- Keeps their order.
                ready_at = v_ready_at + (w.n - 1) * interval '1 us',
                resumed = true
            from unnest(v_rows) with ordinality w (row_at, n)
            where j.ctid = w.row_at
            returning j.queue, j.priority
        )
        select distinct b.queue, b.priority from back b
    loop
        perform pgqueue._register_lane(v_lane.queue, v_lane.priority, v_ready_at);
        perform pgqueue._wake(v_lane.queue, v_ready_at, 2, null);
    end loop;
    return cardinality(v_rows);
end
$$;

comment on function pgqueue._unblock(text, integer) is
    'Private: releases the first p_count jobs that a limit blocks, and returns how many there were.';

-- Jobs have stopped executing: releases as many of those that their limits block.
create or replace function pgqueue._leave_limits(p_tasks text[], p_keys text[], p_limit_keys text[])
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_limit record;
begin
    for v_limit in
        select l.name, sum(j.count)::integer as count
        from (
            select u.task, u.key, u.limit_key, count(*) as count
            from unnest(p_tasks, p_keys, p_limit_keys) u (task, key, limit_key)
            group by u.task, u.key, u.limit_key
        ) j
        cross join lateral pgqueue._limits_of(j.task, j.key, j.limit_key) l
        where l.max_executing is not null
        group by l.name
        order by l.name
    loop
        if pgqueue._old_snapshot() then
            insert into pgqueue.limit_waits (name, next_at) values (v_limit.name, pgqueue._clock());
        else
            perform pgqueue._unblock(v_limit.name, v_limit.count);
        end if;
    end loop;
end
$$;

comment on function pgqueue._leave_limits(text[], text[], text[]) is
    'Private: releases jobs blocked by the limits of these, which stopped executing.';

-- Checks the limits that are due in limit_waits. Each that has capacity again releases as many jobs as that, and no more
-- than p_jobs: a claim holds what it releases until it commits. All rows of such a limit become one. Two calls that check
-- one limit at the same time release twice as many at worst; the next claim blocks them again. A row that is a second
-- overdue counts even if another transaction has locked it, for that may stay open.
create or replace function pgqueue._recheck_limits(p_limit integer, p_jobs integer default 1000)
returns integer
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_names text[];
    v_name text;
    v_kind text;
    v_limit record;
    v_room integer;
    v_next_at timestamptz;
    v_timed boolean;
    v_unparked integer := 0;
begin
    if not exists (select from pgqueue.limit_waits w where w.next_at <= v_now) then
        return 0;
    end if;
    with due as materialized (
        select x.name, x.next_at from pgqueue.limit_waits x where x.next_at <= v_now order by x.next_at limit p_limit
    ),
    taken as (
        delete from pgqueue.limit_waits w
        where w.n = any (
            array(
                select l.n
                from (select distinct d.name from due d) n
                cross join lateral (
                    select y.n from pgqueue.limit_waits y where y.name = n.name for update skip locked
                ) l
            )
        )
        returning w.name
    )
    select array_agg(n.name order by n.name) into v_names
    from (
        select t.name from taken t
        union
        select d.name from due d where d.next_at <= v_now - interval '1 s'
    ) n;
    if v_names is null then
        return 0;
    end if;
    foreach v_name in array v_names loop
        v_kind := split_part(v_name, ':', 1);
        -- Names are kind:target, and the target of a limit_key is its value: finds the limit as for a job with that value.
        select l.* into v_limit
        from pgqueue._limits_of(
            case when v_kind = 'task' then substr(v_name, 6) end,
            case when v_kind = 'key' then substr(v_name, 5) end,
            case when v_kind = 'limit_key' then substr(v_name, 11) end
        ) l
        where l.name = v_name;
        -- Without a row the limit was dropped, and all that it blocked is released.
        select r.room, r.next_at, r.timed into v_room, v_next_at, v_timed
        from pgqueue._capacity(
            v_name, v_limit.kind, v_limit.target, v_limit.max_executing, v_limit.rate, v_limit.per, v_now
        ) r;
        if v_room > 0 then
            v_unparked := v_unparked + pgqueue._unblock(v_name, least(v_room, p_jobs));
            v_timed := v_limit.rate is not null;
            -- The next start under a rate is free about a share of its time later.
            v_next_at := v_now + case
                when v_room > p_jobs then interval '0'
                when v_timed then least(interval '1 s', greatest(v_limit.per / v_limit.rate, interval '10 ms'))
                else interval '1 s'
            end;
        elsif not v_timed then
            -- The net: jobs that end release what they see.
            v_next_at := v_now + interval '1 s';
        end if;
        insert into pgqueue.limit_waits (name, next_at, timed)
        select v_name, v_next_at, v_timed
        where exists (
            select
            from pgqueue.jobs j
            where j.state = 'blocked' and j.blocked_on is not null and j.blocked_on = v_name
        );
    end loop;
    return v_unparked;
end
$$;

comment on function pgqueue._recheck_limits(integer, integer) is
    'Private: releases jobs of up to p_limit limits that are due to be checked and have capacity again; returns how many.';

-- Counts without a lock: see _lock_queue.
create or replace function pgqueue._queue_capacities(p_queues text[], p_now timestamptz)
returns jsonb
language sql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
    select coalesce(
        jsonb_object_agg(
            l.target,
            jsonb_build_object('room', greatest(r.room, 0), 'rate', l.rate is not null, 'locked', false)
        ),
        '{}'
    )
    from pgqueue.limits l
    cross join lateral pgqueue._capacity(
        'queue:' || l.target, 'queue', l.target, l.max_executing, l.rate, l.per, p_now
    ) r
    where l.kind = 'queue' and (p_queues is null or l.target = any (p_queues))
$$;

comment on function pgqueue._queue_capacities(text[], timestamptz) is
    'Private: how many jobs of each queue that has a limit may still start, by what is committed.';

-- Before the first job of a queue with a limit is claimed: takes the lock, and counts the capacity again. There is none
-- where another claim has the lock.
create or replace function pgqueue._lock_queue(p_rooms jsonb, p_queue text, p_now timestamptz)
returns jsonb
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_room integer := 0;
begin
    if coalesce((p_rooms -> p_queue ->> 'locked')::boolean, true) then
        return p_rooms;
    end if;
    if pgqueue._lock_limit('queue:' || p_queue) then
        select r.room into v_room
        from pgqueue.limits l
        cross join lateral pgqueue._capacity(
            'queue:' || l.target, 'queue', l.target, l.max_executing, l.rate, l.per, p_now
        ) r
        where l.kind = 'queue' and l.target = p_queue;
    end if;
    return jsonb_set(
        p_rooms, array[p_queue],
        p_rooms -> p_queue || jsonb_build_object('room', greatest(coalesce(v_room, 0), 0), 'locked', true)
    );
end
$$;

comment on function pgqueue._lock_queue(jsonb, text, timestamptz) is
    'Private: the capacities of queues, with that of one counted under its lock.';

create or replace function pgqueue._tidy_starts(p_now timestamptz)
returns void
language sql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
    delete from pgqueue.limit_starts s
    where s.at < p_now - coalesce((select max(l.per) from pgqueue.limits l), '0') - interval '1 min'
$$;

comment on function pgqueue._tidy_starts(timestamptz) is 'Private: deletes starts that no rate counts any more.';

-- When a worker that found nothing should claim again because of limits: for blocked jobs the time that their rate gives,
-- for a queue that has used up its rate the end of the oldest start.
create or replace function pgqueue._next_capacity(p_queues text[], p_now timestamptz)
returns timestamptz
language sql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
    select least(
        (
            select w.next_at
            from pgqueue.limit_waits w
            where w.timed and w.next_at > p_now
            order by w.next_at
            limit 1
        ),
        (
            select min(used.first_at + l.per)
            from pgqueue.limits l
            cross join lateral (
                select sum(s.started) as started, min(s.at) as first_at
                from pgqueue.limit_starts s
                where s.name = 'queue:' || l.target and s.at > p_now - l.per and s.at <= p_now + interval '1 s'
            ) used
            where l.kind = 'queue'
                and (p_queues is null or l.target = any (p_queues))
                and used.started >= l.rate
        )
    )
$$;

comment on function pgqueue._next_capacity(text[], timestamptz) is
    'Private: when the first limit with a rate will have capacity again; null: none is used up.';
