-- What doctor() checks of workflows: jobs whose parents are gone, groups that were left open, events that fill the disk.
-- Reads at most 2,000 blocked jobs of each kind.

create or replace function pgqueue._doctor_workflows(p_now timestamptz)
returns table (severity text, topic text, subject text, evidence text, remedy text)
language sql stable parallel restricted rows 3
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
as $$
    (
        select
            'warning', 'parents', format('job %s', c.id),
            format('it waits since %s, and none of the jobs that it depends on lives (%s)', c.created_at,
                array_to_string(c.depends_on[1:5], ', ')),
            format('select pgqueue.maintain(); if it still waits: select pgqueue.release_from_parents(%s);', c.id)
        from (
            select j.id, j.created_at, j.depends_on
            from pgqueue.jobs j
            where j.state = 'blocked' and j.blocked_on is not null and j.blocked_on = '@parents'
            limit 2000
        ) c
        where c.created_at < p_now - interval '1 min'
            and not exists (
                select
                from pgqueue.dependencies d
                cross join lateral (select from pgqueue.jobs p where p.id = d.parent limit 1) p
                where d.child = c.id and d.ended is null
            )
            -- The end of a parent that ended just now may still be settled.
            and not exists (
                select
                from unnest(c.depends_on) e (id)
                cross join lateral (select h.finished_at from pgqueue.history h where h.id = e.id limit 1) h
                where h.finished_at > p_now - interval '1 min'
            )
        order by c.id
        limit 20
    )
    union all
    (
        select
            'warning', 'group', format('group %s', g.id),
            format('it is open since %s and no member of it lives: it does not end, and nothing that waits for it starts', g.created_at),
            format('select pgqueue.close_group(%s);', g.id)
        from (
            select j.id, j.created_at
            from pgqueue.jobs j
            where j.state = 'blocked' and j.blocked_on is not null and j.blocked_on = '@open'
            limit 2000
        ) g
        where g.created_at < p_now - interval '1 hour'
            and not exists (select from pgqueue.jobs m where m.group_id is not null and m.group_id = g.id)
        order by g.id
        limit 20
    )
    union all
    (
        select
            'critical', 'circle', format('group %s', g.id),
            format('it waits for itself: member %s waits for jobs that wait for the group', g.member),
            format('select pgqueue.maintain(); if it still waits: select pgqueue.cancel(%s);', g.member)
        from (
            select x.id, m.member
            from (
                select j.id
                from pgqueue.jobs j
                where j.state = 'blocked' and j.blocked_on is not null and j.blocked_on in ('@open', '@group')
                    -- A group that has just been enqueued may still be settled.
                    and j.created_at < p_now - interval '10 s'
                order by j.id desc
                limit 2000
            ) x
            cross join lateral (select pgqueue._jobs_behind(array[x.id], 200000) as ids offset 0) b
            cross join lateral (
                select max(c.id) as member
                from pgqueue.jobs c
                where c.id = any (b.ids) and c.group_id = x.id and x.id = any (b.ids)
                    and c.blocked_on in ('@parents', '@jobs', '@open', '@group')
            ) m
            where exists (
                select from pgqueue.dependencies d where d.parent between x.id and x.id and d.ended is null
                order by d.parent, d.child limit 1
            )
        ) g
        where g.member is not null
        order by g.id
        limit 20
    )
    union all
    (
        select
            'warning', 'events', pgqueue._counted(t.number, 'event'),
            format('they take %s; the largest are %s', pg_size_pretty(t.bytes), t.largest),
            format('select * from pgqueue.events(by_size => true); then give emit_event a shorter keep_for, or: select pgqueue.delete_events(array[%L]);', t.first)
        from (
            select
                sum(e.bytes)::bigint as bytes, max(e.total) as number,
                string_agg(format('%s (%s, kept until %s)', e.name, pg_size_pretty(e.bytes), e.kept_until), ', ' order by e.n)
                    filter (where e.n <= 5) as largest,
                min(e.name) filter (where e.n = 1) as first
            from (
                select
                    x.name, x.kept_until, b.bytes, count(*) over () as total, row_number() over (order by b.bytes desc, x.name) as n
                from pgqueue.events x
                -- The name is in an index, too.
                cross join lateral (select coalesce(pg_column_size(x.payload), 0)::bigint + 2 * octet_length(x.name) + 80 as bytes) b
            ) e
            -- A table of this size is read within a second: its rows are mostly small, and point to the payloads.
            where pg_total_relation_size('pgqueue.events') > 33554432
        ) t
        where t.bytes > 33554432
    )
$$;
