-- delete_events: deletes events before their time is over. A job that begins to wait later waits for the next one of that name.
--
-- Locks rows of events, skipping locked ones. An event that has not reached all jobs that waited when it was emitted stays.

create or replace function pgqueue.delete_events(
    names text[] default null, prefix text default null, max_events integer default 1000
)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
as $$
declare
    v_count bigint;
begin
    perform pgqueue._check_range('max_events', delete_events.max_events, 1, 10000, 'Call again while it returns max_events.');
    perform pgqueue._refuse(
        'delete_events takes either names or prefix',
        format('names is %s, prefix %s.', coalesce(left(delete_events.names::text, 100), 'null'), coalesce(quote_literal(left(delete_events.prefix, 100)), 'null')),
        'Give names as text[], or prefix, not empty, with which all names begin.'
    )
    where num_nonnulls(delete_events.names, delete_events.prefix) <> 1 or delete_events.prefix = '';
    delete from pgqueue.events e
    where e.ctid = any (
        array(
            select x.ctid
            from pgqueue.events x
            where (
                    x.name = any (delete_events.names)
                    or (x.name >= delete_events.prefix and starts_with(x.name, delete_events.prefix))
                )
                and not exists (select from pgqueue.event_waits w where w.name = x.name and w.since < x.kept_until)
            order by x.name
            limit delete_events.max_events
            for update of x skip locked
        )
    );
    get diagnostics v_count = row_count;
    perform pgqueue._audit(
        'delete_events', jsonb_build_object('names', delete_events.names[:100], 'prefix', delete_events.prefix), v_count
    );
    return v_count;
end
$$;

comment on function pgqueue.delete_events(text[], text, integer) is
    'Delete events, by names or by the prefix of their names, at most max_events in a call, and return how many. An event that has not reached '
    'all jobs that waited for it yet stays. select pgqueue.delete_events(array[''paid:17'']);';
