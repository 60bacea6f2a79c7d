-- Finds ready jobs that a wrong head hides, and deletes old rows of heads. Steps of maintain. See _head.

-- The safety net. One statement reads each lane, so that its head and its jobs are of one snapshot.
create or replace function pgqueue._find_hidden()
returns integer
language plpgsql
as $$
declare
    v_part record;
    v_hidden boolean;
    v_found integer := 0;
begin
    for v_part in select distinct h.queue, h.priority, h.resumed from pgqueue.heads h loop
        v_hidden := false;
        if v_part.queue = '' and v_part.priority = 1 then
            select true into v_hidden
            from (
                select
                from pgqueue.jobs j
                where j.key is not null and j.id < (select k.id from pgqueue._key_head() k)
                order by j.id
                limit 1
            ) below;
        elsif v_part.queue = '' then
            select true into v_hidden
            from pgqueue._head(v_part.queue, v_part.priority, v_part.resumed) h
            cross join lateral (
                select
                from pgqueue.jobs j
                where j.state = 'executing' and (j.lease_expires_at, j.id) < (h.head, h.head_id)
                order by j.lease_expires_at, j.id
                limit 1
            ) below;
        else
            select true into v_hidden
            from pgqueue._head(v_part.queue, v_part.priority, v_part.resumed) h
            cross join lateral (
                select
                from pgqueue.jobs j
                where j.state in ('waiting', 'failed')
                    and j.queue = v_part.queue
                    and j.priority = v_part.priority
                    and j.resumed = v_part.resumed
                    and (j.ready_at, j.id) < (h.head, h.head_id)
                order by j.ready_at, j.id
                limit 1
            ) below;
        end if;
        if v_hidden then
            insert into pgqueue.heads (queue, priority, resumed, head, at, xid)
            values (v_part.queue, v_part.priority, v_part.resumed, '-infinity', pgqueue._clock(), pg_current_xact_id());
            v_found := v_found + 1;
        end if;
    end loop;
    return v_found;
end
$$;
