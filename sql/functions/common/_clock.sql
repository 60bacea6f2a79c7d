-- The one clock, and the one function that computes a job's position in the ready index.
--
-- _clock() is clock_timestamp(), not now(): a job enqueued late in a long transaction must not look old. Tests
-- replace it to travel in time. _clock() and _ready_at_unchecked() pin no search_path, so that they stay inlined.
--
-- _ready_at() (in claim/_check_clock.sql) takes the transaction's xid before it reads the clock: see _head.

create or replace function pgqueue._clock()
returns timestamptz
language sql parallel safe
as $$
    select pg_catalog.clock_timestamp()
$$;

-- No SET, so that it is inlined, and an index is used. An offset instead of the name of a zone costs no lookup.
create or replace function pgqueue._after(p_at timestamptz, p_by interval)
returns timestamptz
language sql immutable parallel safe
as $$
    select pg_catalog.timezone(interval '0', pg_catalog.timezone(interval '0', p_at) + p_by)
$$;

-- _ready_at() for callers that check for a step of the clock later, by _register_lane() or _check_clock().
create or replace function pgqueue._ready_at_unchecked(p_run_at timestamptz)
returns timestamptz
language sql
as $$
    select case when pg_catalog.pg_current_xact_id() is not null then greatest(p_run_at, pgqueue._clock()) end
$$;

-- Inlined: no SET.
create or replace function pgqueue._microseconds(p_at timestamptz)
returns bigint
language sql stable parallel safe
as $$
    select (pg_catalog.date_part('epoch', p_at) * 1000000)::bigint
$$;
