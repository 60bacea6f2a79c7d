-- What a claim takes of the capacity of limits, and the starts that it records under a rate. See _capacity.

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
