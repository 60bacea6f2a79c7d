-- remove_breaker: takes a breaker away, and ends what it has opened.

create or replace function pgqueue.remove_breaker(kind text, target text)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgqueue._check_limit(remove_breaker.kind, remove_breaker.target, '{task,limit_key}');
    delete from pgqueue.breakers b where b.kind = remove_breaker.kind and b.target = remove_breaker.target;
    if not found then
        return false;
    end if;
    delete from pgqueue.limits l
    where l.kind = remove_breaker.kind and l.target = remove_breaker.target and num_nonnulls(l.max_executing, l.rate, l.max_cost) = 0;
    update pgqueue.limits l set breaks = null where l.kind = remove_breaker.kind and l.target = remove_breaker.target;
    perform pgqueue._resume(p.kind, p.target, 'breaker')
    from pgqueue.pauses p
    where p.kind = remove_breaker.kind and p.source = 'breaker'
        and (
            p.target = remove_breaker.target
            or (
                p.kind = 'limit_key' and right(remove_breaker.target, 1) = '*' and starts_with(p.target, left(remove_breaker.target, -1))
                -- Its own breaker, or that of a longer prefix*, has opened it.
                and not exists (
                    select from pgqueue.breakers b
                    where b.kind = p.kind and (b.target = p.target or (length(b.target) > length(remove_breaker.target)
                        and right(b.target, 1) = '*' and starts_with(p.target, left(b.target, -1))))
                )
            )
        );
    delete from pgqueue.breaker_ends e
    where e.kind = remove_breaker.kind and e.target = remove_breaker.target;
    return pgqueue._audit('remove_breaker', jsonb_build_object('kind', remove_breaker.kind, 'target', remove_breaker.target));
end
$$;

comment on function pgqueue.remove_breaker(text, text) is
    'Remove a breaker; what it has opened starts again. False: there is no such breaker. select pgqueue.remove_breaker(''task'', ''charge'');';
