-- When a worker that found nothing should claim again because of limits: for blocked jobs the time that their rate gives,
-- for a queue that has used up its rate the time at which its first job may start. And when the next pause ends.
create or replace function pgqueue._next_capacity(p_queues text[], p_now timestamptz)
returns timestamptz
language sql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
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
            select nullif(min(coalesce(p.half_open_at, p.until)), 'infinity')
            from pgqueue.pauses p
            where coalesce(p.half_open_at, p.until) > p_now and p.until > p_now and (p.kind <> 'queue' or p_queues is null or p.target = any (p_queues))
        ),
        (
            select min(c.next_at)
            from pgqueue.limits l
            cross join lateral pgqueue._capacity_of(
                'queue:' || l.target, 'queue', l.target, null, l.rate, l.per, null, l.burst, p_now, p_now
            ) c
            where l.kind = 'queue'
                and l.rate is not null
                and (p_queues is null or l.target = any (p_queues))
                and c.units < pgqueue._wanted_units('queue:' || l.target, p_now)
        )
    )
$$;
