-- What explain() reports about a job whose task no worker knows, or no living one. A worker declares each task that it knows, and
-- reports which ones it has. If no task was ever declared, workers do neither.

create or replace function pgqueue._explain_unknown_task(p_task text, p_queue text, p_now timestamptz)
returns text
language sql stable parallel safe
as $$
    select concat(
        format(case when a.is_known then 'no living worker has task %s; ' else 'no worker has declared task %s; ' end, p_task),
        case w.workers when 1 then '1 living worker serves' else w.workers || ' living workers serve' end,
        format(' queue %s', p_queue),
        '; did you mean ' || (
            select t.name
            from (
                select k.name, pgqueue._spelling_distance(left(k.name, 60), left(p_task, 60)) as distance
                from pgqueue.tasks k
                where abs(length(k.name) - length(p_task)) <= 3 and k.name <> p_task
                limit 1000
            ) t
            where t.distance <= greatest(length(p_task) / 3, 1)
            order by t.distance, t.name limit 1
        ) || '?',
        case when a.is_known then '; if the task was renamed, give it this name as an alias' end
    )
    from (select exists (select from pgqueue.tasks t where t.name = p_task) as is_known) a
    cross join (
        select count(*) as workers, bool_and(coalesce(not x.info -> 'tasks' ? p_task, false)) as lack_it
        from pgqueue._living_workers_of(p_queue, p_now) x
    ) w
    where (w.lack_it or not a.is_known) and exists (select from pgqueue.tasks)
$$;

-- A worker of another language need not report its tasks. One that reserves a job of a task that it does not have gives it
-- back for ten seconds, uncounted. A handler that snoozes does so as well, but its worker reports that it started.
create or replace function pgqueue._is_given_back(p_job pgqueue.jobs, p_now timestamptz)
returns boolean
language plpgsql stable parallel safe
as $$
begin
    -- Three claims at least, none of which counted or was lost. A retried job keeps counting claims, and has errors.
    return p_job.attempts = 0 and p_job.errors is null and p_job.has_steps is not true and (p_job.reservation >> 20) - p_job.losses >= 3
        and p_job.ready_at between p_job.reserved_at + interval '1 s' and p_job.reserved_at + interval '30 s' and not exists (
        select from pgqueue.samples s
        where s.span = 10 and s.at > p_now - interval '1 min' and s.queue = p_job.queue
            and (s.ended -> p_job.task ->> 'started')::numeric > 0
    );
end
$$;

-- How many letters must be added, removed, changed or swapped to turn one name into the other.
create or replace function pgqueue._spelling_distance(p_one text, p_other text)
returns integer
language plpgsql immutable parallel safe
as $$
declare
    v_one text[] := regexp_split_to_array(p_one, '');
    v_other text[] := regexp_split_to_array(p_other, '');
    -- For the first i letters of one and k of the other. Two letters that changed places count once.
    v_cost integer[] := array_fill(0, array[cardinality(v_one) + 1, cardinality(v_other) + 1], array[0, 0]);
begin
    for i in 0..cardinality(v_one) loop
        for k in 0..cardinality(v_other) loop
            v_cost[i][k] := case when i = 0 or k = 0 then i + k else least(
                v_cost[i - 1][k] + 1, v_cost[i][k - 1] + 1, v_cost[i - 1][k - 1] + (v_one[i] <> v_other[k])::integer,
                case when v_one[i] = v_other[k - 1] and v_one[i - 1] = v_other[k] then v_cost[i - 2][k - 2] + 1 end
            ) end;
        end loop;
    end loop;
    return v_cost[cardinality(v_one)][cardinality(v_other)];
end
$$;
