-- The capacity of whole queues: a limit on a queue blocks no job; a claim takes fewer from it. See _capacity.

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
            jsonb_build_object('capacity', greatest(r.capacity, 0), 'rate', l.rate is not null, 'locked', false)
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
    'Private: how many more jobs of each queue that has a limit may start, counting committed jobs.';

-- Before the first job of a queue with a limit is claimed: takes the lock, and counts the capacity again. It is 0
-- while another claim has the lock.
create or replace function pgqueue._lock_queue(p_capacities jsonb, p_queue text, p_now timestamptz)
returns jsonb
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_capacity integer := 0;
begin
    if coalesce((p_capacities -> p_queue ->> 'locked')::boolean, true) then
        return p_capacities;
    end if;
    if pgqueue._lock_limit('queue:' || p_queue) then
        select r.capacity into v_capacity
        from pgqueue.limits l
        cross join lateral pgqueue._capacity(
            'queue:' || l.target, 'queue', l.target, l.max_executing, l.rate, l.per, p_now
        ) r
        where l.kind = 'queue' and l.target = p_queue;
    end if;
    return jsonb_set(
        p_capacities, array[p_queue],
        p_capacities -> p_queue || jsonb_build_object('capacity', greatest(coalesce(v_capacity, 0), 0), 'locked', true)
    );
end
$$;

comment on function pgqueue._lock_queue(jsonb, text, timestamptz) is
    'Private: the capacities of queues, with that of one counted under its lock.';

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
            select min(pgqueue._after(used.first_at, l.per))
            from pgqueue.limits l
            cross join lateral (
                select sum(s.started) as started, min(s.at) as first_at
                from pgqueue.limit_starts s
                where s.name = 'queue:' || l.target and s.at > pgqueue._after(p_now, -l.per) and s.at <= p_now + interval '1 s'
            ) used
            where l.kind = 'queue'
                and (p_queues is null or l.target = any (p_queues))
                and used.started >= l.rate
        )
    )
$$;

comment on function pgqueue._next_capacity(text[], timestamptz) is
    'Private: when the first limit with a rate will have capacity again; null: all have some.';
