-- What search() finds among the members of groups, one row for each part that it reads: a group's live jobs of one
-- state, and its jobs in history. Each part is read by the index of groups, in the order of ids, at most p_rows rows of it.

create or replace function pgqueue._search_group(
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
    v_group bigint;
    v_state pgqueue.job_state;
begin
    foreach v_group in array p_filter.groups loop
        foreach v_state in array '{waiting,failed,blocked,executing}'::pgqueue.job_state[] loop
            continue when v_state::text <> all (p_filter.states)
                or num_nonnulls(p_filter.finished_from, p_filter.finished_to) > 0;
            select p.* into ids, stopped_at, is_cut
            from pgqueue._search_live_members(p_filter, p_oldest, v_group, v_state, v_from, v_to, p_matches, p_rows) p;
            return next;
        end loop;
        continue when not p_filter.states && '{succeeded,dead,cancelled}';
        select p.* into ids, stopped_at, is_cut
        from pgqueue._search_ended_members(p_filter, p_oldest, v_group, v_from, v_to, p_matches, p_rows) p;
        return next;
    end loop;
end
$$;

comment on function pgqueue._search_group(pgqueue.job_filter, boolean, integer, integer) is
    'Private: what search() finds among the members of groups.';

create or replace function pgqueue._search_live_members(
    p_filter pgqueue.job_filter, p_oldest boolean, p_group bigint, p_state pgqueue.job_state, p_from bigint, p_to bigint,
    p_matches integer, p_rows integer, out ids bigint[], out stopped_at bigint, out is_cut boolean
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
begin
    is_cut := false;
    ids := array(
        select j.id
        from pgqueue._live_member_rows(p_group, p_state, p_oldest, p_from, p_to, p_rows) j
        where (p_filter.ids is null or j.id = any (p_filter.ids))
            and pgqueue._fits(
                p_filter, j.state, j.queue, j.task, j.key, j.tags, j.reserved_by, j.errors, j.priority, j.attempts,
                j.created_at, j.ready_at, null, j.args
            )
        limit p_matches
    );
    if cardinality(ids) = p_matches then
        stopped_at := ids[p_matches];
        return;
    end if;
    stopped_at := (
        select j.id from pgqueue._live_member_rows(p_group, p_state, p_oldest, p_from, p_to, p_rows) j offset p_rows - 1 limit 1
    );
    is_cut := stopped_at is not null;
end
$$;

comment on function pgqueue._search_live_members(
    pgqueue.job_filter, boolean, bigint, pgqueue.job_state, bigint, bigint, integer, integer
) is 'Private: what search() finds among live members of a group in one state.';

create or replace function pgqueue._search_ended_members(
    p_filter pgqueue.job_filter, p_oldest boolean, p_group bigint, p_from bigint, p_to bigint, p_matches integer, p_rows integer,
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
begin
    is_cut := false;
    ids := array(
        select h.id
        from pgqueue._ended_member_rows(p_group, p_oldest, p_from, p_to, p_rows) h
        where (p_filter.ids is null or h.id = any (p_filter.ids))
            and pgqueue._fits(
                p_filter, h.state, h.queue, h.task, h.key, h.tags, h.reserved_by, h.errors, h.priority, h.attempts,
                h.created_at, h.run_at, h.finished_at, h.args
            )
        limit p_matches
    );
    if cardinality(ids) = p_matches then
        stopped_at := ids[p_matches];
        return;
    end if;
    stopped_at := (
        select h.id from pgqueue._ended_member_rows(p_group, p_oldest, p_from, p_to, p_rows) h offset p_rows - 1 limit 1
    );
    is_cut := stopped_at is not null;
end
$$;

comment on function pgqueue._search_ended_members(
    pgqueue.job_filter, boolean, bigint, bigint, bigint, integer, integer
) is
    'Private: what search() finds among members of a group in history.';
