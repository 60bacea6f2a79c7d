-- How a step of maintenance is run: slice by slice, until its share of the time is over. See _maintenance_steps.

-- p_is_killed: the last call was killed or cancelled within it; that is recorded as if statement_timeout had cut it.
create or replace function pgqueue._run_step(
    p_state pgqueue.maintenance_steps, p_number integer, p_every interval, p_slice integer, p_deadline timestamptz,
    p_is_killed boolean, inout run pgqueue.maintenance_runs, out cut boolean
)
language plpgsql
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
    v_context text;
begin
    cut := p_is_killed;
    perform setval('pgqueue.step_under_way', p_number);
    v_step.missed_since := null;
    v_step.error := case when p_is_killed then 'the call was cancelled, or its session ended, within this step' else v_step.error end;
    while not p_is_killed loop
        v_slice_from := clock_timestamp();
        begin
            select r.run, r.next_cursor, r.is_more, r.problem into v_slice
            from pgqueue._run_slice(p_state.step, v_rows, v_step.cursor, run) r;
        exception
            when query_canceled then
                -- pg_cancel_backend and statement_timeout have one SQLSTATE; the time that has passed distinguishes them.
                -- The timer starts before statement_timestamp(), by the time of planning at most.
                if (
                    clock_timestamp()
                        >= statement_timestamp() + 0.8 * nullif(current_setting('statement_timeout')::interval, '0')
                ) is not true then
                    raise;
                end if;
                cut := true;
                v_step.error := format('%s: cut by statement_timeout (%s)', sqlstate, current_setting('statement_timeout'));
            when others then
                v_has_failed := true;
                -- A reader holds a lock on a partition, which is no failure; stats() shows overdue partitions. An error
                -- of before stands until the step succeeds.
                if p_state.step <> 'drop' or sqlstate <> '55P03' then
                    get stacked diagnostics v_context = pg_exception_context;
                    v_step.error := pgqueue._error_text(sqlstate, sqlerrm, v_context);
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

    v_step.slice := nullif(case when cut then greatest(v_rows / 4, 1) else v_rows end, p_slice);
    v_has_failed := v_has_failed or cut or v_step.error is not null;
    v_step.failures := case when v_has_failed then p_state.failures + 1 else 0 end;
    v_step.failing_since := case when v_step.error is not null then coalesce(p_state.failing_since, run.at) end;
    v_step.next_at := run.at + case
        when cut then least(greatest(interval '1 s' * power(2, least(v_step.failures, 8)), 10 * v_took), interval '5 min')
        when p_every is null then null
        when v_has_failed and p_state.step = 'drop' then interval '1 min' * power(2, least(v_step.failures, 5))
        -- At once, then after longer and longer pauses.
        when v_has_failed then least(p_every, interval '1 s' * (power(2, least(p_state.failures, 20)) - 1))
        when v_step.unfinished then null
        -- A step that takes long, as beside an old snapshot, runs more rarely.
        else greatest(p_every, 50 * v_took)
    end;
    v_step.at := run.at;
    -- What it needs for its next run, if that has changed.
    insert into pgqueue.maintenance_steps overriding user value
    select v_step.*
    where to_jsonb(v_step) - '{n,at}'::text[] <> to_jsonb(p_state) - '{n,at}'::text[];
end
$$;

-- One slice of a step, about p_slice rows from p_cursor on; is_more: there may be more to do at once; problem: for stats().
create or replace function pgqueue._run_slice(
    p_step text, p_slice integer, p_cursor text[], inout run pgqueue.maintenance_runs,
    out next_cursor text[], out is_more boolean, out problem text
)
language plpgsql
as $$
declare
    v_now timestamptz := run.at;
    v_count bigint := 0::bigint;
begin
    case p_step
        when 'leases' then
            select run.rescued + r.rescued, run.grace_periods + r.spared, r.rescued + r.spared
            into run.rescued, run.grace_periods, v_count
            from pgqueue._rescue(p_slice, run.gap_at) r;
        when 'expiry' then
            v_count := pgqueue._expire_jobs(p_slice, pgqueue._clock());
            run.expired := run.expired + v_count;
        when 'clock' then
            if run.stepped_from is not null then
                next_cursor := pgqueue._bring_forward(run.stepped_from, p_slice, p_cursor);
                if next_cursor is not null then
                    v_count := p_slice::bigint;
                -- Transactions that were open when the clock stepped may still commit jobs: continue for a while.
                elsif v_now > run.gap_at + interval '5 min' or v_now >= run.stepped_from then
                    run.stepped_from := null;
                end if;
            end if;
        when 'lanes' then
            run.due_lanes := case
                when (select count(*) from (select from pgqueue.lanes limit 65) l) > 64
                    then (select count(*)::integer from (select from pgqueue.lanes l where l.due_from = '-infinity' limit 10000) l)
            end;
            perform pgqueue._tidy_lanes(v_now) where run.due_lanes is not null;
            run.found_lanes := run.found_lanes + pgqueue._find_lanes();
        when 'heads' then
            perform pgqueue._move_all_heads();
        when 'keys' then
            perform pgqueue._read_key_notes(p_slice);
            select run.unblocked + r.released, r.next_cursor into run.unblocked, next_cursor
            from pgqueue._release_left_behind(greatest(p_slice / 2, 1), p_cursor) r;
        when 'notes' then
            perform pgqueue._read_notes(p_slice);
        when 'limits' then
            -- The clock stepped back, perhaps unseen: a bucket is filled from now on, not only from where the clock was.
            update pgqueue.limit_levels l
            set at = pgqueue._clock()
            where l.n = any (
                array(
                    select x.n
                    from pgqueue.limit_levels x
                    where x.at > (select pgqueue._clock()) + interval '1 s'
                    order by x.at
                    for update skip locked
                )
            );
            perform pgqueue._recheck_limits(p_slice);
        when 'schedules' then
            perform pgqueue._run_schedules(p_slice);
        when 'tidy_lanes' then
            perform pgqueue._tidy_lanes(v_now);
        when 'tidy_dependencies' then
            perform pgqueue._tidy_traces();
            select run.unblocked + r.released, r.next_cursor into run.unblocked, next_cursor
            from pgqueue._sweep_dependencies(p_slice, p_cursor) r;
            perform pgqueue._tidy('tidy_events', v_now, p_slice);
        when 'tidy_starts' then
            -- Rows that were copied here without their sequence, by which claims know that there are some.
            perform nextval('pgqueue.limits_n_seq')
            where pg_sequence_last_value('pgqueue.limits_n_seq') is null and exists (select from pgqueue.limits);
            perform nextval('pgqueue.pauses_n_seq')
            where pg_sequence_last_value('pgqueue.pauses_n_seq') is null and exists (select from pgqueue.pauses);
            perform nextval('pgqueue.shares_n_seq')
            where pg_sequence_last_value('pgqueue.shares_n_seq') is null and exists (select from pgqueue.shares);
            -- What spent() left in a transaction that ended late: claims no longer look for it. See _units_of.sql.
            update pgqueue.limit_levels s
            set at = v_now
            where s.n = any (
                array(
                    select x.n
                    from pgqueue.limit_levels x
                    where x.is_spent and x.at < v_now - interval '10 s'
                        and x.at <= (
                            select l.at
                            from pgqueue.limit_levels l
                            where l.name = x.name and not l.is_spent
                            order by l.name, l.n desc
                            limit 1
                        ) - interval '10 s'
                    order by x.at
                    limit p_slice
                    for update skip locked
                )
            );
            v_count := pgqueue._tidy(p_step, v_now, p_slice);
        when 'sample' then
            next_cursor := pgqueue._sample(v_now, p_cursor);
        when 'hidden' then
            run.hidden := run.hidden + pgqueue._find_hidden();
            run.found_lanes := run.found_lanes + pgqueue._find_tenants();
        when 'tenants' then
            select m.moved / 5, m.next_cursor into v_count, next_cursor from pgqueue._move_to_lanes(5 * p_slice, p_cursor) m;
            run.busy_lanes := pgqueue._busy_tenants();
            v_count := greatest(pgqueue._renew_tenants(p_slice), v_count);
        when 'partitions' then
            select r.attached::bigint, r.problem into v_count, problem from pgqueue._attach_partitions(14, 26, p_slice) r;
        when 'drop' then
            perform pgqueue._drop_partition(v_now);
        else
            v_count := pgqueue._tidy(p_step, v_now, p_slice);
    end case;
    is_more := v_count >= p_slice;
end
$$;
