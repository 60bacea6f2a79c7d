-- set_breaker: stop what fails. Where too many of the last attempts of a task or a limit_key failed, nothing of it starts for a
-- while; then one attempt probes, and its end decides.
--
-- Writes one row of breakers, which counts from the next end on. Open is a row of pauses of the source breaker, without an end, whose
-- half_open_at says from when on it lets one job through: see _pauses_of and _may_probe. What ends is counted in _note_ends.

create or replace function pgqueue.set_breaker(
    kind text, target text, failures double precision default 0.5, of integer default 20, pause interval default '30 s'
)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    v_changed boolean;
begin
    perform pgqueue._check_limit(set_breaker.kind, set_breaker.target, '{task,limit_key}');
    if set_breaker.failures is null or set_breaker.failures not between 0.01 and 1 then
        perform pgqueue._refuse(
            'failures must be between 0.01 and 1', format('It is %s.', coalesce(set_breaker.failures::text, 'null')),
            'Give failures as the share of attempts that open the breaker: 0.5 for a half.'
        );
    end if;
    perform pgqueue._check_range('of', set_breaker.of, 1, 10000, 'Give of as the number of attempts to look at.');
    if set_breaker.pause is null or not isfinite(set_breaker.pause) or set_breaker.pause not between '1 s' and '1 hour' then
        perform pgqueue._refuse(
            'pause must be between a second and an hour', format('It is %s.', coalesce(set_breaker.pause::text, 'null')),
            'Give pause as an interval, such as ''30 s''.'
        );
    end if;
    insert into pgqueue.breakers as b (kind, target, failures, of, pause)
    values (set_breaker.kind, set_breaker.target, set_breaker.failures, set_breaker.of, set_breaker.pause)
    on conflict (kind, target) do update
    set failures = excluded.failures, of = excluded.of, pause = excluded.pause
    where (b.failures, b.of, b.pause) is distinct from (excluded.failures, excluded.of, excluded.pause);
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
    'Then one job at a time starts: if its attempt succeeds, the breaker closes; if it fails, it opens for twice as long, up to an hour. Discard, Cancel, Snooze, Throttled and lost leases do not count. False: unchanged. '
    'select pgqueue.set_breaker(''task'', ''charge'', failures => 0.5, of => 20, pause => ''30 s'');';

-- The breakers of a task and of a limit_key, of this that of the longest prefix*. Inlined: no SET, and stable.
create or replace function pgqueue._breakers_of(p_task text, p_limit_key text)
returns table (kind text, target text, failures double precision, of integer, pause interval)
language sql stable parallel safe rows 1
as $$
    select b.kind, b.target, b.failures, b.of, b.pause
    from pgqueue.breakers b
    where b.kind = 'task' and b.target = p_task
    union all
    (
        select b.kind, p_limit_key, b.failures, b.of, b.pause
        from pgqueue.breakers b
        where b.kind = 'limit_key'
            and (b.target = p_limit_key or (right(b.target, 1) = '*' and starts_with(p_limit_key, left(b.target, -1))))
        order by b.target = p_limit_key desc, length(b.target) desc
        limit 1
    )
$$;

-- Counts attempts that ended, for each breaker that they are under: one row of breaker_ends, in the transaction of the ends. Then, under the
-- breaker's advisory lock, decides in later statements, whose snapshots show what others have counted. The lock is only tried: while another
-- session has it, the next end decides.
create or replace function pgqueue._note_ends(p_ended pgqueue.ended_job[], p_failed boolean)
returns void
language plpgsql
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_breaker record;
    v_open record;
    v_ends record;
begin
    for v_breaker in
        select b.kind, b.target, b.failures, b.of, b.pause, count(*) as ended, array_agg(e.reserved_at) as reserved_at
        from unnest(p_ended) e
        cross join lateral pgqueue._breakers_of(e.task, e.limit_key) b
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
        if v_open.n is null and v_ends.ended >= v_breaker.of and v_ends.failed >= v_breaker.failures * v_ends.ended then
            perform pgqueue._open_breaker(
                v_breaker.kind, v_breaker.target, v_breaker.pause, v_now, format('%s of %s attempts failed', v_ends.failed, v_ends.ended)
            );
        elsif v_open.n is not null and p_failed then
            perform pgqueue._open_breaker(
                v_breaker.kind, v_breaker.target, least(2 * v_open.pause, interval '1 hour'), v_now, 'the probe failed'
            );
        elsif v_open.n is not null then
            perform pgqueue._resume(v_breaker.kind, v_breaker.target, 'breaker');
            perform pgqueue._audit_breaker('close_breaker', v_breaker.kind, v_breaker.target, null, 'the probe succeeded');
        end if;
    end loop;
end
$$;

-- Under the lock of the breaker. The pause is a new row; the row of the ends says from when on attempts count again.
create or replace function pgqueue._open_breaker(
    p_kind text, p_target text, p_pause interval, p_now timestamptz, p_why text
)
returns void
language plpgsql
as $$
begin
    delete from pgqueue.pauses p where p.kind = p_kind and p.target = p_target and p.source = 'breaker';
    insert into pgqueue.pauses (kind, target, source, until, half_open_at, at, reason, by)
    values (p_kind, p_target, 'breaker', 'infinity', p_now + p_pause, p_now, p_why, 'breaker');
    insert into pgqueue.breaker_ends (kind, target, at, ended, failed, since)
    values (p_kind, p_target, p_now, 0, 0, p_now + p_pause);
    insert into pgqueue.limit_waits (name, next_at, timed)
    values (concat_ws(':', 'pause', p_kind, p_target), p_now + p_pause, true);
    perform pgqueue._audit_breaker('open_breaker', p_kind, p_target, p_pause, p_why);
    if pgqueue._may_notify() then
        perform pg_notify('pgqueue', '');
    end if;
end
$$;

-- The actor is the breaker. A line in the log of the server, too.
create or replace function pgqueue._audit_breaker(p_action text, p_kind text, p_target text, p_pause interval, p_why text)
returns void
language plpgsql
as $$
declare
    v_actor text := current_setting('pgqueue.actor', true);
begin
    raise log 'pgqueue: breaker of % %: %: %', p_kind, p_target, p_action || coalesce(' for ' || p_pause, ''), p_why;
    perform set_config('pgqueue.actor', 'breaker', true);
    perform pgqueue._audit(
        p_action, jsonb_build_object('kind', p_kind, 'target', p_target, 'pause', p_pause, 'reason', p_why)
    );
    perform set_config('pgqueue.actor', coalesce(v_actor, ''), true);
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
