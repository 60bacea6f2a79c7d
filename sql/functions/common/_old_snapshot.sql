-- Whether later statements of a transaction see newer rows.

create or replace function pgqueue._old_snapshot()
returns boolean
language sql stable parallel safe
as $$
    select pg_catalog.current_setting('transaction_isolation') not in ('read committed', 'read uncommitted')
$$;

-- The oid of this database; a copy of it has another one.
create or replace function pgqueue._database()
returns oid
language sql stable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select d.oid from pg_database d where d.datname = current_database()
$$;
