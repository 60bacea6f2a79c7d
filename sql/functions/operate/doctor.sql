-- doctor: lists problems, present and coming, each with its evidence and the command that solves it.
--
-- Reads statistics, catalogs and bounded numbers of rows; locks nothing. It runs with its owner's rights: if that role
-- may not see other sessions, it reports that instead of finding nothing.

create or replace function pgqueue.doctor()
returns table (severity text, topic text, subject text, evidence text, remedy text)
language plpgsql stable security definer rows 20
set search_path = pg_catalog, pg_temp
set jit = off
as $$
declare
    v_now timestamptz := pgqueue._clock();
begin
    return query
    with found (severity, topic, subject, evidence, remedy) as materialized (
        select d.* from pgqueue._doctor_server(v_now) d
        union all
        select d.* from pgqueue._doctor_tables(v_now) d
        union all
        select d.* from pgqueue._doctor_queues(v_now) d
        union all
        select d.* from pgqueue._doctor_limits(v_now) d
        union all
        select d.* from pgqueue._doctor_workers(v_now) d
        union all
        select d.* from pgqueue._doctor_workflows(v_now) d
    )
    select
        f.severity, f.topic, f.subject,
        -- Queues that are late by a session or a table are named where that is found.
        concat(f.evidence, (
            select substring(s.evidence from '; late by it: .*$')
            from found s
            where s.topic = 'database' and s.subject = f.subject and f.topic <> 'database'
        )),
        f.remedy
    from found f
    -- A symptom of another finding is none.
    where not exists (
        select from found c
        where (f.topic = 'database' and c.topic <> 'database' and c.subject = f.subject)
            or (f.topic = 'dead_tuples' and c.topic = 'old_snapshot')
            or (f.evidence like 'the limit lets no job start %' and c.topic = 'limit' and c.subject = f.subject and c.evidence <> f.evidence)
            or (f.topic = 'schedule' and f.evidence like 'it was due at %' and c.topic = 'maintenance' and c.subject = 'maintain')
    )
    order by array_position('{critical,warning,info}'::text[], f.severity), f.topic, f.subject;
end
$$;

comment on function pgqueue.doctor() is
    'Problems, the worst first: severity (critical, warning, info), topic, subject, evidence, and remedy, the command that solves it. No row: no problem was found. '
    'select severity, topic, evidence, remedy from pgqueue.doctor(); [reader]';
