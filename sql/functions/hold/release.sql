-- release: gives jobs back uncounted, as if they had not been reserved.
--
-- Locks rows FOR UPDATE SKIP LOCKED: a row that another session has locked stays as it is, and so does its lease.

create or replace function pgqueue.release(job_ids bigint[], reservations bigint[], delay interval default '0')
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
    v_held bigint[];
begin
    perform pgqueue._check_pairs(release.job_ids, release.reservations);
    perform pgqueue._check_delay(release.delay);

    select array_agg(h.id) into v_held
    from unnest(release.job_ids, release.reservations) w (id, reservation)
    cross join lateral (
        select j.id
        from pgqueue.jobs j
        where j.id = w.id and j.reservation = w.reservation and j.state = v_executing
        for update skip locked
    ) h;
    v_held := pgqueue._whole_batches(v_held);
    perform pgqueue._put_back(v_held, release.delay, false, false);

    return query
    select w.id
    from unnest(release.job_ids, release.reservations) with ordinality w (id, reservation, ord)
    where w.id <> all (coalesce(v_held, '{}'))
        and not exists (
            select from pgqueue.jobs j
            where j.id = w.id and j.reservation = w.reservation and j.state = v_executing
        )
    order by w.ord;
end
$$;

comment on function pgqueue.release(bigint[], bigint[], interval) is
    'Give jobs back, uncounted, to run again at once or after delay. Returns the ids whose reservations were no longer held. '
    'A job whose row another session has locked stays reserved: held_by() lists it; release it again, or leave it to its lease. [worker]';

-- Refuses delays that are null, negative or very long.
create or replace function pgqueue._check_delay(p_delay interval)
returns void
language plpgsql stable parallel safe
as $$
begin
    perform pgqueue._refuse(
        'delay must be between zero and ten years', format('It is %s.', coalesce(p_delay::text, 'null')),
        'Give delay as an interval, such as ''5 min''.'
    )
    where p_delay is null or not isfinite(p_delay) or p_delay not between '0' and '10 years';
end
$$;
