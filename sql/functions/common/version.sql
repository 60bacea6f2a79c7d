-- version: the installed release, which a program compares with its own, and the oldest one that it serves. Reads only.

create or replace function pgqueue.version()
returns table (version text, revision text, digest text, oldest_client text)
language sql stable parallel safe security definer
set search_path = pg_catalog, pg_temp
as $$
    -- Raised by the release that takes away what an older program calls.
    select r.version, r.revision, r.digest, '0001' from pgqueue.releases r order by r.n desc limit 1
$$;

comment on function pgqueue.version() is
    'The version of pgqueue that loaded these functions, the revision of the tables, the digest of the functions, '
    'and oldest_client: the revision of the oldest pgqueue whose workers and producers they serve. [producer, worker, reader]';
