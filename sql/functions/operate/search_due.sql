-- search_due: the ids of waiting and failed jobs that a filter fits, the one that is due first at the top, whatever its
-- priority and queue.
--
-- The index of ready jobs has the time last, after queue and priority. So each sub-lane is read by it, from the head of the
-- sub-lane on, and only what these find is sorted: at most max_jobs of each. Reads about max_rows rows in all, ten of each
-- sub-lane at least; reads only.

create or replace function pgqueue.search_due(
    filter jsonb default '{}',
    after_at timestamptz default null,
    after bigint default null,
    max_jobs integer default 50,
    max_rows integer default 50000,
    out job_ids bigint[],
    out next_after_at timestamptz,
    out next_after bigint,
    out is_cut boolean
)
returns record
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
#variable_conflict use_column
declare
    v_filter pgqueue.job_filter := pgqueue._read_filter(search_due.filter);
    v_sublanes integer;
    v_times timestamptz[];
begin
    perform pgqueue._check_search(v_filter, search_due.max_jobs, search_due.max_rows);
    job_ids := '{}';
    is_cut := false;
    if v_filter.finished_from is not null or v_filter.finished_to is not null or not v_filter.states && '{waiting,failed}' then
        return;
    end if;
    v_sublanes := 2 * (
        select count(*) from pgqueue.lanes l where v_filter.queues is null or l.queue like any (v_filter.queues)
    )::integer;
    with found as materialized (
        select f.*
        from (
            select distinct l.queue, l.priority
            from pgqueue.lanes l
            where v_filter.queues is null or l.queue like any (v_filter.queues)
        ) l
        cross join (values (false), (true)) s (resumed)
        cross join lateral pgqueue._search_due(
            v_filter, l.queue, l.priority, s.resumed, coalesce(search_due.after_at, '-infinity'), coalesce(search_due.after, 0),
            search_due.max_jobs, greatest(search_due.max_rows / greatest(v_sublanes, 1), 10)
        ) f
    ),
    -- A sub-lane has not been read beyond where it stopped: jobs beyond that are not returned yet.
    stop as (
        select f.stopped_at as at, f.stopped_id as id
        from found f
        where f.stopped_at is not null
        order by f.stopped_at, f.stopped_id
        limit 1
    ),
    listed as (
        select j.id, j.at
        from found f
        cross join unnest(f.ids, f.times) j (id, at)
        where not exists (select from stop s where (s.at, s.id) < (j.at, j.id))
        order by j.at, j.id
        limit search_due.max_jobs
    )
    select
        coalesce(array_agg(j.id order by j.at, j.id), '{}'), array_agg(j.at order by j.at, j.id), (select s.at from stop s),
        (select s.id from stop s), coalesce((select bool_or(f.is_cut) from found f), false)
    into job_ids, v_times, next_after_at, next_after, is_cut
    from listed j;
    if cardinality(job_ids) = search_due.max_jobs then
        next_after_at := v_times[search_due.max_jobs];
        next_after := job_ids[search_due.max_jobs];
        is_cut := false;
    end if;
end
$$;

comment on function pgqueue.search_due(jsonb, timestamptz, bigint, integer, integer) is
    'As search(), among waiting and failed jobs, in the order in which they are due. '
    'select job_ids from pgqueue.search_due(''{"queues": ["mail"]}''); '
    'next_after_at, next_after: call again with after_at => next_after_at, after => next_after; null: there is no more. '
    'is_cut: it stopped for max_rows, not for max_jobs.';

-- The part of search_due() that reads one sub-lane.
create or replace function pgqueue._search_due(
    p_filter pgqueue.job_filter, p_queue text, p_priority smallint, p_resumed boolean, p_at timestamptz, p_after bigint,
    p_matches integer, p_rows integer,
    out ids bigint[], out times timestamptz[], out stopped_at timestamptz, out stopped_id bigint, out is_cut boolean
)
returns record
language plpgsql
stable
parallel safe
set enable_sort = off
as $$
declare
    v_at timestamptz;
    v_id bigint;
begin
    is_cut := false;
    -- Not from the beginning: an old snapshot may keep the index entries of a million jobs that are gone.
    select h.head, h.head_id into v_at, v_id from pgqueue._head(p_queue, p_priority, p_resumed) h;
    if v_at is null or (p_at, p_after + 1) > (v_at, v_id) then
        v_at := p_at;
        v_id := p_after + 1;
    end if;
    select coalesce(array_agg(m.id), '{}'), coalesce(array_agg(m.ready_at), '{}')
    into ids, times
    from (
        select j.id, j.ready_at
        from (
            select x.*
            from pgqueue.jobs x
            where x.state in ('waiting', 'failed')
                and x.queue = p_queue
                and x.priority = p_priority
                and x.resumed = p_resumed
                and (x.ready_at, x.id) >= (v_at, v_id)
            order by x.ready_at, x.id
            limit p_rows
        ) j
        where (p_filter.ids is null or j.id = any (p_filter.ids))
            and (p_filter.groups is null or j.group_id = any (p_filter.groups))
            and (p_filter.id_from is null or j.id >= p_filter.id_from)
            and (p_filter.id_to is null or j.id <= p_filter.id_to)
            and pgqueue._fits(
                p_filter, j.state, j.queue, j.task, j.key, j.tags, j.reserved_by, j.errors, j.priority, j.attempts, j.created_at,
                j.ready_at, null, j.args
            )
        limit p_matches
    ) m;
    if cardinality(ids) = p_matches then
        stopped_at := times[p_matches];
        stopped_id := ids[p_matches];
        return;
    end if;
    select x.ready_at, x.id
    into stopped_at, stopped_id
    from pgqueue.jobs x
    where x.state in ('waiting', 'failed')
        and x.queue = p_queue
        and x.priority = p_priority
        and x.resumed = p_resumed
        and (x.ready_at, x.id) >= (v_at, v_id)
    order by x.ready_at, x.id
    offset p_rows - 1
    limit 1;
    is_cut := found;
end
$$;
