-- resume_schedule: continues the schedule from now. Runs of the pause are not made up for: they were not missed. (If you
-- set paused_at to null by an update instead, catch_up decides.) One that was due before the pause is owed, and runs.
-- Locks and updates its row, inserts its next instant.

create or replace function pgqueue.resume_schedule(name text)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_schedule pgqueue.schedules;
    v_is_settled boolean;
begin
    perform pgqueue._check_name('name', resume_schedule.name);
    select s.* into v_schedule
    from pgqueue.schedules s
    where s.name = resume_schedule.name and s.paused_at is not null
    for update;
    v_is_settled := found and pgqueue._settle_schedule(v_schedule);
    -- Null: there is no such schedule, or it was not paused.
    update pgqueue.schedules s set paused_at = null where s.name = v_schedule.name;
    perform pgqueue._plan_schedule(v_schedule, pgqueue._clock(), true) where v_is_settled;
    return pgqueue._audit('resume_schedule', jsonb_build_object('name', v_schedule.name), num_nonnulls(v_schedule.name));
end
$$;

comment on function pgqueue.resume_schedule(text) is
    'Continue a paused schedule from now on. Runs that were due during the pause are not made up for; one that was due before it is. False: there is no such schedule, or it was not paused.';
