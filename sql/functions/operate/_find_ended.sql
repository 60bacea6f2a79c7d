-- Ended jobs of a bulk call: reads history without locks, along one index, from where the last call stopped.
--
-- The dead and the cancelled are read by history_unfinished, succeeded ones, and those named by id, by history_id.

create or replace function pgqueue._find_ended(
    p_filter jsonb, p_after jsonb, p_matches integer, p_rows integer,
    out ids bigint[], out granularities "char"[], out kept_untils timestamptz[], out next_after jsonb
)
returns record
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_queue text := p_filter ->> 'queue';
    v_task text := p_filter ->> 'task';
    v_key text := p_filter ->> 'key';
    v_created_after timestamptz := (p_filter ->> 'created_after')::timestamptz;
    v_created_before timestamptz := (p_filter ->> 'created_before')::timestamptz;
    v_finished_after timestamptz := (p_filter ->> 'finished_after')::timestamptz;
    v_finished_before timestamptz := (p_filter ->> 'finished_before')::timestamptz;
    v_states pgqueue.job_state[] := array(
        select s.name::pgqueue.job_state from jsonb_array_elements_text(p_filter -> 'states') s (name)
    );
    v_job_ids bigint[] := array(
        select i.id::bigint from jsonb_array_elements_text(p_filter -> 'job_ids') i (id) order by i.id::bigint
    );
    v_ways text[];
    v_way text;
    v_state pgqueue.job_state;
    v_position pgqueue.history;
    v_row record;
    v_looked_at integer := 0;
begin
    v_ways := case
        when p_filter ? 'job_ids' then '{ids}'
        when p_filter ? 'group_id' then '{group}'
        when 'succeeded' = any (v_states) then '{all}'
        when v_queue is not null then array(
            select s.name::text from unnest(v_states) s (name) where s.name in ('dead', 'cancelled') order by s.name
        )
        else '{unfinished}'
    end;
    ids := '{}';
    granularities := '{}';
    kept_untils := '{}';
    if p_after is not null then
        v_way := p_after ->> 'way';
        if v_way is null or v_way <> all (v_ways) then
            raise data_exception using message = 'It belongs to another filter.';
        end if;
        v_position := jsonb_populate_record(null::pgqueue.history, p_after -> 'ended');
        v_ways := v_ways[array_position(v_ways, v_way):];
    end if;

    foreach v_way in array v_ways loop
        if v_position is null then
            v_position.id := 0;
            v_position.queue := '';
            v_position.state := 'waiting';
        end if;
        v_state := case when v_way in ('dead', 'cancelled') then v_way::pgqueue.job_state end;
        for v_row in
            select
                s.*,
                s.state = any (v_states)
                    and (v_queue is null or s.queue = v_queue)
                    and (v_task is null or s.task = v_task)
                    and (v_key is null or s.key = v_key)
                    and (v_created_after is null or s.created_at >= v_created_after)
                    and (v_created_before is null or s.created_at < v_created_before)
                    and (v_finished_after is null or s.finished_at >= v_finished_after)
                    and (v_finished_before is null or s.finished_at < v_finished_before) as fits
            from (
                (
                    select h.id, h.granularity, h.kept_until, h.queue, h.task, h.key, h.state, h.created_at, h.finished_at
                    from pgqueue.history h
                    where v_state is not null
                        and h.state <> 'succeeded'
                        and h.queue = v_queue
                        and h.state = v_state
                        and h.id > v_position.id
                    order by h.queue, h.state, h.id
                    limit p_rows - v_looked_at
                )
                union all
                (
                    select h.id, h.granularity, h.kept_until, h.queue, h.task, h.key, h.state, h.created_at, h.finished_at
                    from pgqueue.history h
                    where v_way = 'unfinished'
                        and h.state <> 'succeeded'
                        and (h.queue, h.state, h.id) > (v_position.queue, v_position.state, v_position.id)
                    order by h.queue, h.state, h.id
                    limit p_rows - v_looked_at
                )
                union all
                (
                    select h.id, h.granularity, h.kept_until, h.queue, h.task, h.key, h.state, h.created_at, h.finished_at
                    from pgqueue.history h
                    where v_way = 'all' and h.id > v_position.id
                    order by h.id
                    limit p_rows - v_looked_at
                )
                union all
                (
                    select h.id, h.granularity, h.kept_until, h.queue, h.task, h.key, h.state, h.created_at, h.finished_at
                    from pgqueue.history h
                    where v_way = 'ids' and h.id = any (v_job_ids) and h.id > v_position.id
                    order by h.id
                    limit p_rows - v_looked_at
                )
                union all
                (
                    select h.id, h.granularity, h.kept_until, h.queue, h.task, h.key, h.state, h.created_at, h.finished_at
                    from pgqueue.history h
                    where v_way = 'group'
                        and h.group_id is not null
                        and h.group_id = (p_filter ->> 'group_id')::bigint
                        and h.id > v_position.id
                    order by h.group_id, h.id
                    limit p_rows - v_looked_at
                )
            ) s
        loop
            v_looked_at := v_looked_at + 1;
            v_position.id := v_row.id;
            v_position.queue := v_row.queue;
            v_position.state := v_row.state;
            if v_row.fits then
                ids := ids || v_row.id;
                granularities := granularities || v_row.granularity;
                kept_untils := kept_untils || v_row.kept_until;
                exit when cardinality(ids) >= p_matches;
            end if;
        end loop;
        if v_looked_at >= p_rows or cardinality(ids) >= p_matches then
            next_after := jsonb_build_object(
                'way', v_way,
                'ended', jsonb_build_object('id', v_position.id, 'queue', v_position.queue, 'state', v_position.state)
            );
            return;
        end if;
        v_position := null;
    end loop;
    next_after := null;
end
$$;

comment on function pgqueue._find_ended(jsonb, jsonb, integer, integer) is
    'Private: the part of _find_jobs that reads history; granularity and kept_until lead to a row''s partition.';
