-- revoke_access: takes back what grant_access gave. For a role that no longer exists it deletes the recorded grant.
-- Not security definer: only the schema's owner may.

create or replace function pgqueue.revoke_access(kind text, role name)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_found boolean;
begin
    perform pgqueue._follow_roles();
    delete from pgqueue.grants g where g.role = revoke_access.role and g.kind = revoke_access.kind;
    v_found := pgqueue._audit(
        'revoke_access', jsonb_build_object('kind', revoke_access.kind, 'role', revoke_access.role), found::integer
    );
    if v_found and exists (select from pg_roles r where r.rolname = revoke_access.role) then
        execute format('revoke all on all functions in schema pgqueue from %I', revoke_access.role);
        execute format('revoke all on all tables in schema pgqueue from %I', revoke_access.role);
        execute format('revoke all on schema pgqueue from %I', revoke_access.role);
        perform pgqueue._apply_grants();
    end if;
    return v_found;
end
$$;

comment on function pgqueue.revoke_access(text, name) is
    'Take back what grant_access(kind, role) gave. False: there was no such grant.';
