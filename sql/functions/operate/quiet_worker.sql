-- quiet_worker, resume_worker, stop_worker: an operator's commands to one worker.
--
-- Each locks and updates the worker's row, and notifies the worker. One that does not listen reads its row with its next
-- heartbeat. The command ends with the process: another one that takes the name starts without it.

create or replace function pgqueue.quiet_worker(worker text)
returns boolean
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
    select pgqueue._command_worker('quiet_worker', quiet_worker.worker, 'quiet', array['run'])
$$;

comment on function pgqueue.quiet_worker(text) is
    'Let a worker reserve no more jobs and stay, until resume_worker(); its running jobs continue. '
    'False: there is no such worker, or it was asked already.';

-- Writes a command (null: run) to a worker that has one of these now, and notifies it; false: there is none.
create or replace function pgqueue._command_worker(p_action text, p_worker text, p_command text, p_instead_of text[])
returns boolean
language plpgsql
as $$
declare
    v_channel text;
begin
    perform pgqueue._check_name('worker', p_worker, 256);
    update pgqueue.workers w
    set command = p_command, commanded_at = case when p_command is not null then pgqueue._clock() end, obeyed_at = null
    where w.name = p_worker and coalesce(w.command, 'run') = any (p_instead_of)
    returning w.channel into v_channel;
    perform pg_notify(v_channel, 'command') where v_channel is not null and pgqueue._may_notify();
    return pgqueue._audit(p_action, jsonb_build_object('worker', p_worker), (v_channel is not null)::integer);
end
$$;
