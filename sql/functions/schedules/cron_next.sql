-- cron_next: the next instant of a cron expression, for people and tests. Reads no table and locks nothing.
--
-- The rules are vixie cron's, as Debian has it, also for days (*/2 counts as not restricted) and for changes of the clock: see
-- _cron_parse. Beyond vixie: a/n is a to the end of the field by n, a range may end in sun. Stricter: a step may not be above
-- the number of the field's values (*/90 is not every 90 minutes). Not supported: L, W, #, ?, @reboot.

create or replace function pgqueue.cron_next(expression text, after timestamptz, timezone text default 'UTC')
returns timestamptz
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgqueue._refuse(
        'after must be an instant between the years 2 and 9900',
        format('It is %s.', coalesce(cron_next.after::text, 'null')), 'Give after as a timestamptz.'
    )
    where (cron_next.after between '0002-01-01 00:00:00+00' and '9900-01-01 00:00:00+00') is not true;
    perform pgqueue._check_timezone(cron_next.timezone);
    return pgqueue._cron_next(pgqueue._cron_parse(cron_next.expression), cron_next.after, cron_next.timezone);
end
$$;

comment on function pgqueue.cron_next(text, timestamptz, text) is
    'The first instant after "after" at which a cron expression is due; null: never. '
    'select pgqueue.cron_next(''30 2 * * mon-fri'', now(), ''Europe/Berlin''); '
    'Fields: [second 0-59] minute 0-59, hour 0-23, day of month 1-31, month 1-12 or jan-dec, day of week 0-7 or sun-sat; '
    'or @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually. A time that is skipped in spring runs at the jump, '
    'one that is doubled in autumn once; with * as minute or hour it runs on elapsed time. [worker, reader]';
