-- Deletes old rows about workers and about maintenance itself.

create or replace function pgqueue._tidy_workers(p_now timestamptz, p_limit integer)
returns bigint
language plpgsql
as $$
declare
    v_idle bigint;
    v_beats bigint;
begin
    delete from pgqueue.idle_workers s
    where s.ctid = any (
        array(select x.ctid from pgqueue.idle_workers x where x.until < p_now - interval '1 min' limit p_limit for update skip locked)
    );
    get diagnostics v_idle = row_count;

    delete from pgqueue.heartbeats b
    where b.n = any (
        array(select x.n from pgqueue.heartbeats x where x.at < p_now - interval '10 min' order by x.n limit p_limit)
    );
    get diagnostics v_beats = row_count;

    -- Silent for five minutes. If the worker is alive after all, its next beat returns false, and it registers again.
    -- A row with a command stays longer: after an outage the worker is to be as quiet as before. Not one without an
    -- instance: a new process with the name would be taken for the old one.
    delete from pgqueue.workers w
    where w.ctid = any (
        array(
            select x.ctid
            from pgqueue.workers x
            where greatest(x.started_at, case when x.info ? 'instance' then pgqueue._after(x.commanded_at, '7 days') end)
                    < p_now - interval '5 min'
                and coalesce(
                    (select b.at from pgqueue.heartbeats b where b.worker = x.name order by b.n desc limit 1),
                    '-infinity'
                ) < p_now - interval '5 min'
            -- An operator may be changing one, in a long transaction.
            for update of x skip locked
        )
    );
    return greatest(v_idle, v_beats);
end
$$;

-- Deletes all but the last 3600 runs of maintain(), and outdated records of steps; returns how many.
create or replace function pgqueue._tidy_maintenance(p_limit integer)
returns bigint
language plpgsql
set enable_seqscan = off
set jit = off
as $$
declare
    v_runs bigint;
    v_steps bigint;
begin
    delete from pgqueue.maintenance_runs h
    where h.n = any (
        array(
            select x.n
            from pgqueue.maintenance_runs x
            where x.n < (select max(y.n) from pgqueue.maintenance_runs y) - 3600
            order by x.n
            limit p_limit
        )
    );
    get diagnostics v_runs = row_count;

    delete from pgqueue.maintenance_steps m
    where m.n = any (
        array(
            select x.n
            from pgqueue.maintenance_steps x
            where exists (select from pgqueue.maintenance_steps y where y.step = x.step and y.n > x.n)
            order by x.n
            limit p_limit
        )
    );
    get diagnostics v_steps = row_count;
    return greatest(v_runs, v_steps);
end
$$;
