-- Hand-off: when a transaction commits, a job that it enqueued is reserved for an idle worker, and sent to it whole.
--
-- The worker starts it without a claim: one round trip, one commit and one wake-up less. enqueue offers a row where it
-- saw an idle worker. This deferred trigger reads that row again when the transaction commits, as it is by then: perhaps deleted,
-- cancelled, reserved, paused, a limit set. So nothing that the transaction did has another outcome than without an idle worker,
-- and the lease begins with the commit. A transaction offers one job, the first that it enqueues alone.
--
-- It serves a due job that has no key or expires_at, while no limit, pause or max_share is on its task, queue or limit_key: where
-- a worker is idle nothing waits, so this is no tenant's turn. Every other job is announced, here as well, so that the
-- notification has the time of the commit: _wake leaves a note. What is reserved for a living worker that does not know it, the
-- worker finds itself: see held_by.
--
-- Not above READ COMMITTED: such a transaction sees the workers that were idle when it began. SET CONSTRAINTS ALL IMMEDIATE fires
-- the trigger at once, and later statements of the transaction would meet a reserved job. So it reserves only at a commit: there
-- nothing is around this function, and no such statement runs. In a procedure that commits there is, and the job is announced.
-- enqueue leaves the id of the job in a setting, so that a row that comes from a dump is not looked at; `announce` instead, for a
-- job for later and for several, asks for the notes alone. The trigger fires whatever session_replication_role says: an enqueue
-- in such a session wakes a worker, too.
--
-- Locks nothing but the new row, which no other session can see. A worker gets jobs only while its listening session is there, in
-- this database: a copy of a database has the registrations of the original. The channel is random and known to its worker
-- alone: a session that listened on it would read the jobs, and one that notified it could run any task. With trace_notify,
-- which any role may set, the server would tell the producer its name.

create or replace function pgqueue._hand_off()
returns trigger
language plpgsql
-- Before PostgreSQL 18 a deferred trigger runs as the role that is set at the commit.
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off
set trace_notify = off
as $$
declare
    v_offered text := current_setting('pgqueue.offered', true);
    v_noted text := nullif(current_setting('pgqueue.noted', true), '');
    v_now timestamptz;
    v_context text;
    v_commits_at timestamptz;
    v_handed boolean;
begin
    if v_offered in (new.id::text, 'announce') is not true then
        return null;
    end if;
    get diagnostics v_context = pg_context;
    -- The transaction has an xid: see _head.
    v_now := pgqueue._clock();
    v_commits_at := case
        when strpos(v_context, E'\n') = 0 and strpos(lower(coalesce(current_query(), '') collate "C"), 'constraints') = 0 then v_now end;
    -- What follows in this transaction goes out at once.
    perform set_config('pgqueue.offered', 'sent', true);
    if v_noted is not null then
        begin
            perform set_config('pgqueue.woken', '', true);
            perform pgqueue._wake(n.note ->> 0, (n.note ->> 1)::timestamptz, p_commits_at => v_commits_at)
            from jsonb_array_elements(('[' || v_noted || ']')::jsonb) n (note);
        exception when others then
            -- A late start is better than a commit that fails.
            null;
        end;
    end if;
    if v_offered = 'announce' then
        return null;
    end if;
    begin
        if v_commits_at is not null
            -- fast_path: its former name.
            and 'off' in (current_setting('pgqueue.hand_off', true), current_setting('pgqueue.fast_path', true)) is not true
            and current_setting('transaction_read_only') = 'off' and pgqueue._may_notify()
        then
            with chosen as (
                select w.worker, w.handoff_channel, w.listener, w.lease
                from (
                    select a.worker, a.handoff_channel, a.listener, a.lease
                    from pgqueue.idle_workers a
                    where a.queue in (new.queue, '') and a.until > v_now and a.handoff_channel is not null
                    limit 64
                ) w
                group by w.worker, w.handoff_channel, w.listener, w.lease
                order by random()
                limit 1
            ),
            offered as (
                select c.*, j.ctid as row_ctid
                from chosen c
                cross join pgqueue.jobs j
                where j.id = new.id and j.state = 'waiting' and j.ready_at <= v_now and j.key is null and j.expires_at is null
                    and (
                        coalesce(j.limit_key, j.lane_key) is null
                        or (pgqueue._tenant_capacity(c.worker, j.queue, j.priority, j.limit_key, 1, v_now, '{}')).rules = 0
                    )
                    -- With the other fields below the 8000 bytes of a payload.
                    and octet_length(j.args::text) + coalesce(octet_length(j.headers::text), 0) <= 6000
                    -- Else its notification is an error of the session that listens.
                    and (
                        getdatabaseencoding() = 'UTF8'
                        or pgqueue.legible(jsonb_build_array(j.task, j.args, j.headers)) = jsonb_build_array(j.task, j.args, j.headers)
                    )
                    and not exists (
                        select
                        from pgqueue.pauses p
                        where p.kind = any ('{queue,task}') and p.target = case p.kind when 'queue' then j.queue else j.task end
                            and p.until > v_now
                    )
                    and not exists (
                        select
                        from pgqueue.limits l
                        where l.kind = any ('{queue,task}') and l.target = case l.kind when 'queue' then j.queue else j.task end
                            and num_nonnulls(l.max_executing, l.rate, l.max_cost) > 0
                    )
                    and exists (select from pg_stat_get_activity(c.listener) s where s.datid = pgqueue._database())
            )
            select pg_notify(
                o.handoff_channel,
                json_build_array(
                    r.id, r.reservation, r.task, r.queue, r.priority, r.max_attempts, pgqueue._microseconds(r.run_at),
                    pgqueue._microseconds(v_now), extract(epoch from o.lease), extract(epoch from r.timeout), r.store_result,
                    pgqueue._microseconds(r.created_at)
                )::text || E'\n' || r.args::text || coalesce(E'\n' || r.headers::text, '')
            ) is not null
            into v_handed
            from offered o
            cross join lateral pgqueue._take_jobs(array[o.row_ctid], v_now, o.worker, o.lease) r;
        end if;
    exception when others then
        v_handed := false;
    end;
    if v_handed is not true then
        begin
            perform pgqueue._wake(j.queue, j.ready_at, p_commits_at => v_commits_at)
            from pgqueue.jobs j
            where j.id = new.id and j.state = 'waiting';
        exception when others then
            null;
        end;
    end if;
    return null;
end
$$;

-- CREATE OR REPLACE does not know constraint triggers. Replacing the function above is enough.
do $$
begin
    if not exists (
        select
        from pg_catalog.pg_trigger t
        where t.tgrelid = 'pgqueue.jobs'::regclass and t.tgname = 'jobs_hand_off'
    ) then
        create constraint trigger jobs_hand_off after insert on pgqueue.jobs deferrable initially deferred
            for each row when (new.offered) execute function pgqueue._hand_off();
        alter table pgqueue.jobs enable always trigger jobs_hand_off;
        comment on trigger jobs_hand_off on pgqueue.jobs is
            'Private: decides at commit whether a job goes to an idle worker at once.';
    end if;
end
$$;
