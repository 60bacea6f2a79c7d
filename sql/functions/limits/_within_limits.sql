-- Taking capacity: which of the jobs that a claim has locked may start under their limits. See _limits_of for the whole.
--
-- Each limit is locked and counted once for all jobs of the claim that it touches. As a rule all have capacity, and nothing is
-- left to decide. Else the jobs are gone through in order. A claim that continues counts again: it sees its own starts.
-- Where jobs have costs, a limit counts units, and its jobs start in order: none passes the first one that does not fit, also
-- if a claim of before has blocked that one. So small jobs do not keep a large one from starting.

-- p_free: how many may start at most. unstarted: those that do not. skipped: those of them that stay where they are because
-- another claim starts jobs under one of their limits, or their queue or tenant has no capacity. Others without capacity are blocked.
create or replace function pgqueue._within_limits(
    p_jobs pgqueue.candidate[], p_free integer, p_now timestamptz, out unstarted tid[], out skipped tid[]
)
language plpgsql
-- See _executing_under.
set enable_sort = off
as $$
declare
    v_lease_head timestamptz := pgqueue._lease_head();
    -- The limits, and what is to be locked, is locked, was locked by another claim, and was counted, for each of them.
    v_limits pgqueue.touched_limit[];
    v_names text[];
    v_useful boolean[];
    v_locked boolean[];
    v_busy boolean[];
    v_left integer[];
    v_next_at timestamptz[];
    v_timed boolean[];
    v_units double precision[];
    -- For each job what it costs, its place, and the subscripts of its limits, as text.
    v_costs integer[];
    v_places integer[];
    v_of_jobs text[];
    v_usable integer[];
    v_fits boolean;
    v_started bigint[];
    v_allotted record;
    v_has_rates boolean;
    v_has_buckets boolean;
begin
    select t.* into v_limits, v_names, v_useful, v_has_rates, v_has_buckets, v_costs, v_places
    from pgqueue._touched_limits(p_jobs, p_now) t;
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
                array_agg(c.capacity order by t.ordinality), array_agg(c.next_at order by t.ordinality),
                array_agg(c.timed order by t.ordinality), array_agg(c.units order by t.ordinality),
                bool_and(
                    v_locked[t.ordinality] and c.capacity >= t.wanted
                    and (c.units is null or least(c.units, coalesce(t.burst, t.rate), t.max_cost) >= t.units)
                    and (v_costs is null or c.units is null or t.waiting is null)
                )
            into v_left, v_next_at, v_timed, v_units, v_fits
            from unnest(v_limits) with ordinality t
            cross join lateral pgqueue._capacity_of(
                row(t.name, t.kind, t.target, t.max_executing, t.rate, t.per, t.max_cost, t.burst, null, null)::pgqueue.rule, p_now, v_lease_head
            ) c;
            exit when v_fits;
            -- Those that are locked have capacity, the others have none, and no job is under two.
            exit when not exists (select from generate_subscripts(v_names, 1) i where v_locked[i] <> (v_left[i] > 0))
                and (select sum(l.wanted) from unnest(v_limits) l) = (select count(*) from unnest(p_jobs) c where c.is_limited or c.key is not null);
            v_of_jobs := coalesce(v_of_jobs, pgqueue._limits_of_jobs(p_jobs, v_names, p_now));
            v_busy := array(select v_busy[i] is true or (v_useful[i] and not v_locked[i]) from generate_subscripts(v_names, 1) i);
            v_usable := array(
                select distinct u.i
                from (select distinct u.limits::integer[] as limits from unnest(v_of_jobs) u (limits)) j
                cross join lateral (select bool_and(v_left[i] > 0 and not v_busy[i]) as may_start from unnest(j.limits) i) m
                cross join lateral unnest(j.limits) u (i)
                where m.may_start
            );
            v_useful := array(select i = any (v_usable) from generate_subscripts(v_names, 1) i);
            exit when v_round = 3 or v_useful = v_locked;
            raise exception using errcode = 'lock_not_available';
        exception when lock_not_available then
            null;
        end;
    end loop;

    if v_fits and cardinality(p_jobs) <= p_free then
        v_started := array(select l.units from unnest(v_limits) l);
    else
        v_of_jobs := coalesce(v_of_jobs, pgqueue._limits_of_jobs(p_jobs, v_names, p_now));
        v_allotted := pgqueue._allot_capacity(p_jobs, p_free, v_limits, v_of_jobs, v_costs, v_places, v_locked, v_left, v_units);
        v_started := v_allotted.started;
        unstarted := v_allotted.unstarted;
        skipped := v_allotted.skipped;
        if v_allotted.blocked is not null then
            perform pgqueue._block_on_limits(v_allotted.blocked, v_allotted.blocked_on, v_names, v_next_at, v_timed);
        end if;
    end if;
    if v_has_rates then
        insert into pgqueue.limit_starts (name, at, started)
        select l.name, p_now, v_started[l.ordinality]
        from unnest(v_limits) with ordinality l
        where l.rate is not null and l.burst is null and v_started[l.ordinality] > 0;
    end if;
    if v_has_buckets then
        perform pgqueue._draw_units(
            row(l.name, l.kind, l.target, null, l.rate, l.per, null, l.burst, null, null)::pgqueue.rule, v_started[l.ordinality], p_now
        )
        from unnest(v_limits) with ordinality l
        where l.burst is not null and v_started[l.ordinality] > 0;
    end if;
end
$$;

-- Gives the capacity of limits to these jobs in their order, where it is not enough for all, or some limits are not locked: reads
-- only. p_left, p_units: how many jobs and units may start under each limit; no units: it counts jobs alone. started: the units of
-- each that start. blocked, blocked_on: jobs to block, and the subscripts of their limits. The others are as of _within_limits.
create or replace function pgqueue._allot_capacity(
    p_jobs pgqueue.candidate[], p_free integer, p_limits pgqueue.touched_limit[], p_of_jobs text[], p_costs integer[],
    p_places integer[], p_locked boolean[], p_left integer[], p_units double precision[],
    out started bigint[], out unstarted tid[], out skipped tid[], out blocked tid[], out blocked_on integer[]
)
language plpgsql stable
as $$
declare
    v_of_job integer[];
    v_at integer;
    v_full integer;
    v_may_start boolean;
    v_starting integer := 0;
    v_cost integer;
begin
    started := array_fill(0, array[cardinality(p_limits)]);
    for v_n in 1..cardinality(p_jobs) loop
        v_of_job := coalesce(p_of_jobs[v_n]::integer[], '{}');
        v_full := null;
        v_may_start := true;
        v_cost := coalesce(p_costs[v_n], 1);
        foreach v_at in array v_of_job loop
            if p_left[v_at] <= 0 or p_units[v_at] < v_cost - 1e-6 then
                v_full := v_at;
                -- The next ones wait behind it.
                p_left[v_at] := 0;
            elsif p_units[v_at] is not null and p_limits[v_at].waiting >= p_places[v_n] then
                v_full := v_at;
            end if;
            v_may_start := v_may_start and p_locked[v_at];
        end loop;
        if v_full is null and v_may_start and v_starting < p_free then
            v_starting := v_starting + 1;
            foreach v_at in array v_of_job loop
                p_left[v_at] := p_left[v_at] - (num_nulls(p_costs, p_units[v_at]) > 0 or p_limits[v_at].max_executing is not null)::integer;
                -- Less than the most, if nothing was taken.
                p_units[v_at] := case when v_cost = 0 then p_units[v_at]
                    else least(p_units[v_at], coalesce(p_limits[v_at].burst, p_limits[v_at].rate), p_limits[v_at].max_cost) - v_cost end;
                started[v_at] := started[v_at] + v_cost;
            end loop;
        else
            unstarted := unstarted || p_jobs[v_n].row_ctid;
            -- One of a tenant that takes turns is enough to wait for the limit: the others keep their turns.
            if p_limits[v_full].kind <> 'queue' and not (
                p_limits[v_full].kind = 'limit_key' and num_nonnulls(p_limits[v_full].waiting, array_position(blocked_on, v_full)) > 0
                and exists (select from pgqueue.jobs j where j.ctid = p_jobs[v_n].row_ctid and j.lane_key is not null and not j.resumed)
            ) then
                blocked := blocked || p_jobs[v_n].row_ctid;
                blocked_on := blocked_on || v_full;
            elsif v_full is not null or not v_may_start then
                skipped := skipped || p_jobs[v_n].row_ctid;
            end if;
        end if;
    end loop;
end
$$;

-- p_on: for each row the subscript of its limit in the others.
create or replace function pgqueue._block_on_limits(p_rows tid[], p_on integer[], p_names text[], p_next_at timestamptz[], p_timed boolean[])
returns void
language plpgsql
as $$
begin
    update pgqueue.jobs j
    set
        state = 'blocked',
        blocked_on = p_names[w.i],
        -- A job released in vain goes back to where it was due: the time of its release would put it behind younger jobs.
        ready_at = case when j.resumed then least(j.ready_at, greatest(j.run_at, j.created_at)) else j.ready_at end,
        resumed = false
    from unnest(p_rows, p_on) w (row_ctid, i)
    where j.ctid = w.row_ctid;
    -- Even if the limit has a row already: another transaction, which does not see these jobs, may be deleting that one. It may
    -- be the row of a change of this limit, so beside a wait that is far off there is a net.
    insert into pgqueue.limit_waits (name, next_at, timed)
    select p_names[u.i], w.next_at, w.timed
    from (select distinct o.i from unnest(p_on) o (i)) u
    cross join lateral (values (p_next_at[u.i], p_timed[u.i]), (pgqueue._clock() + interval '5 min', false)) w (next_at, timed)
    where w.next_at <= p_next_at[u.i];
end
$$;

-- The limits and pauses of these jobs. useful: those that do not block a job yet. costs: what each job costs, and places: its priority,
-- or 101 if it was blocked before and has come back; null: no job ever had a cost.
create or replace function pgqueue._touched_limits(
    p_jobs pgqueue.candidate[], p_now timestamptz, out limits pgqueue.touched_limit[], out names text[], out useful boolean[],
    out has_rates boolean, out has_buckets boolean, out costs integer[], out places integer[]
)
language plpgsql stable
as $$
begin
    if pgqueue._has_costs() then
        select
            array_agg(coalesce(j.cost, 1) order by c.ordinality),
            array_agg(case when j.resumed then 101 else j.priority end order by c.ordinality)
        into costs, places
        from unnest(p_jobs) with ordinality c
        cross join lateral (select x.cost, x.resumed, x.priority from pgqueue.jobs x where x.ctid = c.row_ctid limit 1) j;
    end if;
    -- A limit that blocks jobs already has no capacity as a rule: it is counted without its lock. A pause never has.
    select
        array_agg(row(n.*)::pgqueue.touched_limit order by n.name),
        array_agg(n.name order by n.name),
        array_agg(n.kind <> 'pause' and n.waiting is null order by n.name),
        bool_or(n.rate is not null and n.burst is null),
        bool_or(n.burst is not null)
    into limits, names, useful, has_rates, has_buckets
    from (
        select m.*, (select b.priority from pgqueue._first_blocked_on(m.name) b) as waiting
        from (
            select
                l.name, l.kind, l.target, l.max_executing, l.rate, l.per, sum(j.wanted)::integer as wanted, l.max_cost, l.burst,
                sum(j.units)::bigint as units
            from (
                -- One row for each queue, each task, each key and each limit_key, with nulls for the others.
                select
                    c.queue, c.task, c.key, c.limit_key, count(*) as wanted,
                    sum(coalesce(costs[c.ordinality], 1)) as units
                from unnest(p_jobs) with ordinality c
                where c.is_limited or c.key is not null
                group by grouping sets ((c.queue), (c.task), (c.key), (c.limit_key))
            ) j
            cross join lateral pgqueue._rules_of(j.queue, j.task, j.key, j.limit_key, p_now) l
            group by l.name, l.kind, l.target, l.max_executing, l.rate, l.per, l.max_cost, l.burst
        ) m
        offset 0
    ) n;
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
