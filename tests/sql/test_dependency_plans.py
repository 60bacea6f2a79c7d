"""The end of a job reads few rows of dependencies, however many other jobs wait, and whenever its plan was made."""

from __future__ import annotations

import psycopg

from tests.databases import Database
from tests.sql.plans import blocks

WAITING = 20_000
# As many jobs wait for one parent, whose id is below those that end.
FILL = f"insert into pgqueue.dependencies (parent, child) select 1, 1000 + n from generate_series(1, {WAITING}) n"
ASKS = "pgqueue._parents_among('{500000,500001}')"
CLOSES = "pgqueue._close_dependencies('{500000,500001}', 'dead', 100)"
PARENTS = "pgqueue._parents_among('{1,500001}')"


def test_a_plan_of_an_emptied_table_serves_a_full_one(database: Database, conn: psycopg.Connection) -> None:
    conn.execute(FILL.encode())
    conn.execute("delete from pgqueue.dependencies")
    conn.execute("vacuum analyze pgqueue.dependencies")
    plans = database.connect()
    for call in (ASKS, CLOSES, PARENTS):
        plans.execute(f"select {call}".encode())
    conn.execute(FILL.encode())
    assert {call: read for call in (ASKS, CLOSES, PARENTS) if (read := blocks(plans, call)) > 30} == {}
