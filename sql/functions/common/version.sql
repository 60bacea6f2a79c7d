-- version: the installed release, which a worker compares with its own. Reads only.

create or replace function pgqueue.version()
returns table (version text, revision text, digest text)
language sql
stable
parallel safe
security definer
set search_path = pg_catalog, pg_temp
as $$
    select r.version, r.revision, r.digest from pgqueue.releases r order by r.n desc limit 1
$$;

comment on function pgqueue.version() is
    'The version of pgqueue that loaded these functions, the revision of the tables, and the digest of the functions.';
