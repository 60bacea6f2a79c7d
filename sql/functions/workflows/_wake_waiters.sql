-- The jobs that wait for an event continue, for it has been emitted: see emit_event and await_event. Skips jobs that are locked,
-- and executing ones, which read it themselves.
create or replace function pgqueue._wake_waiters(p_name text)
returns void
language plpgsql
set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    v_event record;
    v_ids bigint[];
begin
    -- An event whose time is over goes only to jobs that waited before.
    select e.payload, e.kept_until into v_event from pgqueue.events e where e.name = p_name;
    if not found or not exists (select from pgqueue.event_waits w where w.name = p_name and w.since < v_event.kept_until) then
        return;
    end if;
    select array_agg(l.id) into v_ids
    from (
        select o.id
        from (
            select distinct x.job_id
            from pgqueue.event_waits x
            where x.name = p_name and x.since < v_event.kept_until
            order by x.job_id
        ) w
        cross join lateral (
            select j.id from pgqueue.jobs j where j.id = w.job_id and j.state in ('waiting', 'failed') for update skip locked
        ) o
        -- Not of the first thousand that wait, which may all be blocked.
        limit 1000
    ) l;
    -- Not by _store_step: a job that has as many steps as it may have would keep the event from all others, and a note from all
    -- other notes.
    insert into pgqueue.steps (job_id, name, result, attempt, at)
    select
        w.job_id, w.step, jsonb_build_object('event', p_name, 'arrived', true, 'payload', v_event.payload), j.attempts,
        pgqueue._clock()
    from pgqueue.event_waits w
    cross join lateral (select x.attempts from pgqueue.jobs x where x.id = w.job_id limit 1) j
    where w.name = p_name and w.since < v_event.kept_until and w.job_id = any (v_ids)
    on conflict (job_id, name) do nothing;
    perform pgqueue._run_now(v_ids, false);
    delete from pgqueue.event_waits w where w.name = p_name and w.since < v_event.kept_until and w.job_id = any (v_ids);
    perform pgqueue._leave_notes('event', '{null}', interval '200 ms', p_name)
    where exists (
        select
        from pgqueue.event_waits w
        cross join lateral (select j.id from pgqueue.jobs j where j.id = w.job_id and j.state in ('waiting', 'failed') limit 1) j
        where w.name = p_name and w.since < v_event.kept_until
    );
end
$$;
