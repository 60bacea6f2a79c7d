-- A step of maintain: enqueues the jobs of schedules that are due, and records the outcome.
--
-- A schedule is due at next_at of its newest row in schedule_runs, read through an index that ends at that row: one probe
-- for each schedule and second (2 us), whatever old versions a snapshot keeps. After an update of the rule by hand, next_at
-- is computed again from now, after a run that was due by the old rule.
-- Each instant gets one job: its row in schedule_runs comes first, under a unique key, and the job only where that row
-- was really inserted. Concurrent callers would wait there for each other; maintain's own lock prevents that. All due
-- schedules go together, in due order. If that fails, each half is tried, down to the broken schedule, which is left out for a
-- minute.

create or replace function pgqueue._run_schedules(p_limit integer)
returns bigint
language plpgsql
as $$
declare
    v_now timestamptz;
    v_names text[];
    v_due timestamptz[];
begin
    if not exists (select from pgqueue.schedules) then
        return 0::bigint;
    end if;
    v_now := pgqueue._ready_at(null);
    select array_agg(d.name order by d.due_at nulls first, d.name), array_agg(d.due_at order by d.due_at nulls first, d.name)
    into v_names, v_due
    from (
        select s.name, case when r.next_at <= v_now then r.next_at end as due_at
        from pgqueue.schedules s
        left join lateral pgqueue._latest_plan(s.name, v_now) r on true
        where s.paused_at is null
            and (r.rule is distinct from pgqueue._schedule_rule(s) or coalesce(r.retry_at, r.next_at) <= v_now)
        order by 2 nulls first, 1
        limit p_limit
    ) d;
    return case when v_names is null then 0 else pgqueue._run_due(v_now, p_limit, v_names, v_due) end;
end
$$;

-- Called before the row changes and the next instant is computed from now: the old rule owes what has passed. Locks
-- no row; may wait for a maintain() that runs the same instant. If it fails, the instant stays due, and maintain retries it.
create or replace function pgqueue._settle_schedule(p_schedule pgqueue.schedules)
returns boolean
language plpgsql
as $$
declare
    v_now timestamptz := pgqueue._ready_at(null);
    v_until timestamptz := least(v_now, p_schedule.paused_at);
    v_due_at timestamptz := (select l.next_at from pgqueue._latest_plan(p_schedule.name, v_now) l);
begin
    if v_due_at <= v_until then
        perform pgqueue._run_due(v_now, 1, array[p_schedule.name], array[v_due_at]);
        select l.next_at into v_due_at from pgqueue._latest_plan(p_schedule.name, v_now) l;
    end if;
    return coalesce(v_due_at > v_until, true);
end
$$;

-- Enqueues about p_limit due jobs of these schedules, each due since p_due (null: to be computed again); returns how many.
create or replace function pgqueue._run_due(p_now timestamptz, p_limit integer, p_names text[], p_due timestamptz[])
returns bigint
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
declare
    v_half integer := cardinality(p_names) / 2;
    v_jobs pgqueue.jobs[];
    v_error text;
begin
    begin
        with turns as materialized (
            select
                s.*, t.instants, t.next_at, t.passed_from, pgqueue._schedule_rule(s) as rule,
                sum(cardinality(t.instants)) over (order by d.due_at nulls first, s.name) - cardinality(t.instants) as jobs_before
            from unnest(p_names, p_due) d (name, due_at)
            join pgqueue.schedules s on s.name = d.name
            left join lateral pgqueue._latest_plan(s.name, p_now) l on true
            cross join lateral pgqueue._schedule_turn(
                -- A paused schedule is settled when it is resumed: runs that were due before the pause are owed.
                s, d.due_at, least(p_now, s.paused_at), l.rule is not distinct from pgqueue._schedule_rule(s)
            ) t
        ),
        runs as materialized (
            select o.*, case when o.outcome = 'enqueued' then nextval('pgqueue.jobs_id_seq') end as job_id
            from (
                select
                    t.name, i.at, t.next_at, t.rule,
                    case when coalesce(i.ord, 1) = 1 then t.passed_from end as passed_from,
                    case when i.at is null then 'planned' when l.lives then 'overlap' else 'enqueued' end as outcome
                from turns t
                left join lateral (
                    -- After the clock stepped back, some instants have run already. A scalar subquery: the planner may
                    -- turn an EXISTS into a join that reads every run of the schedule.
                    select u.at, row_number() over (order by u.ord) as ord
                    from unnest(t.instants) with ordinality u (at, ord)
                    where (select true from pgqueue.schedule_runs r where r.schedule = t.name and r.at = u.at limit 1) is null
                ) i on true
                cross join lateral (
                    -- Behind the last one, if by hand, an earlier one may live.
                    select t.overlap = 'skip' and exists (
                        select from pgqueue.jobs j
                        where j.id = any (array(
                            select r.job_id
                            from pgqueue.schedule_runs r
                            where r.schedule = t.name and r.job_id is not null
                            order by r.n desc
                            limit 10
                        ))
                    ) as lives
                ) l
                where t.jobs_before < p_limit
                order by i.at, t.name
            ) o
        ),
        written as (
            insert into pgqueue.schedule_runs (schedule, at, decided_at, outcome, job_id, next_at, passed_from, rule)
            select r.name, r.at, p_now, r.outcome, r.job_id, r.next_at, r.passed_from, r.rule
            from runs r
            order by r.at, r.name
            on conflict (schedule, at) do nothing
            returning schedule, at, job_id
        )
        select
            array_agg(
                jsonb_populate_record(
                    null::pgqueue.jobs,
                    jsonb_build_object(
                        'id', w.job_id, 'queue', t.queue, 'task', t.task, 'args', t.args,
                        'headers', coalesce(t.headers, '{}') || jsonb_build_object('schedule', t.name, 'scheduled_at', w.at),
                        'tags', t.tags, 'priority', t.priority, 'run_at', a.run_at, 'ready_at', greatest(a.run_at, p_now),
                        'created_at', p_now, 'expires_at', pgqueue._after(greatest(a.run_at, p_now), t.expires_in),
                        'max_attempts', t.max_attempts, 'retention', t.retention, 'enqueued_by', 'schedule ' || t.name
                    )
                )
                order by w.job_id
            )
        into v_jobs
        from written w
        join turns t on t.name = w.schedule
        cross join lateral (select pgqueue._after(w.at, coalesce(random() * t.jitter, '0')) as run_at) a
        where w.job_id is not null;
        perform pgqueue._insert_jobs(v_jobs);
        return coalesce(cardinality(v_jobs), 0)::bigint;
    exception when others then
        v_error := sqlstate || ': ' || left(sqlerrm, 500);
    end;
    if v_half > 0 then
        return pgqueue._run_due(p_now, p_limit, p_names[:v_half], p_due[:v_half])
            + pgqueue._run_due(p_now, p_limit, p_names[v_half + 1:], p_due[v_half + 1:]);
    end if;
    insert into pgqueue.schedule_runs (schedule, decided_at, outcome, next_at, retry_at, rule, error)
    select s.name, p_now, 'error', p_due[1], p_now + interval '1 min', pgqueue._schedule_rule(s), v_error
    from pgqueue.schedules s
    where s.name = p_names[1];
    return 0::bigint;
end
$$;
