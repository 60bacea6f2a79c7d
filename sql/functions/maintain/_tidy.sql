-- What maintenance deletes by age: a table of rules, each followed by its step.
--
-- A call deletes up to p_limit rows of each rule's table and returns the most that one of them deleted. $1 is the time. Rows
-- that another session has locked are skipped: an operator may be changing a worker, in a long transaction.

create or replace function pgqueue._tidy(p_step text, p_now timestamptz, p_limit integer)
returns bigint
language plpgsql
set enable_hashjoin = off set enable_mergejoin = off
as $$
declare
    v_rule record;
    v_rows bigint;
    v_most bigint := 0::bigint;
begin
    for v_rule in
        select r.target, r.condition
        from (
            values
                -- The newest row of each lane stays; that of a lane that was dropped for an hour, for it may come back.
                ('heads', 'heads', $rule$
                    exists (select from pgqueue.heads y where (y.queue, y.priority, y.resumed) = (x.queue, x.priority, x.resumed) and y.n > x.n)
                    or (
                        x.queue <> '' and x.priority <= 800 and x.at < $1 - interval '1 hour'
                        and not exists (select from pgqueue.lanes a where a.queue = x.queue and a.priority = x.priority)
                    )
                    -- A lane of a tenant may be gone for ever. It is probed without a head then.
                    or (x.priority > 800 and x.at < $1 - interval '1 hour' and pg_stat_get_dead_tuples('pgqueue.jobs'::regclass) < 100000)
                $rule$),
                ('heads', 'horizons', $rule$ x.at not between $1 - interval '1 min' and $1 + interval '1 s' $rule$),
                ('dedupe', 'dedupe_keys', $rule$ x.until is not null and x.until <= $1 order by x.until $rule$),
                -- A week, so that the clock may step back by as much without an instant running again. Not while the job lives: overlap.
                ('schedules', 'schedule_runs', $rule$
                    x.decided_at < pgqueue._after($1, '-7 days') and (select j.id from pgqueue.jobs j where j.id = x.job_id) is null and (
                        not exists (select from pgqueue.schedules s where s.name = x.schedule) or exists (
                            select from pgqueue.schedule_runs y where y.schedule = x.schedule and y.n > x.n and y.rule is not null
                        )
                    )
                $rule$),
                ('workers', 'idle_workers', $rule$ x.until < $1 - interval '1 min' $rule$),
                ('workers', 'heartbeats', $rule$ x.at < $1 - interval '1 h' order by x.n $rule$),
                -- Silent for five minutes. If the worker is alive after all, its next beat returns false, and it registers
                -- again. A row with a command stays longer: after an outage the worker is to be as quiet as before. Not one
                -- without an instance: a new process with the name would be taken for the old one.
                ('workers', 'workers', $rule$
                    greatest(x.started_at, case when x.info ? 'instance' then pgqueue._after(x.commanded_at, '7 days') end)
                        < $1 - interval '5 min'
                    and (select b.at < $1 - interval '5 min' from pgqueue._last_heartbeat(x.name) b) is not false
                $rule$),
                ('starts', 'turns', $rule$
                    x.at < $1 - interval '1 hour' or exists (
                        select from pgqueue.turns y where (y.worker, y.queue, y.priority) = (x.worker, x.queue, x.priority) and y.n > x.n
                    )
                $rule$),
                ('bookings', 'lease_promises', $rule$ x.until <= $1 $rule$),
                ('bookings', 'retry_bookings', $rule$ x.second < $1 - interval '1 min' $rule$),
                -- The longest of the rows of one source counts, and none of a breaker that was removed while it opened.
                ('starts', 'pauses', $rule$
                    x.until < $1 - interval '1 min'
                    or exists (
                        select from pgqueue.pauses y
                        where (y.kind, y.target, y.source) = (x.kind, x.target, x.source) and (y.until, y.n) > (x.until, x.n)
                    )
                    or (x.source = 'breaker' and not exists (select from pgqueue.breakers b where b.kind = x.kind and (b.target = x.target
                        or (x.kind = 'limit_key' and right(b.target, 1) = '*' and starts_with(x.target, left(b.target, -1))))))
                $rule$),
                -- The newest opening of a breaker stays.
                ('starts', 'breaker_ends', $rule$
                    x.at < pgqueue._after($1, '-1 day') and (x.since is null or exists (
                        select from pgqueue.breaker_ends y where (y.kind, y.target) = (x.kind, x.target) and y.since is not null and y.n > x.n
                    )) order by x.at
                $rule$),
                ('starts', 'limit_starts', $rule$ x.at < pgqueue._after($1, -coalesce((select max(l.per) from pgqueue.limits l), '0')) - interval '1 min' $rule$),
                -- A bucket that is full by then, by any of the limits.
                ('starts', 'limit_levels', $rule$
                    x.at < pgqueue._after($1, '-32 days')
                    and not exists (select from pgqueue.limits l where l.burst > x.level + l.rate * extract(epoch from $1 - x.at) / extract(epoch from l.per))
                $rule$),
                ('starts', 'limit_levels', $rule$
                    not x.is_spent and x.name >= 'spent:' and x.name < 'spent;' and not exists (
                        select from pgqueue.jobs j
                        where j.id = split_part(x.name, ':', 2)::bigint and j.state = 'executing' and j.reservation = split_part(x.name, ':', 3)::bigint
                    )
                $rule$),
                -- One that has not reached all jobs that waited when it was emitted stays.
                ('events', 'events', $rule$
                    x.kept_until <= $1 - interval '10 min' and not exists (
                        select from pgqueue.event_waits w where w.name = x.name and w.since < x.kept_until) order by x.kept_until
                $rule$),
                ('maintenance', 'maintenance_runs', $rule$ x.n < (select max(y.n) from pgqueue.maintenance_runs y) - 3600 order by x.n $rule$),
                ('maintenance', 'maintenance_steps', $rule$
                    exists (select from pgqueue.maintenance_steps y where y.step = x.step and y.n > x.n) order by x.n
                $rule$),
                ('samples', 'samples', $rule$ x.span = 10 and x.at < pgqueue._after($1, '-1 day') order by x.at $rule$),
                ('samples', 'samples', $rule$ x.span = 600 and x.at < pgqueue._after($1, '-90 days') order by x.at $rule$),
                -- Written before the clock stepped back: they would stand for the newest, and nothing be folded, until it is there again.
                ('samples', 'samples', $rule$ x.span = any ('{10,600}') and x.at > $1 + interval '1 s' $rule$),
                ('samples', 'audit', $rule$
                    x.at < (select pgqueue._after($1, -s.retention_audit) from pgqueue.settings s where s.one) order by x.at
                $rule$),
                ('samples', 'retries', $rule$ x.at < pgqueue._after($1, '-2 days') order by x.at $rule$),
                ('samples', 'job_logs', $rule$
                    x.written_at < (select pgqueue._after($1, -s.retention_logs) from pgqueue.settings s where s.one) order by x.written_at
                $rule$)
        ) r (step, target, condition)
        where 'tidy_' || r.step = p_step loop
        execute format(
            'delete from pgqueue.%1$I t where t.ctid = any (array('
            'select x.ctid from pgqueue.%1$I x where %2$s limit $2 for update of x skip locked))',
            v_rule.target, v_rule.condition
        ) using p_now, p_limit;
        get diagnostics v_rows = row_count;
        v_most := greatest(v_most, v_rows);
    end loop;
    return v_most;
end
$$;
