-- enqueue: a producer's one call. Inserts one row into jobs, inside the caller's transaction.
--
-- It locks nothing that another enqueue could wait for. One statement does nearly all: it looks up what task and
-- queue say, inserts the row, and then asks whether the lane is registered and whether somebody who serves the queue
-- is asleep now. Only when one of these asks for more does it go on, for NOTIFY serialises the commits of all who send
-- it. A worker writes that it sleeps *before* its last looks, so the answer may be stale by as long as this
-- transaction stays open, and no longer.
-- Of the time of a call half is spent on starting statements and compiling expressions, which in a transaction of its
-- own each call does anew: so there is one statement, and hardly an expression beside it. `offset 0` keeps the scan of
-- tasks from carrying all columns of that table.
-- Sequential scans are off because the small tables are, while some session holds an old snapshot, small in
-- live rows only. Every table here has an index for its question, so no plan looks expensive to JIT.
-- A job with a dedupe key goes another way: see enqueue_outcome.

create or replace function pgqueue.enqueue(
    task text,
    args jsonb default '{}',
    queue text default null,
    priority integer default null,
    run_at timestamptz default null,
    delay interval default null,
    expires_in interval default null,
    timeout interval default null,
    max_attempts integer default null,
    key text default null,
    score numeric default null,
    dedupe text default null,
    dedupe_for interval default null,
    on_conflict text default null,
    depends_on bigint[] default null,
    headers jsonb default null,
    tags text[] default null,
    retention interval default null,
    retry_policy text default null,
    retry_delay interval default null,
    retry_queue text default null,
    limit_key text default null,
    debounce_max interval default null
)
returns bigint
language plpgsql
volatile
parallel unsafe
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
    -- Null where the job is to run now.
    v_run_at timestamptz;
    v_ready_at timestamptz;
    v_now timestamptz := pgqueue._ready_at(null);
    v_queue text;
    v_priority smallint;
    v_settled boolean;
    v_retry jsonb;
    v_id bigint;
begin
    -- Nearly every enqueue names a task and args and nothing else: it is not worth a call to check the rest. Args of
    -- that size are small also where they are stored compressed: no limit may be set below what that could hold.
    if octet_length(enqueue.task) between 1 and 128
        and jsonb_typeof(enqueue.args) = 'object'
        and pg_column_size(enqueue.args) <= 1000
        and num_nonnulls(
            enqueue.queue, enqueue.priority, enqueue.run_at, enqueue.delay, enqueue.expires_in, enqueue.timeout,
            enqueue.max_attempts, enqueue.key, enqueue.score, enqueue.dedupe, enqueue.dedupe_for,
            enqueue.on_conflict, enqueue.depends_on, enqueue.headers, enqueue.tags, enqueue.retention,
            enqueue.retry_policy, enqueue.retry_delay, enqueue.retry_queue, enqueue.limit_key, enqueue.debounce_max
        ) = 0
    then
        null;
    elsif enqueue.dedupe is not null then
        select o.job_id into v_id
        from pgqueue.enqueue_outcome(
            enqueue.task, enqueue.args, enqueue.queue, enqueue.priority, enqueue.run_at, enqueue.delay,
            enqueue.expires_in, enqueue.timeout, enqueue.max_attempts, enqueue.key, enqueue.score, enqueue.dedupe,
            enqueue.dedupe_for, enqueue.on_conflict, enqueue.depends_on, enqueue.headers, enqueue.tags,
            enqueue.retention, enqueue.retry_policy, enqueue.retry_delay, enqueue.retry_queue, enqueue.limit_key,
            enqueue.debounce_max
        ) o;
        return v_id;
    else
        perform pgqueue._check_options(
            enqueue.task, enqueue.queue, enqueue.priority, enqueue.run_at, enqueue.delay, enqueue.expires_in,
            enqueue.timeout, enqueue.max_attempts, enqueue.key, enqueue.score, enqueue.dedupe, enqueue.dedupe_for,
            enqueue.on_conflict, enqueue.depends_on, enqueue.headers, enqueue.tags, enqueue.retention, enqueue.retry_policy,
            enqueue.retry_delay, enqueue.retry_queue, enqueue.limit_key, enqueue.debounce_max
        );
        perform pgqueue._check_args(enqueue.args);
        if num_nonnulls(enqueue.retry_policy, enqueue.retry_delay, enqueue.retry_queue) > 0 then
            v_retry := pgqueue._job_retry(enqueue.retry_policy, enqueue.retry_delay, enqueue.retry_queue);
        end if;
        v_run_at := coalesce(enqueue.run_at, v_now + enqueue.delay);
        if v_run_at > v_now then
            v_ready_at := pgqueue._ready_at(v_run_at);
            perform pgqueue._check_run_at(v_run_at);
        end if;
    end if;

    insert into pgqueue.jobs (
        queue, task, args, headers, tags, priority, run_at, ready_at, created_at,
        expires_at, max_attempts, retention, retry, key, score, limit_key, timeout
    )
    select
        coalesce(enqueue.queue, t.queue, 'default'), enqueue.task, enqueue.args, enqueue.headers, enqueue.tags,
        coalesce(
            enqueue.priority,
            t.priority,
            (select q.priority from pgqueue.queues q where q.name = coalesce(enqueue.queue, t.queue, 'default')),
            0
        ),
        coalesce(v_run_at, v_now), coalesce(v_ready_at, v_now), v_now,
        greatest(v_run_at, v_now) + coalesce(enqueue.expires_in, t.expires_in), enqueue.max_attempts,
        enqueue.retention, v_retry, enqueue.key, enqueue.score, enqueue.limit_key, enqueue.timeout
    from (values (1)) one (row)
    left join (
        select e.queue, e.priority, e.expires_in, e.accumulate
        from pgqueue.effective_tasks e
        where e.name = enqueue.task
        offset 0
    ) t on true
    where enqueue.key is not null or t.accumulate is not true
    returning
        id, queue, priority,
        exists (select from pgqueue.lanes l where l.queue = jobs.queue and l.priority = jobs.priority)
        and not exists (
            select from pgqueue.sleepers s where s.queue in (jobs.queue, '') and s.until > jobs.ready_at
        )
        and current_setting('transaction_isolation') = 'read committed'
    into v_id, v_queue, v_priority, v_settled;

    if v_settled then
        return v_id;
    end if;
    if v_id is null then
        perform pgqueue._refuse_without_key(enqueue.task);
    end if;
    perform pgqueue._register_lane(v_queue, v_priority, v_now);
    perform pgqueue._wake(v_queue, coalesce(v_ready_at, v_now), 2, null);
    return v_id;
end
$$;

comment on function pgqueue.enqueue(
    text, jsonb, text, integer, timestamptz, interval, interval, interval, integer, text, numeric, text, interval,
    text, bigint[], jsonb, text[], interval, text, interval, text, text, interval
) is
    'Enqueue one job in the current transaction and return its id. '
    'select pgqueue.enqueue(''send_email'', ''{"to": "a@b.c"}'', delay => ''2 hours''); '
    'queue, priority, max_attempts, expires_in and retention default to what the task, then the queue, says; '
    'run_at or delay: not before then (a time in the past means now); expires_in: cancelled if not started by then, '
    'counted from run_at; headers: trace context; tags: labels; retention: how long history keeps it (zero: no row). '
    'retry_policy (fixed, exponential, sidekiq or doubling), retry_delay and retry_queue: instead of what the task says; '
    'key: jobs of one queue and key run one at a time, in order; score: order of payloads of an accumulating task; '
    'limit_key: what limits of that kind go by; timeout: how long one try may take. '
    'dedupe: of one task and dedupe there is one job while it lives, or, with dedupe_for, for so long from its enqueue on, '
    'whatever becomes of it; the id is then that of the job that stands. on_conflict says what becomes of that one, while it '
    'waits and was never reserved: skip (nothing; the default), replace (args, headers, run_at and priority are those of this '
    'call), merge (args || these args), debounce (run_at moves out to the one of this call, and no further than debounce_max '
    'after its enqueue, by default ten times the delay), raise (23505, whatever its state). See enqueue_outcome(). '
    'depends_on raises 0A000 in this release.';

create or replace function pgqueue._check_options(
    p_task text,
    p_queue text,
    p_priority integer,
    p_run_at timestamptz,
    p_delay interval,
    p_expires_in interval,
    p_timeout interval,
    p_max_attempts integer,
    p_key text,
    p_score numeric,
    p_dedupe text,
    p_dedupe_for interval,
    p_on_conflict text,
    p_depends_on bigint[],
    p_headers jsonb,
    p_tags text[],
    p_retention interval,
    p_retry_policy text,
    p_retry_delay interval,
    p_retry_queue text,
    p_limit_key text,
    p_debounce_max interval default null
)
returns void
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_unbuilt text;
begin
    if p_task is null or octet_length(p_task) not between 1 and 128 then
        perform pgqueue._check_name('task', p_task);
    end if;
    v_unbuilt := case
        when p_depends_on is not null then 'depends_on'
    end;
    if v_unbuilt is not null then
        perform pgqueue._refuse(
            format('%s is not built yet', v_unbuilt), 'Nothing was enqueued.',
            format('Leave %s out; a later release of pgqueue brings it.', v_unbuilt), '0A000'
        );
    end if;
    if p_queue is not null then
        perform pgqueue._check_name('queue', p_queue);
    end if;
    if p_priority not between -100 and 100 then
        perform pgqueue._refuse(
            'priority must be between -100 and 100', format('It is %s.', p_priority),
            'Give priority as a whole number; higher runs first, 0 is the default.'
        );
    end if;
    if p_run_at is not null and p_delay is not null then
        perform pgqueue._refuse(
            'run_at and delay were both given', format('run_at is %s, delay is %s.', p_run_at, p_delay),
            'Give run_at (an instant) or delay (an interval from now), not both.'
        );
    end if;
    if p_run_at is not null then
        perform pgqueue._check_run_at(p_run_at);
    end if;
    -- Not before our era: the languages that read run_at have no such dates, and a worker of theirs could never
    -- read the reply of reserve.
    if p_delay is not null and (not isfinite(p_delay) or p_delay not between '-1000 years' and '9999 years') then
        perform pgqueue._refuse(
            'delay must be a finite interval that ends between the years 1000 and 9999', format('It is %s.', p_delay),
            'Give delay as an interval, such as ''2 hours''.'
        );
    end if;
    if p_expires_in is not null
        and (not isfinite(p_expires_in) or p_expires_in <= '0' or p_expires_in > '9999 years')
    then
        perform pgqueue._refuse(
            'expires_in must be above zero and finite', format('It is %s.', p_expires_in),
            'Give expires_in as an interval counted from run_at, such as ''1 hour'', or leave it out.'
        );
    end if;
    if p_timeout is not null and (not isfinite(p_timeout) or p_timeout <= '0' or p_timeout > '7 days') then
        perform pgqueue._refuse(
            'timeout must be above zero and at most seven days', format('It is %s.', p_timeout),
            'Give timeout as an interval, such as ''5 min'': how long one try may take.'
        );
    end if;
    if p_max_attempts not between 1 and 100000 then
        perform pgqueue._refuse(
            'max_attempts must be between 1 and 100000', format('It is %s.', p_max_attempts),
            'Give max_attempts as the number of tries in all; 1 means that a failure is final.'
        );
    end if;
    if p_headers is not null and jsonb_typeof(p_headers) <> 'object' then
        perform pgqueue._refuse(
            'headers must be a JSON object', format('It is a JSON %s.', jsonb_typeof(p_headers)),
            'Give headers as an object, such as {"traceparent": "..."}.'
        );
    end if;
    if pg_column_size(p_headers) > 65536 then
        perform pgqueue._refuse(
            'headers must be at most 64 KiB', format('It has %s bytes.', pg_column_size(p_headers)),
            'Put data of the job into args; headers are for trace context.'
        );
    end if;
    if p_tags is not null and (
        cardinality(p_tags) > 100
        or exists (select from unnest(p_tags) t (tag) where t.tag is null or octet_length(t.tag) not between 1 and 128)
    ) then
        perform pgqueue._refuse(
            'tags must be at most 100 texts of 1 to 128 bytes', null, 'Give tags as text[] without nulls.'
        );
    end if;
    if p_retention is not null and (not isfinite(p_retention) or p_retention not between '0' and '2 years') then
        perform pgqueue._refuse(
            'retention must be between zero and two years', format('It is %s.', p_retention),
            'Give retention as an interval, such as ''30 days''; zero keeps no row in history.'
        );
    end if;
    if p_retry_policy not in ('fixed', 'exponential', 'sidekiq', 'doubling') then
        perform pgqueue._refuse(
            'retry_policy is unknown, or not for a single job', format('It is %s.', quote_literal(p_retry_policy)),
            'Give retry_policy as fixed, exponential, sidekiq or doubling; list is an option of the task.'
        );
    end if;
    if p_retry_delay is not null and (not isfinite(p_retry_delay) or p_retry_delay not between '0' and '1 year') then
        perform pgqueue._refuse(
            'retry_delay must be between zero and a year', format('It is %s.', p_retry_delay),
            'Give retry_delay as an interval, such as ''5 min''.'
        );
    end if;
    if p_retry_queue is not null then
        perform pgqueue._check_name('retry_queue', p_retry_queue);
    end if;
    if p_key is not null then
        perform pgqueue._check_name('key', p_key, 512);
        if p_retry_queue is not null then
            perform pgqueue._refuse(
                'key and retry_queue were both given', 'The order of a key holds within one queue.',
                'Leave retry_queue out: a job with a key is retried in its own queue.'
            );
        end if;
    end if;
    if p_limit_key is not null then
        perform pgqueue._check_name('limit_key', p_limit_key, 512);
    end if;
    if p_score in ('NaN', 'Infinity', '-Infinity') then
        perform pgqueue._refuse(
            'score must be finite', format('It is %s.', p_score),
            'Give score as a number, or leave it out to order payloads by the time of their enqueue.'
        );
    end if;
    if num_nonnulls(p_dedupe, p_dedupe_for, p_on_conflict, p_debounce_max) > 0 then
        perform pgqueue._check_dedupe(p_dedupe, p_dedupe_for, p_on_conflict, p_debounce_max, p_run_at, p_delay);
    end if;
end
$$;

comment on function pgqueue._check_options(
    text, text, integer, timestamptz, interval, interval, interval, integer, text, numeric, text, interval, text,
    bigint[], jsonb, text[], interval, text, interval, text, text, interval
) is 'Private: refuses wrong options of a job, each by its name.';

create or replace function pgqueue._check_dedupe(
    p_dedupe text,
    p_dedupe_for interval,
    p_on_conflict text,
    p_debounce_max interval,
    p_run_at timestamptz,
    p_delay interval
)
returns void
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_dedupe is null then
        perform pgqueue._refuse(
            format(
                '%s was given without dedupe',
                case
                    when p_dedupe_for is not null then 'dedupe_for'
                    when p_on_conflict is not null then 'on_conflict'
                    else 'debounce_max'
                end
            ),
            'Nothing was enqueued.',
            'Give dedupe, the key that dedupe_for, on_conflict and debounce_max are about, or leave them out.'
        );
    end if;
    perform pgqueue._check_name('dedupe', p_dedupe, 512);
    if p_dedupe_for is not null and (not isfinite(p_dedupe_for) or p_dedupe_for <= '0' or p_dedupe_for > '2 years') then
        perform pgqueue._refuse(
            'dedupe_for must be above zero and at most two years', format('It is %s.', p_dedupe_for),
            'Give dedupe_for as an interval, such as ''1 hour'', or leave it out: the key then stands while the job lives.'
        );
    end if;
    if p_on_conflict not in ('skip', 'replace', 'merge', 'debounce', 'raise') then
        perform pgqueue._refuse(
            'on_conflict is unknown', format('It is %s.', quote_literal(p_on_conflict)),
            'Give on_conflict as skip, replace, merge, debounce or raise.'
        );
    end if;
    if p_on_conflict = 'debounce' and p_run_at is null and p_delay is null then
        perform pgqueue._refuse(
            'on_conflict is debounce, and neither delay nor run_at was given', 'Nothing was enqueued.',
            'Give delay: each call puts the job off until so long after it.'
        );
    end if;
    if p_debounce_max is not null then
        if p_on_conflict is distinct from 'debounce' then
            perform pgqueue._refuse(
                'debounce_max was given, and on_conflict is not debounce',
                format('on_conflict is %s.', coalesce(p_on_conflict, 'null')),
                'Leave debounce_max out, or give on_conflict => ''debounce''.'
            );
        end if;
        if not isfinite(p_debounce_max) or p_debounce_max <= '0' or p_debounce_max > '2 years' then
            perform pgqueue._refuse(
                'debounce_max must be above zero and at most two years', format('It is %s.', p_debounce_max),
                'Give debounce_max as an interval counted from the enqueue of the job, such as ''10 min''.'
            );
        end if;
    end if;
end
$$;

comment on function pgqueue._check_dedupe(text, interval, text, interval, timestamptz, interval) is
    'Private: refuses wrong options of dedupe, each by its name.';

create or replace function pgqueue._refuse_without_key(p_task text)
returns void
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pgqueue._refuse(
        format('task %s accumulates payloads by key, and key is null', quote_literal(p_task)), 'Nothing was enqueued.',
        'Give key: all payloads of a key that are due go to one call.'
    );
end
$$;

comment on function pgqueue._refuse_without_key(text) is 'Private: refuses a job of an accumulating task without a key.';

-- Seconds, for a text of an interval means another one in another intervalstyle.
create or replace function pgqueue._job_retry(p_policy text, p_delay interval, p_queue text)
returns jsonb
language sql
immutable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select nullif(
        jsonb_strip_nulls(
            jsonb_build_object('policy', p_policy, 'delay', extract(epoch from p_delay), 'queue', p_queue)
        ),
        '{}'
    )
$$;

comment on function pgqueue._job_retry(text, interval, text) is
    'Private: a job''s own options of retries as its row keeps them; null where it has none.';

create or replace function pgqueue._check_run_at(p_run_at timestamptz)
returns void
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    if p_run_at not between '0002-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00' then
        perform pgqueue._refuse(
            'run_at must be finite and between the years 2 and 9999', format('It is %s.', p_run_at),
            'Give run_at (or delay) nearer to now.'
        );
    end if;
end
$$;

comment on function pgqueue._check_run_at(timestamptz) is 'Private: refuses times that are infinite, before our era or beyond the year 9999.';

create or replace function pgqueue._check_args(p_args jsonb)
returns void
language plpgsql
stable
parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    v_max_bytes integer;
begin
    if p_args is null or jsonb_typeof(p_args) <> 'object' then
        perform pgqueue._refuse(
            'args must be a JSON object',
            case when p_args is null then 'It is null.' else format('It is a JSON %s.', jsonb_typeof(p_args)) end,
            'Give args as an object of named arguments, such as {"to": "a@b.c"}.'
        );
    end if;
    -- The size of the datum is a cheap first look; a compressed one is small, so only what is not obviously small
    -- is written out to be measured.
    if pg_column_size(p_args) > 1000 then
        v_max_bytes := coalesce((select s.max_args_bytes from pgqueue.settings s where s.one), 1048576);
        if octet_length(p_args::text) > v_max_bytes then
            perform pgqueue._refuse(
                format('args must be at most %s bytes of JSON', v_max_bytes),
                format('They have %s bytes.', octet_length(p_args::text)),
                'Store the data elsewhere and pass a reference in args, or raise pgqueue.settings.max_args_bytes.'
            );
        end if;
    end if;
end
$$;

comment on function pgqueue._check_args(jsonb) is 'Private: refuses args that are not an object or too large.';
