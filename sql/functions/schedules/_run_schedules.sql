-- What maintain does for schedules: enqueue what is due, and write down what became of it.
--
-- Where a schedule stands is next_at of its newest row in schedule_runs, read through an index that ends at that row:
-- one probe for each schedule and second (2 us), whatever old versions some snapshot keeps. Such a next_at counts
-- only while the rule from which it was computed is the schedule's rule, and while the clock is not before the row:
-- an operator who edits an expression, and a clock that steps back, make it be computed anew from now.
--
-- One job for each instant: its row in schedule_runs comes first, under a unique key, and the job only where that row
-- was really inserted, in one statement. Callers that meet wait there for each other; maintain's own lock keeps them
-- apart. All that is due goes in one statement, in due order; only if that fails are its halves taken apart, each in an
-- exception block, down to the broken one, which is written down, shown in stats() and let be for a minute.

create or replace function pgqueue._run_schedules(p_limit integer, p_tidy boolean)
returns bigint
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := pgqueue._ready_at(null);
    v_names text[];
    v_due timestamptz[];
    v_jobs bigint := 0::bigint;
begin
    select array_agg(d.name order by d.due_at nulls first, d.name), array_agg(d.due_at order by d.due_at nulls first, d.name)
    into v_names, v_due
    from pgqueue._due_schedules(v_now, p_limit) d;
    if v_names is not null then
        v_jobs := pgqueue._run_or_halve(v_now, p_limit, v_names, v_due);
    end if;

    if p_tidy then
        -- A week is kept. It is also how far the clock may step back without an instant being run again.
        delete from pgqueue.schedule_runs r
        where r.n in (
            select o.n
            from pgqueue.schedule_runs o
            where o.decided_at < v_now - interval '7 days'
                and (
                    not exists (select from pgqueue.schedules s where s.name = o.schedule)
                    or exists (
                        select from pgqueue.schedule_runs later
                        where later.schedule = o.schedule and later.n > o.n and later.rule is not null
                    )
                )
            limit 50000
        );
    end if;
    return v_jobs;
end
$$;

comment on function pgqueue._run_schedules(integer, boolean) is
    'Private: enqueues what is due of at most p_limit schedules, and forgets old runs where p_tidy; returns how many jobs.';

create or replace function pgqueue._run_or_halve(p_now timestamptz, p_limit integer, p_names text[], p_due timestamptz[])
returns bigint
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_half integer := cardinality(p_names) / 2;
    v_error text;
begin
    begin
        return pgqueue._run_due(p_now, p_limit, p_names, p_due);
    exception when others then
        v_error := sqlstate || ': ' || left(sqlerrm, 500);
    end;
    if v_half > 0 then
        return pgqueue._run_or_halve(p_now, p_limit, p_names[:v_half], p_due[:v_half])
            + pgqueue._run_or_halve(p_now, p_limit, p_names[v_half + 1:], p_due[v_half + 1:]);
    end if;
    insert into pgqueue.schedule_runs (schedule, decided_at, outcome, next_at, retry_at, rule, error)
    select s.name, p_now, 'error', p_due[1], p_now + interval '1 min', pgqueue._schedule_rule(s), v_error
    from pgqueue.schedules s
    where s.name = p_names[1];
    return 0::bigint;
end
$$;

comment on function pgqueue._run_or_halve(timestamptz, integer, text[], timestamptz[]) is
    'Private: _run_due for all of these or, where that fails, for each half, down to the schedule that is broken: its error is written down.';

create or replace function pgqueue._due_schedules(p_now timestamptz, p_limit integer)
returns table (name text, due_at timestamptz)
language sql
stable
parallel safe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
    select s.name, case when not k.anew then r.next_at end
    from pgqueue.schedules s
    left join lateral (
        select x.next_at, x.retry_at, x.decided_at, x.rule, x.error
        from pgqueue.schedule_runs x
        where x.schedule = s.name and x.rule is not null
        order by x.n desc
        limit 1
    ) r on true
    cross join lateral (
        select
            r.rule is distinct from pgqueue._schedule_rule(s)
            or r.decided_at > p_now + interval '1 s'
            or (r.next_at is null and r.retry_at <= p_now) as anew
    ) k
    where s.paused_at is null
        and (k.anew or coalesce(r.retry_at, r.next_at) <= p_now)
    order by 2 nulls first, 1
    limit p_limit
$$;

comment on function pgqueue._due_schedules(timestamptz, integer) is
    'Private: the schedules that are due, and since when; null: when they are due is to be computed anew.';

create or replace function pgqueue._run_due(p_now timestamptz, p_limit integer, p_names text[], p_due timestamptz[])
returns bigint
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
as $$
declare
    v_lane record;
    v_jobs bigint := 0::bigint;
begin
    for v_lane in
        with due as materialized (
            select d.name, d.due_at from unnest(p_names, p_due) d (name, due_at)
        ),
        turns as materialized (
            select
                s.*, t.instants, t.next_at, t.passed_from, pgqueue._schedule_rule(s) as rule,
                sum(cardinality(t.instants)) over (order by d.due_at nulls first, s.name) - cardinality(t.instants) as jobs_before
            from due d
            join pgqueue.schedules s on s.name = d.name
            cross join lateral pgqueue._schedule_turn(
                case when s.expression is null then s.spec else pgqueue._cron_parse(s.expression) end,
                s.every, s.anchor, coalesce(s.timezone, s.declared_timezone), d.due_at, p_now, s.catch_up,
                case when s.overlap = 'skip' then 1 else s.catch_up_cap end
            ) t
        ),
        runs as materialized (
            select o.*, case when o.outcome = 'enqueued' then nextval('pgqueue.jobs_id_seq') end as job_id
            from (
                select
                    t.name, i.at, t.next_at, t.rule,
                    case when i.ord = 1 then t.passed_from end as passed_from,
                    case when i.at is null then 'planned' when l.lives then 'overlap' else 'enqueued' end as outcome
                from turns t
                cross join lateral (
                    -- After the clock stepped back, some have had their run. A scalar subquery: of an EXISTS the
                    -- planner may make a join that reads every run of the schedule.
                    select coalesce(array_agg(u.at order by u.ord), array[null::timestamptz]) as instants
                    from unnest(t.instants) with ordinality u (at, ord)
                    where (
                        select true from pgqueue.schedule_runs r where r.schedule = t.name and r.at = u.at limit 1
                    ) is null
                ) f
                cross join lateral unnest(f.instants) with ordinality i (at, ord)
                cross join lateral (
                    select t.overlap = 'skip' and exists (
                        select from pgqueue.jobs j
                        where j.id = (
                            select r.job_id
                            from pgqueue.schedule_runs r
                            where r.schedule = t.name and r.job_id is not null
                            order by r.n desc
                            limit 1
                        )
                    ) as lives
                ) l
                where t.jobs_before < p_limit
                order by i.at, t.name
            ) o
        ),
        written as (
            insert into pgqueue.schedule_runs (
                schedule, at, decided_at, outcome, job_id, next_at, passed_from, rule
            )
            select r.name, r.at, p_now, r.outcome, r.job_id, r.next_at, r.passed_from, r.rule
            from runs r
            order by r.at, r.name
            on conflict (schedule, at) do nothing
            returning schedule, at, job_id
        ),
        enqueued as (
            insert into pgqueue.jobs (
                id, queue, task, args, headers, tags, priority, run_at, ready_at, created_at, expires_at, max_attempts,
                retention
            )
            overriding system value
            select
                w.job_id, q.queue, t.task, t.args,
                coalesce(t.headers, '{}') || jsonb_build_object('schedule', t.name, 'scheduled_at', w.at), t.tags,
                p.priority, a.run_at, greatest(a.run_at, p_now), p_now,
                greatest(a.run_at, p_now) + coalesce(t.expires_in, e.expires_in), t.max_attempts, t.retention
            from written w
            join turns t on t.name = w.schedule
            left join pgqueue.effective_tasks e on e.name = t.task
            cross join lateral (select coalesce(t.queue, e.queue, 'default') as queue) q
            left join pgqueue.queues o on o.name = q.queue
            cross join lateral (select coalesce(t.priority, e.priority, o.priority, 0)::smallint as priority) p
            cross join lateral (select w.at + coalesce(random() * t.jitter, '0') as run_at) a
            where w.job_id is not null
            order by w.job_id
            returning queue, priority, ready_at
        )
        select q.queue, q.priority, count(*) as jobs, min(q.ready_at) as ready_at
        from enqueued q
        group by q.queue, q.priority
    loop
        v_jobs := v_jobs + v_lane.jobs;
        perform pgqueue._register_lane(v_lane.queue, v_lane.priority, p_now);
        perform pgqueue._wake(v_lane.queue, v_lane.ready_at, 2, null);
    end loop;
    return v_jobs;
end
$$;

comment on function pgqueue._run_due(timestamptz, integer, text[], timestamptz[]) is
    'Private: enqueues what is due of these schedules, each due since p_due (null: to be computed anew), at most about p_limit jobs; returns how many.';

create or replace function pgqueue._schedule_turn(
    p_spec bytea,
    p_every interval,
    p_anchor timestamptz,
    p_timezone text,
    p_due_at timestamptz,
    p_now timestamptz,
    p_catch_up text,
    p_cap integer,
    out instants timestamptz[],
    out next_at timestamptz,
    out passed_from timestamptz
)
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    -- Later than this, a run was missed: housekeeping comes about once a second.
    v_in_time timestamptz := p_now - interval '10 s';
    v_at timestamptz;
begin
    instants := '{}';
    if p_due_at is null then
        next_at := pgqueue._next_instant(p_spec, p_every, p_anchor, p_timezone, p_now);
        return;
    end if;

    next_at := pgqueue._next_instant(p_spec, p_every, p_anchor, p_timezone, p_due_at);
    if next_at is null or next_at > p_now then
        if p_due_at >= v_in_time or p_catch_up <> 'skip' then
            instants := array[p_due_at];
        else
            passed_from := p_due_at;
        end if;
        return;
    end if;

    -- More than one. Those in time, or with "all" as many as may be, in order.
    v_at := case
        when p_catch_up = 'all' or p_due_at >= v_in_time then p_due_at
        else pgqueue._next_instant(p_spec, p_every, p_anchor, p_timezone, v_in_time - interval '1 us')
    end;
    while v_at <= p_now and cardinality(instants) < p_cap loop
        instants := instants || v_at;
        v_at := pgqueue._next_instant(p_spec, p_every, p_anchor, p_timezone, v_at);
    end loop;
    if v_at <= p_now then
        -- Too many: the latest.
        instants := '{}';
        v_at := pgqueue._last_instant(p_spec, p_every, p_anchor, p_timezone, p_due_at, p_now);
        while v_at is not null and cardinality(instants) < p_cap loop
            instants := v_at || instants;
            v_at := pgqueue._last_instant(p_spec, p_every, p_anchor, p_timezone, p_due_at, v_at - interval '1 us');
        end loop;
    elsif cardinality(instants) = 0 and p_catch_up = 'last' then
        instants := array[pgqueue._last_instant(p_spec, p_every, p_anchor, p_timezone, p_due_at, p_now)];
    end if;
    if cardinality(instants) = 0 or instants[1] > p_due_at then
        passed_from := p_due_at;
    end if;
    next_at := pgqueue._next_instant(p_spec, p_every, p_anchor, p_timezone, p_now);
end
$$;

comment on function pgqueue._schedule_turn(
    bytea, interval, timestamptz, text, timestamptz, timestamptz, text, integer
) is
    'Private: of a schedule due since p_due_at (null: unknown), the instants that are to run now, those passed over, and when it is due next.';

create or replace function pgqueue._next_instant(
    p_spec bytea, p_every interval, p_anchor timestamptz, p_timezone text, p_after timestamptz
)
returns timestamptz
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_spec is not null then
        return pgqueue._cron_next(p_spec, p_after, p_timezone);
    end if;
    -- In seconds and from the anchor: neither a late run nor a change of the clocks makes it drift.
    return p_anchor + make_interval(secs => (
        (floor(extract(epoch from p_after - p_anchor) / extract(epoch from p_every)) + 1) * extract(epoch from p_every)
    )::double precision);
end
$$;

comment on function pgqueue._next_instant(bytea, interval, timestamptz, text, timestamptz) is
    'Private: the first instant after p_after by a parsed expression, or by an interval counted from an anchor.';

create or replace function pgqueue._last_instant(
    p_spec bytea, p_every interval, p_anchor timestamptz, p_timezone text, p_from timestamptz, p_to timestamptz
)
returns timestamptz
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_last timestamptz := p_from;
    v_high timestamptz := p_to;
    v_middle timestamptz;
    v_next timestamptz;
begin
    if p_to < p_from then
        return null;
    end if;
    -- Halving: the next instant after the middle either is not beyond p_to, or the last one is not after the middle.
    while v_high - v_last > interval '1 s' loop
        v_middle := v_last + (v_high - v_last) / 2;
        v_next := pgqueue._next_instant(p_spec, p_every, p_anchor, p_timezone, v_middle);
        if v_next <= p_to then
            v_last := v_next;
        else
            v_high := v_middle;
        end if;
    end loop;
    v_next := pgqueue._next_instant(p_spec, p_every, p_anchor, p_timezone, v_last);
    return case when v_next <= p_to then v_next else v_last end;
end
$$;

comment on function pgqueue._last_instant(bytea, interval, timestamptz, text, timestamptz, timestamptz) is
    'Private: the last instant that is not after p_to; p_from is one. Null: p_to is before it.';

create or replace function pgqueue._schedule_rule(p_schedule pgqueue.schedules)
returns text
language sql
stable
parallel safe
as $$
    -- Numbers, not dates and intervals as text: those look different in every session.
    select coalesce(
        p_schedule.expression, p_schedule.declared_expression,
        'every ' || extract(epoch from p_schedule.every) || ' from ' || extract(epoch from p_schedule.anchor)
    ) || ' in ' || coalesce(p_schedule.timezone, p_schedule.declared_timezone)
$$;

comment on function pgqueue._schedule_rule(pgqueue.schedules) is
    'Private: all that decides when a schedule is due, as text, to compare.';

create or replace function pgqueue._plan_schedule(p_schedule pgqueue.schedules, p_now timestamptz)
returns timestamptz
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_next_at timestamptz := pgqueue._next_instant(
        case when p_schedule.expression is null then p_schedule.spec else pgqueue._cron_parse(p_schedule.expression) end,
        p_schedule.every, p_schedule.anchor, coalesce(p_schedule.timezone, p_schedule.declared_timezone), p_now
    );
begin
    insert into pgqueue.schedule_runs (schedule, decided_at, outcome, next_at, rule)
    values (p_schedule.name, p_now, 'planned', v_next_at, pgqueue._schedule_rule(p_schedule));
    return v_next_at;
end
$$;

comment on function pgqueue._plan_schedule(pgqueue.schedules, timestamptz) is
    'Private: has a schedule go on from p_now; returns when it is due next.';
