-- Finds ready jobs that a wrong head hides. A step of maintain. See _head.

-- The safety net. One statement reads heads and jobs, so that they are of one snapshot. Returns how many heads were wrong. With
-- more than 500 lanes it reads the heads of a part.
create or replace function pgqueue._find_hidden()
returns integer
language plpgsql
as $$
declare
    v_parts integer := pgqueue._parts();
    v_part integer := floor(random() * v_parts)::integer;
    v_found bigint;
begin
    insert into pgqueue.heads (queue, priority, resumed, head, at, xid)
    select p.queue, p.priority, p.resumed, '-infinity', pgqueue._clock(), pg_current_xact_id()
    from (
        select distinct h.queue, h.priority, h.resumed
        from pgqueue.heads h
        where h.queue = '' or pgqueue._is_in_part(h.queue, v_parts, v_part)
    ) p
    cross join lateral (select x.* from pgqueue._head(p.queue, p.priority, p.resumed) x offset 0) h
    where case
        when p.queue = '' and p.priority = 1 then (
            select true
            from pgqueue.jobs j
            where j.key is not null and j.id < (select k.id from pgqueue._key_head() k)
            order by j.id
            limit 1
        )
        else exists (select from pgqueue._first_of(p.queue, p.priority, p.resumed, '-infinity', 0, h.head, h.head_id))
    end;
    get diagnostics v_found = row_count;
    return v_found::integer;
end
$$;
