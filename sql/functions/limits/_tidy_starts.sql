-- Starts under a rate are inserted by each claim (_within_limits), and deleted here.

create or replace function pgqueue._tidy_starts(p_now timestamptz)
returns void
language sql
set search_path = pg_catalog, pg_temp
as $$
    delete from pgqueue.limit_starts s
    where s.at < pgqueue._after(p_now, -coalesce((select max(l.per) from pgqueue.limits l), '0')) - interval '1 min'
$$;
