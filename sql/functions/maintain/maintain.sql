-- maintain: housekeeping. The fleet calls it about once a second; pg_cron or a person may as well.
--
-- A transaction-scoped advisory try-lock lets one caller do the work; nobody is a leader. Each step stands in its
-- own exception block, takes a bounded number of rows, and none waits for a row or longer than 50 ms for a table:
-- rescue first, DDL last. A step that fails is shown in stats(), until a later run of it succeeds, and stops no other.
-- It notes a horizon, and moves the heads of all lanes (see _heads).
-- What the next run has to know is inserted as a new row of housekeeping, never updated, and read newest first.

create or replace function pgqueue.maintain(max_age interval default '0')
returns table (ran boolean, rescued bigint, prolonged bigint, expired bigint, call_again_in interval)
language plpgsql
volatile
parallel unsafe
security definer
rows 1
set search_path = pg_catalog, pg_temp
set lock_timeout = '50ms'
as $$
#variable_conflict use_column
declare
    v_now timestamptz;
    v_last pgqueue.housekeeping;
    v_next pgqueue.housekeeping;
    v_leases record;
    v_net record;
    v_expired bigint := 0::bigint;
    v_found integer := 0;
    v_step text;
    v_failures jsonb;
    v_each_minute boolean;
    v_dropped boolean;
    v_began timestamptz;
    v_hidden integer := 0;
    v_looked_at timestamptz;
begin
    perform pgqueue._require_read_committed('maintain');
    select 0::bigint as rescued, 0::bigint as prolonged into v_leases;
    select 0 as released, null::text[] as next_cursor into v_net;

    if not pg_try_advisory_xact_lock(pgqueue._lock_class(), 1) then
        return query select false, 0::bigint, 0::bigint, 0::bigint, pgqueue._call_again_in(pgqueue._clock());
        return;
    end if;
    if pg_current_xact_id_if_assigned() is null then
        v_began := pgqueue._clock();
    end if;
    v_now := pgqueue._clock();
    select h.* into v_last from pgqueue.housekeeping h order by h.n desc limit 1;
    if v_last.at > v_now - maintain.max_age and v_last.at <= v_now then
        return query select false, 0::bigint, 0::bigint, 0::bigint, pgqueue._call_again_in(v_now);
        return;
    end if;

    v_failures := coalesce(v_last.failures, '{}');
    v_next := v_last;
    v_next.at := v_now;
    v_next.gap_at := pgqueue._gap_at(v_now);
    v_each_minute := v_last.minute_at is null or v_now not between v_last.minute_at and v_last.minute_at + interval '1 min';
    if v_each_minute then
        v_next.minute_at := v_now;
    end if;
    if v_now < v_last.at - interval '1 s' then
        -- Where the clock stood at most: at the last run, or at the newest job that came after it.
        v_next.stepped_from := interval '1 s' + greatest(
            v_last.at, v_last.stepped_from, (select j.created_at from pgqueue.jobs j order by j.id desc limit 1)
        );
    end if;

    begin
        v_step := 'leases';
        v_failures := v_failures - v_step;
        select r.rescued, r.prolonged into v_leases from pgqueue._rescue(1000, v_next.gap_at) r;
    exception when others then
        v_failures := pgqueue._with_failure(v_failures, v_last.failures, v_step, sqlstate, sqlerrm, v_now);
    end;

    begin
        v_step := 'expiry';
        v_failures := v_failures - v_step;
        v_expired := pgqueue._expire_jobs(1000);
    exception when others then
        v_failures := pgqueue._with_failure(v_failures, v_last.failures, v_step, sqlstate, sqlerrm, v_now);
    end;

    begin
        v_step := 'clock';
        v_failures := v_failures - v_step;
        if v_next.stepped_from is not null then
            perform pgqueue._bring_forward(v_next.stepped_from, 5000);
            -- Transactions that were open at the step may still commit jobs from there: go on for a while.
            if v_now > v_next.gap_at + interval '5 min' or v_now >= v_next.stepped_from then
                v_next.stepped_from := null;
            end if;
        end if;
    exception when others then
        v_failures := pgqueue._with_failure(v_failures, v_last.failures, v_step, sqlstate, sqlerrm, v_now);
    end;

    begin
        v_step := 'lanes';
        v_failures := v_failures - v_step;
        v_found := pgqueue._find_lanes();
    exception when others then
        v_failures := pgqueue._with_failure(v_failures, v_last.failures, v_step, sqlstate, sqlerrm, v_now);
    end;

    begin
        v_step := 'heads';
        v_failures := v_failures - v_step;
        perform pgqueue._propose(v_began);
        perform pgqueue._move_all_heads();
    exception when others then
        v_failures := pgqueue._with_failure(v_failures, v_last.failures, v_step, sqlstate, sqlerrm, v_now);
    end;

    begin
        v_step := 'keys';
        v_failures := v_failures - v_step;
        perform pgqueue._read_key_notes(1000);
        select r.released, r.next_cursor into v_net from pgqueue._release_left_behind(500, v_last.key_cursor) r;
        v_next.key_cursor := v_net.next_cursor;
    exception when others then
        v_failures := pgqueue._with_failure(v_failures, v_last.failures, v_step, sqlstate, sqlerrm, v_now);
    end;

    begin
        v_step := 'limits';
        v_failures := v_failures - v_step;
        perform pgqueue._look_at_limits(1000);
    exception when others then
        v_failures := pgqueue._with_failure(v_failures, v_last.failures, v_step, sqlstate, sqlerrm, v_now);
    end;

    begin
        v_step := 'schedules';
        v_failures := v_failures - v_step;
        perform pgqueue._run_schedules(10000, v_each_minute);
    exception when others then
        v_failures := pgqueue._with_failure(v_failures, v_last.failures, v_step, sqlstate, sqlerrm, v_now);
    end;

    if v_each_minute then
        begin
            v_step := 'tidy';
            v_failures := v_failures - v_step;
            perform pgqueue._tidy_lanes(v_now);
            perform pgqueue._tidy_heads(v_now);
            perform pgqueue._tidy_dedupe(v_now, 10000);
        exception when others then
            v_failures := pgqueue._with_failure(v_failures, v_last.failures, v_step, sqlstate, sqlerrm, v_now);
        end;
        begin
            v_step := 'workers';
            v_failures := v_failures - v_step;
            perform pgqueue._tidy_workers(v_now);
            perform pgqueue._tidy_bookings(v_now);
            perform pgqueue._tidy_starts(v_now);
        exception when others then
            v_failures := pgqueue._with_failure(v_failures, v_last.failures, v_step, sqlstate, sqlerrm, v_now);
        end;
    end if;

    -- It walks all dead entries: where an old snapshot makes that long, it is done the more rarely.
    if v_last.hidden_at is null
        or v_now not between v_last.hidden_at and v_last.hidden_at + greatest(interval '1 min', 100 * v_last.hidden_took)
    then
        begin
            v_step := 'hidden';
            v_failures := v_failures - v_step;
            v_looked_at := clock_timestamp();
            v_hidden := pgqueue._find_hidden();
            v_next.hidden_at := v_now;
            v_next.hidden_took := clock_timestamp() - v_looked_at;
        exception when others then
            v_failures := pgqueue._with_failure(v_failures, v_last.failures, v_step, sqlstate, sqlerrm, v_now);
        end;
    end if;

    if v_last.partitions_at is null or v_now not between v_last.partitions_at and v_last.partitions_at + interval '1 hour' then
        begin
            v_step := 'partitions';
            v_failures := v_failures - v_step;
            if pgqueue._attach_partitions(40, 36, 6) < 6 then
                v_next.partitions_at := v_now;
            end if;
        exception when others then
            v_failures := pgqueue._with_failure(v_failures, v_last.failures, v_step, sqlstate, sqlerrm, v_now);
        end;
    end if;

    -- Last: its lock on the parent keeps every completion waiting until this transaction ends.
    v_next.drop_failures := coalesce(v_last.drop_failures, 0);
    if v_last.drop_at is null
        or v_now not between v_last.drop_at and v_last.drop_at + interval '1 min' * power(2, least(v_next.drop_failures, 5))
    then
        begin
            v_step := 'drop';
            v_failures := v_failures - v_step;
            v_dropped := pgqueue._drop_partition(v_now);
            if v_dropped then
                v_next.drop_at := v_now;
            end if;
            v_next.drop_failures := 0;
        exception
            when lock_not_available then
                -- A reader stands in the way. Not a failure: it is tried again, ever more rarely, and stats() shows
                -- what is overdue.
                v_next.drop_at := v_now;
                v_next.drop_failures := v_next.drop_failures + 1;
            when others then
                v_next.drop_at := v_now;
                v_next.drop_failures := v_next.drop_failures + 1;
                v_failures := pgqueue._with_failure(v_failures, v_last.failures, v_step, sqlstate, sqlerrm, v_now);
        end;
    end if;

    insert into pgqueue.housekeeping (
        at, gap_at, stepped_from, minute_at, partitions_at, drop_at, drop_failures, rescued, prolonged, found_lanes,
        failures, unparked, key_cursor, hidden, hidden_at, hidden_took
    )
    values (
        v_now, v_next.gap_at, v_next.stepped_from, v_next.minute_at, v_next.partitions_at, v_next.drop_at,
        v_next.drop_failures,
        coalesce(v_last.rescued, 0) + v_leases.rescued,
        coalesce(v_last.prolonged, 0) + v_leases.prolonged,
        coalesce(v_last.found_lanes, 0) + v_found,
        v_failures,
        coalesce(v_last.unparked, 0) + v_net.released,
        v_next.key_cursor,
        coalesce(v_last.hidden, 0) + v_hidden,
        v_next.hidden_at,
        v_next.hidden_took
    );
    return query
    select true, v_leases.rescued, v_leases.prolonged, v_expired, pgqueue._call_again_in(v_now);
end
$$;

comment on function pgqueue.maintain(interval) is
    'Housekeeping: lapsed leases, expired jobs, due schedules, lanes, keys, limits, vanished workers, history partitions. Call it about once a second from anywhere; '
    'one caller does the work, the others return ran = false, as do those that come within max_age of the last run. '
    'call_again_in: when this caller should call again so that the fleet as a whole calls once a second.';

create or replace function pgqueue._lock_class()
returns integer
language sql
immutable
parallel safe
as $$
    select 1885827941
$$;

comment on function pgqueue._lock_class() is
    'Private: first key of this queue''s advisory locks. Second key 1: maintain; 2: attaching partitions; 3: migrating; 4: moving heads; from 2^30: retry budgets; negative: limits.';

create or replace function pgqueue._with_failure(
    p_failures jsonb, p_before jsonb, p_step text, p_state text, p_message text, p_now timestamptz
)
returns jsonb
language sql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select p_failures || jsonb_build_object(
        p_step,
        jsonb_build_object(
            'error', p_state || ': ' || left(p_message, 500),
            'since', coalesce(p_before -> p_step -> 'since', to_jsonb(p_now)),
            'count', coalesce((p_before -> p_step ->> 'count')::bigint, 0) + 1
        )
    )
$$;

comment on function pgqueue._with_failure(jsonb, jsonb, text, text, text, timestamptz) is
    'Private: the failures known with one more, counted on from the last run''s.';

create or replace function pgqueue._tidy_workers(p_now timestamptz)
returns void
language sql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
    delete from pgqueue.sleepers s where s.until < p_now - interval '1 min';

    delete from pgqueue.beats b where b.at < p_now - interval '10 min';

    -- Silent for five minutes. Should it live after all, its next beat tells it to say hello again.
    delete from pgqueue.workers w
    where w.started_at < p_now - interval '5 min'
        and coalesce(
            (select b.at from pgqueue.beats b where b.worker = w.name order by b.n desc limit 1),
            '-infinity'
        ) < p_now - interval '5 min';

    delete from pgqueue.housekeeping h
    where h.n < (select max(x.n) from pgqueue.housekeeping x) - 3600;
$$;

comment on function pgqueue._tidy_workers(timestamptz) is 'Private: forgets naps, beats and workers of the past.';
