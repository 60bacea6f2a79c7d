-- The proxy database: the shard of each job, and the calls that ask several shards. The functions of the schema
-- pgqueue here are generated after this file, from the catalog of a shard; they forward to the shard that is named by
-- `run on`. A shard's jobs have ids that begin with its number: id >> 44.
--
-- A key or dedupe key falls into one of 1,024 buckets, and a bucket belongs to a shard. An enqueue holds a shared
-- advisory lock on its bucket until it is committed on the shard; moving a bucket takes the lock alone. So a bucket
-- moves only while no call is under way for it, and only when its shard holds no job of it any more.

create extension if not exists plproxy;
do $$
begin
    -- "if not exists" asks for the right to create one even where there is one.
    if to_regnamespace('pgqueue') is null then
        create schema pgqueue;
    end if;
    if to_regnamespace('pgqueue_proxy') is null then
        create schema pgqueue_proxy;
    end if;
end
$$;
comment on schema pgqueue is 'The queue on several shards: the same calls, forwarded by PL/Proxy.';

create table if not exists pgqueue_proxy.buckets (
    bucket integer primary key check (bucket between 0 and 1023),
    shard integer not null check (shard >= 0)
);
comment on table pgqueue_proxy.buckets is 'The shard of each bucket of keys. Changed by move_buckets() alone.';

-- Replaced below by the number of shards.
create or replace function pgqueue_proxy.shards()
returns integer language sql immutable parallel safe
as $$ select 1 $$;

create or replace function pgqueue_proxy.bucket_of(p_key text)
returns integer language sql immutable parallel safe
as $$ select ('x' || left(md5(p_key), 3))::bit(12)::integer & 1023 $$;
comment on function pgqueue_proxy.bucket_of(text) is 'The bucket of a key: the same on every server and release.';

create or replace function pgqueue_proxy.of_id(p_id bigint)
returns integer language plpgsql stable
as $$
declare
    v_shard integer := (p_id >> 44)::integer;
begin
    if p_id is null or p_id < 1 or v_shard >= pgqueue_proxy.shards() then
        raise exception using errcode = '22023',
            message = format('no shard has the id %s', coalesce(p_id::text, 'null')),
            hint = 'an id that enqueue() returned tells its shard';
    end if;
    return v_shard;
end
$$;
comment on function pgqueue_proxy.of_id(bigint) is 'The shard of a job, by its id.';

create or replace function pgqueue_proxy.of_key(
    p_key text, p_dedupe text default null, p_parents bigint[] default null, p_group bigint default null
)
returns integer language plpgsql volatile
as $$
declare
    v_ids bigint[] := p_parents || p_group;
    v_shard integer;
    v_bucket integer := pgqueue_proxy.bucket_of(coalesce(p_key, p_dedupe));
begin
    if v_bucket is not null then
        perform pg_advisory_xact_lock_shared(1886413169, v_bucket);
        -- Read after the lock, because a move may have ended just now.
        select b.shard into strict v_shard from pgqueue_proxy.buckets b where b.bucket = v_bucket;
    end if;
    v_ids := array_remove(v_ids, null);
    if cardinality(v_ids) > 0 then
        v_shard := coalesce(v_shard, pgqueue_proxy.of_id(v_ids[1]));
        if v_shard <> any (select pgqueue_proxy.of_id(i) from unnest(v_ids) i) then
            raise exception using errcode = '0A000',
                message = 'a job, its key, its group and the jobs that it depends on are on different shards',
                hint = 'give them one key, or give the child no key: then it goes to the shard of its parents';
        end if;
    end if;
    -- Without key and parents, any shard will do.
    return coalesce(v_shard, floor(random() * pgqueue_proxy.shards())::integer);
end
$$;
comment on function pgqueue_proxy.of_key(text, text, bigint[], bigint) is
    'The shard of a new job: that of its key, else of its dedupe key, else of its parents or group, else any.';

create or replace function pgqueue_proxy.of_job(p_job jsonb)
returns integer language sql volatile
as $$
    select pgqueue_proxy.of_key(
        p_job ->> 'key', p_job ->> 'dedupe',
        array(
            select d.id::text::bigint
            from jsonb_array_elements(
                case when jsonb_typeof(p_job -> 'depends_on') = 'array' then p_job -> 'depends_on' else '[]' end
            ) d (id)
            where jsonb_typeof(d.id) = 'number'
        ),
        case when jsonb_typeof(p_job -> 'group_id') = 'number' then (p_job ->> 'group_id')::bigint end
    )
$$;
comment on function pgqueue_proxy.of_job(jsonb) is 'The shard of a job of enqueue_batch().';

-- Without a key, dedupe key, parents or group a job may go to any shard: all of them of one call go to the same.
create or replace function pgqueue_proxy.is_bound(p_job jsonb)
returns boolean language sql immutable parallel safe
as $$
    select coalesce(p_job ->> 'key', p_job ->> 'dedupe', p_job ->> 'group_id') is not null
        or jsonb_path_exists(p_job, '$.depends_on[*] ? (@.type() == "number")')
$$;
comment on function pgqueue_proxy.is_bound(jsonb) is 'Whether a job of enqueue_batch() can go to one shard only.';

create or replace function pgqueue_proxy.enqueue_batch(p_shard integer, p_jobs jsonb[])
returns table (ord bigint, job_id bigint, outcome text, error jsonb) language plproxy
as $$
    cluster 'pgqueue';
    run on p_shard;
    select * from pgqueue.enqueue_batch(p_jobs);
$$;
comment on function pgqueue_proxy.enqueue_batch(integer, jsonb[]) is 'The part of a batch that one shard gets.';

create or replace function pgqueue.enqueue_batch(jobs jsonb[])
returns table (ord bigint, job_id bigint, outcome text, error jsonb) language plpgsql volatile
as $$
#variable_conflict use_column
declare
    v_any integer := floor(random() * pgqueue_proxy.shards())::integer;
    v_part record;
    v_shards integer[];
begin
    -- In the order of the jobs, and each once: of_job() chooses again where it is free to.
    v_shards := array(
        select case when pgqueue_proxy.is_bound(j.job) then pgqueue_proxy.of_job(j.job) end
        from unnest(enqueue_batch.jobs) with ordinality j (job, n)
        order by j.n
    );
    if exists (select from unnest(enqueue_batch.jobs) j (job) where j.job ? 'ref') then
        -- Names hold within a call, so the whole call goes to one shard.
        if (select count(distinct s.shard) from unnest(v_shards) s (shard)) > 1 then
            raise exception using errcode = '0A000',
                message = 'jobs with "ref" and their keys are on different shards',
                hint = 'give all jobs of a batch with "ref" one key, or none';
        end if;
        v_any := coalesce((select max(s.shard) from unnest(v_shards) s (shard)), v_any);
    end if;
    for v_part in
        select coalesce(s.shard, v_any) as shard,
            array_agg(enqueue_batch.jobs[s.n] order by s.n) as jobs, array_agg(s.n order by s.n) as places
        from unnest(v_shards) with ordinality s (shard, n)
        group by coalesce(s.shard, v_any)
        order by 1
    loop
        return query
            select v_part.places[b.ord], b.job_id, b.outcome, b.error
            from pgqueue_proxy.enqueue_batch(v_part.shard, v_part.jobs) b;
    end loop;
end
$$;
comment on function pgqueue.enqueue_batch(jsonb[]) is
    'enqueue_batch() of the shards: each gets its jobs in one call. A shard that fails leaves what others have stored.';

create or replace function pgqueue_proxy.next_attempts(p_shard integer, p_job_ids bigint[])
returns table (job_id bigint, run_at timestamptz) language plproxy
as $$
    cluster 'pgqueue';
    run on p_shard;
    select * from pgqueue.next_attempts(p_job_ids);
$$;
comment on function pgqueue_proxy.next_attempts(integer, bigint[]) is 'The jobs of one shard.';

create or replace function pgqueue.next_attempts(job_ids bigint[])
returns table (job_id bigint, run_at timestamptz) language sql volatile
as $$
    select a.*
    from (
        select i.id >> 44 as shard, array_agg(i.id) as ids
        from unnest(next_attempts.job_ids) i (id)
        where i.id > 0 and i.id >> 44 < pgqueue_proxy.shards()
        group by 1
    ) s, pgqueue_proxy.next_attempts(s.shard::integer, s.ids) a
$$;
comment on function pgqueue.next_attempts(bigint[]) is 'next_attempts() of the shards of these jobs, joined.';

create or replace function pgqueue_proxy.emit_event(p_shard integer, p_name text, p_payload jsonb, p_keep_for interval)
returns boolean language plproxy
as $$
    cluster 'pgqueue';
    run on p_shard;
    select pgqueue.emit_event(p_name, p_payload, p_keep_for);
$$;
comment on function pgqueue_proxy.emit_event(integer, text, jsonb, interval) is 'An event on one shard.';

create or replace function pgqueue.emit_event(
    name text, payload jsonb default null, keep_for interval default '7 days'
)
returns boolean language sql volatile
as $$
    select bool_or(pgqueue_proxy.emit_event(s.n, emit_event.name, emit_event.payload, emit_event.keep_for))
    from generate_series(0, pgqueue_proxy.shards() - 1) s (n)
$$;
comment on function pgqueue.emit_event(text, jsonb, interval) is
    'emit_event() on every shard, for jobs on any of them may wait for it. True: it is new on one of them.';

create or replace function pgqueue_proxy.depth(p_shard integer, p_queue text, p_at_most integer)
returns integer language plproxy
as $$
    cluster 'pgqueue';
    run on p_shard;
    select pgqueue.depth(p_queue, p_at_most);
$$;
comment on function pgqueue_proxy.depth(integer, text, integer) is 'The depth of a queue on one shard.';

create or replace function pgqueue.depth(queue text default null, at_most integer default 10000)
returns integer language sql volatile
as $$
    select least(sum(pgqueue_proxy.depth(s.n, depth.queue, depth.at_most)), depth.at_most)::integer
    from generate_series(0, pgqueue_proxy.shards() - 1) s (n)
$$;
comment on function pgqueue.depth(text, integer) is 'depth() over all shards.';

create or replace function pgqueue_proxy.held_buckets(p_shard integer)
returns setof integer language plproxy
as $$
    cluster 'pgqueue';
    run on p_shard;
    select distinct ('x' || left(md5(k.key), 3))::bit(12)::integer & 1023
    from (
        select coalesce(j.key, d.dedupe) as key
        from pgqueue.jobs j
        left join pgqueue.dedupe_keys d on d.job_id = j.id
        where j.key is not null
        union all
        select coalesce(j.key, d.dedupe)
        from pgqueue.dedupe_keys d
        left join pgqueue.jobs j on j.id = d.job_id
        where j.id is not null or d.until > pgqueue._clock()
    ) k;
$$;
comment on function pgqueue_proxy.held_buckets(integer) is
    'The buckets of which a shard holds live jobs, or dedupe keys that still stand. Reads all its live jobs.';

create or replace function pgqueue_proxy.move_buckets(to_shard integer, at_most integer default 1024)
returns table (moved integer, left_over integer) language plpgsql volatile
set lock_timeout = '5s'
as $$
declare
    v_wanted integer[];
    v_fair integer := 1024 / pgqueue_proxy.shards();
    v_from integer;
    v_held integer[] := '{}';
begin
    perform pgqueue_proxy.of_id((to_shard::bigint << 44) + 1);
    -- Taken from the shards that have more than their part, until this one has its part.
    select array_agg(c.bucket order by c.bucket) into v_wanted
    from (
        select b.bucket
        from (
            select a.bucket, a.shard, row_number() over (partition by a.shard order by a.bucket) as nth
            from pgqueue_proxy.buckets a
        ) b
        where b.shard <> to_shard and b.nth > v_fair
        order by b.nth desc, b.bucket
        limit greatest(
            least(at_most, v_fair - (select count(*) from pgqueue_proxy.buckets b where b.shard = to_shard)), 0
        )
    ) c;
    -- In order, so that two moves cannot deadlock. From here on no enqueue is under way in these buckets.
    perform pg_advisory_xact_lock(1886413169, w.bucket) from unnest(v_wanted) w (bucket) order by w.bucket;
    for v_from in
        select distinct b.shard from pgqueue_proxy.buckets b where b.bucket = any (v_wanted) order by 1
    loop
        v_held := v_held || array(
            select h from pgqueue_proxy.held_buckets(v_from) h
            join pgqueue_proxy.buckets b on b.bucket = h and b.shard = v_from
        );
    end loop;
    update pgqueue_proxy.buckets b set shard = to_shard
    where b.bucket = any (v_wanted) and b.bucket <> all (v_held);
    get diagnostics moved = row_count;
    left_over := coalesce(cardinality(v_wanted), 0) - moved;
    return next;
end
$$;
comment on function pgqueue_proxy.move_buckets(integer, integer) is
    'Gives a new shard its part of the keys: buckets of which no job is live and no dedupe key stands. left_over: '
    'buckets to be tried again. Enqueues of these buckets wait meanwhile.';
