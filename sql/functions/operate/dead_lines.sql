-- dead_lines: the lines of one group of dead_groups(). Reads the rows that dead_groups() reads, and keeps those of the group.

create or replace function pgqueue.dead_lines(task text, class text, fingerprint text, queue text default null, max_jobs integer default 10000)
returns table (line text, jobs bigint, last_id bigint, last_at timestamptz)
language plpgsql stable parallel safe security definer rows 100
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
begin
    perform pgqueue._check_range('max_jobs', dead_lines.max_jobs, 1, 100000, 'Give the number of dead jobs to read at most.');
    return query
    select l.line, count(*), max(d.id), max(d.finished_at)
    from pgqueue._dead_jobs(dead_lines.queue, dead_lines.max_jobs) d
    cross join lateral (select pgqueue._first_line(d.errors) as line) l
    where d.task = dead_lines.task and d.errors -> -1 ->> 'class' is not distinct from dead_lines.class
        and pgqueue._fingerprint(l.line) = dead_lines.fingerprint
    group by l.line
    order by max(d.id) desc
    limit 1000;
end
$$;

comment on function pgqueue.dead_lines(text, text, text, text, integer) is
    'The lines of the dead jobs of a group that dead_groups() returns, the newest thousand, with how many jobs have each: what differs in them is behind the masks of its fingerprint. It reads the newest max_jobs dead jobs. '
    'select line, jobs from pgqueue.dead_lines(''deliver'', ''TimeoutError'', ''no answer from <host>''); [reader]';
