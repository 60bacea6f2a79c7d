-- Traces record how jobs ended that history does not keep. A child that is not committed yet cannot tell a parent that
-- succeeded from one that did not, because both are gone. So a parent that did not succeed leaves a trace for as long as any
-- transaction that was open then, and until the children that it has are settled.
--
-- A trace that is committed is visited twice. The first visit records which transactions are open: all that were open at its
-- commit and have not ended are among them. The second finds none of these open any more, and deletes it.
-- Every transaction holds a lock on its virtual id, which any role may see.
create or replace function pgqueue._tidy_traces()
returns void
language plpgsql
set enable_seqscan = on
as $$
declare
    v_open text[];
begin
    if not exists (select from pgqueue.traces) then
        return;
    end if;
    v_open := array(select distinct l.virtualtransaction from pg_locks l where l.pid is distinct from pg_backend_pid());
    -- Later statements, which see what these transactions committed.
    delete from pgqueue.traces t
    where not t.open && v_open
        and not exists (select from pgqueue.dependencies d where d.parent = t.id and d.ended is null);
    update pgqueue.traces t set open = v_open where t.open is null;
end
$$;
