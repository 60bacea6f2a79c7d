-- why_late: why jobs of a queue wait, in one row: the first cause that holds, its evidence, and the command that removes it.
--
-- Asks in this order: is the queue paused, do more of its jobs wait for a limit or behind a key than are due, is the task or tenant
-- of its oldest due job paused, throttled or stopped by its breaker, or a limit of it without capacity, does a worker serve it, does one know the task, do jobs that do not end take the
-- slots, do workers serve other queues first, does one tenant or task flood it, is the database slow, are the workers too
-- few. Reads bounded numbers of rows, and locks nothing. explain() says the same of one job, doctor() of all queues.

create or replace function pgqueue.why_late(queue text default null)
returns table (
    queue_name text, severity text, cause text, subject text, evidence text, remedy text, since timestamptz,
    lag double precision, stuck_for double precision
)
language plpgsql stable security definer rows 5
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := pgqueue._clock();
    v_is_sampled boolean := pgqueue._is_sampled(v_now);
begin
    if why_late.queue is not null then
        perform pgqueue._check_name('queue', why_late.queue);
    end if;
    return query
    select q.name, w.*
    from (
        select c.name
        from (
            select why_late.queue as name, null::timestamptz as at
            where why_late.queue is not null
            union all
            select l.queue, l.lane_ready_at
            from pgqueue._due_lanes(null, null, v_now) l
            where why_late.queue is null and not v_is_sampled and l.lane_ready_at <= v_now - interval '30 s'
            union all
            -- Jobs that wait for a limit or a key do so on purpose for a while.
            select s.queue, least(s.oldest_due_at, s.oldest_stuck_at)
            from pgqueue._last_samples() s
            where why_late.queue is null
                and (s.oldest_stuck_at <= v_now - interval '5 min' or (v_is_sampled and s.oldest_due_at <= v_now - interval '30 s'))
            union all
            select n.queue, n.oldest_stuck_at
            from pgqueue._count_queues(v_now, 10000) n
            where why_late.queue is null and not v_is_sampled and n.oldest_stuck_at <= v_now - interval '5 min'
        ) c
        group by c.name
        order by min(c.at)
        limit 100
    ) q
    cross join lateral pgqueue._why_late(q.name, v_now) w
    where w.cause <> 'on_time' or why_late.queue is not null
    order by array_position('{critical,warning,info}'::text[], w.severity), greatest(w.lag, w.stuck_for) desc, q.name;
end
$$;

comment on function pgqueue.why_late(text) is
    'Why jobs of a queue wait: the first cause that holds, with its evidence and the command that removes it. Without a queue: a row for each that is late, '
    'its oldest due job by 30 s or a stuck one by 5 min, the worst first, a hundred at most. cause: on_time, paused, throttled, breaker (what it calls fails), limit, key (behind one job), no_worker (as soon as a job is due), unknown_task (or no living worker has it), slots (taken by jobs that do not end), '
    'starved (workers serve other queues first), flood (of one tenant or task), database (old snapshot, dead rows, locks, notifications), workers (too few). subject: the limit, key, task, tenant or worker that it is about. '
    'lag: the age of the oldest due job in seconds; stuck_for: that of the oldest job that waits for a limit or behind its key, or whose task no worker knows, unless the queue is paused. '
    'select cause, evidence, remedy from pgqueue.why_late(''mail'');';

create or replace function pgqueue._why_late(
    p_queue text, p_now timestamptz, out severity text, out cause text, out subject text, out evidence text, out remedy text,
    out since timestamptz, out lag double precision, out stuck_for double precision
)
language plpgsql stable
as $$
declare
    v_first pgqueue.jobs;
    v_pause record;
    v_due bigint := 0::bigint;
    v_sample pgqueue.samples;
    v_blocked record;
    v_unserved record;
begin
    select j.*
    into v_first
    from (select distinct l.priority from pgqueue.lanes l where l.queue = p_queue) l
    cross join (values (false), (true)) s (resumed)
    cross join lateral pgqueue._head(p_queue, l.priority, s.resumed) h
    cross join lateral pgqueue._first_ready(p_queue, l.priority, s.resumed, h.head, h.head_id, p_now) f
    join pgqueue.jobs j on j.id = f.id
    order by f.ready_at, f.id
    limit 1;
    select s.since, s.until, s.source, s.reason, s.by as actor
    into v_pause
    from pgqueue._standing(p_now) s
    where s.kind = 'queue' and s.target = p_queue;
    -- Where a sample tells of now, its numbers are not counted again: that would take longer than all the rest.
    select s.* into v_sample from pgqueue._last_samples() s where s.queue = p_queue and pgqueue._is_sampled(p_now);
    if v_first.id is not null then
        v_due := greatest(pgqueue._due_in(p_queue, v_sample, p_now), 1);
    end if;
    select b.* into v_blocked
    from pgqueue._blocked_in(p_queue, case
        when v_sample.n is null then 5000
        when v_sample.blocked > coalesce(v_sample.blocked_by_parents, 0) then 500
        else 0
    end) b;
    if v_blocked.jobs > 0 then
        v_blocked.jobs := greatest(v_blocked.jobs, v_sample.blocked - coalesce(v_sample.blocked_by_parents, 0));
    end if;
    select u.* into v_unserved from pgqueue._unserved_in(p_queue, p_now) u;
    lag := coalesce(extract(epoch from p_now - v_first.ready_at), 0)::double precision;
    stuck_for := case
        when v_pause.since is null
            then greatest(coalesce(extract(epoch from p_now - least(v_blocked.oldest_at, v_unserved.oldest_at)), 0), 0)::double precision
        else 0::double precision
    end;
    since := least(v_first.ready_at, v_blocked.oldest_at);

    if v_pause.since is not null and v_due + v_blocked.jobs > 0 then
        cause := 'paused';
        subject := p_queue;
        since := v_pause.since;
        evidence := concat(
            format('the queue has %s due, and is ', pgqueue._counted(v_due)),
            case v_pause.source when 'operator' then 'paused' when 'throttle' then 'throttled' else 'stopped by its breaker' end,
            ' since ' || v_pause.since, ' until ' || v_pause.until, ' by ' || v_pause.actor, ': ' || v_pause.reason
        );
        remedy := format('select pgqueue.resume(''queue'', %L, %L);', p_queue, v_pause.source);
    end if;
    if cause is null then
        select l.* into cause, subject, evidence, remedy
        from pgqueue._late_by_rule(v_first, case when lag < 30 then 0 else v_due end, v_blocked.jobs, v_blocked.limit_name, v_blocked.job_id, p_now) l;
    end if;
    if cause is null and v_due > 0 and not exists (select from pgqueue._living_workers_of(p_queue, p_now)) then
        cause := 'no_worker';
        subject := p_queue;
        select x.* into evidence, remedy from pgqueue._late_without_worker(p_queue, v_due, v_first.ready_at) x;
    end if;
    if cause is null and v_unserved.jobs > 0 and (lag < 30 or 2 * v_unserved.jobs >= v_unserved.of_jobs) then
        cause := 'unknown_task';
        subject := v_unserved.task;
        since := v_unserved.oldest_at;
        evidence := coalesce(
            pgqueue._explain_unknown_task(v_unserved.task, p_queue, p_now),
            format('no living worker has task %s: worker %s gave job %s back without an attempt', v_unserved.task, v_unserved.worker,
                v_unserved.job_id)
        );
        remedy := 'start a worker that has it, correct its name, or: '
            || format('select pgqueue.cancel_many(task => %L);', v_unserved.task);
    end if;
    if cause is null and lag < 30 then
        cause := 'on_time';
        subject := p_queue;
        since := null;
        evidence := case
            when v_due = 0 then 'no job of it is due'
            else format('its oldest due job waits for %s', pgqueue._in_words(p_now - v_first.ready_at))
        end;
        remedy := 'nothing';
    end if;
    if cause is null then
        select l.cause, l.subject, l.evidence, l.remedy, coalesce(l.since, _why_late.since)
        into cause, subject, evidence, remedy, since
        from pgqueue._late_by_load(v_first, v_due, p_now) l;
    end if;
    severity := case
        -- One that was forgotten.
        when cause = 'paused' and since < p_now - interval '1 day' then 'warning'
        when cause in ('paused', 'throttled', 'on_time') or greatest(lag, stuck_for) < 30 then 'info'
        when cause in ('no_worker', 'slots') then 'critical'
        else 'warning'
    end;
end
$$;

-- The cause limit or key: it holds back more jobs than are due late, or a limit holds back the oldest due job.
create or replace function pgqueue._late_by_rule(
    p_first pgqueue.jobs, p_due bigint, p_blocked bigint, p_limit text, p_behind bigint, p_now timestamptz,
    out cause text, out subject text, out evidence text, out remedy text
)
language plpgsql stable
as $$
declare
    v_job pgqueue.jobs := p_first;
    v_name text;
    v_detail text;
    v_behind bigint;
    v_held bigint;
begin
    if p_blocked > p_due and p_limit is null then
        select j.* into v_job from pgqueue.jobs j where j.id = p_behind;
        select e.detail, e.behind into v_detail, v_behind from pgqueue._explain_key(v_job, p_now) e;
        cause := 'key';
        subject := v_job.key;
        evidence := format('the queue has %s blocked, most behind key %s: %s', pgqueue._counted(p_blocked), v_job.key, v_detail);
        remedy := case
            when v_behind is null then 'select pgqueue.maintain();'
            when exists (select from pgqueue.jobs j where j.id = v_behind and j.state = 'executing' and j.cancel_requested_at < p_now - interval '10 s')
                then format('pgqueue jobs stack %1$s; it was asked to cancel, and does not end: pgqueue workers kill --job %1$s', v_behind)
            else format('pgqueue jobs explain %1$s; if it does not end: pgqueue jobs cancel %1$s', v_behind)
        end;
        return;
    elsif p_blocked > p_due then
        select j.* into v_job from pgqueue.jobs j where j.id = p_behind;
        v_detail := (select l.detail from pgqueue._reached_limit(v_job, p_limit, p_now) l);
        v_name := p_limit;
    end if;
    select e.reason, p.name, e.detail into cause, subject, evidence
    from pgqueue._pauses_of(v_job.task, v_job.limit_key, p_now) p
    cross join lateral pgqueue._explain_pause(v_job, p_now) e
    order by p.until desc
    limit 1;
    if cause is not null then
        subject := substr(subject, 7);
        remedy := format('pgqueue limits pauses; then: pgqueue limits resume %s %s%s', split_part(subject, ':', 1),
            pgqueue._shell_quoted(substr(subject, strpos(subject, ':') + 1)),
            case cause when 'throttled' then ' --source throttle' when 'breaker' then ' --source breaker' end);
        return;
    elsif v_name is null and v_job.id is not null then
        select l.name, l.detail into v_name, v_detail from pgqueue._reached_limit(v_job, null, p_now) l;
    end if;
    if v_name is null then
        return;
    end if;
    cause := 'limit';
    subject := v_name;
    select count(*) into v_held from (select from pgqueue.jobs j where j.state = 'blocked' and j.blocked_on = v_name limit 1000) x;
    evidence := format(
        '%s; it holds back %s%s', coalesce(v_detail, format('the limit %s has capacity now', v_name)),
        case when v_held = 1000 then 'at least ' end,
        pgqueue._counted(v_held + case when v_name like 'queue:%' then p_due else 0 end)
    );
    remedy := (
        select concat(
            'raise it, if what it protects allows that: pgqueue limits set ', l.kind, ' ', pgqueue._shell_quoted(l.target),
            case
                when l.max_executing is null or v_detail like '% jobs started within %'
                    then format(' --rate %s --per %s', least(2 * l.rate, 1000000), pgqueue._shell_quoted(l.per::text))
                else format(' --max-executing %s', least(greatest(2 * l.max_executing, 1), 1000000))
            end
        )
        from pgqueue._limits_of(v_job.queue, v_job.task, v_job.key, v_job.limit_key) l
        where l.name = v_name
        limit 1
    );
end
$$;

create or replace function pgqueue._late_without_worker(
    p_queue text, p_due bigint, p_since timestamptz, out evidence text, out remedy text
)
language sql stable
as $$
    select
        format('the queue has %s due since %s, and no living worker claims from it%s', pgqueue._counted(p_due), p_since,
            '; worker ' || q.worker || ' serves it, and an operator made it quiet'),
        case
            when q.worker is null then 'pgqueue worker -r MODULE --queue ' || pgqueue._shell_quoted(p_queue)
            else format('select pgqueue.resume_worker(%L);', q.worker)
        end
    from (
        select min(w.worker) as worker
        from pgqueue.worker_status w
        where w.is_alive and w.command = 'quiet' and (w.queues is null or p_queue = any (w.queues))
    ) q
$$;

-- Living workers serve the queue, and yet its jobs wait: their slots are taken, they serve other queues first, the queue is
-- flooded, the database is slow, or the workers are too few.
create or replace function pgqueue._late_by_load(
    p_first pgqueue.jobs, p_due bigint, p_now timestamptz,
    out cause text, out subject text, out evidence text, out remedy text, out since timestamptz
)
language plpgsql stable
as $$
declare
    v_queue text := p_first.queue;
    v_slots record;
begin
    select s.* into v_slots from pgqueue._slots_for(v_queue, p_now) s;
    if 2 * v_slots.overlong >= v_slots.slots and v_slots.executing >= v_slots.slots then
        cause := 'slots';
        subject := v_slots.task;
        since := v_slots.oldest_at;
        evidence := format('%s takes %s of %s slots of %s, the oldest for %s, %s', v_slots.task, v_slots.overlong, v_slots.slots, v_slots.workers,
            pgqueue._in_words(p_now - v_slots.oldest_at),
            coalesce('and it usually takes ' || pgqueue._in_words(v_slots.usual), 'and none ended within a day'));
        if v_slots.asked >= v_slots.overlong then
            evidence := evidence || '; they were asked to cancel, and do not end';
            remedy := format('pgqueue jobs stack %1$s; pgqueue workers kill --job %1$s', v_slots.oldest_id);
        else
            remedy := format('pgqueue jobs stack %s; pgqueue jobs cancel --task %s --state executing', v_slots.oldest_id,
                pgqueue._shell_quoted(v_slots.task));
        end if;
        return;
    end if;
    evidence := 'its workers serve first: ' || pgqueue._lanes_ahead(p_first, p_now);
    if evidence is not null then
        cause := 'starved';
        subject := v_queue;
        remedy := format('select pgqueue.configure_queue(%L, weight => 10); or a separate worker: pgqueue worker -r MODULE --queue %s',
            v_queue, pgqueue._shell_quoted(v_queue));
        return;
    end if;
    select f.* into cause, subject, evidence, remedy, since from pgqueue._late_by_flood(v_queue, p_due, v_slots.slots, p_now) f;
    if cause is null and v_slots.executing < 0.8 * v_slots.slots then
        select 'database', d.subject, d.evidence, d.remedy into cause, subject, evidence, remedy
        from pgqueue._late_by_database(p_now) d
        where d.evidence is not null;
    end if;
    if cause is null then
        cause := 'workers';
        subject := v_queue;
        evidence := concat(
            format('the oldest of %s is due since %s, and ', pgqueue._counted(p_due), p_first.ready_at),
            coalesce('executing jobs take ' || least(v_slots.executing, v_slots.slots) || ' of ' || v_slots.slots || ' slots of ' || v_slots.workers, 'it is served by ' || v_slots.workers),
            '; ' || pgqueue._rates_of(v_queue, p_due, p_now)
        );
        remedy := 'start more workers, or raise --concurrency: pgqueue worker -r MODULE --queue ' || pgqueue._shell_quoted(v_queue);
    end if;
end
$$;
