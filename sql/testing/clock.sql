-- A clock that tests can move. Not part of the queue: load it into a database that exists to be tested, never into
-- one in use, for it replaces the function that gives the queue its time.
--
--     python -m pgqueue.testing | psql -d test_database
--     select pgqueue_testing.set_clock('2030-01-01 12:00+00');
--     select pgqueue_testing.advance_clock('1 week');
--
-- All sessions see the new time at once, except those in a transaction: these see it with their next lock on a table that
-- they had not locked yet.

create schema if not exists pgqueue_testing;
comment on schema pgqueue_testing is 'Moves the clock of pgqueue, for tests.';

create table if not exists pgqueue_testing.clock (
    one boolean primary key default true check (one),
    standing_at timestamptz,
    ahead interval not null default '0'
);
comment on table pgqueue_testing.clock is 'How the clock was moved: standing_at an instant, or running ahead of the real one.';
insert into pgqueue_testing.clock default values on conflict do nothing;

create or replace function pgqueue_testing._replace()
returns timestamptz
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set datestyle = 'ISO'
as $$
declare
    v_clock pgqueue_testing.clock;
begin
    select c.* into v_clock from pgqueue_testing.clock c;
    execute format(
        'create or replace function pgqueue._clock() returns timestamptz language sql volatile parallel safe as %L',
        case
            when v_clock.standing_at is not null then format('select %L::timestamptz', v_clock.standing_at)
            when v_clock.ahead <> '0' then format('select pgqueue._after(pg_catalog.clock_timestamp(), %L::interval)', v_clock.ahead)
            else 'select pg_catalog.clock_timestamp()'
        end
    );
    return coalesce(v_clock.standing_at, pgqueue._after(clock_timestamp(), v_clock.ahead));
end
$$;
comment on function pgqueue_testing._replace() is 'Private: makes pgqueue._clock() return the time of the table.';

create or replace function pgqueue_testing.set_clock(at timestamptz)
returns timestamptz
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    update pgqueue_testing.clock set standing_at = set_clock.at, ahead = '0';
    return pgqueue_testing._replace();
end
$$;
comment on function pgqueue_testing.set_clock(timestamptz) is 'Stop the queue''s clock at an instant.';

create or replace function pgqueue_testing.advance_clock(by interval)
returns timestamptz
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    update pgqueue_testing.clock c
    set
        standing_at = pgqueue._after(c.standing_at, advance_clock.by),
        ahead = case when c.standing_at is null then c.ahead + advance_clock.by else '0' end;
    return pgqueue_testing._replace();
end
$$;
comment on function pgqueue_testing.advance_clock(interval) is
    'Move the queue''s clock by an interval, which may be negative. A stopped clock stays stopped, a running one runs on.';

create or replace function pgqueue_testing.real_clock()
returns timestamptz
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    update pgqueue_testing.clock set standing_at = null, ahead = '0';
    return pgqueue_testing._replace();
end
$$;
comment on function pgqueue_testing.real_clock() is 'Give the queue the real time again.';
