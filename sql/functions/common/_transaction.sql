-- Whether later statements of a transaction see newer rows.

create or replace function pgqueue._old_snapshot()
returns boolean
language sql
stable
parallel safe
as $$
    select pg_catalog.current_setting('transaction_isolation') not in ('read committed', 'read uncommitted')
$$;
