-- The payloads of accumulating tasks: which of them start together, and in which slot.
--
-- The payloads of a key with one limit_key start together, in any order. Up to batch_size keys of a task share a slot.

-- blocked and ahead: see _find_ahead. firsts and sizes: the first of each key that starts, its batch_size. joined: its others.
-- Asks once for each key: does a job of it execute, and which job holds its first position? "asks" is a condition inside the
-- probes: in a join's condition it would be checked after them, for every row.
create or replace function pgqueue._group_payloads(
    p_rows tid[], p_now timestamptz,
    out blocked tid[], out ahead bigint[], out firsts tid[], out sizes integer[], out joined tid[]
)
language plpgsql stable
as $$
begin
    select
        array_agg(p.row_ctid) filter (where p.ahead is not null),
        array_agg(p.ahead) filter (where p.ahead is not null),
        array_agg(p.row_ctid) filter (where p.ahead is null and p.is_first),
        array_agg(p.batch_size) filter (where p.ahead is null and p.is_first),
        array_agg(p.row_ctid) filter (where p.ahead is null and not p.is_first)
    into blocked, ahead, firsts, sizes, joined
    from (
        select k.*, row_number() over (partition by k.queue, k.key, k.ahead is null order by k.n) = 1 as is_first
        from (
            select
                c.row_ctid, c.queue, c.key, c.batch_size, c.n,
                coalesce(
                    max(e.id) over of_key,
                    u.id,
                    -- Jobs that are in no batch with it.
                    case
                        when min(f.id) over of_key < c.id
                            and (
                                min(f.task) over of_key <> c.task
                                or min(f.limit_key) over of_key is distinct from c.limit_key
                            )
                            then min(f.id) over of_key
                    end
                ) as ahead
            from (
                select
                    w.n, j.ctid as row_ctid, j.id, j.queue, j.key, j.task, j.limit_key, j.reservation, j.has_steps,
                    row_number() over (partition by j.queue, j.key order by w.n) = 1 as asks,
                    -- A batch that has a step is a separate call.
                    (
                        select case when j.has_steps then 1 else coalesce(t.batch_size, 1) end
                        from pgqueue.effective_tasks t
                        where t.name = j.task
                    ) as batch_size,
                    (select k.id from pgqueue._key_head() k) as head
                from unnest(p_rows) with ordinality w (row_ctid, n)
                join pgqueue.jobs j on j.ctid = w.row_ctid
            ) c
            left join lateral (
                select x.id from pgqueue._executing_of_key(c.queue, c.key, least(c.head, c.id)) x where c.asks limit 1
            ) e on true
            left join lateral (
                select p.*
                from pgqueue._key_positions(c.queue, c.key, p_now, least(c.head, c.id)) p
                where c.asks and e.id is null
                order by p.id
                limit 1
            ) f on true
            left join lateral pgqueue._ahead_of_payload(
                e.id is null, c.queue, c.key, c.task, c.limit_key, c.reservation = 0, c.has_steps, p_now
            ) u on true
            window of_key as (partition by c.queue, c.key)
        ) k
    ) p;
end
$$;

-- In order. A job takes a slot, or, as a payload that is not the first of its batch, shares that of the first.
create or replace function pgqueue._share_slots(p_jobs pgqueue.candidate[], p_firsts tid[], p_sizes integer[], p_free integer)
returns pgqueue.start[]
language plpgsql stable
as $$
begin
    return array(
        select row(s.row_ctid, s.kind, s.slot, s.opens)::pgqueue.start
        from (
            select o.row_ctid, o.kind, o.opens, o.n, min(o.slot) over (partition by o.batch) as slot
            from (
                select
                    b.*,
                    sum(b.opens::integer) over (order by b.n) as slot,
                    case when b.size is null then b.n::text else concat_ws(' ', b.part, b.size, b.task) end as batch
                from (
                    select
                        c.row_ctid, c.task, c.n, f.size,
                        case when f.size is not null then 'gather' when c.key is not null then 'keyed' else 'plain' end as kind,
                        (row_number() over of_size - 1) / f.size as part,
                        f.size is null or (row_number() over of_size - 1) % f.size = 0 as opens
                    from unnest(p_jobs) with ordinality
                        c (row_ctid, id, queue, task, key, limit_key, is_expired, is_limited, n)
                    left join unnest(p_firsts, p_sizes) f (row_ctid, size) on f.row_ctid = c.row_ctid
                    window of_size as (partition by c.task, f.size order by c.n)
                ) b
            ) o
        ) s
        where s.slot <= p_free
        order by s.n
    );
end
$$;
