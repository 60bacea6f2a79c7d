-- run_schedule_now: enqueues one job of a schedule at once, also while it is paused or its last job is live. Its next
-- instant does not change. Locks nothing.

create or replace function pgqueue.run_schedule_now(name text)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_schedule pgqueue.schedules;
    v_id bigint;
begin
    perform pgqueue._check_name('name', run_schedule_now.name);
    select s.* into v_schedule from pgqueue.schedules s where s.name = run_schedule_now.name;
    if not found then
        return null;
    end if;
    v_id := pgqueue.enqueue(
        v_schedule.task, v_schedule.args, queue => v_schedule.queue, priority => v_schedule.priority,
        expires_in => v_schedule.expires_in, max_attempts => v_schedule.max_attempts,
        headers => coalesce(v_schedule.headers, '{}') || jsonb_build_object('schedule', v_schedule.name, 'scheduled_at', v_now),
        tags => v_schedule.tags, retention => v_schedule.retention
    );
    insert into pgqueue.schedule_runs (schedule, decided_at, outcome, job_id)
    values (v_schedule.name, v_now, 'manual', v_id);
    perform pgqueue._audit('run_schedule_now', jsonb_build_object('name', v_schedule.name, 'job_id', v_id));
    return v_id;
end
$$;

comment on function pgqueue.run_schedule_now(text) is
    'Enqueue one job of a schedule now, in addition to its times, and return its id. Null: there is no such schedule.';
