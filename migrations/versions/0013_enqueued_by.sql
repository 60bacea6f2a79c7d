-- Who enqueued a job, and what its producer's code declares.

alter type pgqueue.job_options add attribute declared jsonb;

-- The default is for enqueue(), where a function would cost more; pgqueue._enqueued_by() says the same.
alter table pgqueue.jobs add column enqueued_by text;
alter table pgqueue.jobs alter column enqueued_by set default rtrim(session_user || ' ' || current_setting('application_name'));
comment on column pgqueue.jobs.enqueued_by is 'Who enqueued it: the role that was logged in, and its application_name, if it had one; for a scheduled job, schedule and its name.';

alter table pgqueue.history add column enqueued_by text;
comment on column pgqueue.history.enqueued_by is 'Who enqueued it: the role that was logged in, and its application_name, if it had one; for a scheduled job, schedule and its name.';

-- all_jobs by key alone. Jobs without a key pay nothing for it. By task alone: see 0018.
create index history_key on pgqueue.history (key, id) where key is not null;
