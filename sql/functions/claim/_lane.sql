-- One sub-lane of a claim: locks due jobs, in the order of the ready index, and cancels expired ones on the way.
--
-- Rows without a key or a limit are returned as they are. Others go through _sort_out: see _order.

create or replace function pgqueue._claim_lane(
    p_queue text,
    p_priority smallint,
    p_resumed boolean,
    p_head timestamptz,
    p_head_id bigint,
    p_now timestamptz,
    p_slots integer[],
    p_passed tid[],
    p_worker text,
    p_lease interval,
    p_limited_tasks text[],
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
    v_rows tid[];
    v_has_expired boolean;
    v_has_rules boolean;
    v_skip_expired boolean := false;
begin
    rows := '{}';
    keyed := false;
    marked := false;
    loop
        select
            array_agg(c.row_ctid) filter (where c.expires_at is null or c.expires_at > p_now),
            coalesce(bool_or(c.expires_at <= p_now), false),
            coalesce(
                bool_or(c.key is not null or c.limit_key is not null or c.task = any (p_limited_tasks)), false
            )
        into v_rows, v_has_expired, v_has_rules
        from (
            select j.ctid as row_ctid, j.expires_at, j.key, j.limit_key, j.task
            from pgqueue.jobs j
            where j.state in ('waiting', 'failed')
                and j.queue = p_queue
                and j.priority = p_priority
                and j.resumed = p_resumed
                and (j.ready_at, j.id) >= (p_head, p_head_id)
                and j.ready_at <= p_now
                and (not v_skip_expired or j.expires_at is null or j.expires_at > p_now)
                and j.ctid <> all (p_passed)
            order by j.ready_at, j.id
            limit cardinality(p_slots) - cardinality(rows)
            for update skip locked
        ) c;
        if v_has_expired then
            -- A bounded number is cancelled here; if there are more, the next read skips them.
            perform pgqueue._expire_jobs(1000);
        end if;
        if v_has_rules then
            select s.rows, s.slots, s.used, s.keyed, s.marked, s.capacity
            into rows, slots, used, keyed, marked, capacity
            from pgqueue._sort_out(
                p_queue, p_priority, p_resumed, p_head, p_head_id, p_now, p_slots, p_passed, rows, v_rows, p_worker, p_lease,
                capacity
            ) s;
            return;
        end if;
        rows := rows || v_rows;
        exit when not v_has_expired or v_skip_expired;
        v_skip_expired := true;
        p_passed := p_passed || rows;
    end loop;
    used := cardinality(rows);
    capacity := capacity - used;
    slots := p_slots[:used];
end
$$;

comment on function pgqueue._claim_lane(
    text, smallint, boolean, timestamptz, bigint, timestamptz, integer[], tid[], text, interval, text[], integer
) is
    'Private: fills p_slots from one sub-lane, without the rows in p_passed. Returns the rows and the slot of each (jobs of one batch share theirs), '
    'how many slots it used; keyed: some rows are to be claimed against the unique index of keys; marked: some are executing already; '
    'capacity: see _order.';
