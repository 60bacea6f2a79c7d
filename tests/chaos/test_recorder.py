"""The ledger of the chaos checker: what a reservation ended by."""

from __future__ import annotations

import psycopg

from pgqueue.db import presence
from pgqueue.db.call import perform
from pgqueue.testing import Clock
from tests.calls import enqueue_many, maintain, reserve
from tests.chaos.recorder import SCHEMA


def test_only_a_lease_that_was_over_counts_as_lost(conn: psycopg.Connection, clock: Clock) -> None:
    conn.execute(SCHEMA.encode())
    enqueue_many(conn, 2)
    [first] = reserve(conn, 1, worker="dead")
    assert perform(conn, presence.release_former("dead")) == [first.id]
    reserve(conn, 2, worker="dead", lease="3 s")
    clock.advance("4 s")
    maintain(conn)
    clock.advance("4 s")
    maintain(conn)
    ended = conn.execute("select counted_lost from chaos.ledger where what = 'l' order by n").fetchall()
    assert ended == [(False,), (True,), (True,)]
