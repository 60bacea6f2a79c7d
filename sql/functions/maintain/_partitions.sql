-- Partitions of history, by the day or the month (UTC) in which their rows expire.
--
-- CREATE TABLE ... PARTITION OF and DROP need ACCESS EXCLUSIVE on the parent, and while they wait for a reader
-- every completion waits behind them. So a partition is created as a plain table and *attached*, which only needs
-- SHARE UPDATE EXCLUSIVE, and dropped under maintain's lock_timeout. The statements are dynamic because tables
-- have names; nothing in them comes from a caller.

create or replace function pgqueue._attach_partitions(p_days integer, p_months integer, p_limit integer)
returns integer
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_today date := (pgqueue._clock() at time zone 'UTC')::date;
    v_attached integer := 0;
    v_part record;
begin
    for v_part in
        select 'history_days' as parent, 'history_d_' || to_char(d.day, 'YYYYMMDD') as name, d.day as lower, d.day + 1 as upper
        from (select v_today + n as day from generate_series(0, p_days) n) d
        where to_regclass('pgqueue.history_d_' || to_char(d.day, 'YYYYMMDD')) is null
        union all
        select 'history_months', 'history_m_' || to_char(m.month, 'YYYYMM'), m.month, (m.month + interval '1 month')::date
        from (
            select (date_trunc('month', v_today::timestamp) + n * interval '1 month')::date as month
            from generate_series(0, p_months) n
        ) m
        where to_regclass('pgqueue.history_m_' || to_char(m.month, 'YYYYMM')) is null
        order by 3, 1
        limit p_limit
    loop
        -- Two completions that miss one partition: the second waits here and then finds it.
        perform pg_advisory_xact_lock(pgqueue._lock_class(), 2);
        -- The lock that attaching takes anyway. Taking it here also takes in what others have created meanwhile;
        -- without it the next line would ask this session's cache, which still says that there is no such table.
        execute format('lock table only pgqueue.%I in share update exclusive mode', v_part.parent);
        continue when to_regclass('pgqueue.' || v_part.name) is not null;
        execute format('create table pgqueue.%I (like pgqueue.%I)', v_part.name, v_part.parent);
        execute format(
            'alter table pgqueue.%I attach partition pgqueue.%I for values from (%L) to (%L)',
            v_part.parent, v_part.name, v_part.lower || ' 00:00:00+00', v_part.upper || ' 00:00:00+00'
        );
        execute format('comment on table pgqueue.%I is %L', v_part.name,
            format('Private: rows of history that expire between %s and %s, UTC.', v_part.lower, v_part.upper));
        v_attached := v_attached + 1;
    end loop;
    return v_attached;
end
$$;

comment on function pgqueue._attach_partitions(integer, integer, integer) is
    'Private: attaches what is missing of the partitions for the next p_days days and p_months months, at most p_limit; returns how many.';

create or replace function pgqueue._overdue_partitions(p_now timestamptz)
returns table (name text, upper timestamptz)
language sql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select p.name, p.upper
    from (
        select
            c.relname::text as name,
            case
                when c.relname like 'history\_d\_%'
                then (to_date(right(c.relname::text, 8), 'YYYYMMDD') + 1)::timestamp at time zone 'UTC'
                else (to_date(right(c.relname::text, 6), 'YYYYMM') + interval '1 month') at time zone 'UTC'
            end as upper
        from pg_inherits i
        join pg_class c on c.oid = i.inhrelid
        where i.inhparent in ('pgqueue.history_days'::regclass, 'pgqueue.history_months'::regclass)
            and c.relname ~ '^history_(d_[0-9]{8}|m_[0-9]{6})$'
    ) p
    where p.upper <= p_now
    order by p.upper
$$;

comment on function pgqueue._overdue_partitions(timestamptz) is
    'Private: partitions of history all of whose rows have expired.';

create or replace function pgqueue._drop_partition(p_now timestamptz)
returns boolean
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_name text;
begin
    select o.name into v_name from pgqueue._overdue_partitions(p_now) o limit 1;
    if v_name is null then
        return false;
    end if;
    execute format('drop table pgqueue.%I', v_name);
    return true;
end
$$;

comment on function pgqueue._drop_partition(timestamptz) is
    'Private: drops the oldest overdue partition, if there is one.';
