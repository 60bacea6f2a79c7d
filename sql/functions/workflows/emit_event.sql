-- emit_event: announces an event; jobs that wait for it continue. See await_event.
--
-- Waits for an open transaction that emits the same event, and for no other.

create or replace function pgqueue.emit_event(name text, payload jsonb default null, keep_for interval default '7 days')
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := pgqueue._clock();
    v_kept_until timestamptz;
begin
    perform pgqueue._check_name('name', emit_event.name, 512);
    perform pgqueue._check_step('payload', emit_event.payload);
    perform pgqueue._refuse(
        'keep_for must be between zero and two years', format('It is %s.', coalesce(emit_event.keep_for::text, 'null')),
        'Give keep_for as an interval: how long a job that begins to wait later still gets the event.'
    )
    where (isfinite(emit_event.keep_for) and emit_event.keep_for between '0' and '2 years') is not true;
    if emit_event.keep_for < '1 day' then
        -- The event is for all jobs that wait for it, even if the clock was moved meanwhile.
        v_kept_until := (select max(w.since) + interval '1 us' from pgqueue.event_waits w where w.name = emit_event.name);
    end if;
    insert into pgqueue.events as e (name, payload, emitted_at, kept_until)
    values (emit_event.name, emit_event.payload, v_now, greatest(pgqueue._after(v_now, emit_event.keep_for), v_kept_until))
    on conflict (name) do update
    set payload = excluded.payload, emitted_at = excluded.emitted_at, kept_until = excluded.kept_until
    where e.kept_until <= v_now;
    if not found then
        return false;
    end if;
    perform pgqueue._wake_waiters(emit_event.name) where not pgqueue._old_snapshot();
    perform pgqueue._leave_notes('event', '{null}', '0', emit_event.name);
    return true;
end
$$;

comment on function pgqueue.emit_event(text, jsonb, interval) is
    'Emit an event, in the current transaction: each job that waits for it, or begins to within keep_for, gets its payload once. False: it had been '
    'emitted; the first payload is kept. select pgqueue.emit_event(''paid:17'', ''{"amount": 5}''); [producer, worker]';
