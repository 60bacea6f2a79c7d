-- drop_limit: a limit holds no longer.
--
-- Deletes one row of limits; the jobs that were parked under it are set free by the next maintain().

create or replace function pgqueue.drop_limit(kind text, target text)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform pgqueue._check_limit(drop_limit.kind, drop_limit.target);
    delete from pgqueue.limits where kind = drop_limit.kind and target = drop_limit.target;
    if not found then
        return false;
    end if;
    perform pgqueue._look_at_limit(drop_limit.kind, drop_limit.target);
    return true;
end
$$;

comment on function pgqueue.drop_limit(text, text) is 'Take a limit away; what was parked under it goes on within a second or so. False: there is no such limit.';
