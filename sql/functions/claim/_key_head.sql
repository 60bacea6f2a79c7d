-- The head of jobs with keys: the id below which no job with a key lives. See _heads for why it may move.

create or replace function pgqueue._key_head()
returns bigint
language sql
volatile
parallel safe
as $$
    select case
        when exists (
            select from pgqueue.heads m where m.queue = '' and m.priority = 1::smallint and m.resumed = true
        ) then 0::bigint
        else (select h.head_id from pgqueue._head('', 1::smallint, false) h)
    end
$$;

comment on function pgqueue._key_head() is 'Private: no job with a key that lives has an id below this.';

-- The caller has made a job with a key live again, under its old id.
create or replace function pgqueue._mark_old_key()
returns void
language sql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
    insert into pgqueue.heads (queue, priority, resumed, head, at, xid)
    values ('', 1::smallint, true, '-infinity', pgqueue._clock(), pg_current_xact_id())
$$;

comment on function pgqueue._mark_old_key() is 'Private: disables the head of jobs with keys until maintain has reset it.';

-- Ten seconds: by then every statement has ended that began before the mark was seen and could still write a head.
create or replace function pgqueue._renew_key_head(p_now timestamptz)
returns void
language plpgsql
volatile
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
as $$
begin
    delete from pgqueue.heads h
    where h.queue = '' and h.priority = 1::smallint and h.resumed = true
        and h.at not between p_now - interval '10 s' and p_now;
    if found then
        insert into pgqueue.heads (queue, priority, resumed, head, at, xid)
        values ('', 1::smallint, false, '-infinity', p_now, pg_current_xact_id());
    end if;
end
$$;

comment on function pgqueue._renew_key_head(timestamptz) is 'Private: deletes old marks, and resets the head of jobs with keys.';
