-- Limits: the answers of explain() and stats() about them, and their checks.

-- A limit_key has the limit of its own value, else that of the longest prefix*; each value is counted by itself.
create or replace function pgqueue._reached_limit(p_job pgqueue.jobs, p_name text, p_now timestamptz)
returns table (name text, detail text, until timestamptz)
language plpgsql
stable
rows 1
as $$
#variable_conflict use_column
declare
    v_lease_head timestamptz := pgqueue._lease_head();
begin
    return query
    select
        l.name,
        case
            when c.timed
                then format('%s of %s jobs started within %s under the limit %s', l.rate - c.capacity, l.rate, l.per, l.name)
            -- Counted up to the limit.
            else format('%s of %s jobs execute under the limit %s', l.max_executing, l.max_executing, l.name)
        end,
        case when c.timed then c.next_at end
    from pgqueue._limits_of(p_job.queue, p_job.task, p_job.key, p_job.limit_key) l
    cross join lateral pgqueue._capacity_of(
        l.name, l.kind, l.target, l.max_executing, l.rate, l.per, p_now, v_lease_head
    ) c
    where (p_name is null or l.name = p_name) and c.capacity <= 0
    limit 1;
end
$$;

-- Refuses wrong kinds and targets of limits.
create or replace function pgqueue._check_limit(p_kind text, p_target text)
returns void
language plpgsql
stable
parallel safe
as $$
begin
    if p_kind is null or p_kind not in ('queue', 'task', 'key', 'limit_key') then
        perform pgqueue._refuse(
            'kind is unknown', format('It is %s.', coalesce(quote_literal(p_kind), 'null')),
            'Give kind as queue, task, key or limit_key.'
        );
    end if;
    perform pgqueue._check_name('target', p_target, case when p_kind in ('queue', 'task') then 128 else 512 end);
end
$$;

-- blocked_on is the name of the limit; for a limit_key with *, the name with the job's own value.
create or replace function pgqueue._recheck_limit(p_kind text, p_target text)
returns void
language plpgsql
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_prefix text := p_kind || ':' || p_target;
    v_name text;
begin
    if p_kind = 'limit_key' and right(p_target, 1) = '*' then
        v_prefix := left(v_prefix, -1);
        v_name := v_prefix;
        loop
            insert into pgqueue.limit_waits (name, next_at) values (v_name, v_now);
            select j.blocked_on into v_name
            from pgqueue.jobs j
            where j.state = 'blocked' and j.blocked_on is not null and j.blocked_on > v_name collate "C"
            order by j.blocked_on, j.priority desc, j.ready_at, j.id
            limit 1;
            exit when not found or not starts_with(v_name, v_prefix);
        end loop;
    else
        insert into pgqueue.limit_waits (name, next_at) values (v_prefix, v_now);
    end if;
    if p_kind = 'queue' then
        perform pgqueue._wake(p_target, v_now, 2, null);
    end if;
end
$$;

-- The limits as stats() shows them, each number counted to p_most.
create or replace function pgqueue._limits_now(p_most integer)
returns jsonb
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_sort = off
as $$
    select coalesce(
        jsonb_agg(
            jsonb_build_object(
                'kind', l.kind, 'target', l.target, 'max_executing', l.max_executing, 'rate', l.rate, 'per', l.per,
                'executing', e.executing,
                'used', case when p.prefix is null then e.executing else v.used end, 'used_by', v.value,
                'started', s.started, 'started_by', s.value,
                'parked', (
                    select count(*)
                    from (
                        select
                        from pgqueue.jobs j
                        where j.state = 'blocked'
                            and j.blocked_on is not null
                            and case
                                when p.prefix is null then j.blocked_on = l.kind || ':' || l.target
                                else starts_with(j.blocked_on, 'limit_key:' || p.prefix)
                            end
                        limit p_most
                    ) c
                ) + case
                    -- A limit on a queue blocks no job: a claim takes fewer of those that are due.
                    when l.kind = 'queue' and (e.executing >= l.max_executing or s.started >= l.rate)
                    then (
                        select coalesce(sum(r.due), 0)
                        from (select distinct a.priority from pgqueue.lanes a where a.queue = l.target) a
                        cross join (values (false), (true)) b (resumed)
                        cross join lateral pgqueue._count_ready(l.target, a.priority, b.resumed, pgqueue._clock(), p_most) r
                    )
                    else 0
                end
            )
            order by l.kind, l.target
        ),
        '[]'
    )
    from pgqueue.limits l
    cross join lateral (
        select case when l.kind = 'limit_key' and right(l.target, 1) = '*' then left(l.target, -1) end as prefix
    ) p
    cross join lateral (
        select
            coalesce(sum(f.jobs), 0)::integer as executing,
            coalesce(max(f.jobs) filter (where f.counts), 0) as used,
            (array_agg(f.value order by f.jobs desc, f.value) filter (where f.counts))[1] as value
        from (
            select x.*, (select o.rule from pgqueue._limits_of(null, null, null, x.value) o) = l.target as counts
            from (
                select c.limit_key as value, count(*)::integer as jobs
                from (
                    select j.limit_key
                    from pgqueue.jobs j
                    where j.state = 'executing'
                        and j.limit_key is not null
                        and (j.leader is null or j.leader = j.id)
                        and starts_with(j.limit_key, p.prefix)
                    limit p_most
                ) c
                group by c.limit_key
            ) x
        ) f
    ) v
    cross join lateral (
        select case when p.prefix is null then x.executing else v.executing end as executing
        from pgqueue._executing_under(l.kind, l.target, case when p.prefix is null then p_most else 0 end, pgqueue._lease_head()) x
    ) e
    cross join lateral pgqueue._started_now(l, p.prefix, p_most) s
$$;

-- The starts of a limit_key with * are those of the value that has the most: each has the rate for itself.
create or replace function pgqueue._started_now(
    p_limit pgqueue.limits, p_prefix text, p_most integer, out started bigint, out value text
)
returns record
language plpgsql
stable
parallel safe
set plan_cache_mode = force_generic_plan
as $$
declare
    v_now timestamptz := pgqueue._clock();
begin
    if p_limit.rate is null then
        return;
    end if;
    if p_prefix is null then
        select coalesce(sum(x.started), 0)
        into started
        from (
            select s.started
            from pgqueue.limit_starts s
            where s.name = p_limit.kind || ':' || p_limit.target and s.at > pgqueue._after(v_now, -p_limit.per) and s.at <= v_now + interval '1 s'
            limit p_most
        ) x;
        return;
    end if;
    select sum(x.started), substr(x.name, length('limit_key:') + 1)
    into started, value
    from (
        select s.name, s.started
        from pgqueue.limit_starts s
        where s.name >= 'limit_key:' || p_prefix
            and starts_with(s.name, 'limit_key:' || p_prefix)
            and s.at > pgqueue._after(v_now, -p_limit.per)
            and s.at <= v_now + interval '1 s'
        limit p_most
    ) x
    group by x.name
    having (
        select o.rule from pgqueue._limits_of(null, null, null, substr(x.name, length('limit_key:') + 1)) o
    ) = p_limit.target
    order by sum(x.started) desc, x.name
    limit 1;
    started := coalesce(started, 0);
end
$$;
