-- bye: a worker ends. Removes its registration and its naps. Jobs that it still holds come back with their leases.

create or replace function pgqueue.bye(worker text)
returns void
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform pgqueue._check_name('worker', bye.worker, 256);
    perform pgqueue.awake(bye.worker);
    delete from pgqueue.beats where worker = bye.worker;
    delete from pgqueue.workers where name = bye.worker;
end
$$;

comment on function pgqueue.bye(text) is 'The worker ends. What it still holds comes back when its leases lapse; release() gives it back at once.';
