-- drop_limit: removes a limit, or one of its two parts.
--
-- Deletes or updates one row of limits; the next maintain() releases the jobs that were blocked by it.

create or replace function pgqueue.drop_limit(kind text, target text, part text default null)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgqueue._check_limit(drop_limit.kind, drop_limit.target);
    if drop_limit.part not in ('max_executing', 'rate') then
        perform pgqueue._refuse(
            'part is unknown', format('It is %s.', quote_literal(drop_limit.part)),
            'Give part as max_executing or rate, or leave it out to remove both.'
        );
    end if;
    delete from pgqueue.limits l
    where l.kind = drop_limit.kind and l.target = drop_limit.target
        and case drop_limit.part
            when 'max_executing' then l.max_executing is not null and l.rate is null
            when 'rate' then l.rate is not null and l.max_executing is null
            else true
        end;
    if not found then
        update pgqueue.limits l
        set
            max_executing = case when drop_limit.part = 'rate' then l.max_executing end,
            rate = case when drop_limit.part = 'max_executing' then l.rate end,
            per = case when drop_limit.part = 'max_executing' then l.per end
        where l.kind = drop_limit.kind and l.target = drop_limit.target and drop_limit.part is not null
            and l.max_executing is not null and l.rate is not null;
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
    'Remove a limit; maintenance, about once a second, releases the jobs that it blocks, a thousand a call. part: max_executing or rate, to keep the other. False: there is no such limit. '
    'select pgqueue.drop_limit(''task'', ''export'', ''rate'');';
