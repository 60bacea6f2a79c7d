"""Help for testing what is built on the queue: a clock that can be moved.

    from pgqueue.testing import Clock

    clock = Clock(connection)            # a connection to a test database, in autocommit mode
    clock.set("2030-01-01 12:00+00")
    enqueue(connection, "report", {}, delay="1 week")
    clock.advance("1 week")              # now it is due

From psql the same functions are there after `python -m pgqueue.testing | psql`: see sql/testing/clock.sql.
"""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from pgqueue.schema import bundled


class Clock:
    """Moves the queue's clock in one database, for all its sessions at once.

    Never in a database that works: leases, delays and schedules go by this clock. A session in the middle of a
    transaction learns of a move with its next lock on a table that it had not locked yet. `connection` needs the
    rights of the schema's owner.

        Clock(connection).advance(timedelta(hours=1))
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        connection.execute(clock_sql().encode())

    def now(self) -> datetime:
        """Return what the queue takes for the time."""
        return self._ask("select pgqueue._clock()")

    def set(self, at: datetime | str) -> datetime:
        """Stop the clock at this instant; a text is read by PostgreSQL."""
        return self._ask("select pgqueue_testing.set_clock(%s::timestamptz)", at)

    def advance(self, by: timedelta | str) -> datetime:
        """Move the clock by an interval, which may be negative. A stopped clock stays stopped."""
        return self._ask("select pgqueue_testing.advance_clock(%s::interval)", by)

    def back_to_real(self) -> datetime:
        """Give the queue the real time again."""
        return self._ask("select pgqueue_testing.real_clock()")

    def _ask(self, question: str, *params: object) -> datetime:
        with self._connection.cursor(row_factory=tuple_row) as cursor:
            row = cursor.execute(question.encode(), params or None).fetchone()
        assert row is not None
        instant: datetime = row[0]
        return instant


def clock_sql() -> str:
    """Return the SQL that makes the schema pgqueue_testing."""
    return (bundled.directory("sql") / "testing" / "clock.sql").read_text()


if __name__ == "__main__":
    sys.stdout.write(clock_sql())
