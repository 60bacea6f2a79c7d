-- legible: a value that UTF-8 can have, for lists and claims that must not fail because of one row.
--
-- A database of another encoding than UTF-8 may hold bytes that no text in UTF-8 has: any in SQL_ASCII, and in WIN1252 those
-- that the standard leaves out. A statement that returns one of them fails as a whole. Not parallel safe: a subtransaction.

create or replace function pgqueue.legible(value jsonb)
returns jsonb
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if getdatabaseencoding() <> 'UTF8' then
        begin
            perform convert_to(legible.value::text, 'UTF8');
        exception when untranslatable_character or character_not_in_repertoire then
            return regexp_replace(legible.value::text, '[^' || chr(1) || '-' || chr(127) || ']' collate "C", '?', 'g')::jsonb;
        end;
    end if;
    return legible.value;
end
$$;

comment on function pgqueue.legible(jsonb) is
    'A value that a client can read in UTF-8. Where the database is of another encoding and the value has bytes that UTF-8 cannot have, '
    'each of its characters that is not ASCII is a question mark. select pgqueue.legible(to_jsonb(j)) from pgqueue.all_jobs j; [worker, reader]';
