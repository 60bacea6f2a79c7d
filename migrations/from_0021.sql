-- A database at the last revision of before the first release becomes one at 0001. What is changed in 0001_the_queue.sql
-- until the first release is changed here as well; tests/catalog/test_folding.py compares the two.

do $$
declare
    v_rename text;
begin
    update pgqueue.alembic_version set version_num = '0001' where version_num = '0021';
    if not found then
        raise 'the database is not at revision 0021';
    end if;
    -- Tables were renamed, and the names that PostgreSQL 18 gives to NOT NULL were not.
    for v_rename in
        select format('alter table %s rename constraint %I to %I', k.conrelid::regclass, k.conname, n.name)
        from pg_constraint k
        join pg_class c on c.oid = k.conrelid
        join pg_attribute a on a.attrelid = k.conrelid and a.attnum = k.conkey[1]
        cross join lateral (select format('%s_%s_not_null', c.relname, a.attname) as name) n
        where k.connamespace = 'pgqueue'::regnamespace and k.contype = 'n' and k.coninhcount = 0 and k.conname <> n.name
    loop
        execute v_rename;
    end loop;
end
$$;
