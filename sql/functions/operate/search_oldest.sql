-- search_oldest: as search(), oldest first: the ids of jobs that a filter fits, page by page upwards. Bounded in the same way.

create or replace function pgqueue.search_oldest(
    filter jsonb default '{}', after bigint default null, max_jobs integer default 50, max_rows integer default 50000,
    out job_ids bigint[], out next_after bigint, out is_cut boolean
)
language sql stable security definer
set search_path = pg_catalog, pg_temp
as $$
    select array(select m.id from unnest(f.matches) m), f.next_id, f.is_cut
    from pgqueue._search_by_id(pgqueue._read_filter(filter, max_jobs, max_rows), true, after, max_jobs, max_rows) f
$$;

comment on function pgqueue.search_oldest(jsonb, bigint, integer, integer) is
    'As search(), oldest first. select job_ids, next_after from pgqueue.search_oldest(''{"queues": ["mail"]}''); '
    'next_after: call again with after => next_after; null: there is no more. is_cut: it stopped for max_rows, not for max_jobs. [reader]';
