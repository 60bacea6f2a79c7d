-- Schedules as they run: an operator's word where there is one, else the declared; and where each stands.

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
    where r.schedule = s.name and r.rule is not null
    order by r.n desc
    limit 1
) n on true
left join lateral (
    select coalesce(r.at, r.decided_at) as at, r.outcome, r.job_id
    from pgqueue.schedule_runs r
    where r.schedule = s.name and r.job_id is not null
    order by r.n desc
    limit 1
) l on true;

comment on view pgqueue.effective_schedules is 'Each schedule as it runs: by what rule, when it is due next, what came of it last. select * from pgqueue.effective_schedules order by next_at;';
comment on column pgqueue.effective_schedules.name is 'The schedule.';
comment on column pgqueue.effective_schedules.expression is 'The cron expression by which it runs; null: it runs by every.';
comment on column pgqueue.effective_schedules.timezone is 'The time zone in which the expression is read.';
comment on column pgqueue.effective_schedules.every is 'The interval by which it runs.';
comment on column pgqueue.effective_schedules.paused_at is 'Since when it is paused.';
comment on column pgqueue.effective_schedules.task is 'Task of its jobs.';
comment on column pgqueue.effective_schedules.queue is 'Queue of its jobs; null: as the task says.';
comment on column pgqueue.effective_schedules.catch_up is 'skip, last or all of the runs that were missed.';
comment on column pgqueue.effective_schedules.overlap is 'start or skip a run while the last job lives.';
comment on column pgqueue.effective_schedules.jitter is 'Up to how much each job is put off at random.';
comment on column pgqueue.effective_schedules.next_at is 'When it is due next; null: it is paused, or maintain() has not looked at it yet, or it does not come again.';
comment on column pgqueue.effective_schedules.last_at is 'The instant of its last job.';
comment on column pgqueue.effective_schedules.last_outcome is 'enqueued, or manual: run_schedule_now().';
comment on column pgqueue.effective_schedules.last_job_id is 'Its last job.';
comment on column pgqueue.effective_schedules.error is 'What is wrong with it; it is tried again each minute, and when it is edited.';
