-- The parts of search() and search_oldest(): live jobs, and history. Each returns the ids that it found, and where it
-- stopped: it has not read below that id (p_oldest: above it); null: it has read all. Each way of reading is one statement
-- that ends at enough matches. id_from and id_to of the filter bound what is read.

create or replace function pgqueue._search_live(
    p_filter pgqueue.job_filter, p_oldest boolean, p_matches integer, p_rows integer,
    out ids bigint[], out stopped_at bigint, out is_cut boolean
)
returns record
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
    v_queue text := pgqueue._only_name(p_filter.queues);
    v_from bigint := coalesce(p_filter.id_from, 0);
    v_to bigint := coalesce(p_filter.id_to, 9223372036854775807);
    -- One name costs less to compare than a pattern, and may be read by an index.
    v_candidates bigint[];
begin
    ids := '{}';
    is_cut := false;
    if p_filter.states is not null and not p_filter.states && '{waiting,failed,blocked,executing}' then
        return;
    end if;
    if p_filter.finished_from is not null or p_filter.finished_to is not null then
        return;
    end if;
    if p_filter.ids is not null then
        v_candidates := p_filter.ids;
    elsif p_filter.states = '{executing}' then
        v_candidates := array(
            select j.id from pgqueue.jobs j where j.state = 'executing' and j.lease_expires_at >= pgqueue._lease_head() limit p_rows
        );
    elsif v_queue is not null then
        v_candidates := pgqueue._live_candidates(v_queue, least(p_rows, 5000));
    end if;
    -- From this number on, reading by id is as fast.
    if p_filter.ids is null and cardinality(v_candidates) >= least(p_rows, 5000) then
        v_candidates := null;
    end if;
    if v_candidates is not null then
        ids := array(
            select j.id
            from unnest(v_candidates) c (id)
            -- The limit keeps the planner from joining the ids with all jobs.
            cross join lateral (select x.* from pgqueue.jobs x where x.id = c.id limit 1) j
            where j.id between v_from and v_to
                and pgqueue._fits(
                    p_filter, j.state, j.queue, j.task, j.key, j.tags, j.reserved_by, j.errors, j.priority, j.attempts,
                    j.created_at, j.ready_at, null, j.args
                )
            order by case when p_oldest then j.id else - j.id end
            limit p_matches
        );
        if cardinality(ids) = p_matches then
            stopped_at := ids[p_matches];
        end if;
        return;
    end if;
    ids := array(
        select j.id
        from pgqueue._live_rows(p_oldest, v_from, v_to, p_rows) j
        where pgqueue._fits(
            p_filter, j.state, j.queue, j.task, j.key, j.tags, j.reserved_by, j.errors, j.priority, j.attempts,
            j.created_at, j.ready_at, null, j.args
        )
        limit p_matches
    );
    if cardinality(ids) = p_matches then
        stopped_at := ids[p_matches];
        return;
    end if;
    stopped_at := (select j.id from pgqueue._live_rows(p_oldest, v_from, v_to, p_rows) j offset p_rows - 1 limit 1);
    is_cut := stopped_at is not null;
end
$$;

comment on function pgqueue._search_live(pgqueue.job_filter, boolean, integer, integer) is
    'Private: the part of search() that reads live jobs.';

create or replace function pgqueue._live_candidates(p_queue text, p_most integer)
returns bigint[]
language sql
stable
parallel safe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set jit = off
as $$
    select array(
        (
            select j.id
            from pgqueue.jobs j
            where j.state in ('waiting', 'failed') and j.queue = p_queue
            order by j.queue, j.priority, j.resumed, j.ready_at, j.id
            limit p_most
        )
        union all
        (
            select j.id
            from pgqueue.jobs j
            where j.key is not null
                and (j.state = 'blocked' or (j.state in ('waiting', 'failed') and j.reservation > 0))
                and j.blocked_on is distinct from '@parents'
                and j.state = 'blocked'
                and j.queue = p_queue
            order by j.queue, j.key, j.id
            limit p_most
        )
        union all
        (
            select b.id
            from (
                select j.id, j.queue
                from pgqueue.jobs j
                where j.state = 'blocked' and j.blocked_on is not null and (j.key is null or j.blocked_on = '@parents')
                limit p_most
            ) b
            where b.queue = p_queue
        )
        union all
        (
            select j.id
            from pgqueue.jobs j
            where j.state = 'executing' and j.lease_expires_at >= pgqueue._lease_head() and j.queue = p_queue
            limit p_most
        )
        limit p_most
    )
$$;

comment on function pgqueue._live_candidates(text, integer) is 'Private: the live jobs of a queue, up to p_most.';

create or replace function pgqueue._search_ended(
    p_filter pgqueue.job_filter, p_oldest boolean, p_matches integer, p_rows integer,
    out ids bigint[], out stopped_at bigint, out is_cut boolean
)
returns setof record
language plpgsql
stable
parallel safe
rows 10
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
    v_from bigint := coalesce(p_filter.id_from, 0);
    v_to bigint := coalesce(p_filter.id_to, 9223372036854775807);
begin
    if p_filter.states is not null and not p_filter.states && '{succeeded,dead,cancelled}' then
        return;
    end if;
    is_cut := false;
    if p_filter.ids is null and p_filter.states <@ '{waiting,failed,blocked,executing,dead,cancelled}' then
        return query
        select f.*
        from unnest(pgqueue._unfinished_queues(p_filter.queues, 200)) q (name)
        cross join unnest('{dead,cancelled}'::pgqueue.job_state[]) s (state)
        cross join lateral pgqueue._search_unfinished(p_filter, p_oldest, q.name, s.state, p_matches, p_rows) f
        where s.state::text = any (p_filter.states);
        return;
    end if;
    ids := array(
        select h.id
        from (
            (select x.* from pgqueue._ended_rows(p_oldest, v_from, v_to, p_rows) x where p_filter.ids is null)
            union all
            (
                select y.*
                from unnest(p_filter.ids) i (id)
                cross join lateral (select z.* from pgqueue.history z where z.id = i.id limit 1) y
                where y.id between v_from and v_to
                order by case when p_oldest then y.id else - y.id end
            )
        ) h
        where pgqueue._fits(
            p_filter, h.state, h.queue, h.task, h.key, h.tags, h.reserved_by, h.errors, h.priority, h.attempts, h.created_at,
            h.run_at, h.finished_at, h.args
        )
        limit p_matches
    );
    if cardinality(ids) = p_matches then
        stopped_at := ids[p_matches];
    elsif p_filter.ids is null then
        stopped_at := (select h.id from pgqueue._ended_rows(p_oldest, v_from, v_to, p_rows) h offset p_rows - 1 limit 1);
        is_cut := stopped_at is not null;
    end if;
    return next;
end
$$;

comment on function pgqueue._search_ended(pgqueue.job_filter, boolean, integer, integer) is
    'Private: the part of search() that reads history, one row for each part that it reads.';

create or replace function pgqueue._search_unfinished(
    p_filter pgqueue.job_filter, p_oldest boolean, p_queue text, p_state pgqueue.job_state, p_matches integer, p_rows integer,
    out ids bigint[], out stopped_at bigint, out is_cut boolean
)
returns record
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
declare
    v_from bigint := coalesce(p_filter.id_from, 0);
    v_to bigint := coalesce(p_filter.id_to, 9223372036854775807);
begin
    is_cut := false;
    ids := array(
        select h.id
        from pgqueue._unfinished_rows(p_queue, p_state, p_oldest, v_from, v_to, p_rows) h
        where pgqueue._fits(
            p_filter, h.state, h.queue, h.task, h.key, h.tags, h.reserved_by, h.errors, h.priority, h.attempts, h.created_at,
            h.run_at, h.finished_at, h.args
        )
        limit p_matches
    );
    if cardinality(ids) = p_matches then
        stopped_at := ids[p_matches];
        return;
    end if;
    stopped_at := (
        select h.id from pgqueue._unfinished_rows(p_queue, p_state, p_oldest, v_from, v_to, p_rows) h offset p_rows - 1 limit 1
    );
    is_cut := stopped_at is not null;
end
$$;

comment on function pgqueue._search_unfinished(
    pgqueue.job_filter, boolean, text, pgqueue.job_state, integer, integer
) is 'Private: the part of search() that reads dead, or cancelled, jobs of a queue.';

-- One probe for each queue, however many jobs it has.
create or replace function pgqueue._unfinished_queues(p_patterns text[], p_most integer)
returns text[]
language sql
stable
parallel safe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $$
    with recursive queues (queue) as (
        (select h.queue from pgqueue.history h where h.state <> 'succeeded' order by h.queue limit 1)
        union all
        select (
            select h.queue from pgqueue.history h where h.state <> 'succeeded' and h.queue > q.queue order by h.queue limit 1
        )
        from queues q
        where q.queue is not null
    )
    select case
        when pgqueue._only_name(p_patterns) is not null then array[pgqueue._only_name(p_patterns)]
        else array(
            select q.queue from queues q where q.queue is not null and (p_patterns is null or q.queue like any (p_patterns)) limit p_most
        )
    end
$$;

comment on function pgqueue._unfinished_queues(text[], integer) is
    'Private: the queues that have dead or cancelled jobs in history and fit patterns.';
