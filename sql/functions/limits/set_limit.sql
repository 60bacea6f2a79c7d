-- set_limit: how many jobs of a queue, a task, keys or a limit_key may execute at a time, or start in a time.
--
-- Writes one row of limits, which takes effect at the next claim. Jobs that were parked under it are looked at by the
-- next maintain(): there may be room now. A plain update of limits does the same, but leaves them to the job that ends.

create or replace function pgqueue.set_limit(
    kind text,
    target text,
    max_executing integer default null,
    rate integer default null,
    per interval default null
)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform pgqueue._check_limit(set_limit.kind, set_limit.target);
    if set_limit.max_executing is null and set_limit.rate is null then
        perform pgqueue._refuse(
            'neither max_executing nor rate is given', 'It would limit nothing.',
            'Give max_executing, or rate with per; drop_limit() takes a limit away.'
        );
    end if;
    if set_limit.max_executing not between 0 and 1000000 then
        perform pgqueue._refuse(
            'max_executing must be between 0 and 1000000', format('It is %s.', set_limit.max_executing),
            'Give max_executing within this range; 0 lets nothing start.'
        );
    end if;
    if (set_limit.rate is null) <> (set_limit.per is null) then
        perform pgqueue._refuse(
            'rate and per go together', format('per is %s.', coalesce(set_limit.per::text, 'null')),
            'Give rate with per: rate => 100, per => ''1 min''.'
        );
    end if;
    if set_limit.rate not between 1 and 1000000 then
        perform pgqueue._refuse(
            'rate must be between 1 and 1000000', format('It is %s.', set_limit.rate), 'Give rate within this range.'
        );
    end if;
    if not isfinite(set_limit.per) or set_limit.per not between '1 ms' and '31 days' then
        perform pgqueue._refuse(
            'per must be between a millisecond and 31 days', format('It is %s.', set_limit.per),
            'Give per as an interval, such as ''1 min''.'
        );
    end if;

    insert into pgqueue.limits as l (kind, target, max_executing, rate, per)
    values (set_limit.kind, set_limit.target, set_limit.max_executing, set_limit.rate, set_limit.per)
    on conflict (kind, target) do update
    set
        max_executing = excluded.max_executing,
        rate = excluded.rate,
        per = excluded.per
    where (l.max_executing, l.rate, l.per) is distinct from (excluded.max_executing, excluded.rate, excluded.per);
    if not found then
        return false;
    end if;
    perform pgqueue._look_at_limit(set_limit.kind, set_limit.target);
    return true;
end
$$;

comment on function pgqueue.set_limit(text, text, integer, integer, interval) is
    'Limit what executes over the whole fleet, at once. kind: queue, task, key (all keys that begin with target, together) or limit_key (that value; '
    'target* for each value that begins so, for itself). max_executing: so many at a time; rate and per: so many starts in any stretch of time as long as per; '
    'what is left out is not limited. False: it stood so already. select pgqueue.set_limit(''task'', ''export'', max_executing => 2);';
