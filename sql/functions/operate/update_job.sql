-- update_job: changes a job that was never started: only what is given. A failed or dead job gets other args alone.
--
-- Locks the job, and waits for another lock at most 5 s (55P03). See _update_jobs.

create or replace function pgqueue.update_job(
    job_id bigint, args jsonb default null, run_at timestamptz default null, priority integer default null,
    queue text default null, limit_key text default null
)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '5s'
as $$
#variable_conflict use_column
declare
    v_changes jsonb := pgqueue._checked_changes(
        update_job.args, update_job.run_at, update_job.priority, update_job.queue, update_job.limit_key
    );
    v_job pgqueue.jobs;
    v_ended record;
    v_changed bigint := 0::bigint;
    v_why text;
begin
    perform pgqueue._require_read_committed('update_job');
    select j.* into v_job from pgqueue.jobs j where j.id = update_job.job_id for update;
    if found then
        v_why := case
            when v_job.task = '@group' then 'It is a group.'
            when v_job.state = 'executing' then format('Worker %s executes it.', v_job.reserved_by)
            when v_job.has_steps then 'It has completed steps, which go on with it.'
            when v_job.attempts > 0 and v_changes - 'args' <> '{}' then 'It was attempted: only its args can be changed.'
        end;
        if v_why is null then
            v_changed := pgqueue._update_jobs(array[v_job.id], v_changes);
        end if;
    else
        select h.id, h.granularity, h.kept_until, h.state, h.task into v_ended
        from pgqueue.history h
        where h.id = update_job.job_id
        limit 1;
        if not found then
            return false;
        end if;
        v_why := case
            when v_ended.state <> 'dead' or v_ended.task = '@group' then format('It has ended: %s.', v_ended.state)
            when v_changes - 'args' <> '{}' then 'It is dead: only its args can be changed, for retry().'
        end;
        if v_why is null then
            update pgqueue.history h
            set args = v_changes -> 'args'
            where h.granularity = v_ended.granularity and h.kept_until = v_ended.kept_until and h.id = v_ended.id and h.state = 'dead';
            get diagnostics v_changed = row_count;
        end if;
    end if;
    if v_why is not null then
        perform pgqueue._refuse(
            format('job %s cannot be changed so', update_job.job_id), v_why,
            'Jobs that were never started can be changed; failed and dead ones get other args.', '55000'
        );
    end if;
    return pgqueue._audit('update_job', v_changes || jsonb_build_object('job_id', update_job.job_id), v_changed);
end
$$;

comment on function pgqueue.update_job(bigint, jsonb, timestamptz, integer, text, text) is
    'Change a job that was never started: only what is given. limit_key => '''' takes it away. A failed or dead job gets other args only: then retry(). '
    'expires_at keeps its distance to run_at. A job with a key that gets a later run_at or another queue gives up its position, unless it was ever reserved. False: there is no such job. 55000: it executes, has ended, or was attempted. '
    'select pgqueue.update_job(17, args => ''{"to": "a@b.c"}''); select pgqueue.update_job(17, queue => ''slow'', priority => -10);';
