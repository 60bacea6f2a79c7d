"""The bare loop that others are measured by: one table of jobs, one of history, and a commit for each step."""

TABLES = """
create table bare (
    id bigint generated always as identity primary key, state text not null default 'waiting', args jsonb
);
create index on bare (id) where state = 'waiting';
create table bare_history (id bigint primary key, finished_at timestamptz not null, args jsonb);
"""
# With a number, which the claim returns beside the id.
INSERT = """
with job as (insert into bare (args) values (jsonb_build_object('n', %s::bigint)) returning id)
select pg_notify('bare', '') from job
"""
CLAIM = """
update bare set state = 'executing'
where id = (select id from bare where state = 'waiting' order by id limit 1 for update skip locked)
returning id, (args ->> 'n')::bigint
"""
END = """
with gone as (delete from bare where id = %s returning id, args)
insert into bare_history (id, finished_at, args) select id, clock_timestamp(), args from gone
"""
