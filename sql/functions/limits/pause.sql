-- pause: jobs of a queue, a task or a limit_key start no more, until a time or until resume(). See _limits_of.
--
-- Inserts a row of pauses, and never updates one: hundreds of workers may pause one target at a moment. The longest end of
-- all its rows counts. Workers are notified: they give back what they have not started.

create or replace function pgqueue.pause(kind text, target text, until timestamptz default null, reason text default null)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgqueue._refuse(
        'a pause must end in the future', format('It would end at %s.', pause.until),
        'Give a later end (until, on the command line --for), or none: it then lasts until resume().'
    )
    where pause.until <= pgqueue._clock();
    return pgqueue._audit(
        'pause',
        jsonb_build_object('kind', pause.kind, 'target', pause.target, 'until', pause.until, 'reason', pause.reason),
        pgqueue._pause(pause.kind, pause.target, 'operator', coalesce(pause.until, 'infinity'), pause.reason, null)::integer
    );
end
$$;

comment on function pgqueue.pause(text, text, timestamptz, text) is
    'Start no more jobs of a queue, a task or a limit_key (kind; target* for each limit_key that begins so), until a time, or, with until null, until resume(). Binds each claim that begins '
    'after the commit. Executing jobs, producers and schedules continue, and limits keep their values. The longest of several pauses counts: to shorten one, call resume() first. False: it is paused as long already. '
    'select pgqueue.pause(''task'', ''call_api'', now() + interval ''1 hour'', ''the provider is down'');';

-- False: a row of this source stands as long already.
create or replace function pgqueue._pause(p_kind text, p_target text, p_source text, p_until timestamptz, p_reason text, p_by text)
returns boolean
language plpgsql
as $$
declare
    v_now timestamptz := pgqueue._clock();
    v_stands record;
begin
    perform pgqueue._check_limit(p_kind, p_target, '{queue,task,limit_key}');
    select
        max(p.until) filter (where p.source = p_source) as until, count(*) > 0 as is_known,
        -- Since when it stands: maintenance deletes the rows that end earlier.
        least(min(p.at) filter (where p.source = p_source), v_now) as at
    into v_stands
    from pgqueue.pauses p
    where p.kind = p_kind and p.target = p_target and p.until > v_now;
    if v_stands.until >= p_until then
        return false;
    end if;
    insert into pgqueue.pauses (kind, target, source, until, at, reason, by)
    values (p_kind, p_target, p_source, p_until, v_stands.at, left(p_reason, 1000), left(coalesce(p_by, pgqueue._actor()), 256));
    -- One notification for all workers, as it is no queue's name; none where they know. See paused_of.
    perform pg_notify('pgqueue', '') where not v_stands.is_known and pgqueue._may_notify();
    return true;
end
$$;

-- What stands still, a row for each target: the pause that ends last, and since when one has stood.
create or replace function pgqueue._standing_pauses(p_now timestamptz)
returns table (kind text, target text, source text, since timestamptz, until timestamptz, reason text, by text)
language sql stable parallel safe rows 10
set search_path = pg_catalog, pg_temp
as $$
    select distinct on (p.kind, p.target)
        p.kind, p.target, p.source, min(p.at) over (partition by p.kind, p.target),
        nullif(coalesce(p.half_open_at, p.until), 'infinity'), p.reason, p.by
    from pgqueue.pauses p
    where p.until > p_now and coalesce(p.half_open_at, p.until) > p_now
    order by p.kind, p.target, coalesce(p.half_open_at, p.until) desc, p.n desc
$$;
