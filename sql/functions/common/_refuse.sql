-- Errors for misuse: SQLSTATE 22023, with a detail that shows the given value and a hint that names the argument. The
-- checks that several folders share are here too. Reads and locks nothing.

create or replace function pgqueue._refuse(p_message text, p_detail text, p_hint text, p_state text default '22023')
returns void
language plpgsql stable parallel safe
as $$
begin
    raise exception using
        errcode = p_state,
        message = p_message,
        detail = coalesce(p_detail, ''),
        hint = coalesce(p_hint, '');
end
$$;

-- Refuses names that are null, empty or too long.
create or replace function pgqueue._check_name(p_what text, p_name text, p_max_bytes integer default 128)
returns void
language plpgsql stable parallel safe
as $$
begin
    if p_name is null or octet_length(p_name) not between 1 and p_max_bytes then
        perform pgqueue._refuse(
            format('%s must be 1 to %s bytes long', p_what, p_max_bytes),
            case when p_name is null then 'It is null.' else format('It has %s bytes.', octet_length(p_name)) end,
            format('Give another %s.', p_what)
        );
    end if;
end
$$;

-- Refuses numbers that are null or out of range.
create or replace function pgqueue._check_range(p_what text, p_value integer, p_least integer, p_most integer, p_hint text)
returns void
language plpgsql stable parallel safe
as $$
begin
    if p_value is null or p_value not between p_least and p_most then
        perform pgqueue._refuse(
            format('%s must be between %s and %s', p_what, p_least, p_most), format('It is %s.', coalesce(p_value::text, 'null')), p_hint
        );
    end if;
end
$$;

-- Refuses an empty list of queues and wrong names in it.
create or replace function pgqueue._check_queues(p_queues text[])
returns void
language plpgsql stable parallel safe
as $$
begin
    if cardinality(p_queues) = 0 then
        perform pgqueue._refuse('queues must not be empty', 'It is an empty array.', 'Leave queues out to serve every queue.');
    end if;
    perform pgqueue._check_name('queue', q.name)
    from unnest(p_queues) q (name)
    where q.name is null or octet_length(q.name) not between 1 and 128;
end
$$;

-- Refuses arrays of ids and reservations that do not match.
create or replace function pgqueue._check_pairs(p_job_ids bigint[], p_reservations bigint[])
returns void
language plpgsql stable parallel safe
as $$
begin
    if p_job_ids is null or p_reservations is null
        or cardinality(p_job_ids) <> cardinality(p_reservations)
        or array_ndims(p_job_ids) > 1
        or array_ndims(p_reservations) > 1
        or array_position(p_job_ids, null) is not null
        or array_position(p_reservations, null) is not null
    then
        perform pgqueue._refuse(
            'job_ids and reservations must be plain arrays of one length without nulls',
            format('They have %s and %s elements.',
                coalesce(cardinality(p_job_ids)::text, 'no'), coalesce(cardinality(p_reservations)::text, 'no')),
            'Give, for each job id, the reservation that reserve() returned with it.'
        );
    end if;
end
$$;

-- Refuses leases that are null, not positive or longer than a day.
create or replace function pgqueue._check_lease(p_lease interval)
returns void
language plpgsql stable parallel safe
as $$
begin
    if p_lease is null or p_lease <= '0' or p_lease > '1 day' or not isfinite(p_lease) then
        perform pgqueue._refuse(
            'lease must be above zero and at most one day', format('It is %s.', coalesce(p_lease::text, 'null')),
            'Give lease as an interval, such as ''30 s'', and extend it while the job runs.'
        );
    end if;
end
$$;

-- Raises 25001 above READ COMMITTED.
create or replace function pgqueue._require_read_committed(p_function text)
returns void
language plpgsql stable parallel safe
as $$
begin
    -- Above READ COMMITTED the snapshot stays old while rows are locked in their newest version: a claim would
    -- fail with a serialization error, or read leases and lanes that no longer exist.
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        perform pgqueue._refuse(
            format('%s must be called in a READ COMMITTED transaction', p_function),
            format('This transaction is %s.', upper(current_setting('transaction_isolation') collate "C")),
            'Call it in a separate transaction: begin isolation level read committed.', '25001'
        );
    end if;
end
$$;
