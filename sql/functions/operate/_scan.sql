-- The one reader of jobs by a filter: search() and the bulk calls read by it.
--
-- A scan goes along one index in the order of ids, looks at p_rows rows at most, and ends at enough matches. It returns
-- where it stopped: it has read all up to that id; null: there is no more. So no bound leaves out a match unseen: who
-- combines scans returns no job beyond the nearest stop of them, and the next call continues from there. Reads only.
--
-- The way and the direction choose the text of the statement; values are parameters. One statement for all ways would open
-- the indexes of all partitions for each of them. Values that an index is read by stand in subqueries, so that the planner
-- chooses the same index for all of them.

create or replace function pgqueue._scan(
    p_filter pgqueue.job_filter, p_way text, p_state pgqueue.job_state, p_group bigint, p_ids bigint[], p_oldest boolean,
    p_matches integer, p_rows integer,
    out matches pgqueue.found_job[], out stopped_at bigint, out is_cut boolean
)
language plpgsql stable parallel safe
set enable_seqscan = off set enable_bitmapscan = off
as $$
declare
    v_is_live constant boolean := p_way like 'live%';
    v_rows constant text := format(
        case
            -- The limit keeps the planner from joining the ids with all jobs.
            when p_way like '% ids' then
                '(select distinct i.id from unnest($4) i (id) where i.id between $5 and $6 order by i.id %3$s) i '
                'cross join lateral (select x.* from pgqueue.%1$s x where x.id = i.id limit 1) j'
            -- One row more than asked for shows whether there is more.
            else
                '(select x.* from pgqueue.%1$s x where %2$s x.id between (select $5) and (select $6) '
                'order by x.id %3$s limit (select $3 + 1::bigint)) j'
        end,
        case when v_is_live then 'jobs' else 'history' end,
        case p_way
            when 'live members' then 'x.group_id is not null and x.group_id = (select $7) and x.state = (select $8) and'
            when 'ended members' then 'x.group_id is not null and x.group_id = (select $7) and'
            when 'ended of a key' then 'x.key is not null and x.key = (select $9) and'
            when 'unfinished' then $x$x.state <> 'succeeded' and x.state = (select $8) and$x$
            when 'unfinished of a queue' then $x$x.state <> 'succeeded' and x.queue = (select $10) and x.state = (select $8) and$x$
            else ''
        end,
        case when p_oldest then 'asc' else 'desc' end
    );
begin
    execute format(
        $scan$
        select
            coalesce(array_agg(row(f.id, f.granularity, f.kept_until, f.is_asked_to_stop)::pgqueue.found_job order by f.n), '{}'),
            coalesce(max(f.n) > $3, false)
        from (
            select w.*
            from (
                select
                    j.id, %2$s, row_number() over () as n,
                    (($1).ids is null or j.id = any (($1).ids)) and pgqueue._fits(
                        $1, j.state, j.queue, j.task, j.key, j.limit_key, j.enqueued_by, j.tags, j.reserved_by, j.errors, j.priority,
                        j.attempts, j.created_at, %3$s, j.args
                    ) as fits
                from %1$s
            ) w
            where w.fits or w.n > $3
            limit $2
        ) f
        $scan$,
        v_rows,
        case
            when v_is_live then
                $x$null::"char" as granularity, null::timestamptz as kept_until,
                    j.state = 'executing' and j.cancel_requested_at is not null as is_asked_to_stop$x$
            else 'j.granularity, j.kept_until, false as is_asked_to_stop'
        end,
        case when v_is_live then 'j.ready_at, null' else 'j.run_at, j.finished_at' end
    )
    into matches, is_cut
    using
        p_filter, p_matches, p_rows, p_ids, coalesce(p_filter.id_from, 0), coalesce(p_filter.id_to, 9223372036854775807),
        p_group, p_state, pgqueue._only_name(p_filter.keys), pgqueue._only_name(p_filter.queues);
    stopped_at := (matches[cardinality(matches)]).id;
    if is_cut then
        -- The extra row is not counted as read.
        stopped_at := stopped_at + case when p_oldest then -1 else 1 end;
        matches := matches[:cardinality(matches) - 1];
    elsif cardinality(matches) < p_matches then
        stopped_at := null;
    end if;
end
$$;
