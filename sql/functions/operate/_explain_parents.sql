-- What explain() reports about a job that waits.

-- Which members of its group, or which of the jobs that it depends on, have not ended, in words. Not in SQL: so explain() opens
-- the table of dependencies only for jobs that have some.
create or replace function pgqueue._explain_parents(p_job pgqueue.jobs)
returns table (detail text, behind bigint)
language plpgsql stable rows 1
as $$
begin
    return query
    select
        case
            when p_job.blocked_on = '@open' then format('group %s is open; members that have not ended: %s%s', p_job.id, case when count(*) = 10000 then 'at least ' end, count(*))
            else format('group %s waits for %s%s, the oldest %s (%s)', p_job.id, case when count(*) = 10000 then 'at least ' end, pgqueue._counted(count(*), 'member'), min(m.id),
                (array_agg(m.state order by m.id))[1])
        end,
        min(m.id)
    from (select x.id, x.state from pgqueue.jobs x where p_job.task = '@group' and x.group_id is not null and x.group_id = p_job.id limit 10000) m
    having p_job.task = '@group' and (p_job.blocked_on = '@open' or count(*) > 0)
    union all
    select
        case
            when count(*) = 0 then 'the jobs that it waits for have ended; maintain() releases it'
            else concat(
                case
                    when p_job.blocked_on = '@jobs' then format('waits for %s: ', pgqueue._counted(count(*)))
                    else format('waits for %s of %s parents: ', count(*), cardinality(p_job.depends_on))
                end,
                string_agg(
                    concat(p.parent, ' ', coalesce(p.state, 'has ended'), case when p.state = 'failed' then ', next attempt ' || p.ready_at end),
                    ', ' order by p.parent
                ) filter (where p.n <= 5),
                case when count(*) > 5 then format(', and %s more', count(*) - 5) end
            )
        end,
        min(p.parent)
    from (
        select d.parent, j.state::text, j.ready_at, row_number() over (order by d.parent) as n
        from pgqueue.dependencies d
        left join lateral (select x.state, x.ready_at from pgqueue.jobs x where x.id = d.parent limit 1) j on true
        where d.child = p_job.id and d.ended is null
    ) p
    limit 1;
end
$$;

-- Which event or sleep a step of it waits for. The deadline of a sleep is the result of its step, and the job is ready a
-- moment after it. Any other step may have a result of that form, or one that is no time.
create or replace function pgqueue._explain_step(
    p_job pgqueue.jobs, p_now timestamptz, out reason text, out detail text, out until timestamptz
)
language plpgsql stable
as $$
begin
    select
        'event',
        'waits for ' || string_agg(
            format('event %s (step %s), %s', e.name, e.step, coalesce('until ' || e.until::text, 'without a timeout')), '; ' order by e.name, e.step
        ),
        min(e.until)
    into reason, detail, until
    from (select w.name, w.step, w.until from pgqueue.event_waits w where w.job_id = p_job.id order by w.name, w.step limit 5) e;
    if detail is not null or p_job.has_steps is not true then
        return;
    end if;
    select 'sleep', format('sleeps in step %s until %s', d.name, d.until), p_job.ready_at into reason, detail, until
    from (
        select
            s.name,
            case when s.result = jsonb_build_object('until', s.result -> 'until') then (s.result ->> 'until')::timestamptz end as until
        from pgqueue.steps s
        where s.job_id = p_job.id
    ) d
    where d.until > p_now and d.until between p_job.ready_at - interval '10 s' and p_job.ready_at
    order by d.name
    limit 1;
exception when data_exception then
    detail := null;
end
$$;

-- Which job of its key is ahead of a job, as a claim decides it; null: its key is free.
create or replace function pgqueue._explain_key(
    p_job pgqueue.jobs, p_now timestamptz, out detail text, out until timestamptz, out behind bigint
)
language plpgsql stable
as $$
declare
    v_keys record;
begin
    select k.* into v_keys
    from pgqueue._find_ahead(
        array(
            select row(j.ctid, j.id, j.queue, j.task, j.key, j.limit_key, false, false)::pgqueue.candidate
            from pgqueue.jobs j
            where j.id = p_job.id
        ),
        p_now
    ) k;
    behind := v_keys.ahead[1];
    if v_keys.payloads is not null then
        behind := (select g.ahead[1] from pgqueue._group_payloads(v_keys.payloads, p_now) g);
    end if;
    if v_keys.payloads is null and not exists (select from pgqueue._executing_of_key(p_job.queue, p_job.key, 0)) then
        -- A claim stops at whichever it finds first.
        behind := (select min(p.id) from pgqueue._key_positions(p_job.queue, p_job.key, p_now, 0, p_job.id) p where behind > 0);
    end if;
    select
        case when j.state = 'executing' then j.lease_expires_at when j.ready_at > p_now then j.ready_at end,
        case
            when j.id is null and p_job.state <> 'blocked' then null
            when j.id is null then format('no job of key %s is ahead of it now; maintain() releases it', p_job.key)
            when j.state = 'executing' then format('job %s of key %s executes on worker %s', j.id, p_job.key, j.reserved_by)
            else format('job %s of key %s is before it, %s%s', j.id, p_job.key, j.state, case when j.ready_at > p_now then ' until ' || j.ready_at end)
        end
    into until, detail
    from (select) one
    left join pgqueue.jobs j on j.id = behind;
end
$$;

-- How many jobs are due before a job that is due, in words: of its lane, where jobs that came back are read first, or of the
-- lane of its tenant.
create or replace function pgqueue._jobs_ahead(p_job pgqueue.jobs, p_now timestamptz)
returns text
language plpgsql stable
as $$
declare
    v_is_in_turn boolean := p_job.lane_key is not null and not p_job.resumed;
    v_words text;
begin
    select case when count(*) = 1000 then '1,000 or more jobs' else pgqueue._counted(count(*)) end into v_words
    from (
        select
        from pgqueue._ready_jobs(p_job.queue, 1000, p_now) j
        where not v_is_in_turn and j.priority = p_job.priority
            and (not j.resumed, j.ready_at, j.id) < (not p_job.resumed, p_job.ready_at, p_job.id)
        union all
        select
        from pgqueue._head(pgqueue._head_name(p_job.queue, p_job.lane_key), (p_job.priority + 1000)::smallint, false) h
        cross join lateral (
            select
            from pgqueue.jobs j
            where j.state in ('waiting', 'failed') and j.lane_key is not null and not j.resumed
                and j.queue = p_job.queue and j.priority = p_job.priority and j.lane_key = p_job.lane_key
                and (j.ready_at, j.id) >= (h.head, h.head_id) and (j.ready_at, j.id) < (p_job.ready_at, p_job.id)
            order by j.ready_at, j.id
            limit 1000
        ) j
        where v_is_in_turn
        limit 1000
    ) a;
    if not v_is_in_turn then
        return format('it is due and waits its turn behind %s in priority %s of queue %s', v_words, p_job.priority, p_job.queue);
    end if;
    return (
        select format('it is due: %s has %s ahead in priority %s of queue %s; %s take turns',
            coalesce('tenant ' || p_job.limit_key, 'the tenant without a limit_key'), v_words, p_job.priority, p_job.queue,
            pgqueue._counted(count(distinct t.lane_key), 'tenant'))
        from pgqueue.tenant_lanes t
        where t.queue = p_job.queue and t.priority = p_job.priority and t.lane_key > '' and t.due_from <= p_now
    );
end
$$;

-- Null: one of its workers serves none before it. Where the slots of a worker draw their queues, no other queue comes first;
-- where claims go round more than 64 due lanes, none of its priority.
create or replace function pgqueue._lanes_ahead(p_job pgqueue.jobs, p_now timestamptz)
returns text
language sql stable
as $$
    with ways as (
        select row_number() over () as way, d.*
        from (
            select distinct
                w.queues, coalesce(w.info ->> 'strategy', 'weighted') as strategy,
                w.info ? 'weights' or pgqueue._draws_slots(w.queues, coalesce(w.info ->> 'strategy', 'weighted')) as draws
            from pgqueue._living_workers_of(p_job.queue, p_now) w
        ) d
    ),
    due as (
        select w.way, w.strategy, w.draws, w.queues, l.queue, l.priority, min(l.lane_ready_at) as first_at,
            min(min(l.lane_ready_at)) over (partition by w.way, l.queue) as first_of_queue
        from ways w
        left join (select r.due_lanes from pgqueue.maintenance_runs r order by r.n desc limit 1) m on true
        cross join lateral pgqueue._due_lanes(w.queues, case when w.queues is null and m.due_lanes > 64 then array(
            select row(p_job.queue, p_job.priority, null, null, null, null, null)::pgqueue.due_lane
            union all
            (
                select row(x.queue, x.priority, null, null, null, null, null)::pgqueue.due_lane
                from pgqueue.lanes x
                where x.priority > p_job.priority and x.due_from <= p_now
                    and (x.queue = p_job.queue or not (w.draws or w.strategy = 'lag'))
                group by x.queue, x.priority order by x.priority desc, x.queue limit 64
            )
        ) end, p_now) l
        where not exists (select from pgqueue.pauses p where p.kind = 'queue' and p.target = l.queue and p.until > p_now)
        group by w.way, w.strategy, w.draws, w.queues, l.queue, l.priority
    ),
    ahead as (
        select d.way, d.queue, d.priority
        from due d
        join due own on own.way = d.way and own.queue = p_job.queue and own.priority = p_job.priority
        where case
            when d.queue = p_job.queue then d.priority > p_job.priority
            when d.draws then false
            when d.strategy = 'strict' then array_position(d.queues, d.queue) < array_position(d.queues, p_job.queue)
            when d.strategy = 'lag' then d.first_of_queue < own.first_of_queue
            else d.priority > p_job.priority or (d.priority = p_job.priority and d.first_at < own.first_at)
        end
    )
    select string_agg(
        format('queue %s, priority %s (%s due)', a.queue, a.priority, case when a.jobs = 1000 then '1,000 or more' else to_char(a.jobs, 'FM999,999,999,990') end),
        '; ' order by a.jobs desc, a.queue
    )
    from (
        select x.queue, x.priority, coalesce(
            -- The last sample, if it tells of now and the queue has no other lane.
            (
                select s.due::numeric
                from pgqueue._last_samples() s
                where s.queue = x.queue and pgqueue._is_sampled(p_now)
                    and not exists (select from pgqueue.lanes l where l.queue = x.queue and l.priority <> x.priority)
            ),
            (
                select sum(r.due)
                from (values (false), (true)) s (resumed)
                cross join lateral pgqueue._count_ready(x.queue, x.priority, s.resumed, p_now, 1000) r
            )
        ) as jobs
        from ahead x
        where x.way = (
            select w.way from ways w left join ahead y on y.way = w.way group by w.way order by count(y.way), w.way limit 1
        )
        order by x.priority desc, x.queue
        limit 5
    ) a
$$;
