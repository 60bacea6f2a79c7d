-- explain: why a job is not running, in one row.
--
-- Asks in the order in which reserve would: is it there, does it wait, is it due, may its queue run, is its key free, is
-- there room under its limits, is there a worker, and whose turn is it. The first no is the answer. Reads only, locks
-- nothing, and each question goes by an index to one row or to a bounded number of them.

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
    v_ended record;
    v_found record;
    v_ahead bigint;
    v_tries text;
begin
    select j.* into v_job from pgqueue.jobs j where j.id = explain.job_id;
    if not found then
        select h.state, h.finished_at, h.kept_until, h.attempts, h.reserved_by, h.errors, h.merged_into
        into v_ended
        from pgqueue.history h
        where h.id = explain.job_id
        limit 1;
        if not found then
            state := 'unknown';
            reason := 'unknown';
            detail := 'there is no such job, or history has forgotten it';
        else
            state := v_ended.state::text;
            reason := 'finished';
            behind := v_ended.merged_into;
            detail := format('%s at %s after %s tries', v_ended.state, v_ended.finished_at, v_ended.attempts)
                || coalesce(', with job ' || v_ended.merged_into || ', which had the same payload', '')
                || case
                    when v_ended.state <> 'succeeded'
                    then coalesce(': ' || left(coalesce(v_ended.errors -> -1 ->> 'message', v_ended.errors -> -1 ->> 'class'), 500), '')
                    else ''
                end;
        end if;
        return;
    end if;

    state := v_job.state::text;
    v_tries := format(
        'try %s of %s', v_job.attempts + (v_job.state <> 'executing')::integer,
        coalesce(v_job.max_attempts, (select t.max_attempts from pgqueue.effective_tasks t where t.name = v_job.task), 11)
    );

    if v_job.state = 'executing' then
        until := v_job.lease_expires_at;
        behind := nullif(v_job.leader, v_job.id);
        if v_job.lease_expires_at <= v_now then
            reason := 'lapsed';
            detail := format('the lease of worker %s lapsed at %s; the next maintain() takes the job back', v_job.reserved_by, until);
        elsif v_job.cancel_requested_at is not null then
            reason := 'cancelling';
            detail := format('worker %s was asked to cancel it at %s', v_job.reserved_by, v_job.cancel_requested_at);
        else
            reason := 'executing';
            detail := format('worker %s holds it since %s until %s, %s', v_job.reserved_by, v_job.reserved_at, until, v_tries);
        end if;
        return;
    end if;

    if v_job.expires_at <= v_now then
        reason := 'expired';
        detail := format('it did not start before %s and will be cancelled', v_job.expires_at);
        return;
    end if;

    if v_job.state = 'blocked' and v_job.blocked_on is not null then
        reason := 'limit';
        select l.detail, l.until into detail, until from pgqueue._full_limit(v_job, v_job.blocked_on, v_now) l;
        detail := coalesce(detail, format('it was parked under the limit %s, which has room now; maintain() releases it', v_job.blocked_on));
        return;
    end if;

    if v_job.state <> 'blocked' then
        if v_job.ready_at > v_now then
            reason := 'not_due';
            until := v_job.ready_at;
            detail := format(
                '%s at %s, %s',
                case when v_job.state = 'failed' then 'it failed and is tried again' when v_job.reservation > 0 then 'it was put off; it runs again' else 'it is to run' end,
                until, v_tries
            );
            return;
        end if;
        select q.paused_at into v_found from pgqueue.queues q where q.name = v_job.queue and q.paused_at is not null;
        if found then
            reason := 'paused';
            detail := format('queue %s is paused since %s', v_job.queue, v_found.paused_at);
            return;
        end if;
    end if;

    if v_job.key is not null then
        v_ahead := pgqueue._ahead_in_key(v_job.queue, v_job.key, v_job.id, v_now);
        if v_ahead is not null or v_job.state = 'blocked' then
            select j.state, j.reserved_by, j.lease_expires_at, j.ready_at into v_found from pgqueue.jobs j where j.id = v_ahead;
            reason := 'key';
            behind := v_ahead;
            until := case when v_found.state = 'executing' then v_found.lease_expires_at when v_found.ready_at > v_now then v_found.ready_at end;
            detail := case
                when v_ahead is null then format('nothing of key %s is ahead of it any more; maintain() releases it', v_job.key)
                when v_found.state = 'executing'
                then format('job %s of key %s executes on worker %s', v_ahead, v_job.key, v_found.reserved_by)
                when v_found.ready_at > v_now
                then format('job %s of key %s is before it, %s until %s', v_ahead, v_job.key, v_found.state, v_found.ready_at)
                else format('job %s of key %s is before it, %s', v_ahead, v_job.key, v_found.state)
            end;
            return;
        end if;
    end if;

    select l.detail, l.until into v_found from pgqueue._full_limit(v_job, null, v_now) l;
    if found then
        reason := 'limit';
        detail := v_found.detail;
        until := v_found.until;
        return;
    end if;

    if not exists (
        select
        from pgqueue.workers w
        where (w.queues is null or v_job.queue = any (w.queues))
            and greatest(
                w.started_at, (select b.at from pgqueue.beats b where b.worker = w.name order by b.worker desc, b.n desc limit 1)
            ) > v_now - interval '1 min'
    ) then
        reason := 'no_worker';
        detail := format('no worker that said hello and beat within a minute serves queue %s', v_job.queue);
        return;
    end if;

    select count(*) into v_ahead
    from (
        (
            select
            from pgqueue.jobs j
            where j.state in ('waiting', 'failed')
                and j.queue = v_job.queue
                and j.priority = v_job.priority
                and j.resumed = true
                and j.ready_at >= coalesce((select h.head from pgqueue._head(v_job.queue, v_job.priority, true) h), '-infinity')
                and j.ready_at <= v_now
                and (not v_job.resumed or (j.ready_at, j.id) < (v_job.ready_at, v_job.id))
            order by j.ready_at, j.id
            limit 1000
        )
        union all
        (
            select
            from pgqueue.jobs j
            where not v_job.resumed
                and j.state in ('waiting', 'failed')
                and j.queue = v_job.queue
                and j.priority = v_job.priority
                and j.resumed = false
                and j.ready_at >= coalesce((select h.head from pgqueue._head(v_job.queue, v_job.priority, false) h), '-infinity')
                and (j.ready_at, j.id) < (v_job.ready_at, v_job.id)
            order by j.ready_at, j.id
            limit 1000
        )
        limit 1000
    ) a;
    reason := 'turn';
    detail := format(
        'it is due and waits its turn: %s jobs are ahead of it in priority %s of queue %s',
        case when v_ahead = 1000 then '1000 or more' else v_ahead::text end, v_job.priority, v_job.queue
    );
end
$$;

comment on function pgqueue.explain(bigint) is
    'Why a job is not running, in one row. reason is one of: unknown; finished; executing, lapsed (its lease; rescue is due) or cancelling (its worker was asked); '
    'expired; not_due; paused (its queue); key (job behind is ahead of it); limit; no_worker; turn (due, others are ahead). '
    'detail says it in words, until when that ends as far as is known, behind which job it waits for. select * from pgqueue.explain(17);';

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
