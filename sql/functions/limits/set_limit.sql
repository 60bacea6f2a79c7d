-- set_limit: how many jobs of a queue, a task, keys or a limit_key execute at a time, or start within a period.
--
-- Writes one row of limits, which takes effect at the next claim. There may be capacity now, so the next claim or maintain()
-- checks the jobs that the limit blocks. A plain update of limits takes effect too, but the blocked jobs wait until one ends, or
-- until the limit's next check: a second later, or, under a rate, at the next start that it allowed before.

create or replace function pgqueue.set_limit(
    kind text, target text, max_executing integer default null, rate integer default null, per interval default null,
    max_cost integer default null, burst integer default null
)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_old pgqueue.limits;
    v_wrong text[];
begin
    perform pgqueue._check_limit(set_limit.kind, set_limit.target);
    select l.* into v_old from pgqueue.limits l where l.kind = set_limit.kind and l.target = set_limit.target for update;
    v_wrong := case
        when num_nonnulls(set_limit.max_executing, set_limit.rate, set_limit.per, set_limit.max_cost, set_limit.burst) = 0 then array[
            'neither max_executing nor rate is given', 'It would limit nothing.', 'Give max_executing, max_cost, or rate with per; drop_limit() takes a limit away.']
        when set_limit.max_executing not between 0 and 1000000 then array[
            'max_executing must be between 0 and 1000000', format('It is %s.', set_limit.max_executing),
            'Give max_executing within this range; 0 lets no job start.']
        when (set_limit.rate is null) <> (set_limit.per is null) and v_old.rate is null then array[
            'rate and per go together', format('per is %s.', coalesce(set_limit.per::text, 'null')),
            'Give rate with per: rate => 100, per => ''1 min''.']
        when set_limit.burst is not null and coalesce(set_limit.rate, v_old.rate) is null then array[
            'burst was given without rate', 'It is the size of a bucket, which is filled at the rate.',
            'Give rate and per with burst: rate => 90000, per => ''1 min'', burst => 10000.']
        when not isfinite(set_limit.per) or set_limit.per not between '1 ms' and '31 days' then array[
            'per must be between a millisecond and 31 days', format('It is %s.', set_limit.per), 'Give per as an interval, such as ''1 min''.']
    end;
    perform pgqueue._refuse(v_wrong[1], v_wrong[2], v_wrong[3]) where v_wrong is not null;
    perform pgqueue._check_range(w.what, w.units, 1, 1000000000, format('Give %s within this range.', w.what))
    from (values ('rate', set_limit.rate), ('max_cost', set_limit.max_cost), ('burst', set_limit.burst)) w (what, units)
    where w.units is not null;

    -- What is left out comes from the stored row (check constraints apply even in a conflict), or below from that of another session.
    insert into pgqueue.limits as l (kind, target, max_executing, rate, per, max_cost, burst, set_at)
    values (
        set_limit.kind, set_limit.target, coalesce(set_limit.max_executing, v_old.max_executing), coalesce(set_limit.rate, v_old.rate),
        coalesce(set_limit.per, v_old.per), coalesce(set_limit.max_cost, v_old.max_cost), coalesce(set_limit.burst, v_old.burst),
        pgqueue._clock()
    )
    on conflict (kind, target) do update
    set (max_executing, rate, per, max_cost, burst, set_at) = (
        coalesce(excluded.max_executing, l.max_executing), coalesce(excluded.rate, l.rate), coalesce(excluded.per, l.per),
        coalesce(excluded.max_cost, l.max_cost), coalesce(excluded.burst, l.burst), excluded.set_at
    )
    where 0 < num_nonnulls(nullif(excluded.max_executing, l.max_executing), nullif(excluded.rate, l.rate), nullif(excluded.per, l.per),
        nullif(excluded.max_cost, l.max_cost), nullif(excluded.burst, l.burst));
    if not found then
        return false;
    end if;
    perform pgqueue._recheck_limit(set_limit.kind, set_limit.target);
    -- See paused_of.
    perform pg_notify('pgqueue', '') where pgqueue._may_notify();
    return pgqueue._audit(
        'set_limit',
        jsonb_build_object(
            'kind', set_limit.kind, 'target', set_limit.target, 'max_executing', set_limit.max_executing,
            'rate', set_limit.rate, 'per', set_limit.per, 'max_cost', set_limit.max_cost, 'burst', set_limit.burst
        )
    );
end
$$;

comment on function pgqueue.set_limit(text, text, integer, integer, interval, integer, integer) is
    'Limit how many jobs execute over the whole fleet; takes effect at once. kind: queue, task, key (all keys that begin with target, together) or limit_key (that value; '
    'target* for each value that begins so, by itself). max_executing: at most this many at a time; rate and per: at most this many starts in any period as long as per. '
    'Where jobs have a cost, a rate counts units: the cost of each start. max_cost: at most this many units execute at a time. burst: the rate is a bucket of that size, filled at the rate. Jobs of one limit start in order, '
    'and one that costs more than the limit has at all starts when nothing of it is taken. '
    'An argument that is left out keeps its value; drop_limit() removes one of them, or all. False: unchanged. select pgqueue.set_limit(''task'', ''export'', max_executing => 2); select pgqueue.set_limit(''limit_key'', ''llm'', rate => 90000, per => ''1 min'', burst => 10000);';

-- Refuses wrong kinds and targets of limits and pauses.
create or replace function pgqueue._check_limit(p_kind text, p_target text, p_kinds text[] default '{queue,task,key,limit_key}')
returns void
language plpgsql stable parallel safe
as $$
begin
    perform pgqueue._refuse(
        'kind is unknown', format('It is %s.', coalesce(quote_literal(p_kind), 'null')),
        format('Give kind as %s or limit_key.', array_to_string(array_remove(p_kinds, 'limit_key'), ', '))
    )
    where p_kind is null or p_kind <> all (p_kinds);
    perform pgqueue._check_name('target', p_target, case when p_kind in ('queue', 'task') then 128 else 512 end);
end
$$;

-- blocked_on is the name of the limit; for a limit_key with *, the name with the job's own value.
create or replace function pgqueue._recheck_limit(p_kind text, p_target text)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set enable_bitmapscan = off
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_of_prefix boolean := p_kind = 'limit_key' and right(p_target, 1) = '*';
    v_first text := p_kind || ':' || case when v_of_prefix then left(p_target, -1) else p_target end;
    v_name text := v_first;
begin
    loop
        insert into pgqueue.limit_waits (name, next_at) values (v_name, v_now);
        exit when not v_of_prefix;
        select j.blocked_on into v_name
        from pgqueue.jobs j
        where j.state = 'blocked' and j.blocked_on is not null and j.blocked_on > v_name collate "C"
        order by j.blocked_on, j.priority desc, j.ready_at, j.id
        limit 1;
        exit when not found or not starts_with(v_name, v_first);
    end loop;
    perform pgqueue._wake(p_target, v_now) where p_kind = 'queue';
end
$$;
