-- Which of the candidates of a lane may start, and in which slot. Reads, and takes the locks of limits.

-- The kinds of verdicts: block (behind ahead); limited (is blocked on the limit); skip (stays in the ready index); and, for
-- a job that starts in a slot: plain, keyed, mark (under a limit), gather (with the other payloads of its key). A row
-- without a verdict starts with the first one of its key.
-- capacity: how many jobs the queue may still start, the payloads of a key counting as one; null: it has no limit.
create or replace function pgqueue._order(
    p_queue text,
    p_rows tid[],
    p_now timestamptz,
    p_slots integer[],
    p_gathers boolean,
    p_limited boolean,
    inout used integer,
    inout spare integer[],
    inout open pgqueue.open_batch[],
    inout capacities jsonb,
    inout capacity integer,
    out verdicts pgqueue.verdict[]
)
returns record
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_row record;
    v_verdict pgqueue.verdict;
    v_open pgqueue.open_batch;
    v_names text[];
    v_is_payload boolean;
    -- The keys of payloads that start.
    v_keys text[] := '{}'::text[];
begin
    verdicts := '{}';
    for v_row in
        select k.* from pgqueue._key_positions(p_queue, p_rows, p_now, p_gathers) k
    loop
        v_verdict := null;
        v_verdict.row_ctid := v_row.row_ctid;
        v_is_payload := v_row.accumulate and v_row.key is not null;
        -- The payloads of a key of an accumulating task, with one limit_key, start together, in any order; but new ones
        -- wait for the backoff of failed ones, all for one that suspended itself, and for a batch that has a step.
        v_verdict.ahead := case
            when v_row.key is null then null
            when v_row.executing_id is not null then v_row.executing_id
            when not v_row.accumulate then case when v_row.first_id < v_row.id then v_row.first_id end
            when v_row.undue_id is not null then v_row.undue_id
            -- Jobs that are in no batch with it.
            when v_row.first_id < v_row.id
                and (v_row.first_task <> v_row.task or v_row.first_limit_key is distinct from v_row.limit_key)
                then v_row.first_id
        end;
        if v_verdict.ahead is not null then
            v_verdict.kind := 'block';
            verdicts := verdicts || v_verdict;
            continue;
        end if;
        continue when v_is_payload and v_row.key = any (v_keys);

        v_open := null;
        if v_is_payload and v_row.batch_size > 1 and open <> '{}' then
            select o.* into v_open from unnest(open) o where o.task = v_row.task;
        end if;
        if capacity = 0 or (v_open.slot is null and spare = '{}' and used >= cardinality(p_slots)) then
            v_verdict.kind := 'skip';
            verdicts := verdicts || v_verdict;
            continue;
        end if;

        v_names := null;
        if p_limited then
            select r.names, r.limit_name, r.capacities
            into v_names, v_verdict.limit_name, capacities
            from pgqueue._take_capacity(v_row.task, v_row.key, v_row.limit_key, p_now, capacities) r;
            -- Neither a list of names nor a limit: another claim starts jobs under one of its limits.
            if v_names is null then
                v_verdict.kind := case when v_verdict.limit_name is not null then 'limited' else 'skip' end;
                verdicts := verdicts || v_verdict;
                continue;
            end if;
        end if;

        if v_open.slot is not null then
            v_verdict.slot := v_open.slot;
            open := array(
                select o from unnest(open) o where o.task <> v_row.task
                union all
                select row(v_open.task, v_open.slot, v_open.capacity - 1)::pgqueue.open_batch
                where v_open.capacity > 1
            );
        else
            if spare <> '{}' then
                v_verdict.slot := spare[1];
                spare := spare[2:];
            else
                used := used + 1;
                v_verdict.slot := p_slots[used];
            end if;
            if v_is_payload and v_row.batch_size > 1 then
                open := open || row(v_row.task, v_verdict.slot, v_row.batch_size - 1)::pgqueue.open_batch;
            end if;
        end if;
        capacity := capacity - 1;
        if v_is_payload then
            v_keys := v_keys || v_row.key;
        end if;
        v_verdict.kind := case
            when v_is_payload then 'gather'
            when v_names <> '{}' then 'mark'
            when v_row.key is not null then 'keyed'
            else 'plain'
        end;
        verdicts := verdicts || v_verdict;
    end loop;
end
$$;

comment on function pgqueue._order(
    text, tid[], timestamptz, integer[], boolean, boolean, integer, integer[], pgqueue.open_batch[], jsonb, integer
) is
    'Private: decides which of these candidates start, and in which slot; used, spare, open, capacities and capacity go from round to round.';

-- Asks once for each key: does a job of it execute, and which job holds its first position?
-- Each question is one probe of an index, from the head of jobs with keys on (see _heads), never an ordered scan over two
-- states. "asks" is a condition inside the probes: in a join's condition it would be checked after them, for every row.
create or replace function pgqueue._key_positions(p_queue text, p_rows tid[], p_now timestamptz, p_gathers boolean)
returns table (
    row_ctid tid, id bigint, key text, task text, limit_key text, accumulate boolean, batch_size integer,
    executing_id bigint, first_id bigint, first_task text, first_limit_key text, undue_id bigint
)
language plpgsql
volatile
parallel unsafe
rows 100
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    v_head bigint := pgqueue._key_head();
begin
    return query
    select
        c.row_ctid, c.id, c.key, c.task, c.limit_key,
        c.batch_size is not null,
        c.batch_size,
        max(e.id) over of_key,
        min(f.id) over of_key,
        min(f.task) over of_key,
        min(f.limit_key) over of_key,
        u.id
    from (
        select
            w.n, j.ctid as row_ctid, j.id, j.key, j.task, j.limit_key, j.reservation, j.has_steps,
            row_number() over (partition by j.key order by w.n) = 1 as asks,
            -- Most installations have no accumulating task, and need no lookup for each job.
            case when p_gathers then (
                -- A batch that has a step is a call of its own.
                select case when j.has_steps then 1 else coalesce(t.batch_size, 1) end
                from pgqueue.effective_tasks t
                where t.name = j.task and t.accumulate
            ) end as batch_size
        from unnest(p_rows) with ordinality w (row_ctid, n)
        join pgqueue.jobs j on j.ctid = w.row_ctid
    ) c
    left join lateral (
        select x.id
        from pgqueue.jobs x
        where c.asks
            and x.state = 'executing'
            and x.key is not null
            and (x.leader is null or x.leader = x.id)
            and x.queue = p_queue
            and x.key = c.key
            and x.id >= least(v_head, c.id)
        order by x.queue, x.key, x.id
        limit 1
    ) e on true
    left join lateral (
        select p.id, p.task, p.limit_key
        from (
            (
                select x.id, x.task, x.limit_key
                from pgqueue.jobs x
                where c.asks
                    and e.id is null
                    and x.key is not null
                    and (x.state = 'blocked' or (x.state in ('waiting', 'failed') and x.reservation > 0))
                    and x.blocked_on is distinct from '@parents'
                    and x.queue = p_queue
                    and x.key = c.key
                    and x.id >= least(v_head, c.id)
                order by x.queue, x.key, x.id
                limit 1
            )
            union all
            (
                select x.id, x.task, x.limit_key
                from pgqueue.jobs x
                where c.asks
                    and e.id is null
                    and x.key is not null
                    and x.state = 'waiting'
                    and x.reservation = 0
                    and x.queue = p_queue
                    and x.key = c.key
                    and x.id >= least(v_head, c.id)
                    and x.run_at <= p_now
                order by x.queue, x.key, x.id
                limit 1
            )
        ) p
        order by p.id
        limit 1
    ) f on true
    left join lateral pgqueue._ahead_of_payload(
        c.batch_size is not null and e.id is null, p_queue, c.key, c.task, c.limit_key, c.reservation = 0, c.has_steps, p_now
    ) u on true
    window of_key as (partition by c.key)
    order by c.n;
end
$$;

comment on function pgqueue._key_positions(text, tid[], timestamptz, boolean) is
    'Private: for each of these jobs, which job of its key executes, and which one holds the first position.';

-- Three probes: a payload that suspended itself; for a new payload, a failed one before its time; for one without steps, a batch
-- that has a step. p_asks is a condition inside of them. Inlined: no SET.
create or replace function pgqueue._ahead_of_payload(
    p_asks boolean, p_queue text, p_key text, p_task text, p_limit_key text, p_is_new boolean, p_has_steps boolean,
    p_now timestamptz
)
returns table (id bigint)
language sql
stable
parallel safe
rows 1
as $$
    (
        select x.id
        from pgqueue.jobs x
        where p_asks
            and x.key is not null
            and x.blocked_on = '@jobs'
            and x.queue = p_queue
            and x.key = p_key
            and x.task = p_task
            and x.limit_key is not distinct from p_limit_key
        order by x.queue, x.key
        limit 1
    )
    union all
    (
        select x.id
        from pgqueue.jobs x
        where p_asks
            and p_is_new
            and x.key is not null
            and x.state in ('waiting', 'failed')
            and x.reservation > 0
            and x.queue = p_queue
            and x.key = p_key
            and x.ready_at > p_now
            and x.task = p_task
            and x.limit_key is not distinct from p_limit_key
        order by x.queue, x.key, x.ready_at
        limit 1
    )
    union all
    (
        select x.id
        from pgqueue.jobs x
        where p_asks
            and p_has_steps is null
            and x.key is not null
            and x.has_steps
            and x.queue = p_queue
            and x.key = p_key
            and x.task = p_task
            and x.limit_key is not distinct from p_limit_key
        order by x.queue, x.key
        limit 1
    )
    limit 1
$$;

comment on function pgqueue._ahead_of_payload(boolean, text, text, text, text, boolean, boolean, timestamptz) is
    'Private: a payload of its key, in no batch with it, that a payload of an accumulating task waits for.';
