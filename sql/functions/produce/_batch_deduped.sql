-- The jobs of enqueue_batch that have dedupe keys. Takes the keys in one order, so that two batches cannot deadlock.

-- p_deduped: the numbers of the jobs that have dedupe keys. They share one wait, and at first one exception block, which is a
-- subtransaction; if a job is refused there, each gets its own. superseded, had_until: as _dedupe has them.
create or replace function pgqueue._batch_deduped(
    p_jobs pgqueue.jobs[], p_given jsonb[], p_deduped integer[],
    inout ids bigint[], inout outcomes text[], inout errors jsonb[], out superseded bigint[], out had_until timestamptz[]
)
language plpgsql
as $$
declare
    v_deadline timestamptz := pgqueue._dedupe_deadline();
    v_deduped constant integer[] := array(
        select d.n from unnest(p_deduped) d (n) order by (p_jobs[d.n]).task, (p_jobs[d.n]).dedupe, d.n
    );
    -- Where a block begins, and how many jobs it has.
    v_from integer := 1;
    v_size integer := cardinality(v_deduped);
    v_n integer;
    v_done record;
    v_wrong text[];
    v_detail text;
    v_hint text;
begin
    while v_from <= cardinality(v_deduped) loop
        begin
            foreach v_n in array v_deduped[v_from : v_from + v_size - 1] loop
                errors[v_n] := null;
                superseded[v_n] := null;
                select d.* into v_done
                from pgqueue._dedupe(
                    p_jobs[v_n], (p_given[v_n] ->> 'dedupe_for')::interval, p_given[v_n] ->> 'on_conflict',
                    (p_given[v_n] ->> 'debounce_max')::interval, v_deadline
                ) d;
                ids[v_n] := v_done.job_id;
                outcomes[v_n] := v_done.outcome;
                superseded[v_n] := v_done.superseded;
                had_until[v_n] := v_done.had_until;
                if outcomes[v_n] = 'refused' then
                    v_wrong := pgqueue._dedupe_refusal(p_jobs[v_n], ids[v_n]);
                    errors[v_n] := pgqueue._refusal(v_wrong[4], v_wrong[1], v_wrong[2], v_wrong[3]);
                end if;
            end loop;
            v_from := v_from + v_size;
        exception when others then
            get stacked diagnostics v_detail = pg_exception_detail, v_hint = pg_exception_hint;
            v_wrong := case
                when sqlstate = '55P03' then pgqueue._dedupe_refusal(p_jobs[v_n], null)
                else array[sqlerrm, v_detail, v_hint, sqlstate]
            end;
            errors[v_n] := pgqueue._refusal(v_wrong[4], v_wrong[1], v_wrong[2], v_wrong[3]);
            if errors[v_n] is null then
                raise;
            elsif v_size = 1 then
                v_from := v_from + 1;
            end if;
            v_size := 1;
        end;
    end loop;
end
$$;
