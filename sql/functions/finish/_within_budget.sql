-- A queue's retry budget: at most n of its retries become due in a second, so that what one outage failed is not due at once.
--
-- Every failing job of such a queue books the first second, from its own on, that has capacity left. The bookings of one
-- queue take turns under an advisory lock that lasts until the transaction ends (fail waits for it, at most 5 s, after
-- it has locked the row of its job). A deferred booking records at its first second how far the budget is used up, so that the
-- next one does not read every second between. Above READ COMMITTED it sees those that its snapshot shows, and may overbook.

create or replace function pgqueue._within_budget(p_queue text, p_delay interval, p_budget integer)
returns timestamptz
language plpgsql
as $$
declare
    v_wanted timestamptz;
    v_first timestamptz;
    v_second timestamptz;
    v_next timestamptz;
    v_booked record;
    v_first_booked record;
begin
    perform pg_advisory_xact_lock(pgqueue._lock_class(), pgqueue._budget_lock(p_queue));
    -- Read only now: the wait may have been long.
    v_wanted := pgqueue._ready_at(pgqueue._after(pgqueue._clock(), p_delay));
    v_first := date_trunc('second', v_wanted);
    v_second := v_first;
    loop
        select b.booked, b.full_until into v_booked
        from pgqueue.retry_bookings b
        where b.queue = p_queue and b.second = v_second
        order by b.n desc
        limit 1;
        exit when not found or v_booked.booked < p_budget;

        v_next := v_booked.full_until;
        if v_second = v_first then
            v_first_booked := v_booked;
            if v_next is null then
                -- No booking for this second yet, but perhaps one for the second before.
                select b.full_until into v_next
                from pgqueue.retry_bookings b
                where b.queue = p_queue and b.second < v_second
                order by b.second desc, b.n desc
                limit 1;
            end if;
        end if;
        v_second := greatest(v_next, v_second + interval '1 s');
    end loop;

    insert into pgqueue.retry_bookings (queue, second, booked)
    values (p_queue, v_second, coalesce(v_booked.booked, 0) + 1);
    if v_second = v_first then
        return v_wanted;
    end if;
    insert into pgqueue.retry_bookings (queue, second, booked, full_until)
    select p_queue, v_first, v_first_booked.booked, v_second where v_first_booked.full_until is distinct from v_second;
    return v_second + random() * interval '0.999 s';
end
$$;

-- Second key of the advisory lock of a queue's retry budget.
create or replace function pgqueue._budget_lock(p_queue text)
returns integer
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    -- Budgets use the upper half of the positive second keys. Two queues with one hash exclude each other without need.
    select (hashtext(p_queue) & 1073741823) | 1073741824
$$;
