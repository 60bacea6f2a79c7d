-- Taking capacity: a claim counts down the limits of each job that it starts, and records starts under a rate. See
-- _capacity.

-- p_capacities holds, within one claim, the remaining capacity of each limit:
-- {name: {capacity, next_at, timed, rate, started, locked}}. capacity is null while another claim has the lock.
-- All limits of the job are counted before one is locked: a job that one of them blocks takes no lock of another. JSON,
-- because it is a map: each job of a claim may have another limit_key.
create or replace function pgqueue._take_capacity(
    p_task text, p_key text, p_limit_key text, p_now timestamptz, p_capacities jsonb,
    out names text[], out limit_name text, out capacities jsonb
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
    v_capacity jsonb;
    v_unlocked boolean := false;
    v_busy boolean := false;
    v_capacities jsonb;
begin
    capacities := p_capacities;
    names := '{}';
    for v_limit in
        select l.* from pgqueue._limits_of(p_task, p_key, p_limit_key) l order by l.name
    loop
        v_capacity := capacities -> v_limit.name;
        if v_capacity is null then
            v_capacity := pgqueue._capacity_as_json(
                v_limit.name, v_limit.kind, v_limit.target, v_limit.max_executing, v_limit.rate, v_limit.per, p_now
            );
            capacities := jsonb_set(capacities, array[v_limit.name], v_capacity);
        end if;
        if (v_capacity ->> 'capacity')::integer <= 0 then
            limit_name := v_limit.name;
            names := null;
            return;
        end if;
        v_busy := v_busy or v_capacity ->> 'capacity' is null;
        v_unlocked := v_unlocked or not (v_capacity ->> 'locked')::boolean;
        names := names || v_limit.name;
    end loop;
    if v_busy then
        names := null;
        return;
    end if;

    if v_unlocked then
        v_capacities := capacities;
        begin
            for v_limit in
                select l.* from pgqueue._limits_of(p_task, p_key, p_limit_key) l order by l.name
            loop
                continue when (capacities -> v_limit.name ->> 'locked')::boolean;
                v_name := v_limit.name;
                v_capacity := null;
                if pgqueue._lock_limit(v_name) then
                    v_capacity := pgqueue._capacity_as_json(
                        v_name, v_limit.kind, v_limit.target, v_limit.max_executing, v_limit.rate, v_limit.per, p_now
                    );
                end if;
                if v_capacity is null or (v_capacity ->> 'capacity')::integer <= 0 then
                    -- The end of this block releases the locks that it took.
                    raise exception using errcode = 'lock_not_available';
                end if;
                capacities := jsonb_set(capacities, array[v_name], v_capacity || '{"locked": true}');
            end loop;
        exception when lock_not_available then
            capacities := jsonb_set(v_capacities, array[v_name], coalesce(v_capacity, v_capacities -> v_name || '{"capacity": null}'));
            if v_capacity is not null then
                limit_name := v_name;
            end if;
            names := null;
            return;
        end;
    end if;

    foreach v_name in array names loop
        capacities := jsonb_set(
            capacities,
            array[v_name],
            capacities -> v_name || jsonb_build_object(
                'capacity', (capacities -> v_name ->> 'capacity')::integer - 1,
                'started', (capacities -> v_name ->> 'started')::integer + 1
            )
        );
    end loop;
end
$$;

comment on function pgqueue._take_capacity(text, text, text, timestamptz, jsonb) is
    'Private: takes capacity for one start under each limit of a job, and returns their names; or limit_name, the one without capacity; or neither, while another claim starts jobs under one.';

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
        'capacity', r.capacity, 'next_at', r.next_at, 'timed', r.timed, 'rate', p_rate is not null, 'started', 0, 'locked', false
    )
    from pgqueue._capacity(p_name, p_kind, p_target, p_max_executing, p_rate, p_per, p_now) r
$$;

comment on function pgqueue._capacity_as_json(text, text, text, integer, integer, interval, timestamptz) is
    'Private: _capacity() in the form that a claim keeps.';

create or replace function pgqueue._note_starts(p_capacities jsonb, p_now timestamptz)
returns void
language sql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
    insert into pgqueue.limit_starts (name, at, started)
    select r.key, p_now, (r.value ->> 'started')::integer
    from jsonb_each(p_capacities) r
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
    where s.at < pgqueue._after(p_now, -coalesce((select max(l.per) from pgqueue.limits l), '0')) - interval '1 min'
$$;

comment on function pgqueue._tidy_starts(timestamptz) is 'Private: deletes starts that no rate counts any more.';
