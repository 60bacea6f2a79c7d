-- Steps: the completed parts of a job, so that the next attempt does not repeat them.
--
-- A row of steps is inserted and never updated; it is fenced by the reservation, and of one name only the first row counts.
-- At the end of its job it moves to history.steps, with its result only if the job may be retried.

-- The caller has locked the row of the job.
create or replace function pgqueue._store_step(p_job_id bigint, p_name text, p_result jsonb)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
begin
    perform pgqueue._refuse(
        'a job may have at most 10000 steps', 'It has that many.',
        'Make each item of a loop a separate job: members of a group, see open_group().'
    )
    where exists (select from pgqueue.steps s where s.job_id = p_job_id offset 9999);
    insert into pgqueue.steps (job_id, name, result, attempt, at)
    select p_job_id, p_name, p_result, j.attempts, pgqueue._clock() from pgqueue.jobs j where j.id = p_job_id
    on conflict (job_id, name) do nothing;
    perform pgqueue._begin_steps(p_job_id);
end
$$;

create or replace function pgqueue._check_step(p_name text, p_result jsonb)
returns void
language plpgsql stable parallel safe
as $$
begin
    perform pgqueue._check_name('name of a step', p_name, 512);
    if pg_column_size(p_result) > 1000 then
        perform pgqueue._refuse(
            format('the result of a step must be at most %s bytes of JSON', m.bytes),
            format('It has %s bytes.', octet_length(p_result::text)),
            'Store the data elsewhere and return a reference, or raise pgqueue.settings.max_args_bytes.'
        )
        from (select coalesce(max(s.max_args_bytes), 1048576) as bytes from pgqueue.settings s where s.one) m
        where octet_length(p_result::text) > m.bytes;
    end if;
end
$$;

-- From the first step on, the batch keeps its members: see _take_batch.
create or replace function pgqueue._begin_steps(p_job_id bigint)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
declare
    v_members bigint[];
begin
    update pgqueue.jobs j set has_steps = true where j.id = p_job_id and j.has_steps is null returning j.followers into v_members;
    if v_members is not null then
        update pgqueue.jobs j set has_steps = true where j.id = any (v_members) and j.leader = p_job_id;
    end if;
end
$$;

-- After a leader with a step has ended alone, the next member, if one is left, leads the others, and gets its steps.
create or replace function pgqueue._inherit_steps(p_leader bigint, p_members bigint[])
returns void
language plpgsql
set jit = off
as $$
declare
    v_left bigint[] := array(
        select j.id
        from pgqueue.jobs j
        where j.id = any (p_members) and j.leader = p_leader and j.state <> 'executing'
        order by coalesce(j.score, extract(epoch from j.created_at)), j.id
    );
begin
    update pgqueue.jobs j
    set leader = nullif(v_left[1], j.id), followers = case when j.id = v_left[1] then nullif(v_left[2:], '{}') end
    where j.id = any (v_left);
    insert into pgqueue.steps (job_id, name, result, attempt, at)
    select v_left[1], s.name, s.result, s.attempt, s.at
    from pgqueue.steps s
    where s.job_id = p_leader and v_left <> '{}'
    on conflict (job_id, name) do nothing;
end
$$;

-- The steps of a job in the form that history keeps. Volatile: an end may wait for a step that is being stored.
create or replace function pgqueue._steps_as_json(p_job_id bigint, p_results boolean)
returns jsonb
language plpgsql parallel safe
as $$
begin
    return (
        select jsonb_agg(
            jsonb_build_object('name', s.name, 'at', s.at, 'attempt', s.attempt)
            || case when p_results then jsonb_build_object('result', s.result) else '{}' end
            order by s.at, s.name
        )
        from pgqueue.steps s
        where s.job_id = p_job_id
    );
end
$$;

-- Deletes the steps of jobs that have gone, and their waits for events.
create or replace function pgqueue._drop_steps(p_job_ids bigint[])
returns void
language plpgsql
set jit = off set enable_hashjoin = off set enable_mergejoin = off
as $$
begin
    delete from pgqueue.steps s where s.job_id = any (p_job_ids);
    delete from pgqueue.event_waits w where w.job_id = any (p_job_ids);
end
$$;

-- Called for jobs whose end, under an old snapshot, did not see their last steps. A job that was retried lives, and keeps its
-- steps. A retry deletes the row of history: while it is not committed the row is locked, and the job is checked again.
create or replace function pgqueue._move_steps(p_job_ids bigint[])
returns void
language plpgsql
as $$
declare
    v_ended bigint[] := array(select h.id from pgqueue.history h where h.id = any (p_job_ids) for update skip locked);
begin
    update pgqueue.history h
    set steps = coalesce(h.steps, '[]') || pgqueue._steps_as_json(h.id, h.state <> 'succeeded')
    where h.id = any (v_ended) and exists (select from pgqueue.steps s where s.job_id = h.id);
    perform pgqueue._drop_steps(
        v_ended || array(
            select w.id
            from unnest(p_job_ids) w (id)
            -- It has left no history, and cannot come back.
            where not exists (select from pgqueue.history h where h.id = w.id)
                and not exists (select from pgqueue.jobs j where j.id = w.id)
        )
    );
    perform pgqueue._leave_notes(
        'steps', array(select h.id from pgqueue.history h where h.id = any (p_job_ids) and h.id <> all (v_ended)),
        interval '1 s'
    );
end
$$;
