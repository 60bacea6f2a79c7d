-- The jobs of enqueue_batch that have dedupe keys. Takes the keys in one order, so that two batches cannot deadlock.

-- p_deduped: the numbers of the jobs that have dedupe keys. They share one wait.
create or replace function pgqueue._batch_deduped(
    p_jobs pgqueue.jobs[], p_given jsonb[], p_deduped integer[],
    inout ids bigint[], inout outcomes text[], inout errors jsonb[]
)
language plpgsql
as $$
declare
    v_deduped integer[];
    v_deadline timestamptz;
    v_done record;
    v_detail text;
    v_hint text;
    v_one_by_one boolean := false;
    v_n integer;
begin
    v_deadline := pgqueue._dedupe_deadline();
    v_deduped := array(select d.n from unnest(p_deduped) d (n) order by (p_jobs[d.n]).task, (p_jobs[d.n]).dedupe, d.n);
    begin
        foreach v_n in array v_deduped loop
            select d.job_id, d.outcome into v_done
            from pgqueue._dedupe(
                p_jobs[v_n],
                (p_given[v_n] ->> 'dedupe_for')::interval,
                p_given[v_n] ->> 'on_conflict',
                (p_given[v_n] ->> 'debounce_max')::interval,
                v_deadline
            ) d;
            ids[v_n] := v_done.job_id;
            outcomes[v_n] := v_done.outcome;
            if outcomes[v_n] = 'refused' then
                begin
                    perform pgqueue._refuse_duplicate((p_jobs[v_n]).task, (p_jobs[v_n]).dedupe, ids[v_n]);
                exception when unique_violation then
                    get stacked diagnostics v_detail = pg_exception_detail, v_hint = pg_exception_hint;
                    errors[v_n] := pgqueue._refusal(sqlstate, sqlerrm, v_detail, v_hint);
                end;
            end if;
        end loop;
    exception when others then
        if pgqueue._refusal(sqlstate, sqlerrm, null, null) is null then
            raise;
        end if;
        v_one_by_one := true;
    end;

    if v_one_by_one then
        foreach v_n in array v_deduped loop
            errors[v_n] := null;
            begin
                select d.job_id, d.outcome into v_done
                from pgqueue._enqueue_deduped(
                    p_jobs[v_n],
                    (p_given[v_n] ->> 'dedupe_for')::interval,
                    p_given[v_n] ->> 'on_conflict',
                    (p_given[v_n] ->> 'debounce_max')::interval,
                    v_deadline
                ) d;
                ids[v_n] := v_done.job_id;
                outcomes[v_n] := v_done.outcome;
            exception when others then
                get stacked diagnostics v_detail = pg_exception_detail, v_hint = pg_exception_hint;
                errors[v_n] := pgqueue._refusal(sqlstate, sqlerrm, v_detail, v_hint);
                if errors[v_n] is null then
                    raise;
                end if;
            end;
        end loop;
    end if;
end
$$;
