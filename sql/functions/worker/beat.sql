-- beat: a worker's heartbeat, every ten seconds or so. Inserts one row, or two, and locks nothing; see hello for why. A report
-- that is sent again, because the reply was lost, has the id of the first, and the unique index tells: it counts once.
-- idle reports a heartbeat as well, so an idle worker need not call beat.

create or replace function pgqueue.beat(worker text, report jsonb default null, memory bigint default null)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_flaw text;
begin
    perform pgqueue._check_name('worker', beat.worker, 256);
    -- Every field: a number that cannot be summed would make every further sample fail.
    v_flaw := case
        when beat.report is null then null
        when beat.report ? 'id' and not pgqueue._is_count(beat.report -> 'id') then 'Its id is not a number from 0 to 1e12.'
        when jsonb_typeof(beat.report -> 'jobs') is distinct from 'array' then 'It has no array jobs.'
        when jsonb_array_length(beat.report -> 'jobs') > 1000
            then format('It has %s jobs; 1000 is the most.', jsonb_array_length(beat.report -> 'jobs'))
        else (
            select min(case
                when jsonb_typeof(e.entry) is distinct from 'object' then 'An entry of jobs is not an object.'
                when jsonb_typeof(e.entry -> 'queue') is distinct from 'string'
                    or jsonb_typeof(e.entry -> 'task') is distinct from 'string'
                    or octet_length(e.entry ->> 'queue') not between 1 and 128
                    or octet_length(e.entry ->> 'task') not between 1 and 128
                    then 'An entry of jobs has no queue or task of 1 to 128 bytes.'
                when f.key in ('queue', 'task') then null
                when f.key in ('started', 'succeeded', 'failed', 'dead', 'cancelled', 'snoozed', 'lost')
                    then case when not pgqueue._is_count(f.value) then 'A count of an entry is not a number from 0 to 1e12.' end
                when f.key not in ('run', 'wait') then 'An entry of jobs has an unknown field.'
                when (
                    pgqueue._is_count(f.value -> 'sum') and pgqueue._is_count(f.value -> 'max')
                    and (
                        select count(*) = 12 and bool_and(pgqueue._is_count(b.count))
                        from jsonb_path_query(f.value, 'strict $.buckets[*]', silent => true) b (count)
                    )
                ) is not true then 'run or wait of an entry is not {"sum": seconds, "max": seconds, "buckets": 12 counts}.'
            end)
            from jsonb_array_elements(beat.report -> 'jobs') e (entry)
            left join lateral jsonb_each(case when jsonb_typeof(e.entry) = 'object' then e.entry end) f on true
        )
    end;
    if v_flaw is null and (beat.report ? 'troubles') is true and (
        select count(*) <= 20 and bool_and((
            t.entry ->> 'ago' ~ '^[0-9]{1,9}([.][0-9]+)?$' and t.entry ->> 'job_id' ~ '^[0-9]{1,18}$'
            and t.entry ->> 'attempt' ~ '^[0-9]{1,9}$' and length(t.entry::text) <= 8000
        ) is true)
        from jsonb_array_elements(case when jsonb_typeof(beat.report -> 'troubles') = 'array' then beat.report -> 'troubles' else '[1]' end) t (entry)
    ) is false then
        v_flaw := 'troubles is not an array of at most 20 objects of 8000 characters with the numbers ago, job_id and attempt.';
    end if;
    perform pgqueue._refuse(
        'report is not what beat() takes', v_flaw,
        'Give report as the comment on beat() shows it, or leave it out.'
    )
    where v_flaw is not null;
    insert into pgqueue.heartbeats (worker, at, memory, troubles, report_id)
    select w.name, v_now, case when beat.memory >= 0 then beat.memory end, nullif(beat.report -> 'troubles', '[]'),
        (beat.report ->> 'id')::numeric::bigint
    from pgqueue.workers w
    where w.name = beat.worker and coalesce(w.server_started_at, pg_postmaster_start_time()) = pg_postmaster_start_time()
    on conflict do nothing;
    if found and beat.report is not null then
        insert into pgqueue.worker_reports (worker, at, report) values (beat.worker, v_now, beat.report - '{troubles,id}'::text[]);
    end if;
    return found or exists (select from pgqueue.workers w where w.name = beat.worker
        and coalesce(w.server_started_at, pg_postmaster_start_time()) = pg_postmaster_start_time());
end
$$;

comment on function pgqueue.beat(text, jsonb, bigint) is
    'Heartbeat: the worker is alive. False: it is not registered (it was silent for minutes, or the server was restarted or replaced): call hello() again. '
    'report: what has started and ended since its last report, for pgqueue.samples: {"jobs": [{"queue": "mail", "task": "send_email", '
    '"started": 19, "succeeded": 17, "failed": 1, "run": {"sum": 4.2, "max": 0.9, "buckets": [0, 0, 2, 5, 8, 3, 0, 0, 0, 0, 0, 0]}}]}, '
    'also dead, cancelled, snoozed, lost, and wait, from due to start; buckets as the comment on samples.ended has them. '
    'id: a random number up to 1e12; a report that is sent again, because the answer was lost, counts once. memory: the resident memory of its process in bytes. '
    'report may also have troubles, for the view pgqueue.troubles: the last 20 attempts that failed, "troubles": [{"ago": 3.2, "job_id": 17, "queue": "mail", "task": "send_email", "attempt": 2, "state": "failed", "class": "TimeoutError", "line": "no answer"}]; ago in seconds, state as the job now is, or lost. [worker]';

-- Whether a value is a count that can be summed. Inlined: no SET.
create or replace function pgqueue._is_count(p_value jsonb)
returns boolean
language sql immutable parallel safe
as $$
    select case when pg_catalog.jsonb_typeof(p_value) = 'number' then (p_value #>> '{}')::numeric between 0 and 1e12 end is true
$$;
