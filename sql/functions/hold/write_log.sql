-- write_log: a worker stores log lines of its jobs. Not fenced: those from before a lease was lost are worth reading, too.

create or replace function pgqueue.write_log(lines jsonb)
returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_count integer;
begin
    begin
        if jsonb_typeof(write_log.lines) is distinct from 'array' or jsonb_array_length(write_log.lines) > 10000 then
            raise data_exception using message = 'it is no such array';
        end if;
        insert into pgqueue.job_logs (job_id, attempt, written_at, at, level, line)
        select l.job_id, l.attempt, pgqueue._clock(), coalesce(l.at, pgqueue._clock()), left(coalesce(l.level, 'INFO'), 16), left(l.line, 1024)
        from jsonb_to_recordset(write_log.lines) l (job_id bigint, attempt integer, at timestamptz, level text, line text)
        where l.job_id is not null and l.attempt is not null and l.line is not null;
        get diagnostics v_count = row_count;
    exception when data_exception then
        perform pgqueue._refuse(
            'lines must be an array of at most 10000 objects', sqlerrm || '.',
            'Give lines as [{"job_id": 17, "attempt": 1, "at": "2030-01-01 12:00+00", "level": "INFO", "line": "sent"}].'
        );
    end;
    return v_count;
end
$$;

comment on function pgqueue.write_log(jsonb) is
    'Store log lines of jobs, at most 10,000 in one call and 1,024 characters a line; about once a second for all jobs of a worker. Returns how many were stored. '
    'select pgqueue.write_log(''[{"job_id": 17, "attempt": 1, "level": "INFO", "line": "sent"}]''); [worker]';
