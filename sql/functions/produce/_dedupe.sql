-- Dedupe: only one job of a task and dedupe key exists at a time. Its row in dedupe_keys is kept as long as the job lives,
-- or until its own time.
--
-- An enqueue inserts its row ON CONFLICT DO NOTHING, and so waits for an open transaction that has just inserted or
-- deleted the same key, and for no other. It never locks the row of an existing job's key: it reads it, locks the
-- *job*, and checks that the row still exists; else it starts again. A transaction that ends a job also locks the job first, and
-- then deletes its row; so the two cannot wait for each other. Only a row whose time is over, which no ending job deletes, and
-- the row of a job that it supersedes, for which it then does not wait, are updated in place. The caller ends that job (superseded,
-- and until when it had the key), when nothing can refuse the new one any more.
-- Above READ COMMITTED the snapshot may show the row of a job that ended beside our own new one: the later job counts.

create or replace function pgqueue._dedupe(
    p_job pgqueue.jobs, p_dedupe_for interval, p_on_conflict text, p_debounce_max interval, p_deadline timestamptz,
    out job_id bigint, out outcome text, out superseded bigint, out had_until timestamptz
)
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
-- Sets lock_timeout for each attempt. The SET clause of the function restores the caller's value, however this ends.
set lock_timeout = '5s'
as $$
declare
    v_until timestamptz := pgqueue._after(p_job.created_at, p_dedupe_for);
    v_existing record;
    v_is_free boolean;
begin
    loop
        -- In milliseconds; 0 would mean forever.
        perform set_config(
            'lock_timeout',
            greatest(1, ceil(1000 * extract(epoch from p_deadline - clock_timestamp())))::bigint::text,
            true
        );
        insert into pgqueue.dedupe_keys (task, dedupe, job_id, until)
        values (p_job.task, p_job.dedupe, p_job.id, v_until)
        on conflict (task, dedupe) do nothing;
        exit when found;

        -- In one snapshot: a job that ends takes its row with it.
        select d.job_id, d.until, exists (select from pgqueue.jobs j where j.id = d.job_id) as lives into v_existing
        from pgqueue.dedupe_keys d
        where d.task = p_job.task and d.dedupe = p_job.dedupe
        -- + 0: with the plain column the planner might walk the index of job ids, through all keys.
        order by d.job_id + 0 desc
        limit 1;
        continue when not found;

        v_is_free := v_existing.until <= pgqueue._clock() or (v_existing.until is null and not v_existing.lives);
        if v_is_free or p_on_conflict = 'supersede' then
            update pgqueue.dedupe_keys d
            set job_id = p_job.id, until = v_until
            where d.task = p_job.task and d.dedupe = p_job.dedupe and d.job_id = v_existing.job_id
                and d.until is not distinct from v_existing.until;
            continue when not found;
            if v_is_free is not true then
                superseded := v_existing.job_id;
                had_until := v_existing.until;
                outcome := 'superseded';
            end if;
            exit;
        end if;
        job_id := v_existing.job_id;
        outcome := case when p_on_conflict = 'raise' then 'refused' else 'skipped' end;
        if v_existing.lives and p_on_conflict in ('replace', 'merge', 'debounce') then
            outcome := pgqueue._edit_waiting(v_existing.job_id, p_job, p_on_conflict, p_debounce_max);
        end if;
        if outcome is not null then
            return;
        end if;
    end loop;

    perform pgqueue._insert_jobs(array[p_job]);
    job_id := p_job.id;
    outcome := coalesce(outcome, 'inserted');
end
$$;

-- Null: the job ended, or lost the key, meanwhile, and the caller tries again.
create or replace function pgqueue._edit_waiting(p_job_id bigint, p_job pgqueue.jobs, p_on_conflict text, p_debounce_max interval)
returns text
language plpgsql
as $$
declare
    v_editable constant pgqueue.job_state[] := '{waiting,blocked}'::pgqueue.job_state[];
    v_existing record;
    v_changes jsonb;
begin
    select j.queue, j.args, j.run_at, j.created_at into v_existing
    from pgqueue.jobs j
    where j.id = p_job_id and j.reservation = 0 and j.state = any (v_editable)
    for update;
    if not found then
        return (select 'skipped' from pgqueue.jobs j where j.id = p_job_id);
    end if;
    if not exists (select from pgqueue.dedupe_keys d where d.task = p_job.task and d.dedupe = p_job.dedupe and d.job_id = p_job_id) then
        return null;
    end if;

    if p_on_conflict = 'merge' then
        v_changes := jsonb_build_object('args', v_existing.args || p_job.args);
        perform pgqueue._check_args(v_changes -> 'args');
    elsif p_on_conflict = 'debounce' then
        -- Later, never earlier, and no later than debounce_max.
        v_changes := jsonb_build_object('run_at', greatest(
            v_existing.run_at,
            least(
                p_job.run_at,
                pgqueue._after(v_existing.created_at, coalesce(p_debounce_max, 10 * (p_job.run_at - p_job.created_at)))
            )
        ));
    else
        select jsonb_build_object(
            'args', p_job.args, 'headers', p_job.headers, 'run_at', p_job.run_at,
            'priority', coalesce(p_job.priority, t.priority, q.priority, 0),
            'expires_at',
            coalesce(p_job.expires_at, pgqueue._after(greatest(p_job.run_at, p_job.created_at), t.expires_in))
        )
        into v_changes
        from (values (1)) one (row)
        left join pgqueue.effective_tasks t on t.name = p_job.task
        left join pgqueue.queues q on q.name = v_existing.queue;
    end if;
    perform pgqueue._update_jobs(array[p_job_id], v_changes);
    return case p_on_conflict when 'merge' then 'merged' when 'replace' then 'replaced' else 'debounced' end;
end
$$;

-- Enqueues one job with any options.
create or replace function pgqueue._enqueue_row(o pgqueue.job_options, out job_id bigint, out outcome text)
returns record
language plpgsql
as $$
declare
    -- Takes the xid before it draws the id: see _head.
    v_now constant timestamptz := pgqueue._ready_at(null);
    v_job pgqueue.jobs := pgqueue._checked_job(nextval('pgqueue.jobs_id_seq'), v_now, o);
    v_superseded bigint;
begin
    if v_job.dedupe is null then
        perform pgqueue._insert_jobs(array[v_job]);
        job_id := v_job.id;
        outcome := 'inserted';
    else
        begin
            select d.job_id, d.outcome, d.superseded into job_id, outcome, v_superseded
            from pgqueue._dedupe(v_job, o.dedupe_for, o.on_conflict, o.debounce_max, pgqueue._dedupe_deadline()) d;
            perform pgqueue._supersede(v_superseded) where v_superseded is not null;
        exception when lock_not_available then
            outcome := 'refused';
        end;
        perform pgqueue._refuse(r.wrong[1], r.wrong[2], r.wrong[3], r.wrong[4])
        from pgqueue._dedupe_refusal(v_job, job_id) r (wrong) where outcome = 'refused';
    end if;
    if v_job.depends_on is not null and outcome in ('inserted', 'superseded') then
        perform pgqueue._add_dependencies(array[job_id], v_job.followers);
    end if;
end
$$;

-- Why a job is refused, as the arguments of _refuse: the job that has its dedupe key, for on_conflict => raise; or, without
-- one, a dedupe key that stayed locked.
create or replace function pgqueue._dedupe_refusal(p_job pgqueue.jobs, p_has_key bigint)
returns text[]
language sql stable parallel safe
as $$
    select case
        when p_has_key is not null then array[
            format('task %s has a job of dedupe key %s', quote_literal(p_job.task), quote_literal(p_job.dedupe)),
            format('Job %s has it.', p_has_key),
            'Leave on_conflict out to get the id of that job, or give another dedupe.', '23505']
        else array[
            format('another transaction holds dedupe key %s of task %s', quote_literal(p_job.dedupe), quote_literal(p_job.task)),
            'It was open for longer than dedupe_wait. Nothing was enqueued.',
            'Try again when it has ended, keep transactions that enqueue short, or raise pgqueue.settings.dedupe_wait.', '55P03']
    end
$$;

-- Until when an enqueue that begins now may wait for a dedupe key.
create or replace function pgqueue._dedupe_deadline()
returns timestamptz
language sql
set search_path = pg_catalog, pg_temp
as $$
    -- The caller's lock_timeout holds if it is shorter. The real clock, because this limits a wait.
    select clock_timestamp() + least(
        coalesce((select s.dedupe_wait from pgqueue.settings s where s.one), '5 s'),
        nullif(current_setting('lock_timeout')::interval, '0')
    )
$$;
