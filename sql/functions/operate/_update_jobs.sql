-- Changes of jobs that were never started, for update_job and update_many.
--
-- A job that gets another queue, time, priority or limit_key enters its lane anew, behind what is there, also one that was
-- blocked: the next claim decides about it. A job behind it in its key is released in a later statement, as at the end of
-- a job. Dependencies, key and dedupe key stay as they are.

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
    v_options pgqueue.job_options := jsonb_populate_record(null::pgqueue.job_options, v_changes || '{"task": "t"}');
begin
    if v_changes = '{}' then
        perform pgqueue._refuse(
            'nothing to change is given', null, 'Give args, run_at, priority, queue or limit_key.'
        );
    end if;
    perform pgqueue._check_options(v_options);
    if p_args is not null then
        perform pgqueue._check_args(p_args);
    end if;
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
                        coalesce(p_changes ->> 'queue', j.queue),
                        case when p_changes ? 'limit_key' then p_changes ->> 'limit_key' else j.limit_key end
                    )
                    else j.lane_key
                end,
                run_at = coalesce(v_run_at, j.run_at),
                expires_at = j.expires_at + (coalesce(v_run_at, j.run_at) - j.run_at),
                ready_at = case when v_moves then greatest(coalesce(v_run_at, j.ready_at), v_now) else j.ready_at end,
                resumed = j.resumed and not v_moves,
                state = case when v_moves and j.blocked_on is distinct from '@parents' then 'waiting' else j.state end,
                blocked_on = case when v_moves and j.blocked_on is distinct from '@parents' then null else j.blocked_on end
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
            perform pgqueue._wake(v_lane.queue, v_lane.ready_at, 2, null);
        end if;
    end loop;
    if v_left.ids is not null then
        perform pgqueue._release_next(v_left.queues, v_left.keys, v_left.ids);
    end if;
    return v_count;
end
$$;
