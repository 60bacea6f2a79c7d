-- When a worker that found nothing should claim again because of limits: for blocked jobs the time that their rate gives,
-- for a queue that has used up its rate the end of the oldest start. And when the next pause ends.
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
            select nullif(min(p.until), 'infinity')
            from pgqueue.pauses p
            where p.until > p_now and (p.kind <> 'queue' or p_queues is null or p.target = any (p_queues))
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
