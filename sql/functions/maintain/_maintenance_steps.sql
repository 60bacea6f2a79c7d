-- The steps of maintenance: their list, which of them are due, and what each records for its next run.
--
-- Each run takes the steps in this order: first steps that had no turn last time, the longest overdue first; then the
-- others as listed, rescue first; then steps that failed; last of all drop, whose lock stops completions until the commit.
-- A step works in slices, each a bounded number of rows in a subtransaction, until its work is done or it has used a
-- quarter of the remaining time. A slice that takes too long is made smaller for the next time.
-- statement_timeout cannot be set within a statement. It cuts one slice: the work of earlier slices and steps is kept, the
-- call ends and commits, and the step comes again with a smaller slice after ten times the time that it took.

create or replace function pgqueue._maintenance_steps()
returns table (number integer, step text, every interval, slice integer, is_ddl boolean)
language sql immutable parallel safe rows 24
as $$
    values
        (1, 'leases', null::interval, 1000, false),
        (2, 'expiry', null, 1000, false),
        (3, 'clock', null, 5000, false),
        (4, 'lanes', null, 1, false),
        (5, 'heads', null, 1, false),
        (6, 'keys', null, 1000, false),
        (7, 'notes', null, 1000, false),
        (8, 'limits', null, 1000, false),
        (9, 'schedules', null, 10000, false),
        (10, 'tidy_lanes', '1 min', 1, false),
        (11, 'tidy_heads', '1 min', 10000, false),
        (12, 'tidy_dedupe', '1 min', 10000, false),
        (13, 'tidy_schedules', '1 min', 10000, false),
        (14, 'tidy_workers', '1 min', 10000, false),
        (15, 'tidy_bookings', '1 min', 10000, false),
        (16, 'tidy_starts', '1 min', 10000, false),
        (17, 'tidy_dependencies', '1 min', 1000, false),
        (18, 'tidy_maintenance', '1 min', 10000, false),
        (19, 'hidden', '1 min', 1, false),
        (20, 'partitions', '5 min', 6, true),
        (21, 'drop', '1 min', 1, true),
        (22, 'sample', '10 s', 1, false),
        (23, 'tidy_samples', '1 min', 10000, false),
        (24, 'tenants', null, 1000, false)
$$;

-- What each step recorded for its next run; n is null if it recorded nothing.
create or replace function pgqueue._last_steps()
returns setof pgqueue.maintenance_steps
language sql stable parallel safe rows 24
set enable_seqscan = off set jit = off
as $$
    select
        l.n, l.at, s.step, l.next_at, l.missed_since, coalesce(l.unfinished, false), l.slice, l.cursor,
        coalesce(l.failures, 0), l.failing_since, l.error
    from pgqueue._maintenance_steps() s
    left join lateral (select m.* from pgqueue.maintenance_steps m where m.step = s.step order by m.n desc limit 1) l on true
    order by s.number
$$;
