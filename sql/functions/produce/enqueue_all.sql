-- enqueue_all: as enqueue_batch, all jobs or none. A refused job is reported, and does not abort the caller's transaction.
--
-- The exception block is the savepoint: what the others had enqueued is undone with it, notifications as well.

create or replace function pgqueue.enqueue_all(jobs jsonb[])
returns table (ord bigint, job_id bigint, outcome text, error jsonb)
language plpgsql security definer rows 100
set search_path = pg_catalog, pg_temp
as $$
declare
    v_results jsonb;
    v_is_undone boolean := false;
begin
    begin
        v_results := (select jsonb_agg(to_jsonb(b) order by b.ord) from pgqueue.enqueue_batch(enqueue_all.jobs) b);
        if v_results @? '$[*] ? (@.outcome == "error")' then
            raise sqlstate 'PQ000';
        end if;
    exception when sqlstate 'PQ000' then
        v_is_undone := true;
    end;
    return query
    select
        r.ord,
        case when not v_is_undone then r.job_id end,
        case when v_is_undone and r.outcome <> 'error' then 'undone' else r.outcome end,
        r.error
    from jsonb_to_recordset(v_results) r (ord bigint, job_id bigint, outcome text, error jsonb)
    order by r.ord;
end
$$;

comment on function pgqueue.enqueue_all(jsonb[]) is
    'Enqueue jobs as enqueue_batch() does, all or none: where one is refused, its outcome is error, that of the others is undone, and '
    'nothing was enqueued; the transaction continues. '
    'select * from pgqueue.enqueue_all(array[''{"task": "fetch", "ref": "a"}'', ''{"task": "load", "depends_on": ["a"]}'']::jsonb[]); [producer]';
