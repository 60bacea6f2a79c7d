-- complete_step: stores the result of a step. In the step's own transaction, its writes and the result commit together.
--
-- Locks the row of the job (KEY SHARE), waiting at most 5 s (55P03); extends the lease if less than half of it is left.

create or replace function pgqueue.complete_step(job_id bigint, reservation bigint, name text, result jsonb default null)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
begin
    perform pgqueue._check_step(complete_step.name, complete_step.result);
    if not pgqueue._lock_held(complete_step.job_id, complete_step.reservation, false) then
        return false;
    end if;
    perform pgqueue._store_step(complete_step.job_id, complete_step.name, complete_step.result);
    update pgqueue.jobs j
    set lease_expires_at = pgqueue._after(pgqueue._ready_at(null), j.lease)
    where j.id = complete_step.job_id and j.lease_expires_at < pgqueue._clock() + j.lease / 2;
    return true;
end
$$;

comment on function pgqueue.complete_step(bigint, bigint, text, jsonb) is
    'Store the result of a step of an executing job: the next attempt finds it in steps(). False: the reservation is no longer held, and '
    'nothing was changed. The first result of a name is kept. In the same transaction as the writes of the step, both are '
    'committed, or neither is. select pgqueue.complete_step(42, 1048577, ''charge'', ''{"id": 7}''); [worker]';
