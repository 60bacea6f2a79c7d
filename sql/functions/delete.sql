-- delete: a job and its traces are gone. Not for one that is executing: cancel that.
--
-- Locks the one row and waits for another holder at most 5 s (55P03). Its dedupe key is free at once, also within
-- its dedupe_for.

create or replace function pgqueue.delete(job_id bigint)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
#variable_conflict use_column
declare
    v_gone record;
begin
    delete from pgqueue.jobs
    where id = delete.job_id and state <> 'executing'
    returning queue, key, dedupe into v_gone;
    if not found then
        delete from pgqueue.history where id = delete.job_id returning queue, null as key, dedupe into v_gone;
        if not found then
            return false;
        end if;
    end if;
    if v_gone.dedupe is not null then
        delete from pgqueue.dedupe_keys d where d.job_id = delete.job_id;
    end if;
    if v_gone.key is not null then
        perform pgqueue._release_next(array[v_gone.queue], array[v_gone.key]);
    end if;
    return true;
end
$$;

comment on function pgqueue.delete(bigint) is
    'Delete a job that is not executing, or its row in history, and free its dedupe key. False: there is no such job, or it is executing.';
