-- bye: deregisters a worker that ends. Deletes its row of workers, its heartbeats and its idle registrations. Jobs that
-- it still holds come back when their leases lapse. Its last troubles stay, as those of no worker: a heartbeat with its name
-- would tell that it lives.

create or replace function pgqueue.bye(worker text)
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgqueue.awake(bye.worker);
    with gone as (delete from pgqueue.heartbeats b where b.worker = bye.worker returning b.at, b.troubles)
    insert into pgqueue.heartbeats (worker, at, troubles)
    select '', g.at, g.troubles from gone g where g.troubles is not null and g.at > pgqueue._clock() - interval '10 min' order by g.at;
    delete from pgqueue.workers w where w.name = bye.worker;
end
$$;

comment on function pgqueue.bye(text) is 'Deregister a worker that ends. Jobs that it still holds come back when their leases lapse; release() gives them back at once. [worker]';
