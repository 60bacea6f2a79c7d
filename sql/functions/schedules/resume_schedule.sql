-- resume_schedule: continues the schedule from now. Runs of the pause are not made up for: they were not missed. (If you
-- set paused_at to null by an update instead, catch_up decides.) Locks and updates its row, inserts its next instant.

create or replace function pgqueue.resume_schedule(name text)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_schedule pgqueue.schedules;
begin
    perform pgqueue._check_name('name', resume_schedule.name);
    update pgqueue.schedules s
    set paused_at = null
    where s.name = resume_schedule.name and s.paused_at is not null
    returning s.* into v_schedule;
    if not found then
        return false;
    end if;
    perform pgqueue._plan_schedule(v_schedule, pgqueue._clock());
    perform pgqueue._audit('resume_schedule', jsonb_build_object('name', resume_schedule.name));
    return true;
end
$$;

comment on function pgqueue.resume_schedule(text) is
    'Continue a paused schedule from now; runs of the pause are not made up for. False: there is no such schedule, or it was not paused.';
