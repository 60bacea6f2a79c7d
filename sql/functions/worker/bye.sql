-- bye: deregisters a worker that ends. Deletes its row of workers, its heartbeats and its idle registrations. Jobs that
-- it still holds come back when their leases lapse.

create or replace function pgqueue.bye(worker text)
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgqueue._check_name('worker', bye.worker, 256);
    perform pgqueue.awake(bye.worker);
    delete from pgqueue.heartbeats b where b.worker = bye.worker;
    delete from pgqueue.workers w where w.name = bye.worker;
end
$$;

comment on function pgqueue.bye(text) is 'Deregister a worker that ends. Jobs that it still holds come back when their leases lapse; release() gives them back at once.';
