-- Taking capacity: which of the jobs that a claim has locked may start under their limits. See _limits_of for the whole.
--
-- Each limit is locked and counted once for all jobs of the claim that it touches, in two statements: the second has a
-- snapshot that shows what others had started before the lock was taken. As a rule all have capacity, and nothing is left
-- to decide. Else the jobs are gone through in order. A claim that continues counts again: it sees its own starts.

-- p_free: how many may start at most. unstarted: those that do not. skipped: those of them that stay where they are because
-- another claim starts jobs under one of their limits, or their queue has no capacity. Jobs without capacity are blocked.
create or replace function pgqueue._within_limits(
    p_jobs pgqueue.candidate[], p_free integer, p_now timestamptz, out unstarted tid[], out skipped tid[]
)
language plpgsql
-- See _executing_under.
set enable_sort = off
as $$
declare
    v_lease_head timestamptz := pgqueue._lease_head();
    -- The limits; for each job the subscripts of those that it is under, as text; for each limit what was counted.
    v_limits pgqueue.touched_limit[];
    v_names text[];
    v_of_jobs text[];
    v_of_job integer[];
    v_left integer[];
    v_next_at timestamptz[];
    v_timed boolean[];
    v_started integer[];
    -- Which are to be locked, which are, and which another claim has locked.
    v_useful boolean[];
    v_locked boolean[];
    v_busy boolean[];
    v_fits boolean;
    v_at integer;
    v_full integer;
    v_may_start boolean;
    v_starting integer := 0;
    -- Jobs without capacity, and the limit of each.
    v_blocked tid[];
    v_blocked_on integer[];
begin
    -- A limit that blocks jobs already has no capacity as a rule: it is counted without its lock. A pause never has.
    select
        array_agg(row(n.*)::pgqueue.touched_limit order by n.name),
        array_agg(n.name order by n.name),
        array_agg(
            n.kind <> 'pause' and (
                select true
                from pgqueue.jobs b
                where b.state = 'blocked' and b.blocked_on is not null and b.blocked_on = n.name
                order by b.blocked_on, b.priority desc, b.ready_at, b.id
                limit 1
            ) is null
            order by n.name
        ),
        array_fill(false, array[count(*)::integer])
    into v_limits, v_names, v_useful, v_busy
    from (
        select l.name, l.kind, l.target, l.max_executing, l.rate, l.per, sum(j.wanted)::integer as wanted
        from (
            -- One row for each queue, each task, each key and each limit_key, with nulls for the others.
            select c.queue, c.task, c.key, c.limit_key, count(*) as wanted
            from unnest(p_jobs) c
            where c.is_limited or c.key is not null
            group by grouping sets ((c.queue), (c.task), (c.key), (c.limit_key))
        ) j
        cross join lateral pgqueue._rules_of(j.queue, j.task, j.key, j.limit_key, p_now) l
        group by l.name, l.kind, l.target, l.max_executing, l.rate, l.per
    ) n;
    if v_names is null then
        unstarted := array(select c.row_ctid from unnest(p_jobs[p_free + 1:]) c);
        return;
    end if;

    -- As a rule all others have capacity, and no other claim has a lock: one round. Else the end of the block releases the
    -- locks of this round, and the next takes only those that jobs will start under.
    for v_round in 1..3 loop
        begin
            -- Limits use the negative half of the second keys. Two limits with one hash exclude each other without need.
            v_locked := array(
                select v_useful[i] and pg_try_advisory_xact_lock(pgqueue._lock_class(), hashtext(v_names[i]) | -2147483648)
                from generate_subscripts(v_names, 1) i
            );
            -- A later statement: it sees what was started before the lock was free.
            select
                array_agg(c.capacity order by t.n), array_agg(c.next_at order by t.n), array_agg(c.timed order by t.n),
                bool_and(v_locked[t.n] and c.capacity >= t.wanted)
            into v_left, v_next_at, v_timed, v_fits
            from unnest(v_limits) with ordinality t (name, kind, target, max_executing, rate, per, wanted, n)
            cross join lateral pgqueue._capacity_of(
                t.name, t.kind, t.target, t.max_executing, t.rate, t.per, p_now, v_lease_head
            ) c;
            exit when v_fits;
            -- Those that are locked have capacity, the others have none, and no job is under two.
            exit when not exists (select from generate_subscripts(v_names, 1) i where v_locked[i] <> (v_left[i] > 0))
                and (select sum(l.wanted) from unnest(v_limits) l) = (select count(*) from unnest(p_jobs) c where c.is_limited or c.key is not null);
            v_of_jobs := coalesce(v_of_jobs, pgqueue._limits_of_jobs(p_jobs, v_names, p_now));
            v_busy := array(
                select v_busy[i] or (v_useful[i] and not v_locked[i]) from generate_subscripts(v_names, 1) i
            );
            v_of_job := array(
                select distinct u.i
                from (select distinct u.limits::integer[] as limits from unnest(v_of_jobs) u (limits)) j
                cross join lateral (select bool_and(v_left[i] > 0 and not v_busy[i]) as may_start from unnest(j.limits) i) m
                cross join lateral unnest(j.limits) u (i)
                where m.may_start
            );
            v_useful := array(select i = any (v_of_job) from generate_subscripts(v_names, 1) i);
            exit when v_round = 3 or v_useful = v_locked;
            raise exception using errcode = 'lock_not_available';
        exception when lock_not_available then
            null;
        end;
    end loop;

    if v_fits and cardinality(p_jobs) <= p_free then
        v_started := array(select l.wanted from unnest(v_limits) l);
    else
        v_of_jobs := coalesce(v_of_jobs, pgqueue._limits_of_jobs(p_jobs, v_names, p_now));
        v_started := array_fill(0, array[cardinality(v_names)]);
        for v_n in 1..cardinality(p_jobs) loop
            v_of_job := coalesce(v_of_jobs[v_n]::integer[], '{}');
            v_full := null;
            v_may_start := true;
            foreach v_at in array v_of_job loop
                if v_left[v_at] <= 0 then
                    v_full := v_at;
                end if;
                v_may_start := v_may_start and v_locked[v_at];
            end loop;
            if v_full is null and v_may_start and v_starting < p_free then
                v_starting := v_starting + 1;
                foreach v_at in array v_of_job loop
                    v_left[v_at] := v_left[v_at] - 1;
                    v_started[v_at] := v_started[v_at] + 1;
                end loop;
            else
                unstarted := unstarted || p_jobs[v_n].row_ctid;
                if v_limits[v_full].kind <> 'queue' then
                    v_blocked := v_blocked || p_jobs[v_n].row_ctid;
                    v_blocked_on := v_blocked_on || v_full;
                elsif v_full is not null or not v_may_start then
                    skipped := skipped || p_jobs[v_n].row_ctid;
                end if;
            end if;
        end loop;
    end if;
    if v_blocked is not null then
        perform pgqueue._block_on_limits(v_blocked, v_blocked_on, v_names, v_next_at, v_timed);
    end if;
    if exists (select from unnest(v_limits) l where l.rate is not null) then
        insert into pgqueue.limit_starts (name, at, started)
        select l.name, p_now, v_started[l.n]
        from unnest(v_limits) with ordinality l (name, kind, target, max_executing, rate, per, wanted, n)
        where l.rate is not null and v_started[l.n] > 0;
    end if;
end
$$;

-- For each of these jobs the subscripts in p_names of the limits that it is under, as text.
create or replace function pgqueue._limits_of_jobs(p_jobs pgqueue.candidate[], p_names text[], p_now timestamptz)
returns text[]
language plpgsql stable
as $$
begin
    return array(
        select first_value(l.limits) over (partition by c.queue, c.task, c.key, c.limit_key order by c.n)
        from (
            select c.*, row_number() over (partition by c.queue, c.task, c.key, c.limit_key order by c.n) = 1 as asks
            from unnest(p_jobs) with ordinality c (row_ctid, id, queue, task, key, limit_key, is_expired, is_limited, n)
        ) c
        -- Asks once for jobs under the same limits.
        cross join lateral (
            select array_agg(array_position(p_names, l.name))::text as limits
            from pgqueue._rules_of(c.queue, c.task, c.key, c.limit_key, p_now) l
            where c.asks and (c.is_limited or c.key is not null)
        ) l
        order by c.n
    );
end
$$;
