-- How many attempts a job has: one rule for claims, what is handed to an idle worker, explain, and the end that finds a
-- job dead (_fail). Inlined.

create or replace function pgqueue._max_attempts(p_of_job integer, p_of_task integer, p_accumulate boolean)
returns integer
language sql immutable parallel safe
as $$
    select coalesce(p_of_job, p_of_task, case when p_accumulate then 26 else 11 end)
$$;
