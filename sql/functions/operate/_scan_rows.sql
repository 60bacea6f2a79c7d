-- The rows that scans read, each in the order of an index. Inlined, so no SET: of the two branches only one runs, and a
-- caller that stops early stops it too.

create or replace function pgqueue._live_rows(
    p_oldest boolean, p_from bigint, p_to bigint, p_rows bigint
)
returns setof pgqueue.jobs
language sql
stable
parallel safe
rows 1000
as $$
    (
        select x.*
        from pgqueue.jobs x
        where not p_oldest and x.id between p_from and p_to
        order by x.id desc
        limit p_rows
    )
    union all
    (
        select x.*
        from pgqueue.jobs x
        where p_oldest and x.id between p_from and p_to
        order by x.id
        limit p_rows
    )
$$;

-- Jobs in history by id, newest first, or oldest first.
create or replace function pgqueue._ended_rows(
    p_oldest boolean, p_from bigint, p_to bigint, p_rows bigint
)
returns setof pgqueue.history
language sql
stable
parallel safe
rows 1000
as $$
    (
        select x.*
        from pgqueue.history x
        where not p_oldest and x.id between p_from and p_to
        order by x.id desc
        limit p_rows
    )
    union all
    (
        select x.*
        from pgqueue.history x
        where p_oldest and x.id between p_from and p_to
        order by x.id
        limit p_rows
    )
$$;

-- Dead, or cancelled, jobs by id, newest first, or oldest first.
create or replace function pgqueue._unfinished_rows(
    p_state pgqueue.job_state, p_oldest boolean, p_from bigint, p_to bigint, p_rows bigint
)
returns setof pgqueue.history
language sql
stable
parallel safe
rows 1000
as $$
    (
        select x.*
        from pgqueue.history x
        where not p_oldest and x.state <> 'succeeded' and x.state = p_state and x.id between p_from and p_to
        order by x.id desc
        limit p_rows
    )
    union all
    (
        select x.*
        from pgqueue.history x
        where p_oldest and x.state <> 'succeeded' and x.state = p_state and x.id between p_from and p_to
        order by x.id
        limit p_rows
    )
$$;

-- Dead, or cancelled, jobs of a queue by id, newest first, or oldest first.
create or replace function pgqueue._unfinished_queue_rows(
    p_queue text, p_state pgqueue.job_state, p_oldest boolean, p_from bigint, p_to bigint, p_rows bigint
)
returns setof pgqueue.history
language sql
stable
parallel safe
rows 1000
as $$
    (
        select x.*
        from pgqueue.history x
        where not p_oldest and x.state <> 'succeeded' and x.queue = p_queue and x.state = p_state and x.id between p_from and p_to
        order by x.id desc
        limit p_rows
    )
    union all
    (
        select x.*
        from pgqueue.history x
        where p_oldest and x.state <> 'succeeded' and x.queue = p_queue and x.state = p_state and x.id between p_from and p_to
        order by x.id
        limit p_rows
    )
$$;

-- Jobs of a key in history by id, newest first, or oldest first.
create or replace function pgqueue._ended_key_rows(
    p_key text, p_oldest boolean, p_from bigint, p_to bigint, p_rows bigint
)
returns setof pgqueue.history
language sql
stable
parallel safe
rows 1000
as $$
    (
        select x.*
        from pgqueue.history x
        where not p_oldest and x.key is not null and x.key = p_key and x.id between p_from and p_to
        order by x.id desc
        limit p_rows
    )
    union all
    (
        select x.*
        from pgqueue.history x
        where p_oldest and x.key is not null and x.key = p_key and x.id between p_from and p_to
        order by x.id
        limit p_rows
    )
$$;

-- Live members of a group in one state by id, newest first, or oldest first.
create or replace function pgqueue._live_member_rows(
    p_group bigint, p_state pgqueue.job_state, p_oldest boolean, p_from bigint, p_to bigint, p_rows bigint
)
returns setof pgqueue.jobs
language sql
stable
parallel safe
rows 1000
as $$
    (
        select x.*
        from pgqueue.jobs x
        where not p_oldest and x.group_id is not null and x.group_id = p_group and x.state = p_state and x.id between p_from and p_to
        order by x.id desc
        limit p_rows
    )
    union all
    (
        select x.*
        from pgqueue.jobs x
        where p_oldest and x.group_id is not null and x.group_id = p_group and x.state = p_state and x.id between p_from and p_to
        order by x.id
        limit p_rows
    )
$$;

-- Members of a group in history by id, newest first, or oldest first.
create or replace function pgqueue._ended_member_rows(
    p_group bigint, p_oldest boolean, p_from bigint, p_to bigint, p_rows bigint
)
returns setof pgqueue.history
language sql
stable
parallel safe
rows 1000
as $$
    (
        select x.*
        from pgqueue.history x
        where not p_oldest and x.group_id is not null and x.group_id = p_group and x.id between p_from and p_to
        order by x.id desc
        limit p_rows
    )
    union all
    (
        select x.*
        from pgqueue.history x
        where p_oldest and x.group_id is not null and x.group_id = p_group and x.id between p_from and p_to
        order by x.id
        limit p_rows
    )
$$;
