-- ask_stack: ask the worker of an executing job where its handler stands. The answer comes as log lines: see job_log().
--
-- Updates the row of the worker, and sends NOTIFY. Skips a row that is locked: another operator gives it a command.

create or replace function pgqueue.ask_stack(job_id bigint)
returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_worker text;
    v_channel text;
begin
    select j.reserved_by into v_worker from pgqueue.jobs j where j.id = ask_stack.job_id and j.state = 'executing';
    update pgqueue.workers w
    set stack_of = ask_stack.job_id, stack_asked_at = pgqueue._clock()
    where w.ctid = (select x.ctid from pgqueue.workers x where x.name = v_worker for update skip locked)
    returning w.channel into v_channel;
    if not found then
        return null;
    end if;
    perform pg_notify(v_channel, 'command');
    perform pgqueue._audit('ask_stack', jsonb_build_object('job_id', ask_stack.job_id));
    return v_worker;
end
$$;

comment on function pgqueue.ask_stack(bigint) is
    'Ask the worker of an executing job for the stack of its handler, and return the worker''s name; null: the job does not execute, or its worker is not registered. '
    'The answer comes within a second or so as lines of job_log() with the level STACK; none comes while the worker''s event loop is blocked. select pgqueue.ask_stack(17);';
