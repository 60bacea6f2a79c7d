-- Schedules as they run: the operator's expression if it is set, else the declared one; with next and last run.

create or replace view pgqueue.effective_schedules as
select
    s.name,
    coalesce(s.expression, s.declared_expression) as expression,
    coalesce(s.timezone, s.declared_timezone) as timezone,
    case when s.expression is null then s.every end as every,
    s.paused_at, s.task, s.queue, s.catch_up, s.overlap, s.jitter,
    case when s.paused_at is null and n.rule = pgqueue._schedule_rule(s) then n.next_at end as next_at,
    l.at as last_at, l.outcome as last_outcome, l.job_id as last_job_id,
    case when n.rule = pgqueue._schedule_rule(s) then n.error end as error
from pgqueue.schedules s
left join lateral (
    select r.next_at, r.rule, r.error
    from pgqueue.schedule_runs r
    -- As _latest_plan.
    where r.schedule = s.name and r.rule is not null and r.decided_at <= pgqueue._clock() + interval '1 s'
    order by r.n desc limit 1
) n on true
left join lateral (
    select coalesce(r.at, r.decided_at) as at, r.outcome, r.job_id
    from pgqueue.schedule_runs r
    where r.schedule = s.name and r.job_id is not null
    order by r.n desc
    limit 1
) l on true;

comment on view pgqueue.effective_schedules is 'Each schedule as it runs: its expression or interval, its next run and its last one. select * from pgqueue.effective_schedules order by next_at;';
comment on column pgqueue.effective_schedules.name is 'Name of the schedule.';
comment on column pgqueue.effective_schedules.expression is 'Its cron expression; null: it runs at the interval in every.';
comment on column pgqueue.effective_schedules.timezone is 'The time zone in which the expression is read.';
comment on column pgqueue.effective_schedules.every is 'The interval between its runs; null: it has an expression.';
comment on column pgqueue.effective_schedules.paused_at is 'When it was paused; null: it is not paused.';
comment on column pgqueue.effective_schedules.task is 'Task of its jobs.';
comment on column pgqueue.effective_schedules.queue is 'Queue of its jobs; null: the queue of the task.';
comment on column pgqueue.effective_schedules.catch_up is 'Which missed runs are made up for: skip (none), last or all.';
comment on column pgqueue.effective_schedules.overlap is 'What a run does while the last job has not ended: start or skip.';
comment on column pgqueue.effective_schedules.jitter is 'Each job is deferred by a random interval up to this one.';
comment on column pgqueue.effective_schedules.next_at is 'When it is due next; null: it is paused, maintain() has not computed it yet, or there is no next run.';
comment on column pgqueue.effective_schedules.last_at is 'The time of its last run.';
comment on column pgqueue.effective_schedules.last_outcome is 'enqueued, or manual (by run_schedule_now()).';
comment on column pgqueue.effective_schedules.last_job_id is 'Id of its last job.';
comment on column pgqueue.effective_schedules.error is 'Why it cannot run; maintain() retries it each minute, and after a change.';
