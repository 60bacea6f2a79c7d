-- Limits: how many jobs of one execute, counted by index.
--
-- A count stops at p_max: whoever asks wants to know whether there is room, and how much. It reads the index entries of
-- what executes under that limit and no others, save for limits of a task or of keys, which ask each registered queue
-- once (_tidy_lanes keeps the lanes of queues in which something executes). The payloads of one call of an accumulating
-- task count as one, by the predicate of the indexes.
-- Ranges and orders stand where an equality would do, and sorts are off: so each fits one index alone, also where the
-- planner takes an empty one for dear, or all for equally cheap.

create or replace function pgqueue._count_executing(p_kind text, p_target text, p_max integer)
returns integer
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_sort = off
as $$
declare
    v_queue text;
    v_more integer;
    v_count integer := 0;
begin
    if p_kind = 'queue' then
        select count(*) into v_count
        from (
            select
            from pgqueue.jobs j
            where j.state = 'executing'
                and j.queue > ''
                and (j.leader is null or j.leader = j.id)
                and j.queue = p_target
            order by j.queue, j.task
            limit p_max
        ) e;
    elsif p_kind = 'limit_key' then
        select count(*) into v_count
        from (
            select
            from pgqueue.jobs j
            where j.state = 'executing'
                and j.limit_key is not null
                and (j.leader is null or j.leader = j.id)
                and j.limit_key >= p_target collate "C"
                and j.limit_key <= p_target collate "C"
            order by j.limit_key
            limit p_max
        ) e;
    elsif p_kind = 'task' then
        for v_queue in select distinct a.queue from pgqueue.lanes a loop
            select count(*) into v_more
            from (
                select
                from pgqueue.jobs j
                where j.state = 'executing'
                    and j.queue > ''
                    and (j.leader is null or j.leader = j.id)
                    and j.queue = v_queue
                    and j.task >= p_target collate "C"
                    and j.task <= p_target collate "C"
                order by j.queue, j.task
                limit p_max - v_count
            ) e;
            v_count := v_count + v_more;
            exit when v_count >= p_max;
        end loop;
    else
        for v_queue in select distinct a.queue from pgqueue.lanes a loop
            -- Of all keys from p_target on those that begin with it come first, so nobody has to know where they end.
            select count(*) into v_more
            from (
                select starts_with(j.key, p_target) as is_meant
                from pgqueue.jobs j
                where j.state = 'executing'
                    and j.key is not null
                    and (j.leader is null or j.leader = j.id)
                    and j.queue = v_queue
                    and j.key >= p_target collate "C"
                order by j.queue, j.key
                limit p_max - v_count
            ) e
            where e.is_meant;
            v_count := v_count + v_more;
            exit when v_count >= p_max;
        end loop;
    end if;
    return v_count;
end
$$;

comment on function pgqueue._count_executing(text, text, integer) is
    'Private: how many jobs execute under a limit, counted up to p_max. kind key: p_target is the beginning of the keys; limit_key: the value itself.';
