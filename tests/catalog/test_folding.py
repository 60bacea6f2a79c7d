"""A database of before the first release, taken over, is what a new one is: tables, names, comments and rights."""

from __future__ import annotations

import psycopg
import pytest

from pgqueue.schema.migrate import migrate, script, status
from pgqueue.schema.status import LAST_BEFORE
from tests.calls import call, enqueue, ids, reserve
from tests.catalog.dump import dump
from tests.databases import Database
from tests.migrations.releases import install

# What the dump of the schema leaves out: names, comments, rights, storage, and in which order indexes were made.
_REST = r"""
with relations as (
    select c.oid, c.relname, c.relkind, c.relpersistence, c.relreplident, c.relacl, c.reloptions
    from pg_class c
    where c.relnamespace = 'pgqueue'::regnamespace and c.relname !~ '^history_[dm]_[0-9]+'
)
select format('constraint %s: %s %s', k.conname, pg_get_constraintdef(k.oid), k.convalidated)
from pg_constraint k where k.connamespace = 'pgqueue'::regnamespace and k.contype <> 't'
union all
select format(
    'relation %s: %s %s %s %s %s %s', r.relname, r.relkind, r.relpersistence, r.relreplident, r.relacl, r.reloptions,
    obj_description(r.oid, 'pg_class')
)
from relations r
union all
select format(
    'indexes of %s: %s', i.indrelid::regclass, string_agg(i.indexrelid::regclass::text, ' ' order by i.indexrelid)
)
from pg_index i join relations r on r.oid = i.indrelid
group by i.indrelid
union all
select format(
    'column %s.%s: %s %s %s %s', r.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attstorage, a.attacl,
    col_description(r.oid, a.attnum)
)
from relations r join pg_attribute a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
union all
select format('columns of %s: %s', r.relname, string_agg(a.attname, ' ' order by a.attnum))
from relations r join pg_attribute a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
group by r.relname
union all
select format(
    'sequence %s: %s %s %s %s %s', s.seqrelid::regclass, s.seqstart, s.seqmin, s.seqmax, s.seqcache, s.seqcycle
)
from pg_sequence s join relations r on r.oid = s.seqrelid
union all
select format('type %s: %s %s', t.typname, t.typacl, obj_description(t.oid, 'pg_type'))
from pg_type t where t.typnamespace = 'pgqueue'::regnamespace and t.typelem = 0
union all
select format('trigger %s: %s', t.tgname, pg_get_triggerdef(t.oid))
from pg_trigger t join relations r on r.oid = t.tgrelid
union all
select format('function %s: %s %s', p.oid::regprocedure, md5(p.prosrc), obj_description(p.oid, 'pg_proc'))
from pg_proc p where p.pronamespace = 'pgqueue'::regnamespace
union all
select format('schema: %s %s', n.nspacl, obj_description(n.oid, 'pg_namespace'))
from pg_namespace n where n.nspname = 'pgqueue'
order by 1
"""


def everything(conn: psycopg.Connection) -> list[str]:
    return dump(conn).splitlines() + [row[0] for row in conn.execute(_REST.encode()).fetchall()]


@pytest.mark.partitions
@pytest.mark.parametrize("by_script", [False, True], ids=["migrate", "psql"])
def test_a_database_at_the_last_revision_becomes_what_a_new_one_is(
    empty_database: Database, conn: psycopg.Connection, by_script: bool
) -> None:
    before = empty_database.connect(prepare_threshold=None)
    install(before)
    before.execute("reset all")
    now = status(empty_database.dsn)
    assert (now.revision, now.current, now.is_newer, now.is_too_old) == (LAST_BEFORE, False, False, False)
    problem = "the schema in app is at revision 0021 of before the first release"
    assert now.refusal("app") == (problem, "run: pgqueue migrate")
    job_id = enqueue(before)
    for n, expression in enumerate(("*/7 0-23/5 1,31 jan-nov *", "0 0 * * 5-7", "15 * 29 2 sun", "1,59 30 2 * * mon")):
        call(before, "schedule", f"s{n}", expression, "task")
    if by_script:
        before.execute(script(start=LAST_BEFORE).encode())
        before.execute("reset all")
        assert status(empty_database.dsn).current
    assert migrate(empty_database.dsn).current
    assert everything(before) == everything(conn)
    assert ids(reserve(before)) == [job_id]
    parsed = "select bool_and(spec = pgqueue._cron_parse(declared_expression)), count(*) from pgqueue.schedules"
    assert before.execute(parsed.encode()).fetchone() == (True, 4)
