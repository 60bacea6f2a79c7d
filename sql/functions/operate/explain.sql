-- explain: why a job is not running, in one row.
--
-- Asks the questions of reserve, in its order: does the job exist, is it waiting, does a worker know its task, is it due,
-- may its queue run, is its key free, is there capacity under its limits, is there a worker, which jobs are ahead of it.
-- The first no is the answer. Reads only and locks nothing. Each question reads one row by an index, or a bounded
-- number of them.

create or replace function pgqueue.explain(
    inout job_id bigint, out state text, out reason text, out detail text, out until timestamptz, out behind bigint
)
returns record
language plpgsql
stable
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_sort = off
as $$
#variable_conflict use_column
declare
    v_now timestamptz := pgqueue._clock();
    v_job pgqueue.jobs;
    v_paused_at timestamptz;
begin
    select j.* into v_job from pgqueue.jobs j where j.id = explain.job_id;
    if not found then
        select e.state, e.reason, e.detail, e.behind
        into state, reason, detail, behind
        from pgqueue._explain_ended(explain.job_id) e;
        return;
    end if;
    state := v_job.state::text;
    if v_job.state = 'executing' then
        behind := nullif(v_job.leader, v_job.id);
        select e.reason, e.detail, e.until into reason, detail, until from pgqueue._explain_executing(v_job, v_now) e;
        return;
    end if;

    if v_job.expires_at <= v_now then
        reason := 'expired';
        detail := format('it did not start before %s and will be cancelled', v_job.expires_at);
        return;
    end if;

    if v_job.blocked_on like '@%' then
        reason := case when v_job.task = '@group' then 'group' else 'parents' end;
        if v_job.task = '@group' then
            select e.detail, e.behind into detail, behind from pgqueue._explain_group(v_job) e;
        end if;
        if detail is null then
            select e.detail, e.behind into detail, behind from pgqueue._explain_parents(v_job) e;
        end if;
        return;
    end if;

    detail := pgqueue._explain_unknown_task(v_job.task, v_job.queue, v_now);
    if detail is not null then
        reason := 'unknown_task';
        return;
    end if;

    if v_job.state = 'blocked' and v_job.blocked_on is not null then
        reason := 'limit';
        select l.detail, l.until into detail, until from pgqueue._reached_limit(v_job, v_job.blocked_on, v_now) l;
        detail := coalesce(
            detail, format('it was blocked by the limit %s, which has capacity now; maintain() releases it', v_job.blocked_on)
        );
        return;
    end if;

    if v_job.state <> 'blocked' then
        if v_job.ready_at > v_now then
            reason := 'not_due';
            until := v_job.ready_at;
            detail := format(
                '%s at %s, %s',
                case
                    when v_job.state = 'failed' then 'it failed and is retried'
                    when v_job.reservation > 0 then 'it was deferred; it runs again'
                    else 'it is to run'
                end,
                until, pgqueue._explain_attempts(v_job)
            );
            return;
        end if;
        v_paused_at := (select q.paused_at from pgqueue.queues q where q.name = v_job.queue);
        if v_paused_at is not null then
            reason := 'paused';
            detail := format('queue %s is paused since %s', v_job.queue, v_paused_at);
            return;
        end if;
    end if;

    if v_job.key is not null then
        select e.detail, e.until, e.behind into detail, until, behind from pgqueue._explain_key(v_job, v_now) e;
        if detail is not null then
            reason := 'key';
            return;
        end if;
    end if;

    select l.detail, l.until into detail, until from pgqueue._reached_limit(v_job, null, v_now) l;
    if detail is not null then
        reason := 'limit';
        return;
    end if;

    if pgqueue._workers_of(v_job.queue, v_now) = 0 then
        reason := 'no_worker';
        detail := format('no registered worker with a heartbeat within a minute serves queue %s', v_job.queue);
        return;
    end if;
    reason := 'turn';
    detail := format(
        'it is due and waits its turn: %s jobs are ahead of it in priority %s of queue %s',
        pgqueue._jobs_ahead(v_job, v_now), v_job.priority, v_job.queue
    );
end
$$;

comment on function pgqueue.explain(bigint) is
    'Why a job is not running, in one row. reason is one of: unknown; finished; executing, lapsed (its lease; rescue is due) or cancelling (its worker was asked); '
    'expired; parents (jobs that it depends on); group (its members, or it is open); unknown_task (no worker has declared it); not_due; paused (its queue); key (job behind is ahead of it); limit; no_worker; turn (due, others are ahead). '
    'detail says it in words, until when that ends as far as is known, behind which job it waits for. select * from pgqueue.explain(17);';

create or replace function pgqueue._explain_ended(
    p_id bigint, out state text, out reason text, out detail text, out behind bigint
)
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_ended record;
begin
    select h.state, h.finished_at, h.attempts, h.merged_into, h.errors -> -1 as error
    into v_ended
    from pgqueue.history h
    where h.id = p_id
    limit 1;
    if not found then
        state := 'unknown';
        reason := 'unknown';
        detail := 'there is no such job, or its retention has ended';
        return;
    end if;
    state := v_ended.state::text;
    reason := 'finished';
    behind := v_ended.merged_into;
    detail := concat(
        format('%s at %s after %s attempts', v_ended.state, v_ended.finished_at, v_ended.attempts),
        ', with job ' || v_ended.merged_into || ', which had the same payload',
        case
            when v_ended.state <> 'succeeded'
            then ': ' || left(coalesce(v_ended.error ->> 'message', v_ended.error ->> 'class'), 500)
        end
    );
end
$$;

comment on function pgqueue._explain_ended(bigint) is 'Private: explain() of a job that is not live.';

create or replace function pgqueue._explain_executing(
    p_job pgqueue.jobs, p_now timestamptz, out reason text, out detail text, out until timestamptz
)
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    until := p_job.lease_expires_at;
    if until <= p_now then
        reason := 'lapsed';
        detail := format('the lease of worker %s lapsed at %s; the next maintain() takes the job back', p_job.reserved_by, until);
    elsif p_job.cancel_requested_at is not null then
        reason := 'cancelling';
        detail := format('worker %s was asked to cancel it at %s', p_job.reserved_by, p_job.cancel_requested_at);
    else
        reason := 'executing';
        detail := format(
            'worker %s holds it since %s until %s, %s', p_job.reserved_by, p_job.reserved_at, until,
            pgqueue._explain_attempts(p_job)
        );
    end if;
end
$$;

comment on function pgqueue._explain_executing(pgqueue.jobs, timestamptz) is 'Private: explain() of a job that executes.';

create or replace function pgqueue._explain_attempts(p_job pgqueue.jobs)
returns text
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_task record;
begin
    select t.max_attempts, t.accumulate into v_task from pgqueue.effective_tasks t where t.name = p_job.task;
    return format(
        'attempt %s of %s', p_job.attempts + (p_job.state <> 'executing')::integer,
        pgqueue._max_attempts(p_job.max_attempts, v_task.max_attempts, v_task.accumulate)
    );
end
$$;

comment on function pgqueue._explain_attempts(pgqueue.jobs) is 'Private: which attempt of a job is under way or next, in words.';

-- A worker declares each task that it knows. Where no task was ever declared, workers do not declare theirs.
-- Null: it waits for no member.
create or replace function pgqueue._explain_group(p_job pgqueue.jobs, out detail text, out behind bigint)
language plpgsql
stable
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_members bigint;
    v_state text;
begin
    select count(*), min(j.id)
    into v_members, behind
    from pgqueue.jobs j
    where j.group_id is not null and j.group_id = p_job.id;
    v_state := (select j.state::text from pgqueue.jobs j where j.id = behind);
    detail := case
        when p_job.blocked_on = '@open' then format('group %s is open; it has %s members that have not ended', p_job.id, v_members)
        when v_members > 0
            then format('group %s waits for %s members, the oldest %s (%s)', p_job.id, v_members, behind, v_state)
    end;
end
$$;

comment on function pgqueue._explain_group(pgqueue.jobs) is 'Private: which members of a group have not ended.';

create or replace function pgqueue._explain_parents(
    p_job pgqueue.jobs, out detail text, out behind bigint
)
language plpgsql
stable
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    v_open bigint;
    v_named text;
begin
    select
        count(*), min(p.parent),
        string_agg(
            concat(
                p.parent, ' ', coalesce(p.state, 'has ended'),
                case when p.state = 'failed' then ', next try ' || p.ready_at end
            ),
            ', ' order by p.parent
        ) filter (where p.n <= 5)
    into v_open, behind, v_named
    from (
        select d.parent, j.state::text, j.ready_at, row_number() over (order by d.parent) as n
        from pgqueue.dependencies d
        left join lateral (select x.state, x.ready_at from pgqueue.jobs x where x.id = d.parent limit 1) j on true
        where d.child = p_job.id and d.ended is null
    ) p;
    detail := case
        when v_open = 0 then 'the jobs that it depends on have ended; maintain() releases it'
        else concat(
            format('waits for %s of %s parents: ', v_open, cardinality(p_job.depends_on)), v_named,
            case when v_open > 5 then format(', and %s more', v_open - 5) end
        )
    end;
end
$$;

comment on function pgqueue._explain_parents(pgqueue.jobs) is
    'Private: which of the jobs that a job depends on have not ended.';

create or replace function pgqueue._explain_unknown_task(p_task text, p_queue text, p_now timestamptz)
returns text
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_workers bigint;
    v_nearest text;
begin
    if exists (select from pgqueue.tasks t where t.name = p_task) or not exists (select from pgqueue.tasks) then
        return null;
    end if;
    v_workers := pgqueue._workers_of(p_queue, p_now);
    select t.name into v_nearest
    from (
        select k.name, pgqueue._spelling_distance(left(k.name, 60), left(p_task, 60)) as distance
        from pgqueue.tasks k
        where abs(length(k.name) - length(p_task)) <= 3
        limit 1000
    ) t
    where t.distance <= greatest(length(p_task) / 3, 1)
    order by t.distance, t.name
    limit 1;
    return concat(
        format('no worker has declared task %s; ', p_task),
        case v_workers when 1 then '1 worker serves' else v_workers || ' workers serve' end,
        format(' queue %s', p_queue),
        '; did you mean ' || v_nearest || '?'
    );
end
$$;

comment on function pgqueue._explain_unknown_task(text, text, timestamptz) is
    'Private: in words that no worker knows a task, and which known one is spelled like it; null: one does.';

create or replace function pgqueue._spelling_distance(p_one text, p_other text)
returns integer
language plpgsql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_one text[] := regexp_split_to_array(p_one, '');
    v_other text[] := regexp_split_to_array(p_other, '');
    v_before integer[];
    v_last integer[] := array(select generate_series(0, cardinality(v_other)));
    v_row integer[];
    v_cost integer;
begin
    -- Edit distance, a row at a time; two letters that changed places count once. Element n + 1 is n letters of p_other.
    for i in 1..cardinality(v_one) loop
        v_row := array[i];
        for k in 1..cardinality(v_other) loop
            v_cost := least(v_last[k + 1] + 1, v_row[k] + 1, v_last[k] + (v_one[i] <> v_other[k])::integer);
            if i > 1 and k > 1 and v_one[i] = v_other[k - 1] and v_one[i - 1] = v_other[k] then
                v_cost := least(v_cost, v_before[k - 1] + 1);
            end if;
            v_row := v_row || v_cost;
        end loop;
        v_before := v_last;
        v_last := v_row;
    end loop;
    return v_last[cardinality(v_last)];
end
$$;

comment on function pgqueue._spelling_distance(text, text) is
    'Private: how many letters must be added, left out, changed or swapped to make one name of the other.';

create or replace function pgqueue._workers_of(p_queue text, p_now timestamptz)
returns bigint
language sql
stable
parallel safe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
    select count(*)
    from pgqueue.workers w
    where (w.queues is null or p_queue = any (w.queues))
        and greatest(
            w.started_at, (select b.at from pgqueue.heartbeats b where b.worker = w.name order by b.worker desc, b.n desc limit 1)
        ) > p_now - interval '1 min'
$$;

comment on function pgqueue._workers_of(text, timestamptz) is
    'Private: how many workers that serve a queue have had a heartbeat within a minute.';

create or replace function pgqueue._explain_key(
    p_job pgqueue.jobs, p_now timestamptz, out detail text, out until timestamptz, out behind bigint
)
language plpgsql
stable
parallel unsafe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_ahead record;
begin
    behind := pgqueue._ahead_in_key(p_job.queue, p_job.key, p_job.id, p_now);
    if behind is null and p_job.state <> 'blocked' then
        return;
    end if;
    select j.state, j.reserved_by, j.lease_expires_at, j.ready_at into v_ahead from pgqueue.jobs j where j.id = behind;
    if behind is null then
        detail := format('nothing of key %s is ahead of it any more; maintain() releases it', p_job.key);
    elsif v_ahead.state = 'executing' then
        until := v_ahead.lease_expires_at;
        detail := format('job %s of key %s executes on worker %s', behind, p_job.key, v_ahead.reserved_by);
    elsif v_ahead.ready_at > p_now then
        until := v_ahead.ready_at;
        detail := format('job %s of key %s is before it, %s until %s', behind, p_job.key, v_ahead.state, until);
    else
        detail := format('job %s of key %s is before it, %s', behind, p_job.key, v_ahead.state);
    end if;
end
$$;

comment on function pgqueue._explain_key(pgqueue.jobs, timestamptz) is
    'Private: which job of its key is ahead of a job; null: its key is free.';

create or replace function pgqueue._jobs_ahead(p_job pgqueue.jobs, p_now timestamptz)
returns text
language sql
stable
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_sort = off
as $$
    select case when count(*) = 1000 then '1000 or more' else count(*)::text end
    from (
        (
            select
            from pgqueue._head(p_job.queue, p_job.priority, true) h
            cross join lateral (
                select
                from pgqueue.jobs j
                where j.state in ('waiting', 'failed')
                    and j.queue = p_job.queue
                    and j.priority = p_job.priority
                    and j.resumed = true
                    and (j.ready_at, j.id) >= (h.head, h.head_id)
                    and j.ready_at <= p_now
                    and (not p_job.resumed or (j.ready_at, j.id) < (p_job.ready_at, p_job.id))
                order by j.ready_at, j.id
                limit 1000
            ) j
        )
        union all
        (
            select
            from pgqueue._head(p_job.queue, p_job.priority, false) h
            cross join lateral (
                select
                from pgqueue.jobs j
                where not p_job.resumed
                    and j.state in ('waiting', 'failed')
                    and j.queue = p_job.queue
                    and j.priority = p_job.priority
                    and j.resumed = false
                    and (j.ready_at, j.id) >= (h.head, h.head_id)
                    and (j.ready_at, j.id) < (p_job.ready_at, p_job.id)
                order by j.ready_at, j.id
                limit 1000
            ) j
        )
        limit 1000
    ) a
$$;

comment on function pgqueue._jobs_ahead(pgqueue.jobs, timestamptz) is
    'Private: how many jobs of its lane are due before a job that is due.';

create or replace function pgqueue._ahead_in_key(p_queue text, p_key text, p_id bigint, p_now timestamptz)
returns bigint
language sql
stable
parallel unsafe
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
set enable_bitmapscan = off
set enable_sort = off
as $$
    select coalesce(
        (
            select j.id
            from pgqueue.jobs j
            where j.state = 'executing'
                and j.key is not null
                and (j.leader is null or j.leader = j.id)
                and j.queue = p_queue
                and j.key >= p_key collate "C"
                and j.key <= p_key collate "C"
            order by j.key, j.queue
            limit 1
        ),
        least(
            (
                select j.id
                from pgqueue.jobs j
                where j.key is not null
                    and (j.state = 'blocked' or (j.state in ('waiting', 'failed') and j.reservation > 0))
                    and j.blocked_on is distinct from '@parents'
                    and j.queue = p_queue
                    and j.key = p_key
                    and j.id < p_id
                order by j.queue, j.key, j.id
                limit 1
            ),
            (
                select j.id
                from pgqueue.jobs j
                where j.key is not null
                    and j.state = 'waiting'
                    and j.reservation = 0
                    and j.queue = p_queue
                    and j.key = p_key
                    and j.id < p_id
                    and j.run_at <= p_now
                order by j.queue, j.key, j.id
                limit 1
            )
        )
    )
$$;

comment on function pgqueue._ahead_in_key(text, text, bigint, timestamptz) is
    'Private: the job of a key that executes, else the first that holds a place before job p_id.';
