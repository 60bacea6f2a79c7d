-- Bulk calls: find jobs by filter, then lock and change at most max_jobs of them.
--
-- _act_on_jobs is a search, oldest first: it reads without locks and ends at enough matches or enough rows, so a call costs
-- the same among ten jobs and among ten million. Parents are older than their children: a retry brings them back first.
-- It then locks the jobs found, in id order, FOR UPDATE SKIP LOCKED, and checks state and queue again: it never waits,
-- and skips jobs that are locked or were changed meanwhile. A last read, without locks, counts the remaining matches.

-- Checks the arguments of a call (p_given: by their names), and makes them a filter of search(). The audit keeps them, with
-- the states on which the call acts. Null, as of array_agg() over no row, would fit every job: the defaults are what no job has.
create or replace function pgqueue._act_in_bulk(
    p_action text, p_given jsonb, p_job_ids bigint[], p_max_jobs integer, p_after jsonb,
    out changed bigint, out skipped bigint, out left_over bigint, out is_exact boolean, out next_after jsonb
)
language plpgsql
as $$
declare
    v_given jsonb := p_given - 'everything' || jsonb_build_object('job_ids', p_job_ids);
    v_everything constant boolean := coalesce((p_given ->> 'everything')::boolean, false);
    v_is_narrow boolean;
    v_states text[] := case p_action
        when 'cancel_many' then '{waiting,failed,blocked,executing}'::text[]
        when 'delete_many' then '{waiting,failed,blocked,succeeded,dead,cancelled}'
        when 'retry_many' then '{dead,cancelled}'
        when 'run_now_many' then '{waiting,failed}'
        -- kill_many and purge_queue
        else '{waiting,failed,blocked}'
    end;
    v_filter jsonb;
begin
    perform pgqueue._refuse(g.key || ' is null', 'It would fit every job.', format('Give %s a value, or leave it out.', g.key))
    from jsonb_each(v_given) g
    where g.value = 'null';
    select coalesce(jsonb_object_agg(g.key, g.value), '{}') into v_given
    from jsonb_each(v_given - 'job_ids') g
    where p_action = 'purge_queue'
        or g.value <> to_jsonb(
            case when g.key ~ '_after$' then '-infinity' when g.key ~ '_before$' then 'infinity' else repeat('*', 600) end
        )
        and (g.key, g.value) <> ('group_id', '-9223372036854775808');
    p_job_ids := nullif(p_job_ids, '{-9223372036854775808}');
    v_is_narrow := v_given ?| '{state,group_id}' or p_job_ids is not null;
    perform pgqueue._check_name(n.name, v_given ->> n.name, case n.name when 'key' then 512 else 128 end)
    from unnest('{queue,task,key}'::text[]) n (name)
    where v_given ? n.name or (p_action = 'purge_queue' and n.name = 'queue');
    perform pgqueue._refuse(r.message, r.detail, r.hint)
    from (
        values
            (
                v_given ->> 'state' <> all (v_states), 'state is not one that this function acts on',
                format('It is %s.', quote_literal(v_given ->> 'state')),
                format('Give state as %s, or leave it out.', array_to_string(v_states, ', '))
            ),
            (v_given ? 'key' and not v_given ? 'queue', 'key is given without queue', 'A key is one of a queue.', 'Give queue with key.'),
            (
                array_ndims(p_job_ids) > 1 or array_position(p_job_ids, null) is not null or cardinality(p_job_ids) > 10000,
                'job_ids must be a plain array of at most 10000 ids without nulls',
                format('It has %s elements.', cardinality(p_job_ids)), 'Give job_ids in several calls.'
            ),
            (
                p_job_ids is null and v_given - 'key' = '{}' and not v_everything, 'no filter is given',
                'It would act on every job.', 'Give queue, task, state, a time or job_ids, or give everything => true.'
            ),
            (
                v_given ? 'group_id' and (v_given ? 'key' or p_job_ids is not null), 'group_id is given with key or job_ids',
                'The members of a group are found by the group alone.', 'Give group_id without key and job_ids.'
            ),
            (
                p_action = 'delete_many' and not v_is_narrow and not v_everything, 'neither state nor job_ids is given',
                'It would delete both live jobs and history.',
                'Give state, such as dead or failed, or job_ids, or everything => true; purge_queue() deletes the waiting jobs of a queue.'
            )
    ) r (is_wrong, message, detail, hint)
    where r.is_wrong;
    -- For a job that was named, the call is refused instead of skipping it.
    perform pgqueue._refuse(
        format('job %s waits for other jobs', j.id), (select e.detail from pgqueue.explain(j.id) e),
        format('Let it start without waiting for them: select pgqueue.release_from_parents(%s);', j.id), '55000'
    )
    from pgqueue.jobs j
    where p_action = 'run_now_many' and cardinality(p_job_ids) = 1 and j.id = p_job_ids[1] and j.blocked_on = '@parents';
    perform pgqueue._check_range(
        'max_jobs', p_max_jobs, 1, 10000, 'Give max_jobs within this range, and call again with after => next_after.'
    );
    v_given := v_given - 'state' || jsonb_strip_nulls(jsonb_build_object(
        'states', case
            when v_given ? 'state' then array[v_given ->> 'state']
            when p_action = 'retry_many' and not v_is_narrow then '{dead}'
            else v_states
        end,
        'job_ids', p_job_ids
    ));
    v_filter := jsonb_strip_nulls(jsonb_build_object(
        'states', v_given -> 'states', 'ids', v_given -> 'job_ids',
        'groups', case when v_given ? 'group_id' then jsonb_build_array(v_given -> 'group_id') end,
        'created_from', v_given -> 'created_after', 'created_to', v_given -> 'created_before',
        'finished_from', v_given -> 'finished_after', 'finished_to', v_given -> 'finished_before',
        'run_from', case when p_action = 'run_now_many' then pgqueue._clock() + interval '1 us' end
    )) || (
        -- In a filter of search(), a star at the end is any end.
        select coalesce(jsonb_object_agg(n.name || 's', array[regexp_replace(v_given ->> n.name, e'\\*$', e'\\\\*')]), '{}')
        from unnest('{queue,task,key}'::text[]) n (name)
        where v_given ? n.name
    );
    select a.* into changed, skipped, left_over, is_exact, next_after
    from pgqueue._act_on_jobs(p_action, pgqueue._read_filter(v_filter, p_max_jobs, 50000), v_given, null, p_max_jobs, p_after) a;
end
$$;

-- p_audited: what the audit keeps of the filter. p_changes: for update_many alone.
create or replace function pgqueue._act_on_jobs(
    p_action text, p_filter pgqueue.job_filter, p_audited jsonb, p_changes jsonb, p_max_jobs integer, p_after jsonb,
    out changed bigint, out skipped bigint, out left_over bigint, out is_exact boolean, out next_after jsonb
)
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_hashjoin = off
set enable_mergejoin = off
as $$
declare
    v_states constant pgqueue.job_state[] := case
        when p_changes is null then p_filter.states::pgqueue.job_state[] else '{waiting,failed,blocked}'
    end;
    v_found record;
    v_live record;
    v_ended pgqueue.found_job[];
begin
    perform pgqueue._require_read_committed(p_action);
    perform pgqueue._refuse(
        'after was not returned by a call with these arguments', null,
        'Give after as next_after of the last call, or leave it out.'
    )
    where p_after is not null and coalesce(p_after ->> 'id', '') !~ '^[0-9]{1,18}$';
    select array(select m from unnest(f.matches) m where not m.is_asked_to_stop) as jobs, f.next_id into v_found
    from pgqueue._search_by_id(p_filter, true, (p_after ->> 'id')::bigint, p_max_jobs, 50000) f;
    with wanted as materialized (select m.id from unnest(v_found.jobs) m where m.granularity is null order by m.id)
    select
        array_agg(l.id) filter (where l.state <> 'executing' and not l.is_group) as ids,
        array_agg(l.reservation) filter (where l.state <> 'executing' and not l.is_group) as reservations,
        array_agg(l.id) filter (where l.state = 'executing') as running, array_agg(l.id) filter (where l.is_group) as groups
    into v_live
    from wanted w
    cross join lateral (
        -- A group ends with its members; it can be deleted like any job.
        select j.id, j.reservation, j.state, j.task = '@group' and p_action <> 'delete_many' as is_group
        from pgqueue.jobs j
        where j.id = w.id and j.state = any (v_states) and (p_filter.queues is null or j.queue like any (p_filter.queues))
            -- As update_job() has it.
            and (
                p_changes is null
                or (j.task <> '@group' and j.has_steps is not true and (j.attempts = 0 or p_changes - 'args' = '{}'))
            )
        for update skip locked
    ) l;
    changed := coalesce(
        case
            when v_live.ids is null then 0
            when p_action = 'run_now_many' then pgqueue._run_now(v_live.ids)
            when p_action = 'update_many' then pgqueue._update_jobs(v_live.ids, p_changes)
            when p_action = 'cancel_many' then
                cardinality(pgqueue._finish(v_live.ids, v_live.reservations, false, 'cancelled'))
            when p_action = 'kill_many' then
                cardinality(pgqueue._finish(
                    v_live.ids, v_live.reservations, false, 'dead', null,
                    '{"class": "Killed", "message": "an operator sent it to the dead"}'
                ))
            else pgqueue._delete_jobs(v_live.ids)
        end,
        0
    ) + coalesce(pgqueue._request_cancel(v_live.running), 0);
    perform pgqueue._cancel_groups(v_live.groups) where p_action = 'cancel_many' and v_live.groups is not null;
    changed := changed + case p_action when 'cancel_many' then coalesce(cardinality(v_live.groups), 0) else 0 end;
    if p_action in ('delete_many', 'retry_many') then
        with wanted as materialized (select m.* from unnest(v_found.jobs) m where m.granularity is not null order by m.id)
        select array_agg(row(w.*)::pgqueue.found_job) into v_ended
        from wanted w
        cross join lateral (
            select
            from pgqueue.history h
            where h.granularity = w.granularity and h.kept_until = w.kept_until and h.id = w.id and h.state = any (v_states)
                -- A group comes back with its members.
                and (p_action <> 'retry_many' or h.task <> '@group')
            for update skip locked
        ) l;
        if p_action = 'retry_many' and cardinality(v_ended) < cardinality(v_found.jobs) then
            -- A job that was ever reserved does not wait for its parents again: see _block_again.
            with recursive locked as materialized (
                select f.id
                from (select u.id from unnest(v_found.jobs) u except select u.id from unnest(v_ended) u) f
                cross join lateral (
                    -- A group comes back with its members.
                    select from pgqueue.history h
                    where h.id = f.id and h.state in ('dead', 'cancelled') and h.task <> '@group'
                    limit 1
                ) h
            ),
            waits as materialized (
                select w.id, d.parent
                from unnest(v_ended) w
                cross join lateral (
                    select x.depends_on
                    from pgqueue.history x
                    where x.granularity = w.granularity and x.kept_until = w.kept_until and x.id = w.id and x.reservation = 0
                    limit 1
                ) h
                cross join lateral unnest(h.depends_on) d (parent)
                where exists (select from locked)
            ),
            behind (id) as (
                select l.id from locked l
                union
                select w.id from behind b join waits w on w.parent = b.id
            )
            select array_agg(w) into v_ended from unnest(v_ended) w left join behind b on b.id = w.id where b.id is null;
        end if;
        if p_action = 'delete_many' and v_ended is not null then
            changed := changed + pgqueue._delete_history(v_ended);
        elsif v_ended is not null then
            changed := changed + pgqueue._requeue(v_ended);
            -- What they had died of: see retry_fates().
            insert into pgqueue.retries (at, actor, task, class, fingerprint, job_ids)
            select pgqueue._clock(), pgqueue._actor(), d.task, d.class, d.fingerprint, array_agg(d.id order by d.id)
            from unnest(v_ended) w
            cross join lateral (
                select
                    j.id, j.task, j.errors -> -1 ->> 'class' as class,
                    pgqueue._fingerprint(pgqueue._first_line(j.errors)) as fingerprint
                from pgqueue.jobs j
                where j.id = w.id
                limit 1
            ) d
            group by d.task, d.class, d.fingerprint;
            perform pgqueue._reopen_children(array(select w.id from unnest(v_ended) w));
        end if;
    end if;
    perform pgqueue._audit(p_action, p_audited, changed);
    skipped := cardinality(v_found.jobs) - changed;

    left_over := 0;
    is_exact := true;
    if v_found.next_id is not null and p_changes is null then
        select r.jobs, f.next_id is null, case when r.jobs > 0 then v_found.next_id else f.next_id end
        into left_over, is_exact, v_found.next_id
        from pgqueue._search_by_id(p_filter, true, v_found.next_id, 10000, 50000) f
        cross join lateral (select count(*) as jobs from unnest(f.matches) m where not m.is_asked_to_stop) r;
    end if;
    next_after := case when v_found.next_id is not null then jsonb_build_object('id', v_found.next_id) end;
end
$$;
