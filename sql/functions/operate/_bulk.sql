-- Bulk calls: find jobs by filter, then lock and change at most max_jobs of them.
--
-- _find_jobs is a search, oldest first: it reads without locks and ends at enough matches or enough rows, so a call costs
-- the same among ten jobs and among ten million. Parents are older than their children: a retry brings them back first.
-- _bulk then locks the jobs found, in id order, FOR UPDATE SKIP LOCKED, and checks state and queue again: it never waits,
-- and skips jobs that are locked or were changed meanwhile. A last read, without locks, counts the remaining matches.

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
    p_everything boolean,
    p_group_id bigint default null
)
returns jsonb
language plpgsql
stable
parallel safe
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
        p_state, p_queue, p_task, p_created_after, p_created_before, p_finished_after, p_finished_before, p_job_ids,
        p_group_id
    ) = 0 and not coalesce(p_everything, false)
    then
        perform pgqueue._refuse(
            'no filter is given', 'It would act on every job.',
            'Give queue, task, state, a time or job_ids, or give everything => true.'
        );
    end if;
    if p_group_id is not null and num_nonnulls(p_key, p_job_ids) > 0 then
        perform pgqueue._refuse(
            'group_id is given with key or job_ids', 'The members of a group are found by the group alone.',
            'Give group_id without key and job_ids.'
        );
    end if;
    return jsonb_strip_nulls(jsonb_build_object(
        'states', case when p_state is null then p_states else array[p_state] end,
        'queue', p_queue, 'task', p_task, 'key', p_key,
        'created_after', p_created_after, 'created_before', p_created_before,
        'finished_after', p_finished_after, 'finished_before', p_finished_before,
        'job_ids', p_job_ids, 'group_id', p_group_id
    ));
end
$$;

-- Applies p_action to up to p_max_jobs jobs of a filter, from p_after on.
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
    v_group_ids bigint[];
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
            array_agg(l.id) filter (where l.state <> v_executing and not l.is_group),
            array_agg(l.reservation) filter (where l.state <> v_executing and not l.is_group),
            array_agg(l.id) filter (where l.state = v_executing),
            array_agg(l.id) filter (where l.is_group)
        into v_ids, v_reservations, v_running_ids, v_group_ids
        from wanted w
        cross join lateral (
            -- A group ends with its members; it can be deleted like any job.
            select j.id, j.reservation, j.state, j.task = '@group' and p_action <> 'delete_many' as is_group
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
        if p_action = 'cancel_many' and v_group_ids is not null then
            perform pgqueue._cancel_groups(v_group_ids);
            changed := changed + cardinality(v_group_ids);
        end if;
    end if;
    if v_found.ended_ids <> '{}' then
        select p.* into v_places
        from pgqueue._lock_history(
            v_found.ended_ids, v_found.granularities, v_found.kept_untils, v_states, p_action <> 'retry_many'
        ) p;
        if p_action = 'retry_many' and cardinality(v_places.ids) < cardinality(v_found.ended_ids) then
            select p.*
            into v_places
            from pgqueue._parents_first(
                v_found.ended_ids, v_places.ids, v_places.granularities, v_places.kept_untils
            ) p;
        end if;
        changed := changed + case
            when v_places.ids is null then 0
            when p_action = 'retry_many' then pgqueue._requeue(v_places.ids, v_places.granularities, v_places.kept_untils)
            else pgqueue._delete_history(v_places.ids, v_places.granularities, v_places.kept_untils)
        end;
        if p_action = 'retry_many' and v_places.ids is not null then
            perform pgqueue._reopen_children(v_places.ids);
        end if;
    end if;
    perform pgqueue._audit(p_action, p_filter, changed);
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

-- Up to p_matches jobs of a filter among about p_rows rows from p_after on, and where it stopped; next_after null: at the
-- end.
create or replace function pgqueue._find_jobs(
    p_filter jsonb, p_after jsonb, p_matches integer, p_rows integer,
    out live_ids bigint[], out ended_ids bigint[], out granularities "char"[], out kept_untils timestamptz[],
    out next_after jsonb
)
returns record
language plpgsql
as $$
declare
    v_filter pgqueue.job_filter := pgqueue._read_filter(jsonb_strip_nulls(jsonb_build_object(
        'states', p_filter -> 'states', 'queues', pgqueue._exactly(p_filter ->> 'queue'), 'tasks', pgqueue._exactly(p_filter ->> 'task'),
        'keys', pgqueue._exactly(p_filter ->> 'key'), 'ids', p_filter -> 'job_ids',
        'groups', case when p_filter ? 'group_id' then jsonb_build_array(p_filter -> 'group_id') end,
        'created_from', p_filter -> 'created_after', 'created_to', p_filter -> 'created_before',
        'finished_from', p_filter -> 'finished_after', 'finished_to', p_filter -> 'finished_before',
        'run_from', case when p_filter ? 'not_due' then pgqueue._clock() + interval '1 us' end
    )));
    v_found record;
begin
    if p_after is not null and coalesce(p_after ->> 'id', '') !~ '^[0-9]{1,18}$' then
        perform pgqueue._refuse(
            'after was not returned by a call with these arguments', null,
            'Give after as next_after of the last call, or leave it out.'
        );
    end if;
    v_filter.id_from := (p_after ->> 'id')::bigint + 1;
    select f.matches, f.next_id into v_found from pgqueue._search_by_id(v_filter, true, p_matches, p_rows) f;
    select
        coalesce(array_agg(m.id) filter (where m.granularity is null), '{}'),
        coalesce(array_agg(m.id) filter (where m.granularity is not null), '{}'),
        coalesce(array_agg(m.granularity) filter (where m.granularity is not null), '{}'),
        coalesce(array_agg(m.kept_until) filter (where m.granularity is not null), '{}')
    into live_ids, ended_ids, granularities, kept_untils
    from unnest(v_found.matches) m
    where not m.is_asked_to_stop;
    next_after := case when v_found.next_id is not null then jsonb_build_object('id', v_found.next_id) end;
end
$$;

-- In a filter of search(), a star at the end is any end.
create or replace function pgqueue._exactly(p_name text)
returns text[]
language sql
immutable
parallel safe
as $$
    select case when p_name is not null then array[pg_catalog.regexp_replace(p_name, e'\\*$', e'\\\\*')] end
$$;

-- Locks rows of history in id order, SKIP LOCKED, and returns them.
create or replace function pgqueue._lock_history(
    p_ids bigint[], p_granularities "char"[], p_kept_untils timestamptz[], p_states pgqueue.job_state[], p_groups boolean,
    out ids bigint[], out granularities "char"[], out kept_untils timestamptz[]
)
returns record
language plpgsql
as $$
begin
    with wanted as materialized (
        select w.* from unnest(p_ids, p_granularities, p_kept_untils) w (id, granularity, kept_until) order by w.id
    )
    select array_agg(l.id), array_agg(l.granularity), array_agg(l.kept_until)
    into ids, granularities, kept_untils
    from wanted w
    cross join lateral (
        select h.id, h.granularity, h.kept_until
        from pgqueue.history h
        where h.granularity = w.granularity and h.kept_until = w.kept_until and h.id = w.id and h.state = any (p_states)
            -- A group comes back with its members.
            and (p_groups or h.task <> '@group')
        for update skip locked
    ) l;
end
$$;
