-- share_steps: for a call of a handler with payloads of several keys, after its leader has completed a step or suspended
-- itself. The other keys of the call get the same step. From then on each key is a batch by itself, with these steps.
--
-- Locks the rows of the jobs in id order, waiting at most 5 s (55P03). Called in the transaction of the leader's step.

create or replace function pgqueue.share_steps(
    job_id bigint, name text, job_ids bigint[], reservations bigint[], suspended boolean default false
)
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
    v_held bigint[];
    v_leader record;
begin
    perform pgqueue._check_pairs(share_steps.job_ids, share_steps.reservations);
    v_held := array(
        select w.id
        from (
            select u.id, u.reservation
            from unnest(share_steps.job_ids, share_steps.reservations) u (id, reservation)
            where u.id <> share_steps.job_id
            order by u.id
        ) w
        where pgqueue._lock_held(w.id, w.reservation, true)
    );
    perform pgqueue._store_step(h.id, s.name, s.result)
    from pgqueue.steps s
    cross join unnest(v_held) h (id)
    where s.job_id = share_steps.job_id and s.name = share_steps.name;
    if not share_steps.suspended then
        return;
    end if;
    insert into pgqueue.event_waits (name, job_id, step, until, since)
    select w.name, h.id, w.step, w.until, w.since
    from pgqueue.event_waits w
    cross join unnest(v_held) h (id)
    where w.job_id = share_steps.job_id and w.step = share_steps.name
    on conflict (name, job_id, step) do nothing;
    perform pgqueue._begin_steps(h.id) from unnest(v_held) h (id) where found;
    -- No row: the leader was asked to cancel, and has ended. The other keys run again.
    select j.ready_at, j.blocked_on into v_leader from pgqueue.jobs j where j.id = share_steps.job_id;
    perform pgqueue._put_back(v_held, greatest(v_leader.ready_at - pgqueue._clock(), '0'), true, false);
    perform pgqueue._wait_for_jobs(
        w.id, array(select d.parent from pgqueue.dependencies d where d.child = share_steps.job_id and d.ended is null)
    )
    from unnest(v_held) w (id)
    where v_leader.blocked_on = '@jobs';
end
$$;

comment on function pgqueue.share_steps(bigint, text, bigint[], bigint[], boolean) is
    'For a batch with payloads of several keys: give the other keys, by the first job of each, the step that complete_step, '
    'sleep_step or await_event has stored for job_id; with suspended, suspend them as well. Call it in the same transaction. '
    'select pgqueue.share_steps(42, ''send'', array[43, 44], array[1048577, 1048578]); [worker]';
