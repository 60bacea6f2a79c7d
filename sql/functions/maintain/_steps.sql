-- The steps of maintenance: which there are, which are due, and how one is run.
--
-- Each run takes the steps in this order: first those that had no turn last time, longest first; then the others as
-- listed, rescue before all; then those that failed; last of all drop, whose lock stops completions until the commit.
-- A step works in slices, each a bounded number of rows in a subtransaction, until its work is done or a quarter of
-- the time that is left is over. A slice that takes too long is made smaller for the next time.
-- statement_timeout cannot be set anew within a statement. What it cuts is one slice: the slices and steps before
-- stand, the call ends and commits, and the step comes again with a smaller slice after ten times what it took.

create or replace function pgqueue._steps()
returns table (number integer, step text, every interval, slice integer, is_ddl boolean)
language sql
immutable
parallel safe
rows 22
as $$
    values
        (1, 'leases', null::interval, 1000, false),
        (2, 'expiry', null, 1000, false),
        (3, 'clock', null, 5000, false),
        (4, 'lanes', null, 1, false),
        (5, 'heads', null, 1, false),
        (6, 'keys', null, 1000, false),
        (7, 'notes', null, 1000, false),
        (8, 'limits', null, 1000, false),
        (9, 'schedules', null, 10000, false),
        (10, 'tidy_lanes', '1 min', 1, false),
        (11, 'tidy_heads', '1 min', 1, false),
        (12, 'tidy_dedupe', '1 min', 10000, false),
        (13, 'tidy_schedules', '1 min', 10000, false),
        (14, 'tidy_workers', '1 min', 10000, false),
        (15, 'tidy_bookings', '1 min', 10000, false),
        (16, 'tidy_starts', '1 min', 10000, false),
        (17, 'tidy_dependencies', '1 min', 1000, false),
        (18, 'tidy_maintenance', '1 min', 10000, false),
        (19, 'hidden', '1 min', 1, false),
        (20, 'partitions', '5 min', 6, true),
        (21, 'drop', '1 min', 1, true),
        (22, 'sample', '10 s', 1, false),
        (23, 'tidy_samples', '1 min', 10000, false)
$$;

comment on function pgqueue._steps() is
    'Private: the steps of maintain(): every: how often (null: in each run); slice: rows that it takes at once; is_ddl: it makes or drops tables.';

create or replace function pgqueue._last_steps()
returns setof pgqueue.maintenance_steps
language sql
stable
parallel safe
rows 22
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
    select
        l.n, l.at, s.step, l.next_at, l.missed_since, coalesce(l.unfinished, false), l.slice, l.cursor,
        coalesce(l.failures, 0), l.failing_since, l.error
    from pgqueue._steps() s
    left join lateral (
        select m.*
        from pgqueue.maintenance_steps m
        where m.step = s.step
        order by m.n desc
        limit 1
    ) l on true
    order by s.number
$$;

comment on function pgqueue._last_steps() is 'Private: what each step left for its next run; n is null where it left nothing.';

create or replace function pgqueue._due_steps(p_now timestamptz, p_ddl_after interval)
returns table (state pgqueue.maintenance_steps, number integer, every interval, slice integer)
language sql
stable
parallel safe
rows 22
set search_path = pg_catalog, pg_temp
as $$
    select l, s.number, s.every, s.slice
    from pgqueue._last_steps() l
    join pgqueue._steps() s on s.step = l.step
    where p_now >= coalesce(l.next_at, l.at, '-infinity') + case when s.is_ddl then p_ddl_after else '0' end
        -- Written before the clock stepped back.
        or l.at > p_now + interval '1 s'
    order by l.step = 'drop', l.missed_since, l.failures > 0, s.number
$$;

comment on function pgqueue._due_steps(timestamptz, interval) is
    'Private: the steps that are due, in the order in which to run them; state: what each left.';

create or replace function pgqueue._deadline()
returns timestamptz
language sql
volatile
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select least(
        -- Well below the 5 s after which a gap between runs counts as one.
        clock_timestamp() + interval '3 s',
        statement_timestamp() + nullif(current_setting('statement_timeout')::interval, '0') / 2,
        transaction_timestamp() + nullif(current_setting('transaction_timeout', true)::interval, '0') / 2
    )
$$;

comment on function pgqueue._deadline() is 'Private: when this call of maintain() should end: within 3 s, and half of what the session''s timeouts allow.';

-- A person's cancel and statement_timeout have one SQLSTATE; time tells them apart. The timer started up to a
-- planning's time before statement_timestamp().
create or replace function pgqueue._is_timed_out()
returns boolean
language sql
volatile
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(
        clock_timestamp() >= statement_timestamp() + 0.8 * nullif(current_setting('statement_timeout')::interval, '0'),
        false
    )
$$;

comment on function pgqueue._is_timed_out() is 'Private: whether statement_timeout is what has just cancelled the statement.';

create or replace function pgqueue._run_step(
    p_state pgqueue.maintenance_steps, p_number integer, p_every interval, p_slice integer, p_deadline timestamptz,
    inout run pgqueue.maintenance_runs, out cut boolean
)
returns record
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_step pgqueue.maintenance_steps := p_state;
    v_rows integer := coalesce(p_state.slice, p_slice);
    v_slice record;
    v_from timestamptz := clock_timestamp();
    v_share interval := greatest((p_deadline - v_from) / 4, '20 ms');
    v_slice_from timestamptz;
    v_took interval;
    v_has_failed boolean := false;
begin
    cut := false;
    perform setval('pgqueue.step_under_way', p_number);
    v_step.missed_since := null;
    loop
        v_slice_from := clock_timestamp();
        begin
            select r.run, r.next_cursor, r.is_more, r.problem
            into v_slice
            from pgqueue._run_slice(p_state.step, v_rows, v_step.cursor, run) r;
        exception
            when query_canceled then
                if not pgqueue._is_timed_out() then
                    raise;
                end if;
                cut := true;
                v_step.error := format('%s: cut by statement_timeout (%s)', sqlstate, current_setting('statement_timeout'));
            when others then
                v_has_failed := true;
                v_step.error := sqlstate || ': ' || left(sqlerrm, 500);
                if p_state.step = 'drop' and sqlstate = '55P03' then
                    -- A reader is in the way, which is no failure; stats() shows what is overdue.
                    v_step.error := null;
                end if;
        end;
        v_took := clock_timestamp() - v_slice_from;
        exit when cut or v_has_failed;

        run := v_slice.run;
        v_step.cursor := v_slice.next_cursor;
        v_step.error := v_slice.problem;
        v_step.unfinished := v_slice.is_more;
        if v_took > v_share / 2 then
            v_rows := greatest(v_rows / 2, 1);
        elsif v_took < v_share / 8 then
            v_rows := least(v_rows * 2, p_slice);
        end if;
        exit when not v_slice.is_more or clock_timestamp() >= v_from + v_share;
    end loop;

    if cut then
        v_rows := greatest(v_rows / 4, 1);
    end if;
    v_step.slice := nullif(v_rows, p_slice);
    v_has_failed := v_has_failed or cut or v_step.error is not null;
    v_step.failures := case when v_has_failed then p_state.failures + 1 else 0 end;
    v_step.failing_since := case when v_step.error is not null then coalesce(p_state.failing_since, run.at) end;
    v_step.next_at := run.at + case
        when cut then pgqueue._pause_after(v_step.failures, v_took)
        when p_every is null then null
        when v_has_failed and p_state.step = 'drop' then interval '1 min' * power(2, least(v_step.failures, 5))
        -- At once, then ever more rarely.
        when v_has_failed then least(p_every, interval '1 s' * (power(2, least(p_state.failures, 20)) - 1))
        when v_step.unfinished then null
        -- Where it takes long, as an old snapshot makes it walk dead entries, it is done the more rarely.
        else greatest(p_every, 50 * v_took)
    end;
    perform pgqueue._note_step(v_step, p_state, run.at);
end
$$;

comment on function pgqueue._run_step(
    pgqueue.maintenance_steps, integer, interval, integer, timestamptz, pgqueue.maintenance_runs
) is
    'Private: runs a step of maintain() until its share of the time is over, and writes down what it leaves; cut: statement_timeout has struck.';

create or replace function pgqueue._pause_after(p_failures integer, p_took interval)
returns interval
language sql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select least(greatest(interval '1 s' * power(2, least(p_failures, 8)), 10 * p_took), interval '5 min')
$$;

comment on function pgqueue._pause_after(integer, interval) is
    'Private: how long a step is left alone that used up a whole call, so that it takes a tenth of the time at most.';

create or replace function pgqueue._note_step(
    p_state pgqueue.maintenance_steps, p_before pgqueue.maintenance_steps, p_now timestamptz
)
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_state pgqueue.maintenance_steps := p_state;
begin
    v_state.n := p_before.n;
    v_state.at := p_before.at;
    if v_state is distinct from p_before then
        insert into pgqueue.maintenance_steps (
            at, step, next_at, missed_since, unfinished, slice, cursor, failures, failing_since, error
        )
        values (
            p_now, p_state.step, p_state.next_at, p_state.missed_since, p_state.unfinished, p_state.slice, p_state.cursor,
            p_state.failures, p_state.failing_since, p_state.error
        );
    end if;
end
$$;

comment on function pgqueue._note_step(pgqueue.maintenance_steps, pgqueue.maintenance_steps, timestamptz) is
    'Private: writes down what a step leaves for its next run, unless that is what it found.';

create or replace function pgqueue._note_missed_step(p_state pgqueue.maintenance_steps, p_now timestamptz)
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_step pgqueue.maintenance_steps := p_state;
begin
    v_step.missed_since := coalesce(p_state.missed_since, p_now);
    perform pgqueue._note_step(v_step, p_state, p_now);
end
$$;

comment on function pgqueue._note_missed_step(pgqueue.maintenance_steps, timestamptz) is
    'Private: writes down that a step was due and had no turn.';

-- A call that was killed, or cancelled, has left nothing but the number of its step: who comes next counts that as a
-- failure of the step, so that a step that is killed each time does not take the others with it each time.
create or replace function pgqueue._note_interrupted_step(p_now timestamptz)
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_number bigint := (select u.last_value from pgqueue.step_under_way u);
    v_before pgqueue.maintenance_steps;
    v_step pgqueue.maintenance_steps;
    v_usual integer;
begin
    if v_number = 0 then
        return;
    end if;
    select s.slice into v_usual from pgqueue._steps() s where s.number = v_number;
    select l.* into v_before
    from pgqueue._last_steps() l
    join pgqueue._steps() s on s.step = l.step
    where s.number = v_number;
    v_step := v_before;
    v_step.failures := v_before.failures + 1;
    v_step.failing_since := coalesce(v_before.failing_since, p_now);
    v_step.error := 'the call was cancelled, or its session ended, within this step';
    v_step.slice := greatest(coalesce(v_before.slice, v_usual) / 4, 1);
    v_step.next_at := p_now + pgqueue._pause_after(v_step.failures, null);
    perform pgqueue._note_step(v_step, v_before, p_now);
end
$$;

comment on function pgqueue._note_interrupted_step(timestamptz) is
    'Private: counts it as a failure of a step that the last call of maintain() ended within it.';

create or replace function pgqueue._run_slice(
    p_step text, p_slice integer, p_cursor text[], inout run pgqueue.maintenance_runs,
    out next_cursor text[], out is_more boolean, out problem text
)
returns record
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := run.at;
    v_found record;
    v_count bigint := 0::bigint;
begin
    case p_step
        when 'leases' then
            select r.rescued, r.prolonged into v_found from pgqueue._rescue(p_slice, run.gap_at) r;
            run.rescued := run.rescued + v_found.rescued;
            run.prolonged := run.prolonged + v_found.prolonged;
            v_count := v_found.rescued + v_found.prolonged;
        when 'expiry' then
            v_count := pgqueue._expire_jobs(p_slice);
            run.expired := run.expired + v_count;
        when 'clock' then
            if run.stepped_from is not null then
                next_cursor := pgqueue._bring_forward(run.stepped_from, p_slice, p_cursor);
                if next_cursor is not null then
                    v_count := p_slice::bigint;
                -- Transactions that were open at the step may still commit jobs from there: go on for a while.
                elsif v_now > run.gap_at + interval '5 min' or v_now >= run.stepped_from then
                    run.stepped_from := null;
                end if;
            end if;
        when 'lanes' then
            run.found_lanes := run.found_lanes + pgqueue._find_lanes();
        when 'heads' then
            perform pgqueue._move_all_heads();
        when 'keys' then
            perform pgqueue._read_key_notes(p_slice);
            select r.released, r.next_cursor into v_found
            from pgqueue._release_left_behind(greatest(p_slice / 2, 1), p_cursor) r;
            run.unparked := run.unparked + v_found.released;
            next_cursor := v_found.next_cursor;
        when 'notes' then
            perform pgqueue._read_notes(p_slice);
        when 'limits' then
            perform pgqueue._recheck_limits(p_slice);
        when 'schedules' then
            perform pgqueue._run_schedules(p_slice);
        when 'tidy_lanes' then
            perform pgqueue._tidy_lanes(v_now);
        when 'tidy_heads' then
            perform pgqueue._tidy_heads(v_now);
        when 'tidy_dedupe' then
            perform pgqueue._tidy_dedupe(v_now, p_slice);
        when 'tidy_schedules' then
            v_count := pgqueue._tidy_schedule_runs(v_now, p_slice);
        when 'tidy_workers' then
            v_count := pgqueue._tidy_workers(v_now, p_slice);
        when 'tidy_bookings' then
            perform pgqueue._tidy_promises(v_now);
            perform pgqueue._tidy_bookings(v_now);
        when 'tidy_starts' then
            perform pgqueue._tidy_starts(v_now);
        when 'tidy_dependencies' then
            select r.released, r.next_cursor into v_found from pgqueue._sweep_dependencies(p_slice, p_cursor) r;
            run.unparked := run.unparked + v_found.released;
            next_cursor := v_found.next_cursor;
            perform pgqueue._tidy_events(v_now, p_slice);
        when 'tidy_maintenance' then
            v_count := pgqueue._tidy_maintenance(p_slice);
        when 'sample' then
            perform pgqueue._sample(v_now);
        when 'tidy_samples' then
            v_count := pgqueue._tidy_samples(v_now, p_slice);
        when 'hidden' then
            run.hidden := run.hidden + pgqueue._find_hidden();
        when 'partitions' then
            select r.attached, r.problem into v_found from pgqueue._attach_partitions(40, 36, p_slice) r;
            v_count := v_found.attached::bigint;
            problem := v_found.problem;
        when 'drop' then
            perform pgqueue._drop_partition(v_now);
    end case;
    is_more := v_count >= p_slice;
end
$$;

comment on function pgqueue._run_slice(text, integer, text[], pgqueue.maintenance_runs) is
    'Private: one slice of a step of maintain(), about p_slice rows from p_cursor on; is_more: there may be more to do at once; problem: for stats() to show.';

create or replace function pgqueue._tidy_workers(p_now timestamptz, p_limit integer)
returns bigint
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_sleepers bigint;
    v_beats bigint;
begin
    delete from pgqueue.idle_workers s
    where s.ctid = any (
        array(select x.ctid from pgqueue.idle_workers x where x.until < p_now - interval '1 min' limit p_limit for update skip locked)
    );
    get diagnostics v_sleepers = row_count;

    delete from pgqueue.heartbeats b
    where b.n = any (
        array(select x.n from pgqueue.heartbeats x where x.at < p_now - interval '10 min' order by x.n limit p_limit)
    );
    get diagnostics v_beats = row_count;

    -- Silent for five minutes. Should it live after all, its next beat tells it to say hello again.
    delete from pgqueue.workers w
    where w.started_at < p_now - interval '5 min'
        and coalesce(
            (select b.at from pgqueue.heartbeats b where b.worker = w.name order by b.n desc limit 1),
            '-infinity'
        ) < p_now - interval '5 min';
    return greatest(v_sleepers, v_beats);
end
$$;

comment on function pgqueue._tidy_workers(timestamptz, integer) is
    'Private: forgets idle registrations, heartbeats and workers of the past, up to p_limit rows of a table; returns how many.';

create or replace function pgqueue._tidy_maintenance(p_limit integer)
returns bigint
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_runs bigint;
    v_steps bigint;
begin
    delete from pgqueue.maintenance_runs h
    where h.n = any (
        array(
            select x.n
            from pgqueue.maintenance_runs x
            where x.n < (select max(y.n) from pgqueue.maintenance_runs y) - 3600
            order by x.n
            limit p_limit
        )
    );
    get diagnostics v_runs = row_count;

    delete from pgqueue.maintenance_steps m
    where m.n = any (
        array(
            select x.n
            from pgqueue.maintenance_steps x
            where exists (select from pgqueue.maintenance_steps y where y.step = x.step and y.n > x.n)
            order by x.n
            limit p_limit
        )
    );
    get diagnostics v_steps = row_count;
    return greatest(v_runs, v_steps);
end
$$;

comment on function pgqueue._tidy_maintenance(integer) is
    'Private: forgets runs of maintain() but for the last 3600, and what steps left for runs that are over; returns how many.';
