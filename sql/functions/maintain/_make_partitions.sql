-- Attaches all partitions of history that maintain() wants; for migrate, which nothing waits for.
create or replace function pgqueue._make_partitions()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_problem text := (select a.problem from pgqueue._attach_partitions(14, 26, 1000) a);
begin
    insert into pgqueue.maintenance_steps (at, step, next_at, failures, failing_since, error)
    select
        v_now, s.step, case when v_problem is null then v_now + s.every end, (v_problem is not null)::integer,
        case when v_problem is not null then v_now end, v_problem
    from pgqueue._maintenance_steps() s
    where s.step = 'partitions';
end
$$;
