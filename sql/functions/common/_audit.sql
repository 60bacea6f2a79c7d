-- The audit: each function for operators records its change in its own transaction, so that psql, the command line and the
-- web page leave the same trace. Inserts one row and locks nothing. False: nothing was changed, and nothing is recorded.

create or replace function pgqueue._audit(p_action text, p_filter jsonb, p_changed bigint default 1, p_actor text default null)
returns boolean
language plpgsql
as $$
begin
    insert into pgqueue.audit (at, actor, db_role, action, filter, changed, via)
    select
        pgqueue._clock(),
        coalesce(p_actor, pgqueue._actor()),
        session_user,
        p_action,
        jsonb_strip_nulls(
            case
                when jsonb_array_length(case when jsonb_typeof(p_filter -> 'job_ids') = 'array' then p_filter -> 'job_ids' end) > 100
                then p_filter || jsonb_build_object(
                    'job_ids', jsonb_path_query_array(p_filter, '$.job_ids[0 to 99]'),
                    'number_of_job_ids', jsonb_array_length(p_filter -> 'job_ids')
                )
                else coalesce(p_filter, '{}')
            end
            -- The audit outlives the jobs.
            || case when p_filter ? 'args' then '{"args": "changed"}'::jsonb else '{}' end
        ),
        p_changed,
        left(coalesce(nullif(current_setting('pgqueue.via', true), ''), nullif(current_setting('application_name'), ''), 'sql'), 256)
    where p_changed >= 1;
    return found;
end
$$;

-- Who acts: a page or a script sets the setting for the person behind it.
create or replace function pgqueue._actor()
returns text
language sql stable parallel safe
as $$
    select left(coalesce(nullif(current_setting('pgqueue.actor', true), ''), session_user), 256)
$$;

-- Who enqueues: read once by functions that insert many jobs, not for each row. The default of jobs.enqueued_by is the
-- same. The role is the one that logged in, for these functions run with the rights of another.
create or replace function pgqueue._enqueued_by()
returns text
language sql stable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select rtrim(session_user || ' ' || current_setting('application_name'))
$$;
