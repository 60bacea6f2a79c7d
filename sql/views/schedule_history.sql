-- The runs of each schedule in the last week, with the state of their jobs. It does not read all_jobs: no view depends
-- on another, so that each can be replaced by itself.

create or replace view pgqueue.schedule_history as
select
    r.n, r.schedule, r.at, r.decided_at, r.outcome, r.job_id,
    coalesce(
        (select j.state from pgqueue.jobs j where j.id = r.job_id),
        (select h.state from pgqueue.history h where h.id = r.job_id limit 1)
    ) as job_state,
    r.passed_from, r.error
from pgqueue.schedule_runs r;

comment on view pgqueue.schedule_history is 'The runs of schedules in the last week, and the state of their jobs. select * from pgqueue.schedule_history where schedule = ''nightly'' order by n desc limit 20;';
comment on column pgqueue.schedule_history.n is 'Ascending number of the row.';
comment on column pgqueue.schedule_history.schedule is 'The schedule.';
comment on column pgqueue.schedule_history.at is 'When the run was due; null: the row is about no run.';
comment on column pgqueue.schedule_history.decided_at is 'When the row was written.';
comment on column pgqueue.schedule_history.outcome is 'enqueued; overlap: skipped, because the last job had not ended; planned: no run was due, the next time was set or missed runs were skipped; manual: run_schedule_now(); error.';
comment on column pgqueue.schedule_history.job_id is 'The job.';
comment on column pgqueue.schedule_history.job_state is 'State of that job; null: history keeps it no more.';
comment on column pgqueue.schedule_history.passed_from is 'The first of the missed runs that were skipped, by catch_up.';
comment on column pgqueue.schedule_history.error is 'The error, for the outcome error.';
