-- Commands of an operator to a worker. An operator writes them, a worker reads them; its heartbeats stay inserts.
alter table pgqueue.workers
    add column command text check (command in ('quiet', 'stop')),
    add column commanded_at timestamptz,
    add column obeyed_at timestamptz;
comment on column pgqueue.workers.command is 'What an operator asked of it: quiet or stop; null: nothing. See quiet_worker(), stop_worker().';
comment on column pgqueue.workers.commanded_at is 'When that was asked.';
comment on column pgqueue.workers.obeyed_at is 'When the worker said that it does it; null: it has not yet.';
