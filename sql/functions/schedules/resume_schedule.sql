-- resume_schedule: it goes on from now. What it left out while paused is not caught up: it was not missed. (Set
-- paused_at to null by an update instead, and catch_up decides.) Locks and updates its row, inserts where it stands.

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
    return true;
end
$$;

comment on function pgqueue.resume_schedule(text) is
    'Have a paused schedule go on from now; runs of the pause are not caught up. False: there is none, or it was not paused.';
