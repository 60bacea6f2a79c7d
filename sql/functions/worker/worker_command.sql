-- worker_command: a worker asks for the command that an operator gave it.
--
-- The command is in the worker's row, because a NOTIFY may be lost, and any role may send one, but only operators may write
-- the row. Locks and updates the row once for each command, when the worker says that it obeys;
-- does not wait for an operator's open transaction, because the connection also extends leases.

create or replace function pgqueue.worker_command(worker text, obeys text default null, instance text default null)
returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_worker record;
    v_stack_of bigint;
begin
    perform pgqueue._check_name('worker', worker_command.worker, 256);
    select w.command, w.obeyed_at, w.info ->> 'instance' as instance into v_worker
    from pgqueue.workers w
    where w.name = worker_command.worker;
    if v_worker.instance <> worker_command.instance then
        return 'taken';
    end if;
    if v_worker.command = worker_command.obeys and v_worker.obeyed_at is null then
        -- An operator may be changing it in a long transaction: the next heartbeat reports it.
        update pgqueue.workers w
        set obeyed_at = pgqueue._clock()
        where w.ctid = (
            select x.ctid
            from pgqueue.workers x
            where x.name = worker_command.worker and x.command = worker_command.obeys
            for update skip locked
        );
    end if;
    -- For a moment only: a worker that does not know the answer must not miss what comes later.
    if v_worker.command is null or v_worker.obeyed_at is not null then
        update pgqueue.workers w
        set stack_of = null
        from (
            select x.ctid as row_ctid, x.stack_of
            from pgqueue.workers x
            where x.name = worker_command.worker and x.stack_of is not null and x.stack_asked_at > pgqueue._clock() - interval '10 s'
            for update skip locked
        ) f
        where w.ctid = f.row_ctid
        returning f.stack_of into v_stack_of;
    end if;
    return coalesce('stack:' || v_stack_of, v_worker.command, 'run');
end
$$;

comment on function pgqueue.worker_command(text, text, text) is
    'What an operator wants of this worker: run, quiet (reserve no more jobs, and stay) or stop (reserve no more, and end with the '
    'last of its jobs); kill (say that it obeys, and end the process at once); stack:17, once: store the stack of the handler of this job by write_log(), with the level STACK; taken: another process has taken its name, with the instance that it gave to claim_name(), because this '
    'one was silent: reserve no more, and end without bye(). Call it after each notification with the payload command, and with each heartbeat. obeys: the '
    'command that the worker carries out now, for worker_status. [worker]';
