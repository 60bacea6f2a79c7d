-- set_share: how many jobs a tenant of a fair queue starts in its turn.
--
-- Inserts, updates or deletes the row of shares. It binds each claim whose snapshot is later.

create or replace function pgqueue.set_share(limit_key text, weight integer)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_before integer;
begin
    perform pgqueue._check_name('limit_key', set_share.limit_key, 512);
    perform pgqueue._check_range(
        'weight', weight, 1, 1000, 'Give weight as how many jobs the tenant starts in its turn; null takes it back to 1.'
    )
    where weight is not null;
    select s.weight into v_before from pgqueue.shares s where s.limit_key = set_share.limit_key for update;
    if v_before is not distinct from set_share.weight then
        return false;
    end if;
    if set_share.weight is null then
        delete from pgqueue.shares s where s.limit_key = set_share.limit_key;
    else
        insert into pgqueue.shares (limit_key, weight)
        values (set_share.limit_key, set_share.weight)
        on conflict on constraint shares_pkey do update set weight = excluded.weight;
    end if;
    return pgqueue._audit('set_share', jsonb_build_object('limit_key', limit_key, 'before', v_before, 'after', weight));
end
$$;

comment on function pgqueue.set_share(text, integer) is
    'Set how many jobs a tenant of a fair queue starts in its turn: 1 to 1000; null takes it back to 1. '
    'A limit_key that ends in * is a prefix: it counts for tenants without a row of their own, the longest that matches. '
    'From the next claim on. False: unchanged. select pgqueue.set_share(''tenant:5'', 3);';
