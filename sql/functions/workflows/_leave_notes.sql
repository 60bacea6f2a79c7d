-- A note with a job, for a later transaction: see _read_notes.

create or replace function pgqueue._leave_notes(
    p_kind text, p_ids bigint[], p_in interval default '0', p_name text default null, p_after bigint default 0
)
returns void
language plpgsql
as $$
begin
    insert into pgqueue.notes (kind, id, after, name, look_at, xid)
    select p_kind, w.id, p_after, p_name, pgqueue._after(pgqueue._clock(), p_in), pg_current_xact_id()
    from unnest(p_ids) w (id);
end
$$;
