-- dead_groups: the newest dead jobs by their last error, so that a thousand of them are a handful of lines.
--
-- Reads up to max_jobs rows of history, the newest ids first, by the indexes of the unfinished: its cost does not grow with
-- the number of queues. Locks nothing.

create or replace function pgqueue.dead_groups(queue text default null, max_jobs integer default 10000)
returns table (task text, class text, line text, jobs bigint, first_at timestamptz, last_at timestamptz, last_id bigint, queues text[])
language plpgsql stable parallel safe security definer rows 50
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_dead constant pgqueue.job_state := 'dead'::pgqueue.job_state;
begin
    if dead_groups.queue is not null then
        perform pgqueue._check_name('queue', dead_groups.queue);
    end if;
    perform pgqueue._check_range('max_jobs', dead_groups.max_jobs, 1, 100000, 'Give the number of dead jobs to read at most.');
    return query
    select
        d.task, d.errors -> -1 ->> 'class', pgqueue._first_line(d.errors), count(*), min(d.finished_at), max(d.finished_at),
        max(d.id), array_agg(distinct d.queue)
    from (
        (
            select h.task, h.queue, h.errors, h.finished_at, h.id
            from pgqueue.history h
            where dead_groups.queue is null and h.state <> 'succeeded' and h.state = v_dead
            order by h.id desc
            limit dead_groups.max_jobs
        )
        union all
        (
            select h.task, h.queue, h.errors, h.finished_at, h.id
            from pgqueue.history h
            where h.state <> 'succeeded' and h.queue = dead_groups.queue and h.state = v_dead
            order by h.id desc
            limit dead_groups.max_jobs
        )
    ) d
    group by 1, 2, 3
    order by max(d.finished_at) desc, 1, 2, 3;
end
$$;

comment on function pgqueue.dead_groups(text, integer) is
    'Dead jobs by task, class of the last error and its first line, the latest group first. It reads the newest max_jobs, of one queue or of all: where the sum of jobs is max_jobs, there may be more. '
    'select task, class, line, jobs, last_at from pgqueue.dead_groups(''mail'');';
