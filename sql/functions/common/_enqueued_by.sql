-- Who enqueues: read once by functions that insert many jobs, not for each row. The default of jobs.enqueued_by is the
-- same. The role is the one that logged in, for these functions run with the rights of another.

create or replace function pgqueue._enqueued_by()
returns text
language sql stable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select rtrim(session_user || ' ' || current_setting('application_name'))
$$;
