-- Who enqueues, for all that insert many jobs: asked once, not for each row. The default of jobs.enqueued_by says the
-- same. The role is the one that logged in: these functions run with the rights of another.

create or replace function pgqueue._enqueued_by()
returns text
language sql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select rtrim(session_user || ' ' || current_setting('application_name'))
$$;

comment on function pgqueue._enqueued_by() is 'Private: the role of this session and its application_name.';
