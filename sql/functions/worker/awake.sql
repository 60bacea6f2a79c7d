-- awake: the worker found jobs and needs no wake-up. Deletes its idle registrations. Without this call they lapse by
-- themselves, and cost producers a NOTIFY until then.

create or replace function pgqueue.awake(worker text)
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set jit = off
as $$
declare
    v_now timestamptz := pgqueue._clock();
begin
    perform pgqueue._check_name('worker', awake.worker, 256);
    delete from pgqueue.idle_workers s where s.worker = awake.worker and s.until > v_now;
end
$$;

comment on function pgqueue.awake(text) is 'Report that an idle worker is busy again, so producers need not wake it. [worker]';
