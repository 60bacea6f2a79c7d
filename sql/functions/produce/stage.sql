-- stage: creates the table for a large load by COPY; enqueue_staged then enqueues a job for each of its rows.
--
-- A temporary table: COPY into it writes no WAL. COPY into jobs itself could apply no options; into a view it would call a trigger
-- for each row. The table belongs to the owner of the queue; callers may only insert. enqueue_staged reads it with the owner's
-- rights, so it refuses that of another owner, which could have rules or defaults. A session creates it once, for all its roles.

create or replace function pgqueue.stage()
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set client_min_messages = warning
as $$
begin
    if pgqueue._is_staged() then
        if obj_description('pg_temp.pgqueue_staged'::regclass, 'pg_class') = 'pgqueue: jobs to be enqueued by enqueue_staged(), shape 5.' then
            perform pgqueue._refuse('an earlier load is not enqueued', 'pgqueue_staged has rows.', 'Call enqueue_staged(), or roll back.', '55000')
            from pg_temp.pgqueue_staged limit 1;
            return;
        end if;
        -- Created by another release.
        drop table pg_temp.pgqueue_staged;
    end if;
    create temporary table pgqueue_staged (like pgqueue.job_options, id bigint, is_plain boolean) on commit delete rows;
    comment on table pg_temp.pgqueue_staged is 'pgqueue: jobs to be enqueued by enqueue_staged(), shape 5.';
    -- Granted to all roles that use this session; no other session can reach the table. The other columns are ours.
    execute format('grant insert (%s) on pg_temp.pgqueue_staged to public', pgqueue._columns_of('pgqueue.job_options', ''));
end
$$;

comment on function pgqueue.stage() is
    'Make the temporary table pgqueue_staged, for loads of many jobs: COPY rows into it, whose columns are the options of '
    'enqueue(), as copy pgqueue_staged (task, args, delay) from stdin does, and call enqueue_staged() in the same transaction. '
    'select pgqueue.stage(); [producer]';

-- Whether there is a table pgqueue_staged. Refuses one that stage() did not create.
create or replace function pgqueue._is_staged()
returns boolean
language plpgsql stable
as $$
declare
    v_table constant regclass := to_regclass('pg_temp.pgqueue_staged');
begin
    perform pgqueue._refuse(
        'pgqueue_staged is not the table that stage() makes', 'It is another relation, or belongs to another role.',
        'Drop it, and call pgqueue.stage().'
    )
    where v_table is not null and not exists (
        select from pg_class c
        where c.oid = v_table and c.relnamespace = pg_my_temp_schema() and c.relkind = 'r'
            and c.relowner = (select r.oid from pg_roles r where r.rolname = current_user)
    );
    return v_table is not null;
end
$$;
