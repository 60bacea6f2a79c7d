"""The database behind the pages: a few connections, read-only transactions with a timeout, and answers that many
viewers share.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from pgqueue.db import observe
from pgqueue.db.call import Call, perform_async
from pgqueue.errors import PgQueueError
from pgqueue.metrics import QueueTimes
from pgqueue.web import series
from pgqueue.web.users import User

T = TypeVar("T")

Connection = psycopg.AsyncConnection[Any]
Pool = AsyncConnectionPool[Connection]

# Seconds that a statement of a page may take, and one that acts.
TIMEOUT = 5
_ACTS_WITHIN = 60

# Seconds that a page waits for the number beside *Dead*, before it does without.
_BADGE_WITHIN = 0.5

# The pages write intervals in words, and read them in this style. Everything that they read has an index; for times
# that depend on the clock the planner expects a third of a table, and would read all samples for those of a minute.
_READS = (
    f"set local transaction_read_only = on; set local statement_timeout = '{TIMEOUT}s';"
    " set local intervalstyle = 'postgres'; set local enable_seqscan = off; set local jit = off"
).encode()
_ACTS = f"set local statement_timeout = '{_ACTS_WITHIN}s'".encode()


class PageDatabase:
    """Runs calls for the pages. Opens its pool at the first of them; a pool of yours stays yours."""

    def __init__(self, source: str | Pool) -> None:
        self._pool = source if isinstance(source, AsyncConnectionPool) else None
        self._dsn = source if isinstance(source, str) else ""
        self._opening = asyncio.Lock()
        self._answers: dict[object, tuple[float, Any]] = {}
        # With the number of changes before it.
        self._asking: dict[object, tuple[int, asyncio.Task[Any]]] = {}
        self._changes = 0
        self._times = QueueTimes()

    async def close(self) -> None:
        """Close the pool that it opened."""
        if self._dsn and self._pool is not None:
            await self._pool.close()
            self._pool = None

    async def read(self, *calls: Call[Any]) -> list[Any]:
        """Run calls that read, in one transaction."""
        async with self._transaction(read_only=True) as connection:
            return [await perform_async(connection, call) for call in calls]

    async def act(self, user: User, call: Call[T]) -> T:
        """Run a call that changes something, in the name of a user."""
        async with self._transaction(read_only=False) as connection:
            await perform_async(connection, observe.as_actor(user.name, "web"))
            return await perform_async(connection, call)

    async def shared(self, key: object, seconds: float, call: Callable[[], Call[T]]) -> T:
        """Run a call, or return an answer younger than `seconds`: one call serves all requests."""
        found = self._answers.get(key)
        if found is not None and time.monotonic() < found[0] + seconds:
            answer: T = found[1]
            return answer
        changes, asking = self._asking.get(key, (self._changes, None))
        if asking is not None and changes != self._changes:
            # It may have read what was before the change.
            await asyncio.wait([asking])
            return await self.shared(key, seconds, call)
        if asking is None:
            asking = asyncio.create_task(self._ask(key, call()))
            self._asking[key] = changes, asking
            asking.add_done_callback(lambda _: self._asking.pop(key, None))
        shared: T = await asyncio.shield(asking)
        return shared

    def last(self, key: object) -> Any:
        """Return the last answer that was shared, of any age; None: there is none."""
        found = self._answers.get(key)
        return None if found is None else found[1]

    def age(self, key: object) -> float:
        """Return how old the last answer that was shared is, in seconds; 0: there is none."""
        found = self._answers.get(key)
        return 0.0 if found is None else time.monotonic() - found[0]

    async def have_numbers(self) -> None:
        """See that there are numbers of the queue, of a minute ago at most, without a page having to wait for them."""
        with suppress(TimeoutError, psycopg.Error, PgQueueError, PoolTimeout, OSError):
            async with asyncio.timeout(_BADGE_WITHIN):
                await self.shared("stats", 60.0, observe.stats)

    async def stats(self) -> dict[str, Any]:
        """Return the numbers of the queue: from the last sample, or counted, once in 3 s, while none is taken."""
        found = await self.shared("stats", 3.0, observe.stats)
        if found["sampled_at"] is None:
            return found
        return await self.shared("stats", 1.0, observe.stats)

    async def late(self) -> list[dict[str, Any]]:
        """Return which queues are late, and why: once a minute while several are, for each of them costs."""
        found = self._answers.get("why")
        return await self.shared("why", 60.0 if found is not None and len(found[1]) > 1 else 10.0, observe.why_late)

    async def times_of_queues(self) -> QueueTimes:
        """Return how long jobs of each queue waited and ran, since the first call and in the ten minutes before."""
        await self.shared("times of queues", 10.0, lambda: series.times_of_queues(self._times))
        return self._times

    async def _ask(self, key: object, call: Call[T]) -> T:
        changes = self._changes
        [answer] = await self.read(call)
        if changes == self._changes:
            if len(self._answers) > 200:
                self._answers.clear()
            self._answers[key] = (time.monotonic(), answer)
        found: T = answer
        return found

    def forget(self) -> None:
        """Forget the shared answers after a change, so that the next page shows it."""
        self._changes += 1
        self._answers.clear()

    @asynccontextmanager
    async def _transaction(self, *, read_only: bool) -> AsyncIterator[Connection]:
        pool = await self._open()
        async with pool.connection() as connection:
            await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
            async with connection.transaction():
                await connection.execute(_READS if read_only else _ACTS)
                yield connection

    async def _open(self) -> Pool:
        if self._pool is None:
            async with self._opening:
                if self._pool is None:
                    pool: Pool = AsyncConnectionPool(
                        self._dsn,
                        min_size=1,
                        max_size=4,
                        timeout=TIMEOUT,
                        open=False,
                        check=AsyncConnectionPool.check_connection,
                        # No settings that a pooler in transaction mode would lose.
                        kwargs={
                            "application_name": "pgqueue web",
                            "prepare_threshold": None,
                            "connect_timeout": TIMEOUT,
                        },
                    )
                    await pool.open()
                    self._pool = pool
        return self._pool
