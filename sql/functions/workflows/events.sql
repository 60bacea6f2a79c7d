-- events: lists the events that are kept, with their size. Reads only; a payload is not read, only its size.

create or replace function pgqueue.events(
    prefix text default null, max integer default 100, after text default null, by_size boolean default false
)
returns table (name text, bytes bigint, emitted_at timestamptz, kept_until timestamptz)
language plpgsql stable parallel safe security definer rows 100
set search_path = pg_catalog, pg_temp
set jit = off
as $$
begin
    perform pgqueue._check_range('max', events.max, 1, 10000, 'Give max, and after => the last name of the page before.');
    return query
    select e.name, coalesce(pg_column_size(e.payload), 0)::bigint, e.emitted_at, e.kept_until
    from pgqueue.events e
    where events.by_size and starts_with(e.name, coalesce(events.prefix, ''))
    order by 2 desc, 1
    limit events.max;
    return query
    select e.name, coalesce(pg_column_size(e.payload), 0)::bigint, e.emitted_at, e.kept_until
    from pgqueue.events e
    where events.by_size is not true and e.name >= coalesce(events.prefix, '') and starts_with(e.name, coalesce(events.prefix, ''))
        and e.name > coalesce(events.after, '')
    order by e.name
    limit events.max;
end
$$;

comment on function pgqueue.events(text, integer, text, boolean) is
    'The events that are kept, by name, or the largest first: the bytes of the payload as stored, and until when it is kept. prefix: only names that '
    'begin with it. after: the last name of the page before. select * from pgqueue.events(by_size => true, max => 10); [reader]';
