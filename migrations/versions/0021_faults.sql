-- The mended faults, one section each.
comment on column pgqueue.jobs.retry is
    'Options for retries of this job, over those of its task: {"policy": ..., "delay": seconds, "queue": ...}; null: those of its task.';
