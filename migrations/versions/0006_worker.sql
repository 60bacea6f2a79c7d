-- What a worker tells of its jobs: timeouts, crashes, results, progress. A job that has none of these pays nothing:
-- all columns are null then. None is indexed, so that writing them moves no index entry.

alter table pgqueue.jobs
    add column timeout interval,
    add column started bigint,
    add column crashed_on text[],
    add column progress jsonb;
comment on column pgqueue.jobs.timeout is 'How long one try may take; null: as its task says.';
comment on column pgqueue.jobs.started is 'The reservation under which its worker last said that the handler runs.';
comment on column pgqueue.jobs.crashed_on is 'The workers that died while they ran it, one entry for each time; null: none.';
comment on column pgqueue.jobs.progress is 'What its handler last told: done, total, note, at.';

alter table pgqueue.history
    add column timeout interval,
    add column crashed_on text[],
    add column progress jsonb;
comment on column pgqueue.history.timeout is 'How long one try might take, where the job itself said so.';
comment on column pgqueue.history.crashed_on is 'The workers that died while they ran it, one entry for each time.';
comment on column pgqueue.history.progress is 'What its handler last told: done, total, note, at.';

alter table pgqueue.tasks
    add column timeout interval check (timeout > '0' and timeout <= '7 days'),
    add column max_crashes integer check (max_crashes between 1 and 1000),
    add column store_result boolean,
    add column declared_timeout interval check (declared_timeout > '0' and declared_timeout <= '7 days'),
    add column declared_max_crashes integer check (declared_max_crashes between 1 and 1000),
    add column declared_store_result boolean;
comment on column pgqueue.tasks.timeout is 'How long one try may take; null: for ever.';
comment on column pgqueue.tasks.max_crashes is 'How many workers may die while they run a job before it is dead; default 3.';
comment on column pgqueue.tasks.store_result is 'Whether history keeps what the function returns; default false.';
comment on column pgqueue.tasks.declared_timeout is 'timeout, as declared by the code.';
comment on column pgqueue.tasks.declared_max_crashes is 'max_crashes, as declared by the code.';
comment on column pgqueue.tasks.declared_store_result is 'store_result, as declared by the code.';
