-- The state of a job that is ready again.

-- A job that comes back from history keeps its errors, and its attempts are counted from zero, so it is waiting and not
-- failed. Inlined: no SET.
create or replace function pgqueue._state_again(p_errors jsonb, p_attempts integer)
returns pgqueue.job_state
language sql immutable parallel safe
as $$
    select case
        when p_errors is null or p_attempts <= 0 then 'waiting'::pgqueue.job_state
        else 'failed'::pgqueue.job_state
    end
$$;
