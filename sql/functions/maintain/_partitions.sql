-- Partitions of history, by the day or the month (UTC) in which the retention of their rows ends.
--
-- CREATE TABLE ... PARTITION OF and DROP need ACCESS EXCLUSIVE on the parent, and while they wait for a reader
-- every completion waits behind them. So a partition is created as a plain table and *attached*, which only needs
-- SHARE UPDATE EXCLUSIVE, and dropped under maintain's lock_timeout. The statements are dynamic because tables have names.
-- Partitions are read from the catalog, by bounds and not by names: a partition that was detached or dropped leaves a gap,
-- and a gap is filled. A detached table is attached again, with its rows, where it still fits. Where it does not, or
-- another object has its name, the gap gets a partition of another name, and stats() shows the obstacle.
-- Rows are kept up to 8 days, or 24 months. Maintenance is 6 days and 2 months ahead of that, and a completion that finds
-- no partition attaches some itself. No further, for each plan of all_jobs considers all partitions, also empty ones: with
-- 78 of them the first query of a session took two to three times as long as with 42, and later ones too.

create or replace function pgqueue._partitions()
returns table (relation regclass, parent regclass, lower timestamptz, upper timestamptz, is_pending boolean)
language sql stable parallel safe
set timezone = 'UTC' set datestyle = 'ISO, YMD'
as $$
    select
        c.oid::regclass, i.inhparent::regclass,
        case when b.bounds[1] = 'MINVALUE' then '-infinity' else trim(b.bounds[1], '''')::timestamptz end,
        case when b.bounds[2] = 'MAXVALUE' then 'infinity' else trim(b.bounds[2], '''')::timestamptz end, i.inhdetachpending
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    cross join lateral (
        -- A default partition has none.
        select regexp_match(pg_get_expr(c.relpartbound, c.oid), e'FROM \\((.*)\\) TO \\((.*)\\)') as bounds
    ) b
    where i.inhparent in ('pgqueue.history_days'::regclass, 'pgqueue.history_months'::regclass) and b.bounds is not null
$$;

-- The days and months, from today for p_days days and p_months months, that no partition covers.
create or replace function pgqueue._partition_gaps(p_days integer, p_months integer)
returns table (parent text, name text, lower timestamptz, upper timestamptz)
language sql
as $$
    with today as materialized (select pgqueue._clock() at time zone 'UTC' as at),
    wanted as (
        select
            k.parent, k.prefix || to_char(d.begun, k.pattern) as name,
            d.begun at time zone 'UTC' as lower, (d.begun + k.span) at time zone 'UTC' as upper
        from today t
        cross join (
            values
                ('history_days', 'history_d_', 'YYYYMMDD', 'day', interval '1 day', p_days),
                ('history_months', 'history_m_', 'YYYYMM', 'month', interval '1 month', p_months)
        ) k (parent, prefix, pattern, unit, span, number)
        cross join lateral generate_series(0, k.number) n
        cross join lateral (select date_trunc(k.unit, t.at) + n * k.span as begun) d
    ),
    covered as materialized (
        select p.parent, range_agg(tstzrange(p.lower, p.upper)) as ranges
        from pgqueue._partitions() p
        where not p.is_pending
        group by p.parent
    )
    select w.parent, w.name, lower(g.gap), upper(g.gap)
    from wanted w
    left join covered c on c.parent = to_regclass('pgqueue.' || w.parent)
    cross join lateral unnest(tstzmultirange(tstzrange(w.lower, w.upper)) - coalesce(c.ranges, '{}'::tstzmultirange)) g (gap)
    order by 3, 1
$$;

-- Fills up to p_limit of the gaps in the next p_days days and p_months months; problem: the obstacle, if there was one.
create or replace function pgqueue._attach_partitions(
    p_days integer, p_months integer, p_limit integer, out attached integer, out problem text
)
language plpgsql
as $$
declare
    v_gap record;
    v_problems text[] := '{}'::text[];
    v_problem text;
    v_context text;
begin
    attached := 0;
    if not exists (select from pgqueue._partition_gaps(p_days, p_months)) then
        return;
    end if;
    -- Two completions that miss one partition: the second waits here and then finds it. Attaching takes the
    -- same lock on the tables anyway; it also brings partitions that others created into this session's caches.
    perform pg_advisory_xact_lock(pgqueue._lock_class(), 2);
    lock table only pgqueue.history_days, pgqueue.history_months in share update exclusive mode;
    v_problems := pgqueue._finish_detaching();
    for v_gap in select g.parent, g.name, g.lower, g.upper from pgqueue._partition_gaps(p_days, p_months) g loop
        exit when attached >= p_limit;
        begin
            v_problem := pgqueue._fill_gap(v_gap.parent, v_gap.name, v_gap.lower, v_gap.upper);
            attached := attached + 1;
        exception when others then
            get stacked diagnostics v_context = pg_exception_context;
            v_problem := format(
                'nothing can be attached as %s (%s)', v_gap.name, pgqueue._error_text(sqlstate, sqlerrm, v_context)
            );
        end;
        v_problems := array_remove(v_problems || v_problem, null);
    end loop;
    problem := nullif(array_to_string(v_problems[:10], '; '), '');
end
$$;

-- p_name is the name for the whole day or month. A table that has it already is attached, if it can be, waited for 50 ms; else the
-- next name is tried: history_d_20300101_2, and so on. Returns what was in the way.
create or replace function pgqueue._fill_gap(p_parent text, p_name text, p_lower timestamptz, p_upper timestamptz)
returns text
language plpgsql
-- Rows of history are updated and deleted, which not every access method can.
set default_table_access_method = 'heap' set timezone = 'UTC' set datestyle = 'ISO, YMD' set lock_timeout = '50ms'
as $$
declare
    v_name text := p_name;
    v_table regclass;
    v_problem text;
    v_problems text;
begin
    for v_number in 2..20 loop
        v_table := to_regclass('pgqueue.' || v_name);
        -- Such a one covers another part of the day; or another session filled the gap after this snapshot was taken.
        if pg_partition_root(v_table) = 'pgqueue.history'::regclass and pgqueue._old_snapshot() then
            return null;
        elsif pg_partition_root(v_table) is distinct from 'pgqueue.history'::regclass then
            v_problem := (
                select case
                    when c.relkind <> 'r' then format('%s is no table', v_table)
                    when c.relispartition then format('%s is a partition of another table', v_table)
                    -- Attaching reads the whole table.
                    when pg_relation_size(v_table) > 100000000
                        then format('%s is detached and too large to be attached at once', v_table)
                end
                from pg_class c
                where c.oid = v_table
            );
            if v_problem is null then
                begin
                    if v_table is null then
                        execute format('create table pgqueue.%I (like pgqueue.%I)', v_name, p_parent);
                        execute format(
                            'comment on table pgqueue.%I is %L', v_name,
                            format('Private: rows of history whose retention ends from %s to %s.', p_lower, p_upper)
                        );
                    end if;
                    -- Without it no row could be deleted under a publication for all tables. Not inherited.
                    execute format('alter table pgqueue.%I replica identity full', v_name);
                    execute format(
                        'alter table pgqueue.%I attach partition pgqueue.%I for values from (%L) to (%L)',
                        p_parent, v_name, p_lower, p_upper
                    );
                    return v_problems || case when v_table is null then ', so its rows are kept in pgqueue.' || v_name else '' end;
                exception
                    when others then
                        -- Also one that another session is using: no other partition may take its place.
                        if v_table is null or sqlstate = '55P03' then
                            raise;
                        end if;
                        v_problem := format('%s cannot be attached (%s: %s)', v_table, sqlstate, sqlerrm);
                end;
            end if;
            v_problems := concat_ws(', ', v_problems, v_problem);
        end if;
        v_name := p_name || '_' || v_number;
    end loop;
    return v_problems;
end
$$;

-- A partition with a pending detach takes no rows any more, and no other can be attached in its place. Finalizing waits for
-- all older snapshots, so it is tried for 50 ms at a time.
create or replace function pgqueue._finish_detaching()
returns text[]
language plpgsql
set lock_timeout = '50ms'
as $$
declare
    v_pending record;
    v_problems text[] := '{}'::text[];
begin
    for v_pending in select p.relation, p.parent from pgqueue._partitions() p where p.is_pending loop
        begin
            execute format('alter table %s detach partition %s finalize', v_pending.parent, v_pending.relation);
        exception when others then
            v_problems := v_problems
                || format('%s is being detached, which cannot be ended yet (%s: %s)', v_pending.relation, sqlstate, sqlerrm);
        end;
    end loop;
    return v_problems;
end
$$;

-- Drops the oldest partition for whose rows retention is over, if there is one.
create or replace function pgqueue._drop_partition(p_now timestamptz)
returns void
language plpgsql
as $$
declare
    v_relation regclass := (select p.relation from pgqueue._partitions() p where p.upper <= p_now order by p.upper limit 1);
begin
    if v_relation is not null then
        execute format('drop table %s', v_relation);
    end if;
end
$$;
