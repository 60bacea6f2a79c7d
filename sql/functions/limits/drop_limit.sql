-- drop_limit: removes a limit, or one of its parts. Deletes or updates one row of limits.

create or replace function pgqueue.drop_limit(kind text, target text, part text default null)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    v_limit pgqueue.limits;
    v_left pgqueue.limits;
begin
    perform pgqueue._check_limit(drop_limit.kind, drop_limit.target);
    perform pgqueue._refuse(
        'part is unknown', format('It is %s.', quote_literal(drop_limit.part)),
        'Give part as max_executing, rate, max_cost or burst, or leave it out to remove all.'
    )
    where drop_limit.part not in ('max_executing', 'rate', 'max_cost', 'burst');
    -- Locked before it is looked at: another operator may be adding a part.
    select l.* into v_limit from pgqueue.limits l where l.kind = drop_limit.kind and l.target = drop_limit.target for update;
    v_left := jsonb_populate_record(v_limit, case
        when drop_limit.part is null then '{"max_executing": null, "rate": null, "per": null, "max_cost": null, "burst": null}'
        when drop_limit.part = 'rate' then '{"rate": null, "per": null, "burst": null}'
        else jsonb_build_object(drop_limit.part, null)
    end);
    if not found or v_left is not distinct from v_limit then
        return false;
    end if;
    if num_nonnulls(v_left.max_executing, v_left.rate, v_left.max_cost, v_left.breaks) = 0 then
        delete from pgqueue.limits l where l.kind = drop_limit.kind and l.target = drop_limit.target;
    else
        update pgqueue.limits l
        set
            (max_executing, rate, per, max_cost, burst)
            = (v_left.max_executing, v_left.rate, v_left.per, v_left.max_cost, v_left.burst)
        where l.kind = drop_limit.kind and l.target = drop_limit.target;
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
