-- Limits at work: how much room each has, who is parked for want of it, and who is let go.
--
-- A claim evaluates a limit under an advisory lock that it holds to its end, so no two claims count at the same time;
-- it only ever tries, and who does not get the lock leaves those jobs alone this time. It counts executing rows, those
-- with lapsed leases too, and the starts within the time that a rate speaks of.
-- What finds no room is parked under the limit's name (kind:target) and let go, as many as leave, by whoever leaves
-- it: in a statement after the one that ended its jobs. A claim that parked just then, unseen, is told of by a row in
-- limit_waits; so are rates, whose room comes with time. Claims and maintain look at the rows that are due there.
-- Jobs over a rate are parked as well, and not put off to the next start that is free: a million of them would all come
-- due, and be put off again, with each one.

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
    'Private: the limits, save that of its queue, that a job stands under, each with its name.';

-- Null: another claim is looking at this limit.
create or replace function pgqueue._room(
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
    -- The negative half of the second keys is the limits': two of one hash take turns needlessly.
    if not pg_try_advisory_xact_lock(pgqueue._lock_class(), hashtext(p_name) | -2147483648) then
        return;
    end if;
    room := 1000000;
    next_at := p_now + interval '1 s';
    timed := false;
    if p_max_executing is not null then
        -- In a statement after the one that took the lock: its snapshot shows what the holder before committed.
        room := p_max_executing - pgqueue._count_executing(p_kind, p_target, p_max_executing);
    end if;
    if p_rate is not null and room > 0 then
        -- Starts of the future were noted before the clock stepped back.
        select coalesce(sum(s.started), 0), min(s.at)
        into v_started, v_first
        from pgqueue.limit_starts s
        where s.name = p_name and s.at > p_now - p_per and s.at <= p_now + interval '1 s';
        if p_rate - v_started <= room then
            -- Also where there is room: the claim may use it up, and park what is left.
            next_at := coalesce(v_first, p_now) + p_per;
            timed := true;
        end if;
        room := least(room, p_rate - v_started)::integer;
    end if;
end
$$;

comment on function pgqueue._room(text, text, text, integer, integer, interval, timestamptz) is
    'Private: how many more may start under a limit, and when to look again where none may; null while another claim looks.';

-- p_rooms remembers, within one claim, what is left of each limit: {name: {room, next_at, rate, started}}.
create or replace function pgqueue._rooms_of(
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
    v_room record;
    v_names text[] := '{}'::text[];
    v_name text;
begin
    rooms := p_rooms;
    for v_limit in
        select l.* from pgqueue._limits_of(p_task, p_key, p_limit_key) l order by l.name
    loop
        if not rooms ? v_limit.name then
            select r.room, r.next_at, r.timed into v_room
            from pgqueue._room(
                v_limit.name, v_limit.kind, v_limit.target, v_limit.max_executing, v_limit.rate, v_limit.per, p_now
            ) r;
            rooms := rooms || jsonb_build_object(
                v_limit.name,
                jsonb_build_object(
                    'room', v_room.room, 'next_at', v_room.next_at, 'timed', v_room.timed,
                    'rate', v_limit.rate is not null, 'started', 0
                )
            );
        end if;
        if rooms -> v_limit.name ->> 'room' is null then
            names := null;
            return;
        end if;
        if (rooms -> v_limit.name ->> 'room')::integer <= 0 then
            full_name := v_limit.name;
            return;
        end if;
        v_names := v_names || v_limit.name;
    end loop;
    foreach v_name in array v_names loop
        rooms := jsonb_set(
            rooms,
            array[v_name],
            rooms -> v_name || jsonb_build_object(
                'room', (rooms -> v_name ->> 'room')::integer - 1,
                'started', (rooms -> v_name ->> 'started')::integer + 1
            )
        );
    end loop;
    names := v_names;
end
$$;

comment on function pgqueue._rooms_of(text, text, text, timestamptz, jsonb) is
    'Private: takes one place in each limit of a job: their names; or which of them is full; or neither, while another claim looks at one.';

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

comment on function pgqueue._note_starts(jsonb, timestamptz) is 'Private: notes the starts of a claim under limits with a rate.';

create or replace function pgqueue._park_on_limits(p_rows tid[], p_names text[], p_rooms jsonb, p_now timestamptz)
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
    insert into pgqueue.limit_waits (name, next_at, timed)
    select
        n.name,
        coalesce((p_rooms -> n.name ->> 'next_at')::timestamptz, p_now + interval '1 s'),
        coalesce((p_rooms -> n.name ->> 'timed')::boolean, false)
    from (select distinct u.name from unnest(p_names) u (name)) n
    where not exists (select from pgqueue.limit_waits w where w.name = n.name);
end
$$;

comment on function pgqueue._park_on_limits(tid[], text[], jsonb, timestamptz) is
    'Private: parks jobs under the names of the limits that have no room for them.';

create or replace function pgqueue._unpark(p_name text, p_count integer)
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
                -- In their order.
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

comment on function pgqueue._unpark(text, integer) is
    'Private: lets go the first p_count jobs that are parked under a limit, and returns how many there were.';

-- Jobs have stopped executing: as many of those parked under their limits are let go.
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
        elsif pgqueue._unpark(v_limit.name, v_limit.count) < v_limit.count then
            -- Nobody is left, or a claim is parking just now, unseen.
            if pg_try_advisory_lock(pgqueue._lock_class(), hashtext(v_limit.name) | -2147483648) then
                perform pg_advisory_unlock(pgqueue._lock_class(), hashtext(v_limit.name) | -2147483648);
            else
                insert into pgqueue.limit_waits (name, next_at) values (v_limit.name, pgqueue._clock());
            end if;
        end if;
    end loop;
end
$$;

comment on function pgqueue._leave_limits(text[], text[], text[]) is
    'Private: lets go jobs parked under the limits of these, which stopped executing.';

create or replace function pgqueue._old_snapshot()
returns boolean
language sql
stable
parallel safe
as $$
    select pg_catalog.current_setting('transaction_isolation') not in ('read committed', 'read uncommitted')
$$;

comment on function pgqueue._old_snapshot() is
    'Private: true above READ COMMITTED, where a later statement sees no more than the first.';

-- The rows that are due in limit_waits: each limit that has room again lets go as many as it has room for.
create or replace function pgqueue._look_at_limits(p_limit integer)
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
    with due as (
        delete from pgqueue.limit_waits w
        where w.n = any (
            array(
                select x.n
                from pgqueue.limit_waits x
                where x.next_at <= v_now
                order by x.next_at
                limit p_limit
                for update skip locked
            )
        )
        returning w.name
    )
    select array_agg(distinct d.name order by d.name) into v_names from due d;
    if v_names is null then
        return 0;
    end if;
    foreach v_name in array v_names loop
        v_kind := split_part(v_name, ':', 1);
        -- Names are kind:target, and a limit_key's target is the value: ask as a job with that value would.
        select l.* into v_limit
        from pgqueue._limits_of(
            case when v_kind = 'task' then substr(v_name, 6) end,
            case when v_kind = 'key' then substr(v_name, 5) end,
            case when v_kind = 'limit_key' then substr(v_name, 11) end
        ) l
        where l.name = v_name;
        -- Without a row the limit is gone, and whoever was parked under it is free; the lock is asked for as ever.
        select r.room, r.next_at, r.timed into v_room, v_next_at, v_timed
        from pgqueue._room(
            v_name, v_limit.kind, v_limit.target, v_limit.max_executing, v_limit.rate, v_limit.per, v_now
        ) r;
        if v_room is null then
            -- A claim is looking, and may be parking jobs that cannot be seen yet: look again, whatever is seen.
            insert into pgqueue.limit_waits (name, next_at) values (v_name, v_now + interval '50 ms');
            continue;
        end if;
        if v_room > 0 then
            v_unparked := v_unparked + pgqueue._unpark(v_name, least(v_room, 1000));
            -- Of a rate the next start is free about a share of its time later.
            v_timed := v_limit.rate is not null;
            v_next_at := v_now + case
                when v_room > 1000 then interval '0'
                when v_timed then least(interval '1 s', greatest(v_limit.per / v_limit.rate, interval '10 ms'))
                else interval '1 s'
            end;
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

comment on function pgqueue._look_at_limits(integer) is
    'Private: lets go what is parked under limits that have room again, for up to p_limit limits whose time has come; returns how many jobs.';

-- Queues under a limit, and how many each may still give; 0 also while another claim looks at it.
create or replace function pgqueue._queue_rooms(p_queues text[], p_now timestamptz)
returns jsonb
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_limit record;
    v_room integer;
    v_rooms jsonb := '{}'::jsonb;
begin
    for v_limit in
        select l.target, l.max_executing, l.rate, l.per
        from pgqueue.limits l
        where l.kind = 'queue' and (p_queues is null or l.target = any (p_queues))
        order by l.target
    loop
        v_room := (
            select r.room
            from pgqueue._room(
                'queue:' || v_limit.target, 'queue', v_limit.target, v_limit.max_executing, v_limit.rate, v_limit.per, p_now
            ) r
        );
        v_rooms := v_rooms || jsonb_build_object(
            v_limit.target,
            jsonb_build_object('room', greatest(coalesce(v_room, 0), 0), 'rate', v_limit.rate is not null)
        );
    end loop;
    return v_rooms;
end
$$;

comment on function pgqueue._queue_rooms(text[], timestamptz) is
    'Private: how many jobs each queue that has a limit may still give.';

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

comment on function pgqueue._tidy_starts(timestamptz) is 'Private: forgets starts that no rate counts any more.';

-- When a worker that found nothing should look again because of limits: for parked jobs the time that their rate gives,
-- for a queue that has used up its rate the end of the oldest start.
create or replace function pgqueue._next_room(p_queues text[], p_now timestamptz)
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

comment on function pgqueue._next_room(text[], timestamptz) is
    'Private: when the first limit with a rate will have room again; null: none of them is used up.';
