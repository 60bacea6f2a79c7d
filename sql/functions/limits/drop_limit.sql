-- drop_limit: removes a limit, or one of its parts.
--
-- Deletes or updates one row of limits; the next maintain() releases the jobs that were blocked by it.

create or replace function pgqueue.drop_limit(kind text, target text, part text default null)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgqueue._check_limit(drop_limit.kind, drop_limit.target);
    if drop_limit.part not in ('max_executing', 'rate', 'max_cost', 'burst') then
        perform pgqueue._refuse(
            'part is unknown', format('It is %s.', quote_literal(drop_limit.part)),
            'Give part as max_executing, rate, max_cost or burst, or leave it out to remove all.'
        );
    end if;
    delete from pgqueue.limits l
    where l.kind = drop_limit.kind and l.target = drop_limit.target and l.breaks is null
        and (
            drop_limit.part is null
            -- The only one.
            or (
                drop_limit.part <> 'burst' and num_nonnulls(l.max_executing, l.rate, l.max_cost) = 1
                and to_jsonb(l) ->> drop_limit.part is not null
            )
        );
    if not found then
        update pgqueue.limits l
        set
            max_executing = case when drop_limit.part <> 'max_executing' then l.max_executing end,
            rate = case when drop_limit.part <> 'rate' then l.rate end,
            per = case when drop_limit.part <> 'rate' then l.per end,
            max_cost = case when drop_limit.part <> 'max_cost' then l.max_cost end,
            burst = case when drop_limit.part not in ('rate', 'burst') then l.burst end
        where l.kind = drop_limit.kind and l.target = drop_limit.target and num_nonnulls(l.max_executing, l.rate, l.max_cost) > 0
            and (drop_limit.part is null or to_jsonb(l) ->> drop_limit.part is not null);
        if not found then
            return false;
        end if;
    end if;
    perform pgqueue._recheck_limit(drop_limit.kind, drop_limit.target);
    return pgqueue._audit(
        'drop_limit', jsonb_build_object('kind', drop_limit.kind, 'target', drop_limit.target, 'part', drop_limit.part)
    );
end
$$;

comment on function pgqueue.drop_limit(text, text, text) is
    'Remove a limit; maintenance, about once a second, releases the jobs that it blocks, a thousand a call. part: max_executing, rate (with burst), max_cost or burst (the rate stays), to keep the others. False: there is no such limit. '
    'select pgqueue.drop_limit(''task'', ''export'', ''rate'');';
