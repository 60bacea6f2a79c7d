-- job_log: the log lines of a job, oldest first, by an index. Reads only.

create or replace function pgqueue.job_log(job_id bigint, after bigint default 0, max_lines integer default 1000)
returns table (n bigint, attempt integer, at timestamptz, level text, line text)
language sql stable security definer rows 100
set search_path = pg_catalog, pg_temp
as $$
    select l.n, l.attempt, l.at, l.level, l.line
    from pgqueue.job_logs l
    where l.job_id = job_log.job_id and l.n > job_log.after
    order by l.n
    limit least(greatest(job_log.max_lines, 0), 10000)
$$;

comment on function pgqueue.job_log(bigint, bigint, integer) is
    'The log lines of a job, oldest first, as its handlers wrote them with job.log; level STACK: an answer to ask_stack(). They are kept for settings.retention_logs. '
    'after: the n of the last line that was read. select at, attempt, level, line from pgqueue.job_log(17); [reader]';
