"""A database session in a thread of its own, so that a test can hold one session while another waits.

first, second = database.session(), database.session()
first.run("begin")
first.run("select 1 from pgqueue.jobs where id = %s for update", [job])
cancelled = second.start("select pgqueue.cancel(%s)", [job])
wait_until(lambda: second.waits_behind(first))
first.run("commit")
assert cancelled.result(timeout=10) == [("cancelled",)]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, LiteralString

import psycopg

from tests.facts import PATIENCE

Params = Sequence[Any] | Mapping[str, Any]
Rows = list[tuple[Any, ...]]


class Pending:
    """A statement that was sent. Its result is waited for with the patience of `wait_until`."""

    def __init__(self, future: Future[Rows]) -> None:
        self._future = future

    def result(self, timeout: float = 10) -> Rows:
        """Return its rows, or raise its error."""
        return self._future.result(timeout * PATIENCE)

    def done(self) -> bool:
        """Whether it has ended."""
        return self._future.done()


class Session:
    """One connection in autocommit mode; transactions are opened with `run("begin")`.

    `pid` is the backend's. Statements of one session run one after another, in the order of their start.
    """

    def __init__(self, conn: psycopg.Connection, observer: psycopg.Connection) -> None:
        self.conn = conn
        self.pid = conn.info.backend_pid
        self._observer = observer
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"session-{self.pid}")

    def start(self, sql: LiteralString, params: Params = ()) -> Pending:
        """Send a statement and do not wait: its `result()` has its rows, or its error."""
        return Pending(self._thread.submit(self._execute, sql, params))

    def run(self, sql: LiteralString, params: Params = (), timeout: float = 10) -> Rows:
        """Run a statement and return its rows (an empty list if it has none)."""
        return self.start(sql, params).result(timeout)

    def is_waiting_on_lock(self) -> bool:
        """Whether the session's statement waits for a lock of another session."""
        return bool(self.blocked_by())

    def waits_behind(self, other: Session) -> bool:
        """Whether the session's statement waits for a lock that this other session holds."""
        return other.pid in self.blocked_by()

    def blocked_by(self) -> list[int]:
        """The pids of the backends that hold what the session's statement waits for."""
        row = self._observer.execute("select pg_blocking_pids(%s)", [self.pid]).fetchone()
        assert row is not None
        pids: list[int] = row[0]
        return pids

    def close(self) -> None:
        """End the session, also out of the middle of a statement."""
        self._observer.execute("select pg_terminate_backend(%s)", [self.pid])
        self._thread.shutdown(wait=True, cancel_futures=True)
        self.conn.close()

    def _execute(self, sql: LiteralString, params: Params) -> Rows:
        cursor = self.conn.execute(sql, params or None)
        return cursor.fetchall() if cursor.description else []
