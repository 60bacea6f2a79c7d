-- dead_groups: the newest dead jobs by their last error, so that a thousand of them are a handful of lines.
--
-- Reads up to max_jobs rows of history, the newest ids first, by the indexes of the unfinished: its cost does not grow with
-- the number of queues. Locks nothing.

create or replace function pgqueue.dead_groups(queue text default null, max_jobs integer default 10000)
returns table (task text, class text, line text, jobs bigint, first_at timestamptz, last_at timestamptz, last_id bigint, queues text[],
    fingerprint text, trend integer[]
)
language plpgsql stable parallel safe security definer rows 50
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $$
declare
    v_now timestamptz := pgqueue._clock();
begin
    perform pgqueue._check_name('queue', dead_groups.queue) where dead_groups.queue is not null;
    perform pgqueue._check_range('max_jobs', dead_groups.max_jobs, 1, 100000, 'Give the number of dead jobs to read at most.');
    return query
    with keyed as (
        select
            d.*, d.errors -> -1 ->> 'class' as class, l.line, pgqueue._fingerprint(l.line) as fingerprint,
            greatest(floor(extract(epoch from v_now - d.finished_at) / 3600), 0)::integer as hours_ago
        from pgqueue._dead_jobs(dead_groups.queue, dead_groups.max_jobs) d
        cross join lateral (select pgqueue._first_line(d.errors) as line) l
    )
    select
        k.task, k.class, (array_agg(k.line order by k.finished_at desc, k.id desc))[1], count(*), min(k.finished_at),
        max(k.finished_at), max(k.id), array_agg(distinct k.queue), k.fingerprint,
        array(select cardinality(array_positions(array_agg(k.hours_ago), g.ago)) from generate_series(23, 0, -1) g (ago))
    from keyed k
    group by k.task, k.class, k.fingerprint
    order by max(k.finished_at) desc, 1, 2, 9;
end
$$;

comment on function pgqueue.dead_groups(text, integer) is
    'Dead jobs by task, class of the last error and its fingerprint, the latest group first. fingerprint: the first line with <n>, <id>, <host>, <url> and <text> for numbers, ids, names of hosts, addresses and quoted text; line: that of the latest job; trend: how many died in each of the last 24 hours. It reads the newest max_jobs, of one queue or of all: where the sum of jobs is max_jobs, there may be more. dead_lines() has the lines of a group. '
    'select task, class, fingerprint, jobs, last_at from pgqueue.dead_groups(''mail''); [reader]';

-- The newest dead jobs, of one queue or of all. The state as a parameter: however few or many are dead, the plan is the same.
create or replace function pgqueue._dead_jobs(p_queue text, p_most integer)
returns table (id bigint, task text, queue text, errors jsonb, finished_at timestamptz)
language sql stable parallel safe
as $$
    (
        select h.id, h.task, h.queue, h.errors, h.finished_at
        from pgqueue.history h
        where p_queue is null and h.state <> 'succeeded' and h.state = (select 'dead'::pgqueue.job_state)
        order by h.id desc
        limit p_most
    )
    union all
    (
        select h.id, h.task, h.queue, h.errors, h.finished_at
        from pgqueue.history h
        where h.state <> 'succeeded' and h.queue = p_queue and h.state = (select 'dead'::pgqueue.job_state)
        order by h.id desc
        limit p_most
    )
$$;
