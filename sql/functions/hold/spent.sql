-- spent: what a job has really taken of its limits, where that was not known when it was enqueued.
--
-- Locks no row and waits for none: a row says what the next claim is to add or to give back. See _units_of.sql. Another one says what
-- the attempt has told, for a call is repeated if its reply was lost. While the first is being committed, an advisory lock says so.

create or replace function pgqueue.spent(job_id bigint, reservation bigint, units integer)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
declare
    v_executing constant pgqueue.job_state := 'executing'::pgqueue.job_state;
    v_name constant text := format('spent:%s:%s', spent.job_id, spent.reservation);
    v_job pgqueue.jobs;
    v_units bigint;
begin
    perform pgqueue._check_pairs(array[spent.job_id], array[spent.reservation]);
    perform pgqueue._check_range('units', spent.units, 0, 1000000000, 'Give units as the number that the whole run took.');
    select j.* into v_job
    from pgqueue.jobs j
    where j.id = spent.job_id and j.reservation = spent.reservation and j.state = v_executing;
    if not found then
        return false;
    end if;
    if not pg_try_advisory_xact_lock(pgqueue._lock_class(), hashtext(v_name)) then
        return true;
    end if;
    v_units := spent.units - pgqueue._cost_of(v_job.id, v_job.cost, v_job.followers)
        - coalesce((select sum(l.level) from pgqueue.limit_levels l where l.name = v_name and not l.is_spent), 0)::bigint;
    insert into pgqueue.limit_levels (name, at, level)
    select v_name, pgqueue._clock(), v_units
    where v_units <> 0 and exists (select from pgqueue.limits l where l.rate is not null);
    perform pgqueue._settle_units(v_job, v_units);
    return true;
end
$$;

comment on function pgqueue.spent(bigint, bigint, integer) is
    'Say how many units a job has taken, in place of its cost: the difference counts under each of its limits with a rate. Call it after the run and before the job ends; a later call replaces an earlier one. Waits for no lock. '
    'A bucket may fall below zero by it; nothing of it starts until it is filled again. False when the reservation is no longer held. '
    'select pgqueue.spent(17, 1048577, 1830); [worker]';

-- Adds units to what the limits of a job have counted for it. A rate without a burst counts them at its start.
create or replace function pgqueue._settle_units(p_job pgqueue.jobs, p_units bigint)
returns void
language plpgsql
as $$
begin
    if p_units = 0 then
        return;
    end if;
    with limits as (
        select l.name, l.burst
        from pgqueue._limits_of(p_job.queue, p_job.task, p_job.key, p_job.limit_key) l
        where l.rate is not null
    ),
    started as (
        insert into pgqueue.limit_starts (name, at, started)
        select l.name, p_job.reserved_at, greatest(-2000000000, least(p_units, 2000000000)) from limits l where l.burst is null
    ),
    given_back as (
        -- Jobs that wait may start earlier.
        insert into pgqueue.limit_waits (name, next_at)
        select l.name, pgqueue._clock() from limits l where p_units < 0
    )
    insert into pgqueue.limit_levels (name, at, level, is_spent)
    select l.name, pgqueue._clock(), p_units, true from limits l where l.burst is not null;
end
$$;
