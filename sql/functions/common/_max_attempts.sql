-- How many attempts a job has: one rule for claims, what is handed to an idle worker, explain, and the end that finds a
-- job dead (_fail). Inlined.

create or replace function pgqueue._max_attempts(p_of_job integer, p_of_task integer, p_accumulate boolean)
returns integer
language sql immutable parallel safe
as $$
    select coalesce(p_of_job, p_of_task, case when p_accumulate then 26 else 11 end)
$$;

-- The state of a job that is ready again. One that comes back from history keeps its errors, and its attempts are counted from
-- zero, so it is waiting and not failed. Inlined: no SET.
create or replace function pgqueue._state_again(p_errors jsonb, p_attempts integer)
returns pgqueue.job_state
language sql immutable parallel safe
as $$
    select case
        when p_errors is null or p_attempts <= 0 then 'waiting'::pgqueue.job_state
        else 'failed'::pgqueue.job_state
    end
$$;
