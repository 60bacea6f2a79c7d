-- resume: ends a pause, a throttle or what a breaker has opened.
--
-- Deletes the rows of one source. Jobs that the pause has blocked come back by the next claims and maintain(), as many at a
-- time as a claim asks for, into the ordinary part of their lanes: a million of them delay no other job.

create or replace function pgqueue.resume(kind text, target text, source text default 'operator')
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    -- What starts from now on counts for the breaker.
    insert into pgqueue.breaker_ends (kind, target, at, ended, failed, since)
    select p.kind, p.target, pgqueue._clock(), 0, 0, pgqueue._clock()
    from pgqueue.pauses p
    where resume.source = 'breaker' and p.source = 'breaker' and p.kind = resume.kind and p.target = resume.target;
    return pgqueue._audit(
        'resume', jsonb_build_object('kind', resume.kind, 'target', resume.target, 'source', resume.source),
        pgqueue._resume(resume.kind, resume.target, resume.source)::integer
    );
end
$$;

comment on function pgqueue.resume(text, text, text) is
    'Start jobs of a paused queue, task or limit_key again. source: operator (pause()), throttle or breaker: whose pause ends; those of the others stand. '
    'Jobs that were blocked come back as claims ask for them, behind what waits. False: there was none. select pgqueue.resume(''task'', ''call_api'');';

create or replace function pgqueue._resume(p_kind text, p_target text, p_source text)
returns boolean
language plpgsql
as $$
declare
    v_now timestamptz := pgqueue._clock();
begin
    perform pgqueue._check_limit(p_kind, p_target, '{queue,task,limit_key}');
    perform pgqueue._refuse(
        'source is unknown', format('It is %s.', coalesce(quote_literal(p_source), 'null')),
        'Give source as operator, throttle or breaker, or leave it out.'
    )
    where p_source is null or p_source not in ('operator', 'throttle', 'breaker');
    delete from pgqueue.pauses p
    where p.kind = p_kind and p.target = p_target and p.source = p_source and p.until > v_now;
    if not found then
        return false;
    end if;
    perform pgqueue._recheck_limit(case when p_kind = 'queue' then p_kind else 'pause:' || p_kind end, p_target);
    return true;
end
$$;
