"""The queue's clock, which tests can move.

From psql the same functions are there after `python -m pgqueue.testing | psql`: see sql/testing/clock.sql.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, cast

from pgqueue.db import drivers
from pgqueue.db.call import Call, Row, read_one
from pgqueue.db.json import as_interval, micros, read_instant, read_length
from pgqueue.schema import bundled
from pgqueue.testing.access import access_to, stepped


class Clock:
    """Moves the queue's clock in one database, for all its sessions at once.

    Never in a production database: leases, delays and schedules depend on this clock. A session in a transaction
    sees a move with its next lock on a table that it had not locked yet. `connection` is any that `drain` takes, with
    the rights of the schema's owner.

    On a connection in a transaction the moves are part of it: they are undone when it is rolled back, and other
    sessions do not see them before it is committed. Packages that replace Python's clock are not needed: only the
    database's clock decides when a job is due.

        clock = Clock(connection)
        clock.set("2030-01-01 12:00+00")
        enqueue(connection, "report", {}, delay="1 week")
        clock.advance("1 week")              # now it is due
    """

    def __init__(self, connection: Any) -> None:
        self._access = access_to(connection)
        if self._access.is_async:
            raise TypeError("a Clock needs a connection that is not async; it moves the clock of all sessions")
        stepped(self._access.script(clock_sql()))

    def now(self) -> datetime:
        """Return the time of the queue."""
        return self._ask("pgqueue._clock()")

    def set(self, at: datetime | str) -> datetime:
        """Stop the clock at this instant; a text is read by PostgreSQL."""
        return self._ask("pgqueue_testing.set_clock(%s::timestamptz)", at)

    def advance(self, by: timedelta | float | str) -> datetime:
        """Move the clock by an interval, or by seconds, which may be negative. A stopped clock stays stopped."""
        return self._ask("pgqueue_testing.advance_clock(%s::interval)", as_interval("by", by))

    def back_to_real(self) -> datetime:
        """Return the queue to the real time."""
        return self._ask("pgqueue_testing.real_clock()")

    @contextmanager
    def travel(self, by: timedelta | float | str) -> Iterator[datetime]:
        """Move the clock by an interval for the length of a `with` block; yields the time there.

        with clock.travel("1 day"):
            drain(connection, app)
        """
        before = self._read()
        try:
            yield self.advance(by)
        finally:
            self._restore(before)

    @contextmanager
    def freeze(self, at: datetime | str | None = None) -> Iterator[datetime]:
        """Stop the clock for the length of a `with` block, at this instant or at the present one; yields it."""
        before = self._read()
        try:
            yield self.set(self.now() if at is None else at)
        finally:
            self._restore(before)

    def _read(self) -> tuple[datetime | None, timedelta | None]:
        standing_at, ahead = self._run(f"select {micros('standing_at')}, {micros('ahead')} from pgqueue_testing.clock")
        return read_instant(standing_at), read_length(ahead)

    def _restore(self, before: tuple[datetime | None, timedelta | None]) -> None:
        standing_at, ahead = before
        try:
            if standing_at is not None:
                self.set(standing_at)
                return
            self.back_to_real()
            if ahead:
                self.advance(ahead)
        except Exception as error:
            # An error in the block has aborted the transaction, whose rollback restores the clock.
            if drivers.sqlstate_of(error) != "25P02":
                raise

    def _ask(self, time: str, *params: object) -> datetime:
        instant: Any = read_instant(self._run(f"select {micros(time)}", *params)[0])
        return cast(datetime, instant)

    def _run(self, question: str, *params: object) -> Row:
        row: Row = stepped(self._access.run(Call(question.encode(), params, read_one)))
        return row


def clock_sql() -> str:
    """Return the SQL that makes the schema pgqueue_testing."""
    return (bundled.directory("sql") / "testing" / "clock.sql").read_text()
