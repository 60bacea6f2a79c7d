-- set_breaker: stop what fails, for a while; then one attempt probes, and its end decides.
--
-- Writes one row of breakers, which counts from the next end on. Open is a row of pauses of the source breaker, without an end,
-- whose half_open_at says from when on it lets one job through: see _pauses_of and _may_probe. _note_ends counts what ends.

create or replace function pgqueue.set_breaker(
    kind text, target text, failures double precision default null, of integer default null, pause interval default null
)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_changed boolean;
    v_wrong text[] := case
        when set_breaker.failures not between 0.01 and 1 then array[
            'failures must be between 0.01 and 1', format('It is %s.', set_breaker.failures),
            'Give failures as the share of attempts that open the breaker: 0.5 for a half.']
        when set_breaker.of not between 1 and 10000 then array[
            'of must be between 1 and 10000', format('It is %s.', set_breaker.of), 'Give of as the number of attempts to look at.']
        when not isfinite(set_breaker.pause) or set_breaker.pause not between '1 s' and '1 hour' then array[
            'pause must be between a second and an hour', format('It is %s.', set_breaker.pause), 'Give pause as an interval, such as ''30 s''.']
    end;
begin
    perform pgqueue._check_limit(set_breaker.kind, set_breaker.target, '{task,limit_key}');
    perform pgqueue._refuse(v_wrong[1], v_wrong[2], v_wrong[3]) where v_wrong is not null;
    insert into pgqueue.breakers as b (kind, target, failures, of, pause)
    values (set_breaker.kind, set_breaker.target, coalesce(set_breaker.failures, 0.5), coalesce(set_breaker.of, 20), coalesce(set_breaker.pause, '30 s'))
    on conflict (kind, target) do update
    set (failures, of, pause)
        = (coalesce(set_breaker.failures, b.failures), coalesce(set_breaker.of, b.of), coalesce(set_breaker.pause, b.pause))
    where 0 < num_nonnulls(nullif(set_breaker.failures, b.failures), nullif(set_breaker.of, b.of), nullif(set_breaker.pause, b.pause));
    v_changed := found;
    -- Ends ask for a limit anyway.
    insert into pgqueue.limits as l (kind, target, breaks)
    values (set_breaker.kind, set_breaker.target, true)
    on conflict (kind, target) do update set breaks = true where l.breaks is null;
    return pgqueue._audit(
        'set_breaker',
        jsonb_build_object(
            'kind', set_breaker.kind, 'target', set_breaker.target, 'failures', set_breaker.failures, 'of', set_breaker.of,
            'pause', set_breaker.pause
        ),
        v_changed::integer
    );
end
$$;

comment on function pgqueue.set_breaker(text, text, double precision, integer, interval) is
    'Stop a task or a limit_key (kind; target* for each limit_key that begins so, by itself) that fails: when the share failures of its newest attempts, at least "of" of them, has failed, nothing of it starts for pause. '
    'Then one job at a time starts: if its attempt succeeds, the breaker closes; if it fails, it opens for twice as long, up to an hour. Discard, Cancel, Snooze, Throttled and lost leases do not count. An option that is left out keeps its value, at first 0.5, 20 and 30 s. False: unchanged. '
    'select pgqueue.set_breaker(''task'', ''charge'', failures => 0.5, of => 20, pause => ''30 s'');';

-- Counts attempts that ended, for each breaker that they are under: one row of breaker_ends, in the transaction of the ends.
-- Then, under the breaker's advisory lock, decides in later statements, whose snapshots show what others have counted. The lock
-- is only tried: while another session has it, the next end decides.
create or replace function pgqueue._note_ends(p_ended pgqueue.ended_job[], p_failed boolean)
returns void
language plpgsql
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_breaker record;
    v_open record;
    v_ends record;
    v_why text;
    v_pause interval;
begin
    for v_breaker in
        select b.kind, b.target, b.failures, b.of, b.pause, count(*) as ended, array_agg(e.reserved_at) as reserved_at
        from unnest(p_ended) e
        cross join lateral (
            select x.kind, x.target, x.failures, x.of, x.pause from pgqueue.breakers x where x.kind = 'task' and x.target = e.task
            union all
            (
                -- That of the value itself, else of the longest prefix*.
                select x.kind, e.limit_key, x.failures, x.of, x.pause
                from pgqueue.breakers x
                where x.kind = 'limit_key'
                    and (x.target = e.limit_key or (right(x.target, 1) = '*' and starts_with(e.limit_key, left(x.target, -1))))
                order by x.target = e.limit_key desc, length(x.target) desc
                limit 1
            )
        ) b
        where e.reserved_at is not null
        group by b.kind, b.target, b.failures, b.of, b.pause
        order by b.kind, b.target
    loop
        -- It was last opened until then: attempts from before count for nothing.
        select e.since, e.n into v_open
        from pgqueue.breaker_ends e
        where e.kind = v_breaker.kind and e.target = v_breaker.target and e.since is not null
        order by e.kind, e.target, e.n desc
        limit 1;
        v_breaker.ended := (
            select count(*) from unnest(v_breaker.reserved_at) r (at) where r.at >= v_open.since or v_open.since is null
        );
        continue when v_breaker.ended = 0;
        insert into pgqueue.breaker_ends (kind, target, at, ended, failed)
        values (v_breaker.kind, v_breaker.target, v_now, v_breaker.ended, case when p_failed then v_breaker.ended else 0 end);
        continue when not pg_try_advisory_xact_lock(
            pgqueue._lock_class(), hashtext('breaker:' || v_breaker.kind || ':' || v_breaker.target) | -2147483648
        );
        select sum(e.ended) as ended, sum(e.failed) as failed into v_ends
        from (
            select x.ended, x.failed, sum(x.ended) over (order by x.n desc) - x.ended as newer
            from (
                select y.*
                from pgqueue.breaker_ends y
                where y.kind = v_breaker.kind and y.target = v_breaker.target and y.since is null and y.n > coalesce(v_open.n, 0)
                order by y.kind, y.target, y.n desc
                limit v_breaker.of
            ) x
        ) e
        where e.newer < v_breaker.of;
        select p.n, p.half_open_at, p.half_open_at - p.at as pause into v_open
        from pgqueue.pauses p
        where p.kind = v_breaker.kind and p.target = v_breaker.target and p.source = 'breaker' and p.until > v_now
        order by p.n desc
        limit 1;
        -- Another attempt may have decided meanwhile.
        continue when v_open.half_open_at > all (v_breaker.reserved_at);
        v_why := case
            when v_open.n is not null then case when p_failed then 'the probe failed' else 'the probe succeeded' end
            when v_ends.ended >= v_breaker.of and v_ends.failed >= v_breaker.failures * v_ends.ended
                then format('%s of %s attempts failed', v_ends.failed, v_ends.ended)
        end;
        continue when v_why is null;
        -- No end waits for an operator who is ending the pause: the next one decides.
        perform from pgqueue.pauses p where p.n = v_open.n for update skip locked;
        continue when v_open.n is not null and not found;
        -- Null: it closes.
        v_pause := case
            when v_open.n is null then v_breaker.pause
            when p_failed then least(2 * v_open.pause, interval '1 hour')
        end;
        if v_pause is null then
            perform pgqueue._resume(v_breaker.kind, v_breaker.target, 'breaker');
        else
            delete from pgqueue.pauses p where p.kind = v_breaker.kind and p.target = v_breaker.target and p.source = 'breaker';
            insert into pgqueue.pauses (kind, target, source, until, half_open_at, at, reason, by)
            values (v_breaker.kind, v_breaker.target, 'breaker', 'infinity', v_now + v_pause, v_now, v_why, 'breaker');
            insert into pgqueue.breaker_ends (kind, target, at, ended, failed, since)
            values (v_breaker.kind, v_breaker.target, v_now, 0, 0, v_now + v_pause);
            insert into pgqueue.limit_waits (name, next_at, timed)
            values (concat_ws(':', 'pause', v_breaker.kind, v_breaker.target), v_now + v_pause, true);
            perform pg_notify('pgqueue', '') where pgqueue._may_notify();
        end if;
        raise warning 'pgqueue: the breaker of % % %: %',
            v_breaker.kind, v_breaker.target, coalesce('is open for ' || v_pause, 'is closed'), v_why;
        perform pgqueue._audit(
            case when v_pause is null then 'close_breaker' else 'open_breaker' end,
            jsonb_build_object('kind', v_breaker.kind, 'target', v_breaker.target, 'pause', v_pause, 'reason', v_why),
            p_actor => 'breaker'
        );
    end loop;
end
$$;

-- 1: nothing probes under a half-open breaker. A probe that takes longer than the pause, or a minute, keeps no other from probing.
create or replace function pgqueue._may_probe(p_kind text, p_target text, p_now timestamptz)
returns integer
language plpgsql stable parallel safe
set enable_sort = off
as $$
declare
    v_since timestamptz;
begin
    select greatest(p.half_open_at, p_now - greatest(p.half_open_at - p.at, interval '1 min')) into v_since
    from pgqueue.pauses p
    where p.kind = p_kind and p.target = p_target and p.source = 'breaker' and p.until > p_now
    order by p.n desc
    limit 1;
    return case when v_since is null or not exists (
        select
        from pgqueue.jobs j
        where j.state = 'executing' and j.lease_expires_at >= pgqueue._lease_head() and j.reserved_at >= v_since
            and case p_kind when 'task' then j.task = p_target else j.limit_key = p_target end
        order by j.lease_expires_at, j.id
    ) then 1 else 0 end;
end
$$;
