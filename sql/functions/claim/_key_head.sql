-- The head of jobs with keys: the id below which no job with a key lives. See _heads for why it may move.

create or replace function pgqueue._key_head()
returns bigint
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
begin
    if pgqueue._is_marked('key') then
        return 0::bigint;
    end if;
    return (select h.head_id from pgqueue._head('', 1::smallint, false) h);
end
$$;

comment on function pgqueue._key_head() is 'Private: no job with a key that lives has an id below this.';
