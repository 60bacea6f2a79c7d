-- How long history keeps a job that ends in this state: as the job says (p_own), its task, its queue, or the settings. The end
-- of a single job asks by a shorter statement: see _end_one.
--
-- Inlined (no SET, and stable). Tasks and queues are probed for each job only where one of them has a retention of its own, which
-- two indexes, empty as a rule, say once for the statement.

create or replace function pgqueue._retention_of(p_state pgqueue.job_state, p_own interval, p_task text, p_queue text)
returns table (keep_for interval)
language sql stable parallel safe rows 1
as $$
    select coalesce(
        p_own,
        case
            when exists (
                select
                from pgqueue.tasks x
                where num_nonnulls(
                    x.retention_succeeded, x.retention_cancelled, x.retention_dead,
                    x.declared_retention_succeeded, x.declared_retention_cancelled, x.declared_retention_dead
                ) > 0
            )
            or exists (
                select
                from pgqueue.queues x
                where num_nonnulls(x.retention_succeeded, x.retention_cancelled, x.retention_dead) > 0
            )
            then (
                select case p_state
                    when 'succeeded' then coalesce(t.retention_succeeded, q.retention_succeeded)
                    when 'dead' then coalesce(t.retention_dead, q.retention_dead)
                    else coalesce(t.retention_cancelled, q.retention_cancelled)
                end
                from (values (1)) one (row)
                left join pgqueue.effective_tasks t on t.name = p_task
                left join pgqueue.queues q on q.name = p_queue
            )
        end,
        (
            select case p_state
                when 'succeeded' then s.retention_succeeded
                when 'dead' then s.retention_dead
                else s.retention_cancelled
            end
            from pgqueue.settings s
            where s.one
        )
    )
$$;
