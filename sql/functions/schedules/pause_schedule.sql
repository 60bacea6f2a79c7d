-- pause_schedule: the schedule enqueues no jobs until resume_schedule; existing jobs stay. Locks and updates its row.

create or replace function pgqueue.pause_schedule(name text)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgqueue._check_name('name', pause_schedule.name);
    update pgqueue.schedules s
    set paused_at = pgqueue._clock()
    where s.name = pause_schedule.name and s.paused_at is null;
    return pgqueue._audit('pause_schedule', jsonb_build_object('name', pause_schedule.name), found::integer);
end
$$;

comment on function pgqueue.pause_schedule(text) is
    'Enqueue no more jobs of a schedule, until resume_schedule(). False: there is no such schedule, or it was paused already.';
