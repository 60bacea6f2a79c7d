-- Live jobs of a bulk call: reads jobs without locks, along one index after the other, from where the last call stopped.
--
-- Jobs of a queue are read by jobs_ready, jobs_key_held, jobs_parked and jobs_lease, those of a key or group by its
-- indexes, all others by the primary key: one function for each way, inlined where a cursor is opened (no SET). A
-- cursor, because a loop that ends at enough matches must not have read the rest.

create or replace function pgqueue._find_live(
    p_filter jsonb, p_after jsonb, p_matches integer, p_rows integer,
    out ids bigint[], out rows_read integer, out next_after jsonb
)
returns record
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_queue text := p_filter ->> 'queue';
    v_task text := p_filter ->> 'task';
    v_key text := p_filter ->> 'key';
    v_created_after timestamptz := (p_filter ->> 'created_after')::timestamptz;
    v_created_before timestamptz := (p_filter ->> 'created_before')::timestamptz;
    v_not_due boolean := coalesce((p_filter ->> 'not_due')::boolean, false);
    v_states pgqueue.job_state[] := array(
        select s.name::pgqueue.job_state from jsonb_array_elements_text(p_filter -> 'states') s (name)
    );
    v_job_ids bigint[] := array(
        select i.id::bigint from jsonb_array_elements_text(p_filter -> 'job_ids') i (id) order by i.id::bigint
    );
    v_ways text[];
    v_way text;
    v_position pgqueue.jobs;
    v_rows refcursor;
    v_row pgqueue.bulk_row;
    v_left integer;
    v_jumped boolean;
begin
    v_ways := case
        when p_filter ? 'job_ids' then '{ids}'
        when p_filter ? 'group_id' then '{group}'
        when v_key is not null then '{key}'
        when v_queue is not null then array_remove(
            -- Jobs that this call releases, because the job ahead of them ended, move to jobs_ready, which is read later.
            array[
                case when 'blocked' = any (v_states) then 'held' end,
                case when 'blocked' = any (v_states) then 'parked' end,
                case when v_states && '{waiting,failed}' then 'ready' end,
                case when 'executing' = any (v_states) then 'executing' end
            ],
            null
        )
        else '{all}'
    end;
    ids := '{}';
    rows_read := 0;
    if p_after is not null then
        v_way := p_after ->> 'way';
        if v_way is null or v_way <> all (v_ways) then
            raise data_exception using message = 'It belongs to another filter.';
        end if;
        v_position := jsonb_populate_record(null::pgqueue.jobs, p_after -> 'place');
        v_ways := v_ways[array_position(v_ways, v_way):];
    end if;

    foreach v_way in array v_ways loop
        if v_position is null then
            v_position.id := 0;
            v_position.state := 'waiting';
            v_position.key := '';
            v_position.blocked_on := '';
            v_position.priority := -32768;
            v_position.resumed := false;
            v_position.ready_at := '-infinity';
        end if;
        loop
            v_jumped := false;
            v_left := p_rows - rows_read;
            v_rows := pgqueue._open_live(v_way, p_filter, v_job_ids, v_position, v_left);
            loop
                fetch v_rows into v_row;
                exit when not found;
                rows_read := rows_read + 1;
                v_position.id := v_row.id;
                v_position.state := v_row.state;
                v_position.priority := v_row.priority;
                v_position.resumed := v_row.resumed;
                v_position.ready_at := v_row.ready_at;
                v_position.key := coalesce(v_row.key, '');
                v_position.blocked_on := v_row.blocked_on;
                if v_row.state = any (v_states)
                    and (v_queue is null or v_row.queue = v_queue)
                    and (v_task is null or v_row.task = v_task)
                    and (v_created_after is null or v_row.created_at >= v_created_after)
                    and (v_created_before is null or v_row.created_at < v_created_before)
                    and (not v_not_due or v_row.ready_at > v_now)
                    -- Each job is found in one way only.
                    and (v_way <> 'held' or v_row.state = 'blocked')
                    and (v_way <> 'parked' or v_row.key is null or v_row.blocked_on = '@parents')
                    and (v_row.state <> 'executing' or v_row.cancel_requested_at is null)
                then
                    ids := ids || v_row.id;
                    exit when cardinality(ids) >= p_matches;
                elsif v_way = 'ready' and v_not_due and v_row.ready_at <= v_now then
                    -- Jobs that are due already are skipped in this lane.
                    v_position.ready_at := v_now;
                    v_position.id := 9223372036854775807;
                    v_jumped := true;
                    exit;
                end if;
            end loop;
            close v_rows;
            if rows_read >= p_rows or cardinality(ids) >= p_matches then
                next_after := jsonb_build_object(
                    'way', v_way,
                    'place', jsonb_strip_nulls(jsonb_build_object(
                        'id', v_position.id, 'state', v_position.state, 'priority', v_position.priority, 'resumed', v_position.resumed,
                        'ready_at', v_position.ready_at, 'key', v_position.key, 'blocked_on', v_position.blocked_on
                    ))
                );
                return;
            end if;
            exit when not v_jumped;
        end loop;
        v_position := null;
    end loop;
    next_after := null;
end
$$;

comment on function pgqueue._find_live(jsonb, jsonb, integer, integer) is 'Private: the part of _find_jobs that reads jobs.';

create or replace function pgqueue._open_live(
    p_way text, p_filter jsonb, p_job_ids bigint[], p_position pgqueue.jobs, p_left integer
)
returns refcursor
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_rows refcursor;
begin
    case p_way
        when 'all' then
            open v_rows for select l.* from pgqueue._live_by_number(p_position.id, p_left) l;
        when 'ids' then
            open v_rows for select l.* from pgqueue._live_by_id(p_job_ids, p_position.id, p_left) l;
        when 'group' then
            open v_rows for
            select l.*
            from pgqueue._live_of_group((p_filter ->> 'group_id')::bigint, p_position.state, p_position.id, p_left) l;
        when 'key' then
            open v_rows for select l.* from pgqueue._live_of_key((p_filter ->> 'queue'), (p_filter ->> 'key'), p_position.id, p_left) l;
        when 'held' then
            open v_rows for select l.* from pgqueue._live_held((p_filter ->> 'queue'), p_position.key, p_position.id, p_left) l;
        when 'parked' then
            open v_rows for
            select l.*
            from pgqueue._live_limited(
                p_position.blocked_on, p_position.priority, p_position.ready_at, p_position.id, p_left
            ) l;
        when 'ready' then
            open v_rows for
            select l.*
            from pgqueue._live_ready(
                (p_filter ->> 'queue'), p_position.priority, p_position.resumed, p_position.ready_at, p_position.id, p_left
            ) l;
        when 'executing' then
            open v_rows for select l.* from pgqueue._live_executing((p_filter ->> 'queue'), p_position.id, p_left) l;
    end case;
    return v_rows;
end
$$;

comment on function pgqueue._open_live(text, jsonb, bigint[], pgqueue.jobs, integer) is
    'Private: a cursor over up to p_left live jobs, by one index, from a position on.';

create or replace function pgqueue._live_by_number(p_after bigint, p_limit integer)
returns setof pgqueue.bulk_row
language sql
stable
parallel safe
as $$
    select
        j.id, j.queue, j.task, j.state, j.created_at, j.priority, j.resumed, j.ready_at, j.key, j.blocked_on,
        j.cancel_requested_at
    from pgqueue.jobs j
    where j.id > p_after
    order by j.id
    limit p_limit
$$;

comment on function pgqueue._live_by_number(bigint, integer) is
    'Private: live jobs in id order, by the primary key.';

create or replace function pgqueue._live_by_id(p_ids bigint[], p_after bigint, p_limit integer)
returns setof pgqueue.bulk_row
language sql
stable
parallel safe
as $$
    select
        j.id, j.queue, j.task, j.state, j.created_at, j.priority, j.resumed, j.ready_at, j.key, j.blocked_on,
        j.cancel_requested_at
    from pg_catalog.unnest(p_ids) w (id)
    cross join lateral (
        select x.* from pgqueue.jobs x where x.id = w.id and w.id > p_after limit 1
    ) j
    limit p_limit
$$;

comment on function pgqueue._live_by_id(bigint[], bigint, integer) is
    'Private: live jobs named by id.';

create or replace function pgqueue._live_ready(
    p_queue text, p_priority smallint, p_resumed boolean, p_ready_at timestamptz, p_after bigint, p_limit integer
)
returns setof pgqueue.bulk_row
language sql
stable
parallel safe
as $$
    select
        j.id, j.queue, j.task, j.state, j.created_at, j.priority, j.resumed, j.ready_at, j.key, j.blocked_on,
        j.cancel_requested_at
    from pgqueue.jobs j
    where j.state in ('waiting', 'failed')
        and j.queue = p_queue
        and (j.priority, j.resumed, j.ready_at, j.id) > (p_priority, p_resumed, p_ready_at, p_after)
    order by j.queue, j.priority, j.resumed, j.ready_at, j.id
    limit p_limit
$$;

comment on function pgqueue._live_ready(text, smallint, boolean, timestamptz, bigint, integer) is
    'Private: waiting and failed jobs of a queue, by jobs_ready.';

create or replace function pgqueue._live_held(p_queue text, p_key text, p_after bigint, p_limit integer)
returns setof pgqueue.bulk_row
language sql
stable
parallel safe
as $$
    select
        j.id, j.queue, j.task, j.state, j.created_at, j.priority, j.resumed, j.ready_at, j.key, j.blocked_on,
        j.cancel_requested_at
    from pgqueue.jobs j
    where j.key is not null
        and (j.state = 'blocked' or (j.state in ('waiting', 'failed') and j.reservation > 0))
        and j.blocked_on is distinct from '@parents'
        and j.queue = p_queue
        and (j.key, j.id) > (p_key, p_after)
    order by j.queue, j.key, j.id
    limit p_limit
$$;

comment on function pgqueue._live_held(text, text, bigint, integer) is
    'Private: jobs of a queue that hold positions in keys, by jobs_key_held.';

create or replace function pgqueue._live_of_group(
    p_group_id bigint, p_state pgqueue.job_state, p_after bigint, p_limit integer
)
returns setof pgqueue.bulk_row
language sql
stable
parallel safe
as $$
    select
        j.id, j.queue, j.task, j.state, j.created_at, j.priority, j.resumed, j.ready_at, j.key, j.blocked_on,
        j.cancel_requested_at
    from pgqueue.jobs j
    where j.group_id is not null
        and j.group_id = p_group_id
        and (j.state, j.id) > (p_state, p_after)
    order by j.group_id, j.state, j.id
    limit p_limit
$$;

comment on function pgqueue._live_of_group(bigint, pgqueue.job_state, bigint, integer) is
    'Private: live members of a group, by jobs_group.';

-- Priority descends in jobs_parked: three ranges, one after the other.
create or replace function pgqueue._live_limited(
    p_blocked_on text, p_priority smallint, p_ready_at timestamptz, p_after bigint, p_limit integer
)
returns setof pgqueue.bulk_row
language sql
stable
parallel safe
as $$
    select
        j.id, j.queue, j.task, j.state, j.created_at, j.priority, j.resumed, j.ready_at, j.key, j.blocked_on,
        j.cancel_requested_at
    from (
        (
            select x.*
            from pgqueue.jobs x
            where x.state = 'blocked'
                and x.blocked_on is not null
                and x.blocked_on = p_blocked_on
                and x.priority = p_priority
                and (x.ready_at, x.id) > (p_ready_at, p_after)
            order by x.blocked_on, x.priority desc, x.ready_at, x.id
            limit p_limit
        )
        union all
        (
            select x.*
            from pgqueue.jobs x
            where x.state = 'blocked'
                and x.blocked_on is not null
                and x.blocked_on = p_blocked_on
                and x.priority < p_priority
            order by x.blocked_on, x.priority desc, x.ready_at, x.id
            limit p_limit
        )
        union all
        (
            select x.*
            from pgqueue.jobs x
            where x.state = 'blocked'
                and x.blocked_on is not null
                and x.blocked_on > p_blocked_on
            order by x.blocked_on, x.priority desc, x.ready_at, x.id
            limit p_limit
        )
    ) j
    limit p_limit
$$;

comment on function pgqueue._live_limited(text, smallint, timestamptz, bigint, integer) is
    'Private: jobs that limits block, by jobs_parked.';

-- The fleet executes few enough jobs to sort them.
create or replace function pgqueue._live_executing(p_queue text, p_after bigint, p_limit integer)
returns setof pgqueue.bulk_row
language sql
stable
parallel safe
as $$
    select
        j.id, j.queue, j.task, j.state, j.created_at, j.priority, j.resumed, j.ready_at, j.key, j.blocked_on,
        j.cancel_requested_at
    from (
        select e.*
        from pgqueue.jobs e
        where e.state = 'executing' and e.queue = p_queue
        order by e.lease_expires_at
        limit 1000000
    ) j
    where j.id > p_after
    order by j.id
    limit p_limit
$$;

comment on function pgqueue._live_executing(text, bigint, integer) is
    'Private: executing jobs of a queue, by jobs_lease.';

create or replace function pgqueue._live_of_key(p_queue text, p_key text, p_after bigint, p_limit integer)
returns setof pgqueue.bulk_row
language sql
stable
parallel safe
as $$
    select
        j.id, j.queue, j.task, j.state, j.created_at, j.priority, j.resumed, j.ready_at, j.key, j.blocked_on,
        j.cancel_requested_at
    from (
        (
            select w.*
            from pgqueue.jobs w
            where w.key is not null
                and w.state = 'waiting'
                and w.reservation = 0
                and w.queue = p_queue
                and w.key = p_key
                and w.id > p_after
            order by w.queue, w.key, w.id
            limit p_limit
        )
        union all
        (
            select h.*
            from pgqueue.jobs h
            where h.key is not null
                and (h.state = 'blocked' or (h.state in ('waiting', 'failed') and h.reservation > 0))
                and h.blocked_on is distinct from '@parents'
                and h.queue = p_queue
                and h.key = p_key
                and h.id > p_after
            order by h.queue, h.key, h.id
            limit p_limit
        )
        union all
        (
            select c.*
            from pgqueue.jobs c
            where c.key is not null
                and c.blocked_on = '@parents'
                and c.queue = p_queue
                and c.key = p_key
                and c.id > p_after
            order by c.queue, c.key, c.id
            limit p_limit
        )
        union all
        (
            select r.*
            from (
                select x.*
                from pgqueue.jobs x
                where x.state = 'executing'
                    and x.key is not null
                    and (x.leader is null or x.leader = x.id)
                    and x.queue = p_queue
                    and x.key >= p_key collate "C"
                    and x.key <= p_key collate "C"
                order by x.key, x.queue
                limit 1
            ) e
            cross join lateral (
                select e.*
                union all
                select f.* from pgqueue.jobs f where f.id = any (e.followers) and f.leader = e.id
            ) r
            where r.id > p_after
        )
    ) j
    order by j.id
    limit p_limit
$$;

comment on function pgqueue._live_of_key(text, text, bigint, integer) is
    'Private: jobs of a key, by the indexes of keys; the executing ones with their batch.';
