-- beat: a worker's heartbeat, every ten seconds or so. Inserts one row and locks nothing; see hello for why.
-- idle reports one as well, so an idle worker need not call beat.

create or replace function pgqueue.beat(worker text)
returns boolean
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform pgqueue._check_name('worker', beat.worker, 256);
    insert into pgqueue.heartbeats (worker, at)
    select w.name, pgqueue._clock() from pgqueue.workers w where w.name = beat.worker;
    return found;
end
$$;

comment on function pgqueue.beat(text) is
    'Heartbeat: the worker is alive. False: it is not registered (it was silent for minutes): call hello() again.';
