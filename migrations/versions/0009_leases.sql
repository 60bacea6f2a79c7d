-- Leases: what extend promised for rows that it could not lock, and which leases get a grace period.

-- Inserted by extend, so that it waits for nobody; read by rescue; never updated. An index by time within each job keeps
-- old promises, and dead rows under an old snapshot, out of the way.
create table pgqueue.lease_promises (
    job_id bigint not null,
    reservation bigint not null,
    until timestamptz not null,
    lease interval not null
);
create index lease_promises_by_job on pgqueue.lease_promises (job_id, until);
comment on table pgqueue.lease_promises is
    'Private: leases that extend() granted while another session had locked the row of the job, so that the row itself could not say it.';
comment on column pgqueue.lease_promises.job_id is 'The job.';
comment on column pgqueue.lease_promises.reservation is 'The reservation that asked. Once the job has another one the promise is void.';
comment on column pgqueue.lease_promises.until is 'Until when the reservation holds.';
comment on column pgqueue.lease_promises.lease is 'Length of the lease.';

comment on column pgqueue.jobs.lease_prolonged is
    'Private: this reservation already got its one grace period after a gap in maintenance.';
comment on column pgqueue.housekeeping.gap_at is
    'When the last gap of more than 5 s in maintenance ended. A lease that it left with less than half of its length gets a grace period.';
comment on column pgqueue.housekeeping.prolonged is 'Grace periods granted to leases after a gap, in all.';

-- Attempts that failed, as the functions of finish/ pass them to each other.
create type pgqueue.failure as (
    n integer,
    job_id bigint,
    reservation bigint,
    error jsonb,
    retry_in interval,
    retry boolean,
    policy text,
    cancel boolean
);
comment on type pgqueue.failure is 'Private: a failed attempt as its worker reports it, with what fail() takes; n: its position in the call.';

create type pgqueue.failed_attempt as (
    n integer,
    job_id bigint,
    reservation bigint,
    error jsonb,
    retry_in interval,
    retry boolean,
    policy text,
    cancel boolean,
    task text,
    queue text,
    priority smallint,
    key text,
    limit_key text,
    members bigint[],
    worker text,
    attempts integer,
    max_attempts integer,
    own_policy text,
    retry_delay interval,
    retry_jitter double precision,
    retry_cap interval,
    retry_delays interval[],
    retry_function text,
    retry_budget integer,
    may_ask boolean,
    state text,
    ready_at timestamptz,
    policy_error text
);
comment on type pgqueue.failed_attempt is
    'Private: a failure with what its job and task say of retries, and with what becomes of the job: state, and ready_at if it is retried.';
