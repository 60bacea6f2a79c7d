-- update_job: changes a job that was never started: only what is given. A failed or dead job gets other args alone.
--
-- Locks the job, and waits for another lock at most 5 s (55P03). A job that gets another queue, time, priority or limit_key
-- enters its lane anew, behind what is there, also one that was blocked: the next claim decides about it. One that waits for
-- other jobs to end stays blocked. A job behind it in its key is released in a later statement, as at the end of a job.
-- Dependencies, key and dedupe key stay as they are.

create or replace function pgqueue.update_job(
    job_id bigint, args jsonb default null, run_at timestamptz default null, priority integer default null,
    queue text default null, limit_key text default null
)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
#variable_conflict use_column
declare
    v_changes jsonb := pgqueue._checked_changes(args, run_at, priority, queue, limit_key);
    v_job pgqueue.jobs;
    v_ended record;
    v_changed bigint := 0::bigint;
    v_why text;
begin
    perform pgqueue._require_read_committed('update_job');
    select j.* into v_job from pgqueue.jobs j where j.id = update_job.job_id for update;
    if found then
        v_why := case
            when v_job.task = '@group' then 'It is a group.'
            when v_job.state = 'executing' then format('Worker %s executes it.', v_job.reserved_by)
            when v_job.has_steps then 'It has completed steps, which go on with it.'
            when v_job.attempts > 0 and v_changes - 'args' <> '{}' then 'It was attempted: only its args can be changed.'
        end;
        v_changed := case when v_why is null then pgqueue._update_jobs(array[v_job.id], v_changes) end;
    else
        select h.id, h.granularity, h.kept_until, h.state, h.task into v_ended
        from pgqueue.history h
        where h.id = update_job.job_id
        limit 1;
        if not found then
            return false;
        end if;
        v_why := case
            when v_ended.state <> 'dead' or v_ended.task = '@group' then format('It has ended: %s.', v_ended.state)
            when v_changes - 'args' <> '{}' then 'It is dead: only its args can be changed, for retry().'
        end;
        update pgqueue.history h
        set args = v_changes -> 'args'
        where v_why is null and h.granularity = v_ended.granularity and h.kept_until = v_ended.kept_until and h.id = v_ended.id
            and h.state = 'dead';
        get diagnostics v_changed = row_count;
    end if;
    perform pgqueue._refuse(
        format('job %s cannot be changed so', update_job.job_id), v_why,
        'Jobs that were never started can be changed; failed and dead ones get other args.', '55000'
    )
    where v_why is not null;
    return pgqueue._audit('update_job', v_changes || jsonb_build_object('job_id', update_job.job_id), v_changed);
end
$$;

comment on function pgqueue.update_job(bigint, jsonb, timestamptz, integer, text, text) is
    'Change a job that was never started: only what is given. limit_key => '''' takes it away. A failed or dead job gets other args only: then retry(). '
    'expires_at keeps its distance to run_at. A job with a key that gets a later run_at or another queue gives up its position, unless it was ever reserved. False: there is no such job. 55000: it executes, has ended, or was attempted. '
    'select pgqueue.update_job(17, args => ''{"to": "a@b.c"}''); select pgqueue.update_job(17, queue => ''slow'', priority => -10);';

-- What is to change, checked as enqueue() checks it; a null in it takes the value away.
create or replace function pgqueue._checked_changes(
    p_args jsonb, p_run_at timestamptz, p_priority integer, p_queue text, p_limit_key text
)
returns jsonb
language plpgsql stable
as $$
declare
    v_changes jsonb := jsonb_strip_nulls(jsonb_build_object('run_at', p_run_at, 'priority', p_priority, 'queue', p_queue))
        || case when p_limit_key is null then '{}' else jsonb_build_object('limit_key', nullif(p_limit_key, '')) end
        || case when p_args is null then '{}' else jsonb_build_object('args', p_args) end;
begin
    perform pgqueue._refuse('nothing to change is given', null, 'Give args, run_at, priority, queue or limit_key.')
    where v_changes = '{}';
    perform pgqueue._check_options(jsonb_populate_record(null::pgqueue.job_options, v_changes || '{"task": "t"}'));
    perform pgqueue._check_args(p_args) where p_args is not null;
    return v_changes;
end
$$;

-- The caller has locked the jobs.
create or replace function pgqueue._update_jobs(p_ids bigint[], p_changes jsonb)
returns bigint
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off
as $$
declare
    v_moves constant boolean := p_changes - 'args' <> '{}';
    v_run_at constant timestamptz := (p_changes ->> 'run_at')::timestamptz;
    v_now timestamptz := pgqueue._ready_at(null);
    v_count bigint := 0::bigint;
    v_left record;
    v_lane record;
begin
    -- The positions that the jobs give up.
    select array_agg(j.id) as ids, array_agg(j.queue) as queues, array_agg(j.key) as keys into v_left
    from pgqueue.jobs j
    where j.id = any (p_ids) and j.key is not null and (v_run_at > v_now or j.queue <> (p_changes ->> 'queue'));
    for v_lane in
        with changed as (
            update pgqueue.jobs j
            set
                args = coalesce(p_changes -> 'args', j.args),
                priority = coalesce((p_changes ->> 'priority')::smallint, j.priority),
                queue = coalesce(p_changes ->> 'queue', j.queue),
                limit_key = case when p_changes ? 'limit_key' then p_changes ->> 'limit_key' else j.limit_key end,
                lane_key = case
                    when p_changes ?| '{queue,limit_key}' then pgqueue._lane_key(
                        coalesce(p_changes ->> 'queue', j.queue), case when p_changes ? 'limit_key' then p_changes ->> 'limit_key' else j.limit_key end
                    )
                    else j.lane_key
                end,
                run_at = coalesce(v_run_at, j.run_at),
                expires_at = case
                    when p_changes ? 'expires_at' then (p_changes ->> 'expires_at')::timestamptz
                    when v_run_at is null then j.expires_at
                    else j.expires_at + (greatest(v_run_at, v_now) - greatest(j.run_at, j.created_at))
                end,
                headers = case when p_changes ? 'headers' then nullif(p_changes -> 'headers', 'null') else j.headers end,
                ready_at = case when v_moves then greatest(coalesce(v_run_at, j.ready_at), v_now) else j.ready_at end,
                resumed = j.resumed and not v_moves,
                state = case when v_moves and (j.blocked_on in ('@parents', '@jobs')) is not true then 'waiting' else j.state end,
                blocked_on = case when not v_moves or j.blocked_on in ('@parents', '@jobs') then j.blocked_on end
            where j.id = any (p_ids)
            returning j.queue, j.priority, j.ready_at, j.blocked_on, j.lane_key
        )
        select
            c.queue, c.priority, count(*) as jobs, min(c.ready_at) filter (where c.blocked_on is null) as ready_at,
            array_agg(distinct c.lane_key) as lane_keys
        from changed c
        group by c.queue, c.priority
        order by c.queue, c.priority
    loop
        v_count := v_count + v_lane.jobs;
        if v_moves and v_lane.ready_at is not null then
            perform pgqueue._register_lane(v_lane.queue, v_lane.priority, v_now, v_lane.lane_keys);
            perform pgqueue._wake(v_lane.queue, v_lane.ready_at);
        end if;
    end loop;
    perform pgqueue._release_next(v_left.queues, v_left.keys, v_left.ids) where v_left.ids is not null;
    return v_count;
end
$$;
