-- The one reader of jobs by a filter: what search(), search_oldest() and the bulk calls find, page by page, in the order of ids.
--
-- Members of groups, the dead and the cancelled have their own indexes. Live jobs of a queue have one that is not in the order
-- of ids: where few of the jobs read by id fit, all of the queue are looked up, if they are not too many to read at once.

-- p_beyond: an id up to which all has been read.
create or replace function pgqueue._search_by_id(
    p_filter pgqueue.job_filter, p_oldest boolean, p_beyond bigint, p_matches integer, p_rows integer,
    out matches pgqueue.found_job[], out next_id bigint, out is_cut boolean
)
language plpgsql stable parallel safe
set jit = off
as $$
declare
    v_live constant pgqueue.job_state[] := array(
        select s.state
        from unnest('{waiting,failed,blocked,executing}'::pgqueue.job_state[]) s (state)
        where (p_filter.states is null or s.state::text = any (p_filter.states))
            and num_nonnulls(p_filter.finished_from, p_filter.finished_to) = 0
    );
    v_ended constant pgqueue.job_state[] := array(
        select s.state
        from unnest('{succeeded,dead,cancelled}'::pgqueue.job_state[]) s (state)
        where p_filter.states is null or s.state::text = any (p_filter.states)
    );
    v_queue constant text := pgqueue._only_name(p_filter.queues);
    v_key constant text := pgqueue._only_name(p_filter.keys);
    v_ids bigint[] := p_filter.ids;
    -- Rows enough to find a page where one job in forty fits.
    v_look integer := case when v_ids is null and (v_queue is not null or v_live = '{executing}') then least(p_rows, 2000) end;
    v_scan record;
    v_found pgqueue.found_job[];
    v_stopped_at bigint;
    v_is_cut boolean;
begin
    p_filter.id_from := greatest(p_filter.id_from, case when p_oldest then p_beyond + (p_beyond < 9223372036854775807)::integer end);
    p_filter.id_to := least(p_filter.id_to, case when not p_oldest then p_beyond - (p_beyond > -9223372036854775807)::integer end);
    if v_look is not null and v_queue is not null and v_key is not null and v_live <> '{}' and p_filter.groups is null then
        v_look := null;
        v_ids := pgqueue._live_candidates(v_queue, v_key, v_live, p_rows);
    end if;
    matches := '{}';
    is_cut := false;
    for v_scan in
        select 'live members' as way, s.state, g.id as group_id
        from unnest(p_filter.groups) g (id)
        cross join unnest(v_live) s (state)
        union all
        select 'ended members', null, g.id from unnest(p_filter.groups) g (id) where v_ended <> '{}'
        union all
        select 'live', null, null where p_filter.groups is null and v_live <> '{}'
        union all
        -- The unfinished are read state by state.
        select w.way, s.state, null
        from (
            select case
                when p_filter.ids is not null then 'ended ids'
                when v_key is not null then 'ended of a key'
                when 'succeeded' = any (v_ended) then 'ended'
                when v_queue is not null then 'unfinished of a queue'
                else 'unfinished'
            end
        ) w (way)
        cross join lateral unnest(case when w.way like 'unfinished%' then v_ended else v_ended[:1] end) s (state)
        where p_filter.groups is null
    loop
        v_is_cut := true;
        if v_scan.way = 'live' and v_look is not null then
            select f.* into v_found, v_stopped_at, v_is_cut
            from pgqueue._scan(p_filter, 'live', null, null, null, p_oldest, p_matches, v_look) f;
            v_ids := case when v_is_cut then pgqueue._live_candidates(v_queue, null, v_live, p_rows) end;
        end if;
        if v_is_cut then
            select f.* into v_found, v_stopped_at, v_is_cut
            from pgqueue._scan(
                p_filter, v_scan.way || case when v_scan.way = 'live' and v_ids is not null then ' ids' else '' end, v_scan.state,
                v_scan.group_id, v_ids, p_oldest, p_matches,
                coalesce(case when v_scan.way = 'live' then cardinality(v_ids) end, p_rows)
            ) f;
        end if;
        matches := matches || v_found;
        -- A scan has not read beyond the id at which it stopped: ids beyond that are not returned yet.
        next_id := case when p_oldest then least(next_id, v_stopped_at) else greatest(next_id, v_stopped_at) end;
        is_cut := is_cut or v_is_cut;
    end loop;
    matches := array(
        select m
        from unnest(matches) m
        where next_id is null or case when p_oldest then m.id <= next_id else m.id >= next_id end
        order by case when p_oldest then m.id else - m.id end
        limit p_matches
    );
    if cardinality(matches) = p_matches then
        next_id := (matches[p_matches]).id;
        is_cut := false;
    end if;
end
$$;

-- The live jobs of a key, or of a queue in these states, by their indexes. Null: those have more than p_most entries, with the
-- ones of other queues. Only indexes whose states are asked for are opened; the text of the statement is chosen among these.
create or replace function pgqueue._live_candidates(p_queue text, p_key text, p_states pgqueue.job_state[], p_most integer)
returns bigint[]
language plpgsql stable parallel safe
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
as $$
declare
    v_arms constant text := (
        select string_agg(
            format('(select %s as id, x.queue from pgqueue.jobs x where %s limit $3 + 1)', coalesce(a.ids, 'x.id'), a.rows),
            ' union all '
        )
        from (
            values
                (
                    '{waiting,failed}'::pgqueue.job_state[], null,
                    $x$x.state in ('waiting', 'failed') and x.queue = $1
                    order by x.queue, x.priority, x.resumed, x.ready_at, x.id$x$
                ),
                ('{blocked}', null, 'pgqueue._holds_position(x) and x.queue = $1 order by x.queue, x.key, x.id'),
                (
                    '{blocked}', null,
                    $x$x.state = 'blocked' and x.blocked_on is not null
                    order by x.blocked_on, x.priority desc, x.ready_at, x.id$x$
                ),
                (
                    '{executing}', null,
                    $x$x.state = 'executing' and x.lease_expires_at >= pgqueue._lease_head() order by x.lease_expires_at, x.id$x$
                ),
                -- By the key.
                (null, null, 'pgqueue._is_new_of_key(x) and x.queue = $1 and x.key = $2 order by x.queue, x.key, x.id'),
                (null, null, 'pgqueue._holds_position(x) and x.queue = $1 and x.key = $2 order by x.queue, x.key, x.id'),
                (
                    null, null,
                    $x$x.key is not null and x.blocked_on = '@parents' and x.queue = $1 and x.key = $2
                    order by x.queue, x.key, x.id$x$
                ),
                (
                    -- One of a key executes, with its batch.
                    null, 'unnest(x.id || x.followers)',
                    $x$x.key is not null and x.state = 'executing' and (x.leader is null or x.leader = x.id)
                    and x.queue = $1 and x.key = $2$x$
                )
        ) a (states, ids, rows)
        where case when p_key is null then a.states && p_states else a.states is null end
    );
    v_ids bigint[];
begin
    execute format(
        $x$
        select coalesce(array_agg(c.id) filter (where $1 is null or c.queue = $1), '{}')
        from (select u.id, u.queue from (%s) u limit $3 + 1) c
        having count(*) <= $3
        $x$,
        v_arms
    ) into v_ids using p_queue, p_key, p_most;
    return v_ids;
end
$$;

-- A scan goes along one index in the order of ids, looks at p_rows rows at most, and ends at enough matches. It returns
-- where it stopped: it has read all up to that id; null: there is no more. So no bound leaves out a match unseen: who
-- combines scans returns no job beyond the nearest stop of them, and the next call continues from there. Reads only.
--
-- The way and the direction choose the text of the statement; values are parameters. One statement for all ways would open
-- the indexes of all partitions for each of them. Values that an index is read by stand in subqueries, so that the planner chooses
-- the same index for all; not the state of members: it would read all jobs, in the order of ids, for one in which none are.
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
            when 'live members' then format('x.group_id is not null and x.group_id = (select $7) and x.state = %L and', p_state)
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
                    -- The ids last: they may be ten thousand, and few of them in the states.
                    pgqueue._fits_filter(
                        $1, j.state, j.queue, j.task, j.key, j.limit_key, j.enqueued_by, j.tags, j.reserved_by, j.errors, j.priority,
                        j.attempts, j.created_at, %3$s, j.args
                    ) and (($1).ids is null or j.id = any (($1).ids)) as fits
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
