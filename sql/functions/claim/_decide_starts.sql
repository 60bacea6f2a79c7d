-- Deciding: what becomes of the jobs of a claim that a rule may touch. All others start, whatever rules there are. The table in
-- sql/README.md says what each rule does, and which locks it takes.

-- p_free: the slots. size: how many jobs were read, all as candidates; null: no more than there are slots.
-- rows: those that start; where payloads do, with their slots in starts. Null: nothing was decided, read `size` of them first.
-- keyed: any of the candidates has a key. skipped: those that no later round of this claim is to meet again.
create or replace function pgqueue._decide_starts(
    p_rows tid[], p_candidates pgqueue.candidate[], p_free integer, inout size integer, p_now timestamptz,
    out rows tid[], out starts pgqueue.start[], out keyed boolean, out skipped tid[]
)
language plpgsql
as $$
declare
    v_jobs pgqueue.candidate[] := p_candidates;
    v_unstarted tid[];
    v_any record;
    v_keys record;
    v_firsts tid[];
    v_sizes integer[];
begin
    select
        coalesce(bool_or(c.key is not null), false) as keyed,
        coalesce(bool_or(c.is_expired), false) as expired,
        coalesce(bool_or(c.is_limited), false) as limited
    into v_any
    from unnest(v_jobs) c;
    keyed := v_any.keyed;
    if v_any.expired then
        skipped := array(select c.row_ctid from unnest(v_jobs) c where c.is_expired);
        v_unstarted := skipped;
        v_jobs := array(select c from unnest(v_jobs) c where c.is_expired is not true);
        -- A bounded number is cancelled here; the others are skipped. By the time of the claim: else it could cancel what starts.
        perform pgqueue._expire_jobs(1000, p_now);
    end if;
    if keyed then
        select k.* into v_keys from pgqueue._find_ahead(v_jobs, p_now) k;
        v_any.limited := v_any.limited or v_keys.limited is true;
        if v_keys.payloads is not null then
            if size is null then
                -- Payloads of several keys may share a slot, and other jobs may stand between them.
                select case
                    when max(t.batch_size) > 1 then greatest(20, p_free, least(500, p_free * 4 * max(t.batch_size)))
                    else p_free
                end
                into size
                from pgqueue.effective_tasks t
                where t.accumulate and t.name = any (array(select c.task from unnest(v_jobs) c));
                return;
            end if;
            select v_keys.blocked || g.blocked, v_keys.ahead || g.ahead, v_unstarted || g.joined, g.firsts, g.sizes
            into v_keys.blocked, v_keys.ahead, v_unstarted, v_firsts, v_sizes
            from pgqueue._group_payloads(v_keys.payloads, p_now) g;
        end if;
        if v_keys.blocked is not null then
            perform pgqueue._block_behind(v_keys.blocked, v_keys.ahead, p_now);
            v_unstarted := v_unstarted || v_keys.blocked;
        end if;
        if v_unstarted is not null then
            v_jobs := array(select c from unnest(v_jobs) c where c.row_ctid <> all (v_unstarted));
        end if;
        if v_firsts is not null then
            starts := pgqueue._share_slots(v_jobs, v_firsts, v_sizes, p_free);
            -- The others have no slot.
            v_unstarted := v_unstarted || array(
                select c.row_ctid from unnest(v_jobs) c where c.row_ctid <> all (array(select s.row_ctid from unnest(starts) s))
            );
            v_jobs := array(select c from unnest(v_jobs) c where c.row_ctid <> all (v_unstarted));
            p_free := cardinality(v_jobs);
        end if;
    end if;
    if v_any.limited then
        select v_unstarted || l.unstarted, _decide_starts.skipped || l.skipped into v_unstarted, skipped
        from pgqueue._within_limits(v_jobs, p_free, p_now) l;
    elsif cardinality(v_jobs) > p_free then
        v_unstarted := v_unstarted || array(select c.row_ctid from unnest(v_jobs[p_free + 1:]) c);
    end if;
    rows := p_rows;
    if v_unstarted is not null then
        rows := array(select u.r from unnest(p_rows) with ordinality u (r, n) where u.r <> all (v_unstarted) order by u.n);
    end if;
    if starts is not null then
        starts := array(select s from unnest(starts) s where s.row_ctid <> all (v_unstarted));
    end if;
end
$$;

-- What the keys of these jobs decide. explain() asks the same: reads only.
-- blocked and ahead: those that wait, and the jobs that they wait for. payloads: those of accumulating tasks, for
-- _group_payloads. limited: there are limits on keys.
create or replace function pgqueue._find_ahead(
    p_jobs pgqueue.candidate[], p_now timestamptz,
    out blocked tid[], out ahead bigint[], out payloads tid[], out limited boolean
)
language plpgsql stable
as $$
begin
    -- One query for all keys: three probes for each that is free.
    select
        array_agg(k.row_ctid) filter (where k.ahead is not null),
        array_agg(k.ahead) filter (where k.ahead is not null),
        array_agg(k.row_ctid) filter (where k.is_payload),
        bool_or(k.is_limited)
    into blocked, ahead, payloads, limited
    from (
        select
            c.row_ctid, t.is_payload,
            case when t.is_payload is not true then (
                -- The branches run in this order, and the first that finds one answers.
                select a.id
                from (
                    (select e.id from pgqueue._executing_of_key(c.queue, c.key, least(h.id, c.id)) e)
                    union all
                    (select p.id from pgqueue._key_positions(c.queue, c.key, p_now, least(h.id, c.id), c.id) p)
                ) a
                limit 1
            ) end as ahead,
            (select true from pgqueue.limits l where l.kind = 'key' limit 1) as is_limited
        from (select k.id from pgqueue._key_head() k offset 0) h
        cross join unnest(p_jobs) c
        left join lateral (
            select true as is_payload
            from pgqueue.tasks t
            where t.name = c.task and coalesce(t.accumulate, t.declared_accumulate)
        ) t on true
        where c.key is not null
        offset 0
    ) k;
end
$$;
