-- search_due: the ids of waiting and failed jobs that a filter fits, in the order in which they are due.
--
-- The index of ready jobs has the time last, after queue and priority. So each sub-lane is read by it, from the head of the
-- sub-lane on, and only what these find is sorted: at most max_jobs of each. Reads about max_rows rows in all, ten of each
-- sub-lane at least; reads only.

create or replace function pgqueue.search_due(
    filter jsonb default '{}', after_at timestamptz default null, after bigint default null,
    max_jobs integer default 50, max_rows integer default 50000, out job_ids bigint[], out next_after_at timestamptz,
    out next_after bigint, out is_cut boolean
)
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set jit = off
as $$
declare
    v_filter pgqueue.job_filter := pgqueue._read_filter(search_due.filter, search_due.max_jobs, search_due.max_rows);
    v_at constant timestamptz := coalesce(search_due.after_at, '-infinity');
    v_after constant bigint := coalesce(search_due.after, 0) + 1;
    -- The rows to read of each sub-lane.
    v_rows integer;
begin
    job_ids := '{}';
    is_cut := false;
    if v_filter.finished_from is not null or v_filter.finished_to is not null or not v_filter.states && '{waiting,failed}' then
        return;
    end if;
    v_rows := greatest(search_due.max_rows / greatest(2 * (
        select count(*) from pgqueue.lanes l where v_filter.queues is null or l.queue like any (v_filter.queues)
    )::integer, 1), 10);
    with found as materialized (
        select f.*
        from (
            select distinct l.queue, l.priority
            from pgqueue.lanes l
            where v_filter.queues is null or l.queue like any (v_filter.queues)
        ) l
        cross join (values (false), (true)) s (resumed)
        -- Not from the beginning: an old snapshot may keep the index entries of a million jobs that are gone.
        cross join lateral pgqueue._head(l.queue, l.priority, s.resumed) h
        cross join lateral (select (h.head, h.head_id) >= (v_at, v_after) as is_further) k
        cross join lateral (
            select w.*, row_number() over () as rank
            from (
                select
                    j.id, j.ready_at as at, row_number() over () as n,
                    -- Hashed, for they may be ten thousand: an array is compared id by id where the planner does not know it.
                    (v_filter.ids is null or j.id in (select i.id from unnest(v_filter.ids) i (id)))
                        and (v_filter.groups is null or j.group_id = any (v_filter.groups))
                        and j.id between coalesce(v_filter.id_from, 0) and coalesce(v_filter.id_to, 9223372036854775807)
                        and pgqueue._fits_filter(
                            v_filter, j.state, j.queue, j.task, j.key, j.limit_key, j.enqueued_by, j.tags, j.reserved_by, j.errors,
                            j.priority, j.attempts, j.created_at, j.ready_at, null, j.args
                        ) as fits
                from (
                    select x.*
                    from pgqueue.jobs x
                    where x.state in ('waiting', 'failed') and x.queue = l.queue and x.priority = l.priority
                        and x.resumed = s.resumed
                        and (x.ready_at, x.id) >= (
                            case when k.is_further then h.head else v_at end, case when k.is_further then h.head_id else v_after end
                        )
                    order by x.ready_at, x.id
                    limit v_rows
                ) j
            ) w
            where w.fits or w.n = v_rows
            limit search_due.max_jobs
        ) f
    ),
    -- A sub-lane has not been read beyond where it stopped: jobs beyond that are not returned yet.
    stop as (select f.at, f.id from found f where f.n = v_rows or f.rank = search_due.max_jobs order by f.at, f.id limit 1),
    listed as (
        select f.id, f.at
        from found f
        where f.fits and not exists (select from stop s where (s.at, s.id) < (f.at, f.id))
        order by f.at, f.id
        limit search_due.max_jobs
    )
    -- A full page ends at its last job.
    select
        coalesce(array_agg(j.id order by j.at, j.id), '{}'),
        coalesce((array_agg(j.at order by j.at, j.id))[search_due.max_jobs], (select s.at from stop s)),
        coalesce((array_agg(j.id order by j.at, j.id))[search_due.max_jobs], (select s.id from stop s)),
        count(*) < search_due.max_jobs and exists (select from stop)
    into job_ids, next_after_at, next_after, is_cut
    from listed j;
end
$$;

comment on function pgqueue.search_due(jsonb, timestamptz, bigint, integer, integer) is
    'As search(), among waiting and failed jobs, in the order in which they are due. '
    'select job_ids from pgqueue.search_due(''{"queues": ["mail"]}''); '
    'next_after_at, next_after: call again with after_at => next_after_at, after => next_after; null: there is no more. '
    'is_cut: it stopped for max_rows, not for max_jobs. [reader]';
