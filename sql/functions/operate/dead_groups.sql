-- dead_groups: the newest dead jobs by their last error, so that a thousand of them are a handful of lines.
--
-- Reads up to max_jobs rows of history, an equal part of each queue's newest, by the index of queue and state: so its cost
-- does not grow with the number of queues. Locks nothing.

create or replace function pgqueue.dead_groups(queue text default null, max_jobs integer default 10000)
returns table (task text, class text, line text, jobs bigint, first_at timestamptz, last_at timestamptz, last_id bigint, queues text[])
language plpgsql
stable
parallel safe
security definer
rows 50
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_queues text[];
begin
    if dead_groups.queue is not null then
        perform pgqueue._check_name('queue', dead_groups.queue);
    end if;
    if dead_groups.max_jobs is null or dead_groups.max_jobs not between 1 and 100000 then
        perform pgqueue._refuse(
            'max_jobs must be between 1 and 100000', format('It is %s.', coalesce(dead_groups.max_jobs::text, 'null')),
            'Give the number of dead jobs to read at most.'
        );
    end if;
    v_queues := pgqueue._unfinished_queues(
        case when dead_groups.queue is not null then array[regexp_replace(dead_groups.queue, e'([\\\\%_])', e'\\\\\\1', 'g')] end, 200
    );
    return query
    select
        d.task, d.errors -> -1 ->> 'class', pgqueue._first_line(d.errors), count(*), min(d.finished_at), max(d.finished_at),
        max(d.id), array_agg(distinct d.queue)
    from unnest(v_queues) q (name)
    cross join lateral (
        select h.id, h.queue, h.task, h.errors, h.finished_at
        from pgqueue.history h
        where h.state <> 'succeeded' and h.queue = q.name and h.state = 'dead'
        order by h.id desc
        limit ceil(dead_groups.max_jobs::numeric / greatest(cardinality(v_queues), 1))
    ) d
    group by 1, 2, 3
    order by max(d.finished_at) desc, 1, 2, 3;
end
$$;

comment on function pgqueue.dead_groups(text, integer) is
    'Dead jobs by task, class of the last error and its first line, the latest group first. It reads the newest max_jobs of one queue, or an equal part of each queue''s newest. '
    'select task, class, line, jobs, last_at from pgqueue.dead_groups(''mail'');';
