-- Claiming inside one lane: which of the due jobs may start, and what happens to the others.
--
-- Jobs without a key or a limit are only locked here (FOR UPDATE SKIP LOCKED, in the order of the ready index); reserve
-- claims them all in one UPDATE at its end (_take). As soon as a lane holds one with a key or under a limit, its rows go
-- through rounds (_sort_out): each gets a verdict (_order), and is started, blocked (out of the ready index), deferred by a
-- second, or skipped. A job that starts is marked as executing at once (_mark), for the probes of the next round must see
-- it; save where the first round was enough.
-- A row is blocked behind a job that no other session is ending, and without keeping a lock on that job (see _keys). If
-- that job is locked the candidate is deferred, so that a locked row never stops a lane. Nothing here waits, save, 20 ms
-- at most, for another claim of the same key that is not committed yet: the unique index decides, and the loser's
-- candidate is dropped. No call spends more than about 50 ms on blocking jobs; one that comes back empty because of that
-- wakes its own worker.

-- p_plain: rows locked before, neither keyed nor limited: they start. p_rows: the first candidates, locked as well.
-- capacity: see _order.
create or replace function pgqueue._sort_out(
    p_queue text,
    p_priority smallint,
    p_resumed boolean,
    p_head timestamptz,
    p_head_id bigint,
    p_now timestamptz,
    p_slots integer[],
    p_passed tid[],
    p_plain tid[],
    p_rows tid[],
    p_worker text,
    p_lease interval,
    inout capacity integer,
    out rows tid[],
    out slots integer[],
    out used integer,
    out keyed boolean,
    out marked boolean
)
returns record
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_started timestamptz := clock_timestamp();
    v_limit integer := cardinality(p_slots);
    v_rows tid[] := coalesce(p_rows, '{}');
    v_size integer := v_limit;
    v_rounds integer := 0;
    -- Rows that stay in the ready index: the next round must not meet them again.
    v_passed tid[] := p_passed || p_plain;
    v_gathers boolean := exists (select from pgqueue.effective_tasks t where t.accumulate);
    v_limited boolean := exists (select from pgqueue.limits l where l.kind in ('task', 'key', 'limit_key'));
    -- Slots whose job was dropped, and batches that have capacity for more keys.
    v_spare integer[] := '{}'::integer[];
    v_open pgqueue.open_batch[] := '{}'::pgqueue.open_batch[];
    v_capacities jsonb := '{}'::jsonb;
    v_verdicts pgqueue.verdict[];
    v_found record;
    v_got record;
begin
    keyed := false;
    marked := false;
    rows := p_plain;
    used := cardinality(p_plain);
    capacity := capacity - used;
    slots := p_slots[:used];
    loop
        select o.used, o.spare, o.open, o.capacities, o.capacity, o.verdicts
        into used, v_spare, v_open, v_capacities, capacity, v_verdicts
        from pgqueue._order(
            p_queue, v_rows, p_now, p_slots, v_gathers, v_limited, used, v_spare, v_open, v_capacities, capacity
        ) o;

        select
            array_agg(v.row_ctid) filter (where v.kind = 'block') as blocked,
            array_agg(v.ahead) filter (where v.kind = 'block') as ahead,
            array_agg(v.row_ctid) filter (where v.kind = 'limited') as limited_rows,
            array_agg(v.limit_name) filter (where v.kind = 'limited') as limited_names,
            array_agg(v.row_ctid) filter (where v.kind in ('plain', 'skip')) as unmarked,
            array_agg(v.row_ctid) filter (where v.slot is not null) as started,
            array_agg(v.slot) filter (where v.slot is not null) as slots,
            coalesce(bool_or(v.kind = 'keyed'), false) as has_keyed,
            coalesce(bool_or(v.kind in ('gather', 'mark')), false) as has_more
        into v_found
        from unnest(v_verdicts) v;
        if v_found.blocked is not null then
            perform pgqueue._block_behind(v_found.blocked, v_found.ahead, p_now);
        end if;
        if v_found.limited_rows is not null then
            perform pgqueue._block_on_limits(v_found.limited_rows, v_found.limited_names, v_capacities);
        end if;
        v_passed := v_passed || v_found.unmarked;

        if v_rounds = 0 and used >= greatest(v_limit, 20) and not v_found.has_more then
            -- This lane is not read again: reserve claims these with all others, in one statement. Few are marked here, so
            -- that a claim of one job goes on to the next if it is dropped.
            rows := rows || v_found.started;
            slots := slots || v_found.slots;
            keyed := v_found.has_keyed;
            exit;
        end if;
        if v_found.has_keyed or v_found.has_more then
            select m.rows, m.slots, m.dropped_rows, m.dropped_slots
            into v_got
            from pgqueue._mark(v_verdicts, p_now, p_worker, p_lease) m;
            rows := rows || v_got.rows;
            slots := slots || v_got.slots;
            marked := true;
            v_passed := v_passed || v_got.dropped_rows;
            v_spare := v_spare || v_got.dropped_slots;
            capacity := capacity + cardinality(v_got.dropped_slots);
            -- The slot of a batch that lost its first key may go to any job: no further key must join that batch.
            v_open := array(select o from unnest(v_open) o where o.slot <> all (v_spare));
        else
            rows := rows || v_found.started;
            slots := slots || v_found.slots;
        end if;

        exit when capacity = 0 or (used >= v_limit and v_spare = '{}' and v_open = '{}');
        -- A few rounds in any case: the first of a session makes its plans, which alone may take as long.
        v_rounds := v_rounds + 1;
        if v_rounds > 2 and clock_timestamp() > v_started + interval '20 ms' then
            if used = 0 and pgqueue._may_notify() then
                -- There may be due jobs behind the ones that it blocked: the worker is to claim again at once.
                perform pg_notify(pgqueue._channel(p_worker), 'wake');
            end if;
            exit;
        end if;
        v_size := least(500, greatest(v_limit - used, v_size * 4, 20));
        select array_agg(c.row_ctid)
        into v_rows
        from (
            select j.ctid as row_ctid
            from pgqueue.jobs j
            where j.state in ('waiting', 'failed')
                and j.queue = p_queue
                and j.priority = p_priority
                and j.resumed = p_resumed
                and (j.ready_at, j.id) >= (p_head, p_head_id)
                and j.ready_at <= p_now
                and (j.expires_at is null or j.expires_at > p_now)
                and j.ctid <> all (v_passed)
            order by j.ready_at, j.id
            limit v_size
            for update skip locked
        ) c;
        exit when v_rows is null;
    end loop;
    if v_capacities <> '{}' then
        perform pgqueue._note_starts(v_capacities, p_now);
    end if;
end
$$;

comment on function pgqueue._sort_out(
    text, smallint, boolean, timestamptz, bigint, timestamptz, integer[], tid[], tid[], tid[], text, interval, integer
) is 'Private: claims the jobs that may start from a sub-lane with keys or limits, and blocks or defers the others.';
