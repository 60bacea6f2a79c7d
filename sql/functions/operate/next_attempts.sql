-- next_attempts: when failed jobs run again, for the log of the worker whose attempts failed. Reads by id and locks nothing.

create or replace function pgqueue.next_attempts(job_ids bigint[])
returns table (job_id bigint, run_at timestamptz, overrides text[])
language plpgsql stable parallel safe security definer rows 10
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $$
begin
    return query
    select j.id, j.due_at, array(
        select o.key from pgqueue.tasks t, jsonb_each(to_jsonb(t)) o
        where t.name = j.task and o.value <> 'null' and o.key ~ '^(max_|timeout|retry_)' and case o.key
            when 'max_attempts' then j.max_attempts is null when 'timeout' then j.timeout is null
            else j.retry ->> substr(o.key, 7) is null end
        order by o.key
    )
    from pgqueue.all_jobs j
    where j.id = any (next_attempts.job_ids) and j.state in ('failed', 'dead');
end
$$;

comment on function pgqueue.next_attempts(bigint[]) is
    'When failed jobs run again, and null for dead ones. overrides: the options of attempts that an operator has set for their task, and that hold for them. '
    'Other jobs have no row. select * from pgqueue.next_attempts(array[17, 18]); [worker, reader]';
