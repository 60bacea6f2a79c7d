-- Limits and keys that hold no lock longer than needed.

alter table pgqueue.key_notes
    add column job_id bigint,
    add column next_at timestamptz not null default '-infinity';
comment on table pgqueue.key_notes is 'Private: keys whose next job the next maintain() or idle reserve() is to release, once no claim parks behind job_id.';
comment on column pgqueue.key_notes.job_id is 'The job that left its place while a claim was parking others behind it; null: none.';
comment on column pgqueue.key_notes.next_at is 'When to read it.';

create type pgqueue.bulk_row as (
    id bigint,
    queue text,
    task text,
    state pgqueue.job_state,
    created_at timestamptz,
    priority smallint,
    resumed boolean,
    ready_at timestamptz,
    key text,
    blocked_on text,
    cancel_requested_at timestamptz
);
comment on type pgqueue.bulk_row is 'Private: what a bulk call reads of a live job.';

create type pgqueue.job_options as (
    task text,
    args jsonb,
    queue text,
    priority integer,
    run_at timestamptz,
    delay interval,
    expires_in interval,
    timeout interval,
    max_attempts integer,
    key text,
    score numeric,
    dedupe text,
    dedupe_for interval,
    on_conflict text,
    depends_on bigint[],
    headers jsonb,
    tags text[],
    retention interval,
    retry_policy text,
    retry_delay interval,
    retry_queue text,
    limit_key text,
    debounce_max interval
);
comment on type pgqueue.job_options is 'Private: what a producer may say of a job, as enqueue() takes it.';
