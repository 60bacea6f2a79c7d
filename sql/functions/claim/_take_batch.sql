-- Makes one batch of the payloads of a key of an accumulating task, the oldest 1,000 at most: those that are due
-- or blocked, and those that failed together with the claimed one. All have its limit_key, and so its limits: the batch
-- counts once under each, has capacity, and takes also payloads that are blocked under one.
-- A payload that suspended itself is in no batch until the jobs that it waits for have ended.
-- A batch that has a step stands still: a step is done for the payloads that were there. It comes back whole, and payloads that
-- came later are in the next batch. Its rows have has_steps, its members its leader; they are found by their ids. If another
-- session has locked one of them, the claim defers the batch (55P03, see _take_keyed).
-- Where payloads are equal, the one with the smallest score runs; the others end as succeeded, merged into it. The batch
-- continues from the highest count of attempts among them. The first by score, the leader, has the lease; all end with it.

create or replace function pgqueue._take_batch(p_row_ctid tid, p_now timestamptz, p_worker text, p_lease interval)
returns pgqueue.claimed_job[]
language plpgsql
as $$
declare
    v_job record;
    v_rows tid[];
    v_jobs pgqueue.claimed_job[];
    v_leader_id bigint;
    v_batch record;
begin
    select j.id, j.queue, j.key, j.task, j.limit_key, j.has_steps, coalesce(j.leader, j.id) as leader_id, j.cost into v_job
    from pgqueue.jobs j
    where j.ctid = p_row_ctid;

    if v_job.has_steps then
        v_leader_id := v_job.leader_id;
        v_rows := array(
            select j.ctid
            from pgqueue.jobs j
            where j.id = any (
                    array[v_job.id, v_leader_id] || array(select unnest(l.followers) from pgqueue.jobs l where l.id = v_leader_id)
                )
                and coalesce(j.leader, j.id) = v_leader_id
            order by j.id
            for update nowait
        );
    else
        -- Up to 999 others, first those that hold their positions.
        v_rows := array(
            select j.ctid
            from pgqueue.jobs j
            where pgqueue._holds_position(j) and j.blocked_on is distinct from '@jobs' and j.has_steps is null
                and j.queue = v_job.queue and j.key = v_job.key and j.task = v_job.task
                and j.limit_key is not distinct from v_job.limit_key
                and (j.expires_at is null or j.expires_at > p_now)
                and j.ctid <> p_row_ctid
            order by j.queue, j.key, j.id
            limit 999
            for update skip locked
        );
        v_rows := p_row_ctid || v_rows || array(
            select j.ctid
            from pgqueue.jobs j
            where pgqueue._is_new_of_key(j) and j.queue = v_job.queue and j.key = v_job.key and j.run_at <= p_now
                and j.task = v_job.task and j.limit_key is not distinct from v_job.limit_key
                and (j.expires_at is null or j.expires_at > p_now)
                and j.ctid <> p_row_ctid
            order by j.queue, j.key, j.id
            limit 999 - cardinality(v_rows)
            for update skip locked
        );
    end if;

    select
        array_agg(g.row_ctid order by g.id is distinct from v_leader_id, g.score, g.id) filter (where g.id = g.kept_id) as rows,
        array_agg(g.id order by g.id is distinct from v_leader_id, g.score, g.id) filter (where g.id = g.kept_id) as ids,
        max(g.attempts) as attempts,
        array_agg(g.id) filter (where g.id <> g.kept_id) as merged,
        array_agg(g.reservation) filter (where g.id <> g.kept_id) as reservations,
        array_agg(g.kept_id) filter (where g.id <> g.kept_id) as merged_into
    into v_batch
    from (
        select p.*, first_value(p.id) over (partition by p.args order by p.score, p.id) as kept_id
        from (
            select w.row_ctid, j.id, j.args, j.attempts, j.reservation, coalesce(j.score, extract(epoch from j.created_at)) as score
            from unnest(v_rows) w (row_ctid)
            join pgqueue.jobs j on j.ctid = w.row_ctid
        ) p
    ) g;

    v_jobs := array(select t from pgqueue._take_jobs(v_batch.rows, p_now, p_worker, p_lease, v_batch.ids, v_batch.attempts) t);
    if pgqueue._has_costs() then
        -- The claim has counted the job that it found.
        perform pgqueue._settle_units(j, pgqueue._cost_of(j.id, j.cost, j.followers) - coalesce(v_job.cost, 1))
        from pgqueue.jobs j
        where j.id = v_batch.ids[1];
    end if;
    if v_batch.merged is not null then
        perform pgqueue._finish(v_batch.merged, v_batch.reservations, false, 'succeeded', null, null, v_batch.merged_into);
    end if;
    return v_jobs;
end
$$;
