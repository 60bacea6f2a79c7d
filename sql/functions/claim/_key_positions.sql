-- Who is ahead in a key: the questions of claims, of releases and of explain(). _release_next.sql tells the whole.
--
-- A job holds a position in its key, that of its id, once it was blocked or reserved; a new one does while it is due. Each
-- question is one probe of an index, from the head of keys on (see _head), never an ordered scan of two states. All are inlined.

-- The first jobs of a key with ids from p_from to below p_below: one that holds its position, and a new one that is due.
create or replace function pgqueue._key_positions(
    p_queue text, p_key text, p_now timestamptz, p_from bigint, p_below bigint default 9223372036854775807
)
returns table (id bigint, task text, limit_key text)
language sql stable parallel safe rows 1
as $$
    (
        select x.id, x.task, x.limit_key
        from pgqueue.jobs x
        where pgqueue._holds_position(x) and x.queue = p_queue and x.key = p_key and x.id >= p_from and x.id < p_below
        order by x.queue, x.key, x.id
        limit 1
    )
    union all
    (
        select x.id, x.task, x.limit_key
        from pgqueue.jobs x
        where pgqueue._is_new_of_key(x) and x.queue = p_queue and x.key = p_key and x.id >= p_from and x.id < p_below
            and x.run_at <= p_now
        order by x.queue, x.key, x.id
        limit 1
    )
$$;

-- As the index jobs_key_held says it. A child that waits for its parents holds none.
create or replace function pgqueue._holds_position(p_job pgqueue.jobs)
returns boolean
language sql immutable parallel safe
as $$
    select p_job.key is not null
        and (p_job.state = 'blocked' or (p_job.state in ('waiting', 'failed') and p_job.reservation > 0))
        and p_job.blocked_on is distinct from '@parents'
$$;

-- As the index jobs_key_waiting says it.
create or replace function pgqueue._is_new_of_key(p_job pgqueue.jobs)
returns boolean
language sql immutable parallel safe
as $$
    select p_job.key is not null and p_job.state = 'waiting' and p_job.reservation = 0
$$;

-- Whether later jobs of its key wait for this one: the probes of a claim, asked of a row.
create or replace function pgqueue._is_ahead(p_job pgqueue.jobs, p_now timestamptz)
returns boolean
language sql immutable parallel safe
as $$
    select p_job.state = 'executing' or pgqueue._holds_position(p_job)
        or (pgqueue._is_new_of_key(p_job) and p_job.run_at <= p_now)
$$;

-- The first job that is blocked behind another one of its key.
create or replace function pgqueue._first_blocked(p_queue text, p_key text, p_from bigint, p_below bigint default 9223372036854775807)
returns table (id bigint)
language sql stable parallel safe rows 1
as $$
    select x.id
    from pgqueue.jobs x
    where pgqueue._holds_position(x) and x.queue = p_queue and x.key = p_key and x.state = 'blocked'
        and x.blocked_on is null and x.id >= p_from and x.id < p_below
    order by x.queue, x.key, x.id
    limit 1
$$;

-- The job of a key that executes; of a batch its leader.
create or replace function pgqueue._executing_of_key(p_queue text, p_key text, p_from bigint)
returns table (id bigint)
language sql stable parallel safe rows 1
as $$
    select x.id
    from pgqueue.jobs x
    where x.state = 'executing' and x.key is not null and (x.leader is null or x.leader = x.id)
        and x.queue = p_queue and x.key = p_key and x.id >= p_from
    order by x.queue, x.key, x.id
    limit 1
$$;

-- The id below which no job with a key lives. See _head for why it may move.
create or replace function pgqueue._key_head()
returns table (id bigint)
language sql stable parallel safe rows 1
as $$
    select case when exists (select from pgqueue.head_marks m where m.reason = 'key') then 0 else h.head_id end
    from pgqueue._head('', 1::smallint, false) h
$$;

-- The job that a payload waits for besides: one that suspended itself; for a new payload, a failed one before its time; for
-- one without steps, a batch that has a step. p_asks is a condition inside of the probes.
create or replace function pgqueue._ahead_of_payload(
    p_asks boolean, p_queue text, p_key text, p_task text, p_limit_key text, p_is_new boolean, p_has_steps boolean,
    p_now timestamptz
)
returns table (id bigint)
language sql stable parallel safe rows 1
as $$
    (
        select x.id
        from pgqueue.jobs x
        where p_asks and x.key is not null and x.blocked_on = '@jobs' and x.queue = p_queue and x.key = p_key
            and x.task = p_task and x.limit_key is not distinct from p_limit_key
        order by x.queue, x.key
        limit 1
    )
    union all
    (
        select x.id
        from pgqueue.jobs x
        where p_asks and p_is_new and x.key is not null and x.state in ('waiting', 'failed') and x.reservation > 0
            and x.queue = p_queue and x.key = p_key and x.ready_at > p_now and x.task = p_task
            and x.limit_key is not distinct from p_limit_key
        order by x.queue, x.key, x.ready_at
        limit 1
    )
    union all
    (
        select x.id
        from pgqueue.jobs x
        where p_asks and p_has_steps is null and x.key is not null and x.has_steps
            -- One that is blocked itself is behind this payload: the end of this one releases it.
            and (x.state <> 'blocked' or x.blocked_on is not null)
            and x.queue = p_queue and x.key = p_key and x.task = p_task
            and x.limit_key is not distinct from p_limit_key
        order by x.queue, x.key
        limit 1
    )
    limit 1
$$;
