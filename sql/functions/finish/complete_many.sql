-- complete_many: many finished jobs in one statement.
--
-- Locks rows in id order, so two calls cannot deadlock. A row that another transaction has locked is waited for, at most
-- 5 s each; then the whole call fails with 55P03 and nothing was changed: complete the jobs one by one.

create or replace function pgqueue.complete_many(job_ids bigint[], reservations bigint[], results jsonb[] default null)
returns setof bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
declare
    v_finished bigint[];
begin
    perform pgqueue._check_pairs(complete_many.job_ids, complete_many.reservations);
    if cardinality(complete_many.results) <> cardinality(complete_many.job_ids) then
        perform pgqueue._refuse(
            'results must match job_ids',
            format('There are %s results and %s job ids.',
                cardinality(complete_many.results), cardinality(complete_many.job_ids)),
            'Give one result for each of job_ids (null for none), or leave results out.'
        );
    end if;
    v_finished := pgqueue._finish(complete_many.job_ids, complete_many.reservations, true, 'succeeded', complete_many.results);
    if cardinality(v_finished) < cardinality(complete_many.job_ids) then
        return query
        select w.id
        from unnest(complete_many.job_ids) with ordinality w (id, ord)
        where w.id <> all (v_finished)
        order by w.ord;
    end if;
end
$$;

comment on function pgqueue.complete_many(bigint[], bigint[], jsonb[]) is
    'complete() for many jobs at once. Returns the ids whose reservations were no longer held; usually none. [worker]';
