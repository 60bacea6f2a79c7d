-- unschedule: removes a schedule; the jobs that it has enqueued stay. Locks and deletes its row. The outcomes of its runs
-- are kept for a week as before, so that no instant runs twice if it is declared again.

create or replace function pgqueue.unschedule(name text)
returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgqueue._check_name('name', unschedule.name);
    delete from pgqueue.schedules s where s.name = unschedule.name;
    return pgqueue._audit('unschedule', jsonb_build_object('name', unschedule.name), found::integer);
end
$$;

comment on function pgqueue.unschedule(text) is 'Remove a schedule; its jobs stay. False: there is no such schedule.';
