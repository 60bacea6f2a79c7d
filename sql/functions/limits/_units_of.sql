-- Units: what a limit counts where jobs have costs, and the level of a limit with a burst.
--
-- A rate counts the cost of each start within its period. With a burst it is a bucket: filled at the rate, up to the burst.
-- Under the limit's lock a claim reads the newest level, adds what the time since has filled in, takes what spent() has left
-- meanwhile (FOR UPDATE SKIP LOCKED, as spent() takes no lock), and inserts the next level. No row is updated. The level
-- is below zero where jobs spent more than their costs.
-- A clock that stepped back neither fills the bucket nor stops it: a level from more than a second ahead counts as of now.
-- Beside an old snapshot the rows that spent() left and claims took would be walked by each claim: a claim looks for those of
-- the last ten seconds before the newest level, and maintenance brings forward what was committed later.
-- A sequence says whether a job ever had a cost. Until then nothing here is asked, and no limit reads what a job costs.

-- What a limit with a burst or max_cost has left; infinity: nothing of it is taken, and a job may start whatever it costs.
-- p_left: of a rate without a burst.
create or replace function pgqueue._units_of(p_rule pgqueue.rule, p_left bigint, p_now timestamptz, p_lease_head timestamptz)
returns double precision
language plpgsql stable parallel safe
as $$
declare
    v_rated double precision := case when p_rule.burst is null then p_left else (pgqueue._level_of(p_rule, p_now)).level end;
    v_free double precision;
begin
    if p_rule.max_cost is not null then
        v_free := (p_rule.max_cost - coalesce(
            (
                select sum(pgqueue._cost_of(j.id, j.cost, j.followers))
                from pgqueue.jobs j
                where j.state = 'executing' and j.lease_expires_at >= p_lease_head
                    and case p_rule.kind
                        when 'queue' then j.queue = p_rule.target
                        when 'task' then j.task = p_rule.target
                        when 'limit_key' then j.limit_key = p_rule.target
                        else starts_with(j.key, p_rule.target)
                    end
            ), 0
        ))::double precision;
    end if;
    return case
        when coalesce(v_rated >= coalesce(p_rule.burst, p_rule.rate) - 1e-6, true) and coalesce(v_free >= p_rule.max_cost, true)
            then 'infinity'
        else least(v_rated, v_free)
    end;
end
$$;

create or replace function pgqueue._has_costs()
returns boolean
language plpgsql stable parallel safe
as $$
begin
    return pg_sequence_last_value('pgqueue.costs'::regclass) is not null;
end
$$;

-- What a start costs. A batch: the sum of its payloads; one unit, if none of them has a cost.
create or replace function pgqueue._cost_of(p_id bigint, p_cost integer, p_followers bigint[])
returns bigint
language plpgsql stable parallel safe
as $$
begin
    if p_followers is null then
        return coalesce(p_cost, 1)::bigint;
    end if;
    return (
        select case when count(j.cost) > 0 then sum(coalesce(j.cost, 1)) else 1 end
        from pgqueue.jobs j
        where j.id = any (p_id || p_followers)
    );
end
$$;

-- n and at: of the newest level; level: what is in the bucket now. A bucket begins full. p_spent: which rows of spent() count;
-- null: all that are to be seen. Each counts from its own time on.
create or replace function pgqueue._level_of(
    p_rule pgqueue.rule, p_now timestamptz, p_spent bigint[] default null,
    out n bigint, out at timestamptz, out level double precision
)
language plpgsql stable parallel safe
as $$
declare
    v_at timestamptz;
    v_spent record;
begin
    select l.n, l.at, l.level into n, at, level
    from pgqueue.limit_levels l
    where l.name = p_rule.name and not l.is_spent
    order by l.name, l.n desc
    limit 1;
    if at is null or at > p_now + interval '1 s' then
        at := p_now;
    end if;
    level := coalesce(level, p_rule.burst);
    v_at := at;
    for v_spent in
        select s.at, s.level
        from pgqueue.limit_levels s
        where s.name = p_rule.name and s.is_spent and s.at > _level_of.at - interval '10 s'
            and (p_spent is null or s.n = any (p_spent))
        union all
        select p_now, 0
        order by 1
    loop
        if v_spent.at > v_at and v_spent.at <= p_now then
            level := least(
                p_rule.burst,
                level + p_rule.rate * extract(epoch from v_spent.at - v_at)::double precision
                    / extract(epoch from p_rule.per)::double precision
            );
            v_at := v_spent.at;
        end if;
        level := least(p_rule.burst, level - v_spent.level);
    end loop;
end
$$;

-- Under the lock of the limit.
create or replace function pgqueue._draw_units(p_rule pgqueue.rule, p_units bigint, p_now timestamptz)
returns void
language plpgsql
as $$
declare
    v_spent bigint[] := '{}'::bigint[];
    v_level record;
begin
    select l.n, l.at, l.level into v_level from pgqueue._level_of(p_rule, p_now, v_spent) l;
    v_spent := array(
        select s.n
        from pgqueue.limit_levels s
        where s.name = p_rule.name and s.is_spent and s.at > v_level.at - interval '10 s'
        order by s.name, s.at
        for update skip locked
    );
    if v_spent <> '{}' then
        select l.n, l.at, l.level into v_level from pgqueue._level_of(p_rule, p_now, v_spent) l;
    end if;
    with gone as (
        delete from pgqueue.limit_levels x
        where x.n = any (
            array(select l.n from pgqueue.limit_levels l where l.n = any (v_level.n || v_spent) for update skip locked)
        )
    )
    insert into pgqueue.limit_levels (name, at, level)
    values (p_rule.name, greatest(v_level.at, p_now), v_level.level - p_units);
end
$$;

-- What the job costs that waits first for a limit: of a queue the first due one, else the first that the limit blocks.
create or replace function pgqueue._wanted_units(p_name text, p_now timestamptz)
returns integer
language plpgsql stable parallel safe
as $$
begin
    if not pgqueue._has_costs() then
        return 1;
    elsif starts_with(p_name, 'queue:') then
        return coalesce(
            (
                select coalesce(j.cost, 1)
                from pgqueue._ready_jobs(substr(p_name, 7), 1, p_now) j
                order by j.priority desc, j.resumed desc
                limit 1
            ),
            1
        );
    end if;
    return coalesce((select b.cost from pgqueue._first_blocked_on(p_name) b), 1);
end
$$;

-- When a rate has units enough for a job of this cost, three years at most. What costs more than all starts when none are taken.
create or replace function pgqueue._units_at(p_rule pgqueue.rule, p_units double precision, p_wanted integer, p_now timestamptz)
returns timestamptz
language plpgsql stable parallel safe
as $$
declare
    v_missing double precision := least(p_wanted, coalesce(p_rule.burst, p_rule.rate)) - p_units;
begin
    return case
        when v_missing <= 0 then p_now + greatest(interval '10 ms', least(interval '100 ms', p_rule.per / p_rule.rate))
        when p_rule.burst is not null then pgqueue._after(p_now, interval '1 ms' * least(
            ceil(1000 * v_missing * extract(epoch from p_rule.per)::double precision / p_rule.rate), 1e11
        ))
        else coalesce(
            (
                select pgqueue._after(f.at, p_rule.per)
                from (
                    select s.at, sum(s.started) over (order by s.at)::double precision as units
                    from pgqueue.limit_starts s
                    where s.name = p_rule.name and s.at > pgqueue._after(p_now, -p_rule.per) and s.at <= (select pgqueue._clock()) + interval '1 s'
                ) f
                where f.units >= v_missing
                order by f.at
                limit 1
            ),
            p_now + interval '100 ms'
        )
    end;
end
$$;
