-- The head of jobs with keys: the id below which no job with a key lives. See _heads for why it may move.

-- Inlined: no SET, and stable.
create or replace function pgqueue._key_head()
returns table (id bigint)
language sql
stable
parallel safe
rows 1
as $$
    select case when exists (select from pgqueue.head_marks m where m.reason = 'key') then 0 else h.head_id end
    from pgqueue._head('', 1::smallint, false) h
$$;
