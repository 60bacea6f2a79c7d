-- Hand-off: enqueue reserves a job for an idle worker at once, and sends it the whole job in the notification.
--
-- The worker starts it without a claim: one round trip, one commit and one wake-up less. It serves the job that is enqueued
-- first in its transaction, is due, and has no key, limit_key or expires_at, while there are no limits and its queue is
-- not paused. Such a job would be the only one that the idle worker claims. Every other job is announced: see _wake.
--
-- Only for the first write of a transaction. So a transaction hands off one job at most, and as a rule commits at once.
-- If it stays open, the lease runs out: it begins here, and not at the commit. The worker gives back a job that reaches it
-- more than a second after its enqueue, and claims it: meanwhile the queue may have been paused, a limit set, the job
-- cancelled. If the lease is over by then, maintenance takes the job back. The first lease is 5 seconds, so that with a
-- lost notification the job starts about as late as with any other lost one. The worker extends it to its own length if
-- the job is still running after a tenth of that.
--
-- Not above READ COMMITTED: such a transaction sees the workers that were idle when it began. And at SERIALIZABLE finding
-- the new row reads a page of an index, which every other enqueue writes to: two transactions that enqueue could fail.
--
-- A worker whose listening session has ended gets no jobs. Locks nothing but the new row, which no other session can see.
-- The channel is random and known to its worker alone: a session that listened on it would read the jobs, and one that
-- notified it could run any task. With trace_notify, which any role may set, the server would tell the producer its name.

create or replace function pgqueue._hand_off(p_job_id bigint, p_queue text, p_now timestamptz)
returns boolean
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set trace_notify = off
as $$
declare
    v_handed boolean;
begin
    if coalesce(current_setting('pgqueue.fast_path', true), '') = 'off'
        or pgqueue._old_snapshot()
        or not pgqueue._may_notify()
    then
        return false;
    end if;
    with chosen as (
        select w.worker, w.handoff_channel, w.listener, w.lease
        from (
            select a.worker, a.handoff_channel, a.listener, a.lease
            from pgqueue.idle_workers a
            where a.queue in (p_queue, '') and a.until > p_now and a.handoff_channel is not null
            limit 64
        ) w
        group by w.worker, w.handoff_channel, w.listener, w.lease
        order by random()
        limit 1
    ),
    reserved as (
        update pgqueue.jobs j
        set
            state = 'executing',
            reservation = pgqueue._next_reservation(j.reservation),
            attempts = 1,
            reserved_at = p_now,
            reserved_by = c.worker,
            lease = c.lease,
            -- Not below the clock of a transaction with an xid: see _heads. p_now was read after it.
            lease_expires_at = p_now + least(c.lease, interval '5 s')
        from chosen c
        where j.id = p_job_id
            and j.key is null
            and j.limit_key is null
            -- Else it could start after that, or if its lease lapses before its transaction ends, count as started.
            and j.expires_at is null
            -- With the other fields below the 8000 bytes of a payload.
            and octet_length(j.args::text) + coalesce(octet_length(j.headers::text), 0) <= 6000
            and not exists (select from pgqueue.limits)
            and not exists (select from pgqueue.queues q where q.name = p_queue and q.paused_at is not null)
            and exists (select from pg_stat_get_activity(c.listener))
        returning
            c.handoff_channel, j.id, j.reservation, j.task, j.args, j.headers, j.queue, j.priority, j.max_attempts,
            j.run_at, j.timeout, j.lease_expires_at - p_now as lease_for
    )
    select pg_notify(
        r.handoff_channel,
        json_build_array(
            r.id, r.reservation, r.task, r.queue, r.priority,
            pgqueue._max_attempts(r.max_attempts, t.max_attempts, t.accumulate),
            pgqueue._microseconds(r.run_at), pgqueue._microseconds(p_now), extract(epoch from r.lease_for),
            extract(epoch from coalesce(r.timeout, t.timeout)), coalesce(t.store_result, false)
        )::text || E'\n' || r.args::text || coalesce(E'\n' || r.headers::text, '')
    ) is not null
    into v_handed
    from reserved r
    left join pgqueue.effective_tasks t on t.name = r.task;
    return v_handed is true;
end
$$;

comment on function pgqueue._hand_off(bigint, text, timestamptz) is
    'Private: reserves a job that this transaction enqueued for an idle worker and sends it there; false: there is none, or it is no such job.';

-- Inlined: no SET.
create or replace function pgqueue._microseconds(p_at timestamptz)
returns bigint
language sql
stable
parallel safe
as $$
    select (pg_catalog.date_part('epoch', p_at) * 1000000)::bigint
$$;

comment on function pgqueue._microseconds(timestamptz) is 'Private: a time as microseconds since 1970.';
