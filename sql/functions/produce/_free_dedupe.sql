-- Frees the dedupe keys of jobs that ended, and takes them again for jobs that come back. See _dedupe.

-- Does not wait, because reserve ends jobs too. A locked row stays, without a job, and the next enqueue of the key takes it
-- over. p_within: also keys that are kept for a time.
create or replace function pgqueue._free_dedupe(p_job_ids bigint[], p_within boolean default false)
returns void
language sql
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
as $$
    delete from pgqueue.dedupe_keys d
    where d.ctid = any (
        array(
            select k.ctid
            from pgqueue.dedupe_keys k
            where k.job_id = any (p_job_ids) and (p_within or k.until is null)
            for update skip locked
        )
    )
$$;

-- Never ON CONFLICT DO UPDATE: that locks the existing row even if it changes nothing.
-- p_waits: at most 5 s for an open transaction that has the key. Else such a key counts as taken: claims and maintenance bring
-- jobs back, too, and bulk calls wait for nothing.
create or replace function pgqueue._retake_dedupe(p_job_id bigint, p_task text, p_dedupe text, p_waits boolean)
returns boolean
language plpgsql
set lock_timeout = '5s'
as $$
begin
    perform set_config('lock_timeout', '1ms', true) where not p_waits;
    insert into pgqueue.dedupe_keys (task, dedupe, job_id)
    values (p_task, p_dedupe, p_job_id)
    on conflict (task, dedupe) do nothing;
    if not found then
        -- The job's own row may still exist, with a time: it is kept. A row without a live job is free.
        update pgqueue.dedupe_keys d
        set job_id = p_job_id, until = case when d.until > pgqueue._clock() then d.until end
        where d.task = p_task and d.dedupe = p_dedupe
            and (
                d.job_id = p_job_id
                or d.until <= pgqueue._clock()
                or d.until is null and not exists (select from pgqueue.jobs j where j.id = d.job_id)
            );
    end if;
    return found;
exception when lock_not_available then
    if p_waits then
        raise;
    end if;
    return false;
end
$$;
