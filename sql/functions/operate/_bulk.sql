-- Bulk calls: find jobs by filter, then lock and change at most max_jobs of them.
--
-- _find_jobs is a search, oldest first: it reads without locks and ends at enough matches or enough rows, so a call costs
-- the same among ten jobs and among ten million. Parents are older than their children: a retry brings them back first.
-- _bulk then locks the jobs found, in id order, FOR UPDATE SKIP LOCKED, and checks state and queue again: it never waits,
-- and skips jobs that are locked or were changed meanwhile. A last read, without locks, counts the remaining matches.

-- p_given: the arguments of the call, by their names.
create or replace function pgqueue._bulk(
    p_action text, p_given jsonb, p_job_ids bigint[], p_max_jobs integer, p_after jsonb,
    out changed bigint, out passed_over bigint, out left_over bigint, out is_exact boolean, out next_after jsonb
)
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_filter jsonb := pgqueue._bulk_filter(p_action, p_given, p_job_ids);
    v_states pgqueue.job_state[] := array(
        select s.name::pgqueue.job_state from jsonb_array_elements_text(v_filter -> 'states') s (name)
    );
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
    v_queue text := v_filter ->> 'queue';
    v_found record;
    v_live record;
    v_ended record;
    v_rest record;
begin
    perform pgqueue._check_range('max_jobs', p_max_jobs, 1, 10000, 'Give max_jobs within this range, and call again with after => next_after.');
    perform pgqueue._require_read_committed(p_action);
    select f.* into v_found from pgqueue._find_jobs(v_filter, p_after, p_max_jobs, 50000) f;
    changed := 0;
    if v_found.live_ids <> '{}' then
        with wanted as materialized (select w.id from unnest(v_found.live_ids) w (id) order by w.id)
        select
            array_agg(l.id) filter (where l.state <> v_executing and not l.is_group) as ids,
            array_agg(l.reservation) filter (where l.state <> v_executing and not l.is_group) as reservations,
            array_agg(l.id) filter (where l.state = v_executing) as running,
            array_agg(l.id) filter (where l.is_group) as groups
        into v_live
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
                when v_live.ids is null then 0
                when p_action = 'run_now_many' then pgqueue._run_now(v_live.ids)
                when p_action = 'cancel_many' then
                    cardinality(pgqueue._finish(v_live.ids, v_live.reservations, false, 'cancelled'))
                when p_action = 'kill_many' then
                    cardinality(pgqueue._finish(
                        v_live.ids, v_live.reservations, false, 'dead', null,
                        '{"class": "Killed", "message": "an operator sent it to the dead"}'
                    ))
                else cardinality(pgqueue._delete_jobs(v_live.ids))
            end,
            0
        ) + coalesce(pgqueue._request_cancel(v_live.running), 0);
        if p_action = 'cancel_many' and v_live.groups is not null then
            perform pgqueue._cancel_groups(v_live.groups);
            changed := changed + cardinality(v_live.groups);
        end if;
    end if;
    if v_found.ended_ids <> '{}' then
        with wanted as materialized (
            select w.*
            from unnest(v_found.ended_ids, v_found.granularities, v_found.kept_untils) w (id, granularity, kept_until)
            order by w.id
        )
        select array_agg(l.id) as ids, array_agg(l.granularity) as granularities, array_agg(l.kept_until) as kept_untils
        into v_ended
        from wanted w
        cross join lateral (
            select h.id, h.granularity, h.kept_until
            from pgqueue.history h
            where h.granularity = w.granularity and h.kept_until = w.kept_until and h.id = w.id and h.state = any (v_states)
                -- A group comes back with its members.
                and (p_action <> 'retry_many' or h.task <> '@group')
            for update skip locked
        ) l;
        if p_action = 'delete_many' and v_ended.ids is not null then
            changed := changed + pgqueue._delete_history(v_ended.ids, v_ended.granularities, v_ended.kept_untils);
        elsif p_action = 'retry_many' then
            if cardinality(v_ended.ids) < cardinality(v_found.ended_ids) then
                select p.* into v_ended
                from pgqueue._parents_first(v_found.ended_ids, v_ended.ids, v_ended.granularities, v_ended.kept_untils) p;
            end if;
            if v_ended.ids is not null then
                changed := changed + pgqueue._requeue(v_ended.ids, v_ended.granularities, v_ended.kept_untils);
                perform pgqueue._record_retries(v_ended.ids);
                perform pgqueue._reopen_children(v_ended.ids);
            end if;
        end if;
    end if;
    perform pgqueue._audit(p_action, v_filter, changed);
    passed_over := cardinality(v_found.live_ids) + cardinality(v_found.ended_ids) - changed;

    next_after := v_found.next_after;
    left_over := 0;
    is_exact := true;
    if next_after is not null then
        select r.* into v_rest from pgqueue._find_jobs(v_filter, next_after, 10000, 50000) r;
        left_over := (cardinality(v_rest.live_ids) + cardinality(v_rest.ended_ids))::bigint;
        is_exact := v_rest.next_after is null;
        if left_over = 0 then
            next_after := v_rest.next_after;
        end if;
    end if;
end
$$;

-- The given arguments and the states on which the call acts, without nulls, as the audit keeps them.
create or replace function pgqueue._bulk_filter(p_action text, p_given jsonb, p_job_ids bigint[])
returns jsonb
language plpgsql stable
as $$
declare
    v_given jsonb := jsonb_strip_nulls(p_given - 'everything');
    v_everything boolean := coalesce((p_given ->> 'everything')::boolean, false);
    v_states text[] := case p_action
        when 'cancel_many' then '{waiting,failed,blocked,executing}'::text[]
        when 'delete_many' then '{waiting,failed,blocked,succeeded,dead,cancelled}'
        when 'retry_many' then '{dead,cancelled}'
        when 'run_now_many' then '{waiting,failed}'
        -- kill_many and purge_queue
        else '{waiting,failed,blocked}'
    end;
    v_named boolean;
begin
    if v_given ->> 'state' <> all (v_states) then
        perform pgqueue._refuse(
            'state is not one that this function acts on', format('It is %s.', quote_literal(v_given ->> 'state')),
            format('Give state as %s, or leave it out.', array_to_string(v_states, ', '))
        );
    end if;
    perform pgqueue._check_name(n.name, v_given ->> n.name, case n.name when 'key' then 512 else 128 end)
    from unnest('{queue,task,key}'::text[]) n (name)
    where v_given ? n.name or (p_action = 'purge_queue' and n.name = 'queue');
    if v_given ? 'key' and not v_given ? 'queue' then
        perform pgqueue._refuse('key is given without queue', 'A key is one of a queue.', 'Give queue with key.');
    end if;
    if array_ndims(p_job_ids) > 1 or array_position(p_job_ids, null) is not null or cardinality(p_job_ids) > 10000 then
        perform pgqueue._refuse(
            'job_ids must be a plain array of at most 10000 ids without nulls', format('It has %s elements.', cardinality(p_job_ids)),
            'Give job_ids in several calls.'
        );
    end if;
    if p_job_ids is null and v_given - 'key' = '{}' and not v_everything then
        perform pgqueue._refuse(
            'no filter is given', 'It would act on every job.',
            'Give queue, task, state, a time or job_ids, or give everything => true.'
        );
    end if;
    if v_given ? 'group_id' and (v_given ? 'key' or p_job_ids is not null) then
        perform pgqueue._refuse(
            'group_id is given with key or job_ids', 'The members of a group are found by the group alone.',
            'Give group_id without key and job_ids.'
        );
    end if;
    v_named := v_given ?| '{state,group_id}' or p_job_ids is not null;
    if p_action = 'delete_many' and not v_named and not v_everything then
        perform pgqueue._refuse(
            'neither state nor job_ids is given', 'It would delete both live jobs and history.',
            'Give state, such as dead or failed, or job_ids, or everything => true; purge_queue() deletes the waiting jobs of a queue.'
        );
    elsif p_action = 'run_now_many' and cardinality(p_job_ids) = 1
        and exists (select from pgqueue.jobs j where j.id = p_job_ids[1] and j.blocked_on = '@parents')
    then
        -- For a job that was named, the call is refused instead of skipping it.
        perform pgqueue._refuse(
            format('job %s waits for other jobs', p_job_ids[1]), (select e.detail from pgqueue.explain(p_job_ids[1]) e),
            format('Let it start without waiting for them: select pgqueue.release_from_parents(%s);', p_job_ids[1]), '55000'
        );
    end if;
    return v_given - 'state' || jsonb_strip_nulls(jsonb_build_object(
        'states', case
            when v_given ? 'state' then array[v_given ->> 'state']
            when p_action = 'retry_many' and not v_named then '{dead}'
            else v_states
        end,
        'job_ids', p_job_ids, 'not_due', case when p_action = 'run_now_many' then true end
    ));
end
$$;

-- Up to p_matches jobs of a filter among about p_rows rows from p_after on, and where it stopped; next_after null: at the
-- end.
create or replace function pgqueue._find_jobs(
    p_filter jsonb, p_after jsonb, p_matches integer, p_rows integer, out live_ids bigint[], out ended_ids bigint[],
    out granularities "char"[], out kept_untils timestamptz[], out next_after jsonb
)
language plpgsql
as $$
declare
    v_filter pgqueue.job_filter := pgqueue._read_filter((
        select jsonb_strip_nulls(jsonb_build_object(
            'states', p_filter -> 'states', 'ids', p_filter -> 'job_ids',
            'groups', case when p_filter ? 'group_id' then jsonb_build_array(p_filter -> 'group_id') end,
            'created_from', p_filter -> 'created_after', 'created_to', p_filter -> 'created_before',
            'finished_from', p_filter -> 'finished_after', 'finished_to', p_filter -> 'finished_before',
            'run_from', case when p_filter ? 'not_due' then pgqueue._clock() + interval '1 us' end
        )) || coalesce(
            -- In a filter of search(), a star at the end is any end.
            jsonb_object_agg(n.name || 's', array[regexp_replace(p_filter ->> n.name, e'\\*$', e'\\\\*')]), '{}'
        )
        from unnest('{queue,task,key}'::text[]) n (name)
        where p_filter ? n.name
    ), p_matches, p_rows);
    v_found record;
begin
    if p_after is not null and coalesce(p_after ->> 'id', '') !~ '^[0-9]{1,18}$' then
        perform pgqueue._refuse(
            'after was not returned by a call with these arguments', null,
            'Give after as next_after of the last call, or leave it out.'
        );
    end if;
    select f.matches, f.next_id into v_found
    from pgqueue._search_by_id(v_filter, true, (p_after ->> 'id')::bigint, p_matches, p_rows) f;
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
