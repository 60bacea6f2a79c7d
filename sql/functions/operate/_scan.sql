-- The one reader of jobs by a filter: search(), the bulk calls and dead_groups() read by it.
--
-- A scan goes along one index in the order of ids, looks at p_rows rows at most, and ends at enough matches. It returns
-- where it stopped: it has read all up to that id; null: there is no more. So no bound leaves out a match unseen: who
-- combines scans returns no job beyond the nearest stop of them, and the next call goes on from there. Reads only.
--
-- A cursor, because a loop that ends at enough matches must not have read the rest; it returns the matches only, for a row
-- that is fetched costs as much as three that are read. Each way is a statement of its own: one statement for all would
-- open the indexes of all partitions for each way.

create or replace function pgqueue._scan(
    p_filter pgqueue.job_filter, p_way text, p_state pgqueue.job_state, p_group bigint, p_ids bigint[], p_oldest boolean,
    p_matches integer, p_rows integer,
    out matches pgqueue.found_job[], out stopped_at bigint, out is_cut boolean
)
returns record
language plpgsql
stable
parallel safe
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
as $$
declare
    v_queue text := pgqueue._only_name(p_filter.queues);
    v_key text := pgqueue._only_name(p_filter.keys);
    v_from bigint := coalesce(p_filter.id_from, 0);
    v_to bigint := coalesce(p_filter.id_to, 9223372036854775807);
    -- One more tells whether there is more.
    v_most bigint := p_rows + 1::bigint;
    v_rows refcursor;
    v_job pgqueue.found_job;
    v_n bigint;
begin
    case p_way
        when 'live' then
            open v_rows for
            select w.id, w.granularity, w.kept_until, w.is_asked_to_stop, w.n
            from (
                select
                    j.id, null, null, j.state = 'executing' and j.cancel_requested_at is not null,
                    pgqueue._fits_live(p_filter, j), row_number() over ()
                from pgqueue._live_rows(p_oldest, v_from, v_to, v_most) j
            ) w (id, granularity, kept_until, is_asked_to_stop, fits, n)
            where w.fits or w.n > p_rows;
        when 'live ids' then
            open v_rows for
            select w.id, w.granularity, w.kept_until, w.is_asked_to_stop, w.n
            from (
                select
                    j.id, null, null, j.state = 'executing' and j.cancel_requested_at is not null,
                    pgqueue._fits_live(p_filter, j), row_number() over ()
                from (
                    select distinct i.id, case when p_oldest then i.id else - i.id end as place
                    from unnest(p_ids) i (id)
                    where i.id between v_from and v_to
                    order by place
                ) i
                -- The limit keeps the planner from joining the ids with all jobs.
                cross join lateral (select x.* from pgqueue.jobs x where x.id = i.id limit 1) j
            ) w (id, granularity, kept_until, is_asked_to_stop, fits, n)
            where w.fits or w.n > p_rows;
        when 'live members' then
            open v_rows for
            select w.id, w.granularity, w.kept_until, w.is_asked_to_stop, w.n
            from (
                select
                    j.id, null, null, j.state = 'executing' and j.cancel_requested_at is not null,
                    pgqueue._fits_live(p_filter, j), row_number() over ()
                from pgqueue._live_member_rows(p_group, p_state, p_oldest, v_from, v_to, v_most) j
            ) w (id, granularity, kept_until, is_asked_to_stop, fits, n)
            where w.fits or w.n > p_rows;
        when 'ended' then
            open v_rows for
            select w.id, w.granularity, w.kept_until, w.is_asked_to_stop, w.n
            from (
                select j.id, j.granularity, j.kept_until, false, pgqueue._fits_ended(p_filter, j), row_number() over ()
                from pgqueue._ended_rows(p_oldest, v_from, v_to, v_most) j
            ) w (id, granularity, kept_until, is_asked_to_stop, fits, n)
            where w.fits or w.n > p_rows;
        when 'ended ids' then
            open v_rows for
            select w.id, w.granularity, w.kept_until, w.is_asked_to_stop, w.n
            from (
                select j.id, j.granularity, j.kept_until, false, pgqueue._fits_ended(p_filter, j), row_number() over ()
                from (
                    select distinct i.id, case when p_oldest then i.id else - i.id end as place
                    from unnest(p_ids) i (id)
                    where i.id between v_from and v_to
                    order by place
                ) i
                -- The limit keeps the planner from joining the ids with all jobs.
                cross join lateral (select x.* from pgqueue.history x where x.id = i.id limit 1) j
            ) w (id, granularity, kept_until, is_asked_to_stop, fits, n)
            where w.fits or w.n > p_rows;
        when 'ended members' then
            open v_rows for
            select w.id, w.granularity, w.kept_until, w.is_asked_to_stop, w.n
            from (
                select j.id, j.granularity, j.kept_until, false, pgqueue._fits_ended(p_filter, j), row_number() over ()
                from pgqueue._ended_member_rows(p_group, p_oldest, v_from, v_to, v_most) j
            ) w (id, granularity, kept_until, is_asked_to_stop, fits, n)
            where w.fits or w.n > p_rows;
        when 'ended of a key' then
            open v_rows for
            select w.id, w.granularity, w.kept_until, w.is_asked_to_stop, w.n
            from (
                select j.id, j.granularity, j.kept_until, false, pgqueue._fits_ended(p_filter, j), row_number() over ()
                from pgqueue._ended_key_rows(v_key, p_oldest, v_from, v_to, v_most) j
            ) w (id, granularity, kept_until, is_asked_to_stop, fits, n)
            where w.fits or w.n > p_rows;
        when 'unfinished' then
            open v_rows for
            select w.id, w.granularity, w.kept_until, w.is_asked_to_stop, w.n
            from (
                select j.id, j.granularity, j.kept_until, false, pgqueue._fits_ended(p_filter, j), row_number() over ()
                from pgqueue._unfinished_rows(p_state, p_oldest, v_from, v_to, v_most) j
            ) w (id, granularity, kept_until, is_asked_to_stop, fits, n)
            where w.fits or w.n > p_rows;
        when 'unfinished of a queue' then
            open v_rows for
            select w.id, w.granularity, w.kept_until, w.is_asked_to_stop, w.n
            from (
                select j.id, j.granularity, j.kept_until, false, pgqueue._fits_ended(p_filter, j), row_number() over ()
                from pgqueue._unfinished_queue_rows(v_queue, p_state, p_oldest, v_from, v_to, v_most) j
            ) w (id, granularity, kept_until, is_asked_to_stop, fits, n)
            where w.fits or w.n > p_rows;
    end case;
    matches := '{}';
    is_cut := false;
    loop
        fetch v_rows into v_job.id, v_job.granularity, v_job.kept_until, v_job.is_asked_to_stop, v_n;
        exit when not found;
        is_cut := v_n > p_rows;
        -- The one that tells of more is not read.
        stopped_at := v_job.id + case when not is_cut then 0 when p_oldest then -1 else 1 end;
        exit when is_cut;
        if p_filter.ids is null or v_job.id = any (p_filter.ids) then
            matches := matches || v_job;
            exit when cardinality(matches) = p_matches;
        end if;
    end loop;
    if not found then
        stopped_at := null;
    end if;
    close v_rows;
end
$$;
