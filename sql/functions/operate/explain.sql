-- explain: why a job is not running, in one row.
--
-- Asks the questions of reserve, in its order. Reads only and locks nothing. Each question reads one row by an index, or a
-- bounded number of them.

create or replace function pgqueue.explain(
    inout job_id bigint, out state text, out reason text, out detail text, out until timestamptz, out behind bigint
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off set enable_sort = off
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_job pgqueue.jobs;
    v_attempt text;
begin
    select j.* into v_job from pgqueue.jobs j where j.id = explain.job_id;
    if not found then
        select
            h.state::text, 'finished', h.merged_into,
            concat(
                format('%s at %s after %s attempt%s', h.state, h.finished_at, h.attempts, case h.attempts when 1 then '' else 's' end),
                ', with job ' || h.merged_into || ', which had the same payload',
                case
                    when h.state <> 'succeeded'
                    then ': ' || left(coalesce(h.errors -> -1 ->> 'message', h.errors -> -1 ->> 'class'), 500)
                end
            )
        into state, reason, behind, detail
        from pgqueue.history h
        where h.id = explain.job_id
        union all
        select 'unknown', 'unknown', null, 'there is no such job, or its retention has ended'
        limit 1;
        return;
    end if;
    state := v_job.state::text;
    v_job.cancel_requested_at := coalesce(v_job.cancel_requested_at,
        (select min(n.look_at) from pgqueue.notes n where n.kind = 'superseded' and n.id = v_job.id));
    select format('attempt %s of %s', v_job.attempts + (v_job.state <> 'executing')::integer,
        pgqueue._max_attempts(v_job.max_attempts, t.max_attempts, t.accumulate))
    into v_attempt
    from (select) one
    left join pgqueue.effective_tasks t on t.name = v_job.task;
    -- A row for each question whose answer is no, in their order. Only the first is asked for.
    select a.reason, a.detail, a.until, a.behind into reason, detail, until, behind
    from (
        select
            case
                when v_job.lease_expires_at <= v_now then 'lapsed'
                when v_job.cancel_requested_at is not null then 'cancelling'
                else 'executing'
            end as reason,
            case
                when v_job.lease_expires_at <= v_now
                    then format('the lease of worker %s lapsed at %s; the next maintain() takes the job back',
                        v_job.reserved_by, v_job.lease_expires_at)
                when v_job.cancel_requested_at is not null
                    then format('worker %s was asked to cancel it at %s', v_job.reserved_by, v_job.cancel_requested_at)
                else format('worker %s holds it since %s until %s, %s',
                    v_job.reserved_by, v_job.reserved_at, v_job.lease_expires_at, v_attempt)
            end as detail,
            v_job.lease_expires_at as until, nullif(v_job.leader, v_job.id) as behind
        where v_job.state = 'executing'
        union all
        select 'expired', format('it did not start before %s and will be cancelled', v_job.expires_at), null, null
        where v_job.expires_at <= v_now
        union all
        select case when v_job.task = '@group' then 'group' else 'parents' end, e.detail, null, e.behind
        from pgqueue._explain_parents(v_job) e
        where v_job.blocked_on like '@%'
        union all
        select
            coalesce(e.reason, 'paused'),
            coalesce(e.detail, format('the %s has ended; it comes back when a claim asks for it', replace(v_job.blocked_on, ':', ' '))),
            e.until, null
        from (select) one
        left join pgqueue._explain_pause(v_job, v_now) e on true
        where case
            when v_job.state = 'blocked' then starts_with(v_job.blocked_on, 'pause:')
            else v_job.ready_at <= v_now and e.detail is not null
        end
        union all
        select 'unknown_task', e.detail, null, null
        from pgqueue._explain_unknown_task(v_job.task, v_job.queue, v_now) e (detail)
        where e.detail is not null
        union all
        select e.reason, e.detail, e.until, null
        from pgqueue._explain_step(v_job, v_now) e
        where v_job.state <> 'blocked' and v_job.ready_at > v_now and e.detail is not null
        union all
        select
            'not_due',
            format(
                '%s at %s, %s',
                case
                    when v_job.state = 'failed' then 'it failed and is retried'
                    when pgqueue._is_given_back(v_job, v_now) then format(
                        'workers reserved it %s and gave it back without an attempt, the last time %s: they do not have task %s, '
                        'or its handler snoozes; it runs again',
                        pgqueue._counted((v_job.reservation >> 20) - v_job.losses, 'time'), v_job.reserved_by, v_job.task
                    )
                    when v_job.reservation > 0 then 'it was deferred; it runs again'
                    else 'it is to run'
                end,
                v_job.ready_at, v_attempt
            ),
            v_job.ready_at, null
        where v_job.state <> 'blocked' and v_job.ready_at > v_now
        union all
        select 'key', e.detail, e.until, e.behind
        from pgqueue._explain_key(v_job, v_now) e
        where v_job.key is not null and v_job.blocked_on is null and e.detail is not null
        union all
        select
            'limit',
            coalesce(l.detail, format('it was blocked by the limit %s, which has capacity now; maintain() releases it', v_job.blocked_on)),
            l.until, null
        from (select) one
        left join pgqueue._reached_limit(v_job, v_job.blocked_on, v_now) l on true
        where v_job.blocked_on is not null or l.detail is not null
        union all
        select 'no_worker', format('no living worker serves queue %s', v_job.queue), null, null
        where not exists (select from pgqueue._living_workers_of(v_job.queue, v_now))
        union all
        select
            'turn',
            concat(
                pgqueue._jobs_ahead(v_job, v_now), '; its workers serve first: ' || pgqueue._lanes_ahead(v_job, v_now),
                '; ' || (
                    select w.evidence
                    from pgqueue.why_late(v_job.queue) w
                    where v_job.ready_at <= v_now - interval '30 s' and w.cause in ('slots', 'flood', 'database', 'workers')
                )
            ),
            null, null
    ) a
    limit 1;
end
$$;

comment on function pgqueue.explain(bigint) is
    'Why a job is not running, in one row. reason is one of: unknown; finished; executing, lapsed (its lease; rescue is due) or cancelling (its worker was asked); '
    'expired; parents (jobs that it depends on); group (its members, or it is open); paused, throttled or breaker (its queue, task or limit_key); unknown_task (no worker has declared it, or no living one has it); event (it waits for one); sleep (a step of it); not_due; key (job behind is ahead of it); limit; no_worker; turn (due, others are ahead). '
    'detail: the reason in words; until: when it ends, if that is known; behind: the job that it waits for. select * from pgqueue.explain(17); [reader]';

-- Which pause stops a job: of all that match, the one that ends last; or which breaker is half-open.
create or replace function pgqueue._explain_pause(p_job pgqueue.jobs, p_now timestamptz)
returns table (reason text, detail text, until timestamptz)
language sql stable rows 1
as $$
    (
    select
        case s.source when 'operator' then 'paused' when 'throttle' then 'throttled' else s.source end,
        concat(
            format('%s %s is ', replace(s.kind, '_', ' '), s.target),
            case s.source when 'operator' then 'paused' when 'throttle' then 'throttled' else 'stopped by its breaker' end,
            ' since ' || s.since, ' until ' || s.until, ' by ' || s.by, ': ' || s.reason
        ),
        s.until
    from pgqueue._standing_pauses(p_now) s
    where (s.kind = 'queue' and s.target = p_job.queue)
        or format('pause:%s:%s', s.kind, s.target) in (select p.name from pgqueue._pauses_of(p_job.task, p_job.limit_key, p_now) p)
    order by s.until desc nulls first
    limit 1
    )
    union all
    select
        'breaker',
        format('the breaker of %s %s is half-open since %s: one job at a time starts, until an attempt succeeds or fails',
            replace(b.kind, '_', ' '), b.target, b.half_open_at),
        null
    from pgqueue.pauses b
    where b.source = 'breaker' and b.until > p_now and b.half_open_at <= p_now
        and format('pause:%s:%s', b.kind, b.target) in (select p.name from pgqueue._pauses_of(p_job.task, p_job.limit_key, p_now) p)
    limit 1
$$;
