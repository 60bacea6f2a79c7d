-- Limits: how many jobs of one execute, counted by index.
--
-- A count stops at p_max: whoever asks wants to know whether there is room, and how much. It reads the index of leases,
-- which knows queue, task and limit_key of all that executes, and the rows of those that it counts; for keys the unique
-- index, where all that begin alike stand together. The payloads of one call of an accumulating task count as one.
-- Sorts are off, and an order is given: so each query fits one index alone, also where the planner takes an empty one
-- for dear, or all for equally cheap.

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
    v_count integer := 0;
begin
    -- lease_expires_at is above -infinity for whatever has a lease, and thus for all that count.
    if p_kind = 'queue' then
        select count(*) into v_count
        from (
            select
            from pgqueue.jobs j
            where j.state = 'executing' and j.lease_expires_at > '-infinity' and j.queue = p_target
            order by j.lease_expires_at
            limit p_max
        ) e;
    elsif p_kind = 'task' then
        select count(*) into v_count
        from (
            select
            from pgqueue.jobs j
            where j.state = 'executing' and j.lease_expires_at > '-infinity' and j.task = p_target
            order by j.lease_expires_at
            limit p_max
        ) e;
    elsif p_kind = 'limit_key' then
        select count(*) into v_count
        from (
            select
            from pgqueue.jobs j
            where j.state = 'executing' and j.lease_expires_at > '-infinity' and j.limit_key = p_target
            order by j.lease_expires_at
            limit p_max
        ) e;
    else
        -- Of all keys from p_target on those that begin with it come first, so nobody has to know where they end.
        select count(*) into v_count
        from (
            select starts_with(j.key, p_target) as is_meant
            from pgqueue.jobs j
            where j.state = 'executing'
                and j.key is not null
                and (j.leader is null or j.leader = j.id)
                and j.key >= p_target collate "C"
            order by j.key, j.queue
            limit p_max
        ) e
        where e.is_meant;
    end if;
    return v_count;
end
$$;

comment on function pgqueue._count_executing(text, text, integer) is
    'Private: how many jobs execute under a limit, counted up to p_max. kind key: p_target is the beginning of the keys; limit_key: the value itself.';
