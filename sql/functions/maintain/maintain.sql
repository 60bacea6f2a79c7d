-- maintain: all work that is due by time. The fleet calls it about once a second; pg_cron or a person may call it too.
--
-- A transaction-scoped advisory try-lock lets one caller do the work; there is no leader. The work is a list of steps
-- (see _maintenance_steps): a step that fails stops no other. Each skips locked rows, and waits at most 50 ms for a table. No step begins
-- later than 3 s, or half of statement_timeout, after the call.
-- Its records are inserted, never updated, and commit together with the work. A kill or a cancel undoes both; step_under_way,
-- a sequence, then shows the next call in which step it happened.

create or replace function pgqueue.maintain(max_age interval default '0')
returns table (ran boolean, rescued bigint, prolonged bigint, expired bigint, call_again_in interval, failing jsonb)
language plpgsql security definer rows 1
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgqueue._require_read_committed('maintain');
    return query select m.* from pgqueue._run_maintenance(maintain.max_age, '0') m;
end
$$;

comment on function pgqueue.maintain(interval) is
    'Maintenance: lapsed leases, expired jobs, due schedules, lanes, keys, limits, vanished workers, history partitions. Call it about once a second from anywhere, '
    'in a separate transaction, and commit at once: what it locks is held until then. '
    'One caller does the work; the others, and calls within max_age of the last run, return ran = false. '
    'call_again_in: when this caller should call again so that the fleet as a whole calls once a second. '
    'failing: the steps that have failed three times in a row or more, each with its error; null where ran is false. [worker]';

-- p_ddl_after: steps that create and drop tables run once they are overdue by that much. idle() leaves them to other
-- callers for a day: they take tens of milliseconds on a connection that is about to claim.
create or replace function pgqueue._run_maintenance(
    p_max_age interval, p_ddl_after interval,
    out ran boolean, out rescued bigint, out grace_periods bigint, out expired bigint, out call_again_in interval, out failing jsonb
)
language plpgsql
set lock_timeout = '50ms'
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off
as $$
declare
    v_began timestamptz;
    v_newest_id bigint;
    v_now timestamptz;
    v_last pgqueue.maintenance_runs;
    v_run pgqueue.maintenance_runs;
    v_due record;
    v_result record;
    -- Well below the 8 s after which a gap between runs counts as one, and half of what the session's timeouts allow.
    v_deadline timestamptz := least(
        clock_timestamp() + interval '3 s',
        statement_timestamp() + nullif(current_setting('statement_timeout')::interval, '0') / 2,
        transaction_timestamp() + nullif(current_setting('transaction_timeout', true)::interval, '0') / 2
    );
    v_is_over boolean := false;
begin
    ran := false;
    rescued := 0;
    grace_periods := 0;
    expired := 0;
    if not pg_try_advisory_xact_lock(pgqueue._lock_class(), 1) then
        call_again_in := pgqueue._call_again_in(
            pgqueue._clock(), (select h.at from pgqueue.maintenance_runs h order by h.n desc limit 1)
        );
        return;
    end if;
    if pg_current_xact_id_if_assigned() is null then
        v_began := pgqueue._clock();
        v_newest_id := pg_sequence_last_value('pgqueue.jobs_id_seq'::regclass);
    end if;
    v_now := pgqueue._clock();
    select h.* into v_last from pgqueue.maintenance_runs h order by h.n desc limit 1;
    if not found then
        v_last := jsonb_populate_record(
            v_last, '{"rescued": 0, "grace_periods": 0, "expired": 0, "found_lanes": 0, "unblocked": 0, "hidden": 0}'
        );
    end if;
    if v_last.at > pgqueue._after(v_now, -p_max_age) and v_last.at <= v_now then
        call_again_in := pgqueue._call_again_in(v_now, v_last.at);
        return;
    end if;

    -- The totals continue those of the last run.
    v_run := v_last;
    v_run.at := v_now;
    v_run.busy_lanes := null;
    v_run.gap_at := pgqueue._gap_at(v_now);
    if v_now < v_last.at - interval '1 s' then
        -- The latest time that the clock showed: at the last run, or at the newest job after it.
        v_run.stepped_from := interval '1 s' + greatest(
            v_last.at, v_last.stepped_from, (select j.created_at from pgqueue.jobs j order by j.id desc limit 1)
        );
    end if;
    perform pgqueue._propose_horizon(v_began, v_newest_id);
    -- A step that was killed has failed, so that one that is killed each time does not stop the others each time.
    perform pgqueue._run_step(l, s.number, s.every, s.slice, v_deadline, true, v_run)
    from pgqueue.step_under_way u
    join pgqueue._maintenance_steps() s on s.number = u.last_value
    join pgqueue._last_steps() l on l.step = s.step;
    for v_due in
        select l as state, s.number, s.every, s.slice
        from pgqueue._last_steps() l
        join pgqueue._maintenance_steps() s on s.step = l.step
        where v_now >= pgqueue._after(coalesce(l.next_at, l.at, '-infinity'), case when s.is_ddl then p_ddl_after else '0' end)
            -- Written before the clock stepped back.
            or l.at > v_now + interval '1 s'
        order by l.step = 'drop', l.missed_since, l.failures > 0, s.number
    loop
        if v_is_over then
            insert into pgqueue.maintenance_steps overriding user value
            select m.*
            from jsonb_populate_record(v_due.state, jsonb_build_object('at', v_now, 'missed_since', v_now)) m
            where (v_due.state).missed_since is null;
            continue;
        end if;
        select r.run, r.cut into v_result
        from pgqueue._run_step(v_due.state, v_due.number, v_due.every, v_due.slice, v_deadline, false, v_run) r;
        v_run := v_result.run;
        -- Once statement_timeout has struck, nothing ends this statement any more.
        v_is_over := v_result.cut or clock_timestamp() >= v_deadline;
    end loop;
    perform setval('pgqueue.step_under_way', 0);

    insert into pgqueue.maintenance_runs overriding user value select v_run.*;
    ran := true;
    rescued := v_run.rescued - v_last.rescued;
    grace_periods := v_run.grace_periods - v_last.grace_periods;
    expired := v_run.expired - v_last.expired;
    call_again_in := pgqueue._call_again_in(v_now, v_now);
    failing := (
        select coalesce(jsonb_object_agg(l.step, l.error), '{}')
        from pgqueue._last_steps() l
        where l.error is not null and l.failures > 2
    );
end
$$;

-- The fleet as a whole runs maintenance about once a second, whatever its size, without a leader.
-- p_run_at: when maintenance last ran (null: never).
create or replace function pgqueue._call_again_in(p_now timestamptz, p_run_at timestamptz)
returns interval
language plpgsql parallel safe
as $$
begin
    if p_run_at is null or p_run_at not between p_now - interval '2 s' and p_now + interval '1 s' then
        return random() * interval '200 ms';
    end if;
    -- The more workers, the less often each calls, but at least every 5 s: workers that were killed or stand still count
    -- for a while. The only one left may have called 2 s after the last run, and ends the gap after 7 s: see _gap_at. Each
    -- calls at most once a second.
    return least(
        greatest((select count(*) from (select from pgqueue.workers limit 7) w) * (0.75 + 0.5 * random()), 1.1 + 0.5 * random()), 5
    ) * interval '1 s';
end
$$;
