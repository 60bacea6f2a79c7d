-- What became of each instant of each schedule, for a week. The state of a job is looked up for each row that is read,
-- and not by way of all_jobs: no view of ours stands on another, so that each can be replaced by itself.

create or replace view pgqueue.schedule_history as
select
    r.n, r.schedule, r.at, r.decided_at, r.outcome, r.job_id,
    coalesce(
        (select j.state from pgqueue.jobs j where j.id = r.job_id),
        (select h.state from pgqueue.history h where h.id = r.job_id limit 1)
    ) as job_state,
    r.passed_from, r.error
from pgqueue.schedule_runs r;

comment on view pgqueue.schedule_history is 'What became of the runs of schedules, for a week. select * from pgqueue.schedule_history where schedule = ''nightly'' order by n desc limit 20;';
comment on column pgqueue.schedule_history.n is 'Order.';
comment on column pgqueue.schedule_history.schedule is 'The schedule.';
comment on column pgqueue.schedule_history.at is 'The instant at which it was due; null: the row is not about one.';
comment on column pgqueue.schedule_history.decided_at is 'When this was written.';
comment on column pgqueue.schedule_history.outcome is 'enqueued; overlap: skipped, the last job was still alive; planned: nothing was due but the next time was set, or missed runs were passed over; manual: run_schedule_now(); error.';
comment on column pgqueue.schedule_history.job_id is 'The job.';
comment on column pgqueue.schedule_history.job_state is 'How that job stands; null: it is gone from history.';
comment on column pgqueue.schedule_history.passed_from is 'Missed instants from this one on were passed over, as catch_up says.';
comment on column pgqueue.schedule_history.error is 'What went wrong.';
