-- Bulk: what one call does to many jobs. Finds jobs by filter, then locks and changes at most max_jobs of them.
--
-- _find_jobs looks without locks, along one index after the other, from where the last call stopped: it ends at enough
-- matches or enough rows, so a call costs the same among ten jobs and among ten million. _bulk then locks what was
-- found, in the order of ids, FOR UPDATE SKIP LOCKED, and looks again at state and queue: it never waits, and what
-- somebody holds or has changed meanwhile is passed over. A last look, without locks, counts what is left.
-- Live jobs of a queue are read by jobs_ready, jobs_key_held, jobs_parked and jobs_lease, those of a key by its
-- indexes, all others by the primary key; the morgue by history_unfinished, what succeeded by history_id.

create or replace function pgqueue._bulk_filter(
    p_states text[],
    p_state text,
    p_queue text,
    p_task text,
    p_key text,
    p_created_after timestamptz,
    p_created_before timestamptz,
    p_finished_after timestamptz,
    p_finished_before timestamptz,
    p_job_ids bigint[],
    p_everything boolean
)
returns jsonb
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_state is not null and p_state <> all (p_states) then
        perform pgqueue._refuse(
            'state is not one that this function acts on', format('It is %s.', quote_literal(p_state)),
            format('Give state as %s, or leave it out.', array_to_string(p_states, ', '))
        );
    end if;
    if p_queue is not null then
        perform pgqueue._check_name('queue', p_queue);
    end if;
    if p_task is not null then
        perform pgqueue._check_name('task', p_task);
    end if;
    if p_key is not null then
        perform pgqueue._check_name('key', p_key, 512);
        if p_queue is null then
            perform pgqueue._refuse(
                'key is given without queue', 'A key is one of a queue.', 'Give queue with key.'
            );
        end if;
    end if;
    if array_ndims(p_job_ids) > 1 or array_position(p_job_ids, null) is not null or cardinality(p_job_ids) > 10000 then
        perform pgqueue._refuse(
            'job_ids must be a plain array of at most 10000 ids without nulls', format('It has %s elements.', cardinality(p_job_ids)),
            'Give job_ids in several calls.'
        );
    end if;
    if num_nonnulls(
        p_state, p_queue, p_task, p_created_after, p_created_before, p_finished_after, p_finished_before, p_job_ids
    ) = 0 and not coalesce(p_everything, false)
    then
        perform pgqueue._refuse(
            'no filter is given', 'It would act on every job there is.',
            'Give queue, task, state, a time or job_ids, or say everything => true.'
        );
    end if;
    return jsonb_strip_nulls(jsonb_build_object(
        'states', case when p_state is null then p_states else array[p_state] end,
        'queue', p_queue, 'task', p_task, 'key', p_key,
        'created_after', p_created_after, 'created_before', p_created_before,
        'finished_after', p_finished_after, 'finished_before', p_finished_before,
        'job_ids', p_job_ids
    ));
end
$$;

comment on function pgqueue._bulk_filter(
    text[], text, text, text, text, timestamptz, timestamptz, timestamptz, timestamptz, bigint[], boolean
) is 'Private: the filter of a bulk call, checked; p_states are those that it may act on.';

create or replace function pgqueue._bulk(
    p_action text,
    p_filter jsonb,
    p_max_jobs integer,
    p_after jsonb,
    out changed bigint,
    out passed_over bigint,
    out left_over bigint,
    out is_exact boolean,
    out next_after jsonb
)
returns record
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    -- Variables: see extend.
    v_states pgqueue.job_state[];
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
    v_queue text := p_filter ->> 'queue';
    v_found record;
    v_rest record;
    v_ids bigint[];
    v_reservations bigint[];
    v_running_ids bigint[];
    v_places record;
begin
    if p_max_jobs is null or p_max_jobs not between 1 and 10000 then
        perform pgqueue._refuse(
            'max_jobs must be between 1 and 10000', format('It is %s.', coalesce(p_max_jobs::text, 'null')),
            'Give max_jobs within this range, and call again with after => next_after.'
        );
    end if;
    perform pgqueue._require_read_committed(p_action);
    select array_agg(s.name::pgqueue.job_state)
    into v_states
    from jsonb_array_elements_text(p_filter -> 'states') s (name);

    select f.* into v_found from pgqueue._find_jobs(p_filter, p_after, p_max_jobs, 50000) f;
    changed := 0;
    if v_found.live_ids <> '{}' then
        with wanted as materialized (
            select w.id from unnest(v_found.live_ids) w (id) order by w.id
        )
        select
            array_agg(l.id) filter (where l.state <> v_executing),
            array_agg(l.reservation) filter (where l.state <> v_executing),
            array_agg(l.id) filter (where l.state = v_executing)
        into v_ids, v_reservations, v_running_ids
        from wanted w
        cross join lateral (
            select j.id, j.reservation, j.state
            from pgqueue.jobs j
            where j.id = w.id and j.state = any (v_states) and (v_queue is null or j.queue = v_queue)
            for update skip locked
        ) l;
        changed := coalesce(
            case
                when v_ids is null then 0
                when p_action = 'run_now_many' then pgqueue._run_now(v_ids)
                when p_action = 'cancel_many' then
                    cardinality(pgqueue._finish(v_ids, v_reservations, false, 'cancelled'))
                when p_action = 'kill_many' then
                    cardinality(pgqueue._finish(
                        v_ids, v_reservations, false, 'dead', null,
                        '{"class": "Killed", "message": "an operator sent it to the dead"}'
                    ))
                else cardinality(pgqueue._delete_jobs(v_ids))
            end,
            0
        ) + coalesce(pgqueue._request_cancel(v_running_ids), 0);
    end if;
    if v_found.ended_ids <> '{}' then
        select p.* into v_places
        from pgqueue._lock_history(v_found.ended_ids, v_found.grains, v_found.kept_untils, v_states) p;
        changed := changed + case
            when v_places.ids is null then 0
            when p_action = 'retry_many' then pgqueue._requeue(v_places.ids, v_places.grains, v_places.kept_untils)
            else pgqueue._delete_history(v_places.ids, v_places.grains, v_places.kept_untils)
        end;
    end if;
    passed_over := cardinality(v_found.live_ids) + cardinality(v_found.ended_ids) - changed;

    next_after := v_found.next_after;
    left_over := 0;
    is_exact := true;
    if next_after is not null then
        select r.* into v_rest from pgqueue._find_jobs(p_filter, next_after, 10000, 50000) r;
        left_over := (cardinality(v_rest.live_ids) + cardinality(v_rest.ended_ids))::bigint;
        is_exact := v_rest.next_after is null;
        if left_over = 0 then
            next_after := v_rest.next_after;
        end if;
    end if;
end
$$;

comment on function pgqueue._bulk(text, jsonb, integer, jsonb) is
    'Private: does what p_action says to up to p_max_jobs jobs of a filter, from p_after on.';

create or replace function pgqueue._find_jobs(
    p_filter jsonb,
    p_after jsonb,
    p_matches integer,
    p_rows integer,
    out live_ids bigint[],
    out ended_ids bigint[],
    out grains "char"[],
    out kept_untils timestamptz[],
    out next_after jsonb
)
returns record
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_found record;
    v_live boolean;
    v_rows integer := p_rows;
begin
    live_ids := '{}';
    ended_ids := '{}';
    grains := '{}';
    kept_untils := '{}';
    begin
        v_live := p_filter -> 'states' ?| '{waiting,failed,blocked,executing}'
            and not p_filter ?| '{finished_after,finished_before}';
        if not v_live and p_after is not null and p_after -> 'ended' is null then
            raise data_exception using message = 'It belongs to another filter.';
        end if;
        if v_live and p_after -> 'ended' is null then
            select f.* into v_found from pgqueue._find_live(p_filter, p_after, p_matches, p_rows) f;
            live_ids := v_found.ids;
            next_after := v_found.next_after;
            if next_after is not null then
                return;
            end if;
            v_rows := greatest(p_rows - v_found.looked_at, 1);
        end if;
        if p_filter -> 'states' ?| '{succeeded,dead,cancelled}' then
            select f.*
            into v_found
            from pgqueue._find_ended(
                p_filter, case when p_after -> 'ended' is not null then p_after end, p_matches - cardinality(live_ids), v_rows
            ) f;
            ended_ids := v_found.ids;
            grains := v_found.grains;
            kept_untils := v_found.kept_untils;
            next_after := v_found.next_after;
        end if;
    exception when data_exception or invalid_parameter_value then
        -- The filter was checked: only p_after is a stranger's.
        perform pgqueue._refuse(
            'after is not what a call like this one returned', sqlerrm, 'Give after as next_after of the last call, or leave it out.'
        );
    end;
end
$$;

comment on function pgqueue._find_jobs(jsonb, jsonb, integer, integer) is
    'Private: up to p_matches jobs of a filter among up to p_rows rows from p_after on, and where it stopped; next_after null: at the end.';

create or replace function pgqueue._find_live(
    p_filter jsonb, p_after jsonb, p_matches integer, p_rows integer,
    out ids bigint[], out looked_at integer, out next_after jsonb
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
    v_place pgqueue.jobs;
    v_row record;
    v_jumped boolean;
begin
    v_ways := case
        when p_filter ? 'job_ids' then '{ids}'
        when v_key is not null then '{key}'
        when v_queue is not null then array_remove(
            -- What is released on the way, because the job ahead of it went, stands in ready: that comes later.
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
    looked_at := 0;
    if p_after is not null then
        v_way := p_after ->> 'way';
        if v_way is null or v_way <> all (v_ways) then
            raise data_exception using message = 'It belongs to another filter.';
        end if;
        v_place := jsonb_populate_record(null::pgqueue.jobs, p_after -> 'place');
        v_ways := v_ways[array_position(v_ways, v_way):];
    end if;

    foreach v_way in array v_ways loop
        if v_place is null then
            v_place.id := 0;
            v_place.key := '';
            v_place.blocked_on := '';
            v_place.priority := -32768;
            v_place.resumed := false;
            v_place.ready_at := '-infinity';
        end if;
        loop
            v_jumped := false;
            for v_row in
                select
                    s.*,
                    s.state = any (v_states)
                        and (v_queue is null or s.queue = v_queue)
                        and (v_task is null or s.task = v_task)
                        and (v_created_after is null or s.created_at >= v_created_after)
                        and (v_created_before is null or s.created_at < v_created_before)
                        and (not v_not_due or s.ready_at > v_now)
                        -- Each stands on one of the ways.
                        and (v_way <> 'held' or s.state = 'blocked')
                        and (v_way <> 'parked' or s.key is null)
                        and (s.state <> 'executing' or s.cancel_requested_at is null) as fits
                from (
                    (
                        select
                            j.id, j.queue, j.task, j.state, j.created_at, j.priority, j.resumed, j.ready_at, j.key,
                            j.blocked_on, j.cancel_requested_at
                        from pgqueue.jobs j
                        where v_way = 'all' and j.id > v_place.id
                        order by j.id
                        limit p_rows - looked_at
                    )
                    union all
                    (
                        select
                            j.id, j.queue, j.task, j.state, j.created_at, j.priority, j.resumed, j.ready_at, j.key,
                            j.blocked_on, j.cancel_requested_at
                        from unnest(case when v_way = 'ids' then v_job_ids else '{}' end) w (id)
                        cross join lateral (
                            select x.* from pgqueue.jobs x where x.id = w.id and w.id > v_place.id limit 1
                        ) j
                        limit p_rows - looked_at
                    )
                    union all
                    (
                        select
                            j.id, j.queue, j.task, j.state, j.created_at, j.priority, j.resumed, j.ready_at, j.key,
                            j.blocked_on, j.cancel_requested_at
                        from pgqueue.jobs j
                        where v_way = 'ready'
                            and j.state in ('waiting', 'failed')
                            and j.queue = v_queue
                            and (j.priority, j.resumed, j.ready_at, j.id)
                                > (v_place.priority, v_place.resumed, v_place.ready_at, v_place.id)
                        order by j.queue, j.priority, j.resumed, j.ready_at, j.id
                        limit p_rows - looked_at
                    )
                    union all
                    (
                        select
                            j.id, j.queue, j.task, j.state, j.created_at, j.priority, j.resumed, j.ready_at, j.key,
                            j.blocked_on, j.cancel_requested_at
                        from pgqueue.jobs j
                        where v_way = 'held'
                            and j.key is not null
                            and (j.state = 'blocked' or (j.state in ('waiting', 'failed') and j.reservation > 0))
                            and j.queue = v_queue
                            and (j.key, j.id) > (v_place.key, v_place.id)
                        order by j.queue, j.key, j.id
                        limit p_rows - looked_at
                    )
                    union all
                    (
                        -- Its priority descends: three ranges, one after the other.
                        select
                            j.id, j.queue, j.task, j.state, j.created_at, j.priority, j.resumed, j.ready_at, j.key,
                            j.blocked_on, j.cancel_requested_at
                        from (
                            (
                                select j.*
                                from pgqueue.jobs j
                                where v_way = 'parked'
                                    and j.state = 'blocked'
                                    and j.blocked_on is not null
                                    and j.blocked_on = v_place.blocked_on
                                    and j.priority = v_place.priority
                                    and (j.ready_at, j.id) > (v_place.ready_at, v_place.id)
                                order by j.blocked_on, j.priority desc, j.ready_at, j.id
                                limit p_rows - looked_at
                            )
                            union all
                            (
                                select j.*
                                from pgqueue.jobs j
                                where v_way = 'parked'
                                    and j.state = 'blocked'
                                    and j.blocked_on is not null
                                    and j.blocked_on = v_place.blocked_on
                                    and j.priority < v_place.priority
                                order by j.blocked_on, j.priority desc, j.ready_at, j.id
                                limit p_rows - looked_at
                            )
                            union all
                            (
                                select j.*
                                from pgqueue.jobs j
                                where v_way = 'parked'
                                    and j.state = 'blocked'
                                    and j.blocked_on is not null
                                    and j.blocked_on > v_place.blocked_on
                                order by j.blocked_on, j.priority desc, j.ready_at, j.id
                                limit p_rows - looked_at
                            )
                        ) j
                        limit p_rows - looked_at
                    )
                    union all
                    (
                        -- What executes is as much as the fleet can carry: it may be sorted.
                        select
                            j.id, j.queue, j.task, j.state, j.created_at, j.priority, j.resumed, j.ready_at, j.key,
                            j.blocked_on, j.cancel_requested_at
                        from (
                            select e.*
                            from pgqueue.jobs e
                            where v_way = 'executing' and e.state = 'executing' and e.queue = v_queue
                            order by e.lease_expires_at
                            limit 1000000
                        ) j
                        where j.id > v_place.id
                        order by j.id
                        limit p_rows - looked_at
                    )
                    union all
                    (
                        select
                            j.id, j.queue, j.task, j.state, j.created_at, j.priority, j.resumed, j.ready_at, j.key,
                            j.blocked_on, j.cancel_requested_at
                        from (
                            (
                                select w.*
                                from pgqueue.jobs w
                                where v_way = 'key'
                                    and w.key is not null
                                    and w.state = 'waiting'
                                    and w.reservation = 0
                                    and w.queue = v_queue
                                    and w.key = v_key
                                    and w.id > v_place.id
                                order by w.queue, w.key, w.id
                                limit p_rows - looked_at
                            )
                            union all
                            (
                                select h.*
                                from pgqueue.jobs h
                                where v_way = 'key'
                                    and h.key is not null
                                    and (h.state = 'blocked' or (h.state in ('waiting', 'failed') and h.reservation > 0))
                                    and h.queue = v_queue
                                    and h.key = v_key
                                    and h.id > v_place.id
                                order by h.queue, h.key, h.id
                                limit p_rows - looked_at
                            )
                            union all
                            (
                                select r.*
                                from (
                                    select x.*
                                    from pgqueue.jobs x
                                    where v_way = 'key'
                                        and x.state = 'executing'
                                        and x.key is not null
                                        and (x.leader is null or x.leader = x.id)
                                        and x.queue = v_queue
                                        and x.key >= v_key collate "C"
                                        and x.key <= v_key collate "C"
                                    order by x.key, x.queue
                                    limit 1
                                ) e
                                cross join lateral (
                                    select e.*
                                    union all
                                    select f.* from pgqueue.jobs f where f.id = any (e.followers) and f.leader = e.id
                                ) r
                                where r.id > v_place.id
                            )
                        ) j
                        order by j.id
                        limit p_rows - looked_at
                    )
                ) s
            loop
                looked_at := looked_at + 1;
                v_place.id := v_row.id;
                v_place.priority := v_row.priority;
                v_place.resumed := v_row.resumed;
                v_place.ready_at := v_row.ready_at;
                v_place.key := coalesce(v_row.key, '');
                v_place.blocked_on := v_row.blocked_on;
                if v_row.fits then
                    ids := ids || v_row.id;
                    exit when cardinality(ids) >= p_matches;
                elsif v_way = 'ready' and v_not_due and v_row.ready_at <= v_now then
                    -- What is due already need not be looked at, in this lane.
                    v_place.ready_at := v_now;
                    v_place.id := 9223372036854775807;
                    v_jumped := true;
                    exit;
                end if;
            end loop;
            if looked_at >= p_rows or cardinality(ids) >= p_matches then
                next_after := jsonb_build_object(
                    'way', v_way,
                    'place', jsonb_strip_nulls(jsonb_build_object(
                        'id', v_place.id, 'priority', v_place.priority, 'resumed', v_place.resumed,
                        'ready_at', v_place.ready_at, 'key', v_place.key, 'blocked_on', v_place.blocked_on
                    ))
                );
                return;
            end if;
            exit when not v_jumped;
        end loop;
        v_place := null;
    end loop;
    next_after := null;
end
$$;

comment on function pgqueue._find_live(jsonb, jsonb, integer, integer) is 'Private: what _find_jobs finds in jobs.';

create or replace function pgqueue._find_ended(
    p_filter jsonb, p_after jsonb, p_matches integer, p_rows integer,
    out ids bigint[], out grains "char"[], out kept_untils timestamptz[], out next_after jsonb
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
as $$
declare
    v_queue text := p_filter ->> 'queue';
    v_task text := p_filter ->> 'task';
    v_key text := p_filter ->> 'key';
    v_created_after timestamptz := (p_filter ->> 'created_after')::timestamptz;
    v_created_before timestamptz := (p_filter ->> 'created_before')::timestamptz;
    v_finished_after timestamptz := (p_filter ->> 'finished_after')::timestamptz;
    v_finished_before timestamptz := (p_filter ->> 'finished_before')::timestamptz;
    v_states pgqueue.job_state[] := array(
        select s.name::pgqueue.job_state from jsonb_array_elements_text(p_filter -> 'states') s (name)
    );
    v_job_ids bigint[] := array(
        select i.id::bigint from jsonb_array_elements_text(p_filter -> 'job_ids') i (id) order by i.id::bigint
    );
    v_ways text[];
    v_way text;
    v_state pgqueue.job_state;
    v_place pgqueue.history;
    v_row record;
    v_looked_at integer := 0;
begin
    v_ways := case
        when p_filter ? 'job_ids' then '{ids}'
        when 'succeeded' = any (v_states) then '{all}'
        when v_queue is not null then array(
            select s.name::text from unnest(v_states) s (name) where s.name in ('dead', 'cancelled') order by s.name
        )
        else '{unfinished}'
    end;
    ids := '{}';
    grains := '{}';
    kept_untils := '{}';
    if p_after is not null then
        v_way := p_after ->> 'way';
        if v_way is null or v_way <> all (v_ways) then
            raise data_exception using message = 'It belongs to another filter.';
        end if;
        v_place := jsonb_populate_record(null::pgqueue.history, p_after -> 'ended');
        v_ways := v_ways[array_position(v_ways, v_way):];
    end if;

    foreach v_way in array v_ways loop
        if v_place is null then
            v_place.id := 0;
            v_place.queue := '';
            v_place.state := 'waiting';
        end if;
        v_state := case when v_way in ('dead', 'cancelled') then v_way::pgqueue.job_state end;
        for v_row in
            select
                s.*,
                s.state = any (v_states)
                    and (v_queue is null or s.queue = v_queue)
                    and (v_task is null or s.task = v_task)
                    and (v_key is null or s.key = v_key)
                    and (v_created_after is null or s.created_at >= v_created_after)
                    and (v_created_before is null or s.created_at < v_created_before)
                    and (v_finished_after is null or s.finished_at >= v_finished_after)
                    and (v_finished_before is null or s.finished_at < v_finished_before) as fits
            from (
                (
                    select h.id, h.grain, h.kept_until, h.queue, h.task, h.key, h.state, h.created_at, h.finished_at
                    from pgqueue.history h
                    where v_state is not null
                        and h.state <> 'succeeded'
                        and h.queue = v_queue
                        and h.state = v_state
                        and h.id > v_place.id
                    order by h.queue, h.state, h.id
                    limit p_rows - v_looked_at
                )
                union all
                (
                    select h.id, h.grain, h.kept_until, h.queue, h.task, h.key, h.state, h.created_at, h.finished_at
                    from pgqueue.history h
                    where v_way = 'unfinished'
                        and h.state <> 'succeeded'
                        and (h.queue, h.state, h.id) > (v_place.queue, v_place.state, v_place.id)
                    order by h.queue, h.state, h.id
                    limit p_rows - v_looked_at
                )
                union all
                (
                    select h.id, h.grain, h.kept_until, h.queue, h.task, h.key, h.state, h.created_at, h.finished_at
                    from pgqueue.history h
                    where v_way = 'all' and h.id > v_place.id
                    order by h.id
                    limit p_rows - v_looked_at
                )
                union all
                (
                    select h.id, h.grain, h.kept_until, h.queue, h.task, h.key, h.state, h.created_at, h.finished_at
                    from pgqueue.history h
                    where v_way = 'ids' and h.id = any (v_job_ids) and h.id > v_place.id
                    order by h.id
                    limit p_rows - v_looked_at
                )
            ) s
        loop
            v_looked_at := v_looked_at + 1;
            v_place.id := v_row.id;
            v_place.queue := v_row.queue;
            v_place.state := v_row.state;
            if v_row.fits then
                ids := ids || v_row.id;
                grains := grains || v_row.grain;
                kept_untils := kept_untils || v_row.kept_until;
                exit when cardinality(ids) >= p_matches;
            end if;
        end loop;
        if v_looked_at >= p_rows or cardinality(ids) >= p_matches then
            next_after := jsonb_build_object(
                'way', v_way,
                'ended', jsonb_build_object('id', v_place.id, 'queue', v_place.queue, 'state', v_place.state)
            );
            return;
        end if;
        v_place := null;
    end loop;
    next_after := null;
end
$$;

comment on function pgqueue._find_ended(jsonb, jsonb, integer, integer) is
    'Private: what _find_jobs finds in history; grain and kept_until lead to a row''s partition.';

create or replace function pgqueue._lock_history(
    p_ids bigint[], p_grains "char"[], p_kept_untils timestamptz[], p_states pgqueue.job_state[],
    out ids bigint[], out grains "char"[], out kept_untils timestamptz[]
)
returns record
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
begin
    with wanted as materialized (
        select w.* from unnest(p_ids, p_grains, p_kept_untils) w (id, grain, kept_until) order by w.id
    )
    select array_agg(l.id), array_agg(l.grain), array_agg(l.kept_until)
    into ids, grains, kept_untils
    from wanted w
    cross join lateral (
        select h.id, h.grain, h.kept_until
        from pgqueue.history h
        where h.grain = w.grain and h.kept_until = w.kept_until and h.id = w.id and h.state = any (p_states)
        for update skip locked
    ) l;
end
$$;

comment on function pgqueue._lock_history(bigint[], "char"[], timestamptz[], pgqueue.job_state[]) is
    'Private: locks rows of history in the order of ids, passing over those that somebody holds; returns those it got.';

-- The caller has locked the rows.
create or replace function pgqueue._request_cancel(p_job_ids bigint[])
returns bigint
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_workers text[];
    v_count bigint;
begin
    if p_job_ids is null then
        return 0::bigint;
    end if;
    with asked as (
        update pgqueue.jobs j
        set cancel_requested_at = coalesce(j.cancel_requested_at, v_now)
        where j.id = any (p_job_ids)
        returning j.reserved_by
    )
    select count(*), array_agg(distinct a.reserved_by) into v_count, v_workers from asked a;
    if pgqueue._may_notify() then
        perform pg_notify(pgqueue._channel(w.name), 'cancel') from unnest(v_workers) w (name);
    end if;
    return v_count;
end
$$;

comment on function pgqueue._request_cancel(bigint[]) is
    'Private: asks the workers of executing jobs, locked by the caller, to cancel them; returns how many.';
