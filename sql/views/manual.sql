-- manual: the functions of the queue for people, a line each, from their comments. Reads the catalog only.

create or replace view pgqueue.manual as
select
    p.proname::text as name,
    pg_get_function_arguments(p.oid) as arguments,
    pg_get_function_result(p.oid) as returns,
    btrim(regexp_replace(regexp_replace(d.description, ' \[[a-z, ]+\]$', ''), '\s*select [^;]*;\s*', ' ')) as what_it_does,
    substring(d.description from 'select [^;]*;') as example,
    coalesce(pgqueue._who_may_call(p.oid), '{}') as who_may
from pg_proc p
cross join lateral (select obj_description(p.oid, 'pg_proc') as description) d
where p.pronamespace = 'pgqueue'::regnamespace
    and p.proname !~ '^_'
order by p.proname;

comment on view pgqueue.manual is
    'The functions of the queue. select what_it_does, example from pgqueue.manual where name = ''enqueue'';';
comment on column pgqueue.manual.name is 'The function.';
comment on column pgqueue.manual.arguments is 'Its arguments, with their types and defaults. Give them by name: delay => ''5 min''.';
comment on column pgqueue.manual.returns is 'What it returns.';
comment on column pgqueue.manual.what_it_does is 'What it does.';
comment on column pgqueue.manual.example is 'A call to copy.';
comment on column pgqueue.manual.who_may is 'The kinds of roles that may call it, see grant_access(); the owner may call all.';
