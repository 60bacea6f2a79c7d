"""A handler's own transaction: its writes and the job's completion are committed together, or not at all.

It begins with a share lock on the job under its reservation (pgqueue.hold) and ends with pgqueue.complete before the
commit. Either fails when the reservation is over; then everything is rolled back.

One generator yields the calls of the connection in their order, for a synchronous and for an asynchronous one: see
`_perform` and `_perform_async`.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AsyncExitStack, ExitStack
from enum import Enum
from functools import partial
from types import TracebackType
from typing import Any, Protocol, TypeAlias, cast

from pgqueue.db import consume, drivers
from pgqueue.db.call import Call, T
from pgqueue.db.pools import Pools
from pgqueue.errors import InvalidArgument, LeaseLost

# Yields calls of a connection, whose answers or errors it is given.
Plan: TypeAlias = Generator[Callable[[], Any], Any, Any]


class Stage(Enum):
    """The stage of a job's own transaction."""

    OPEN = "open"
    # From here on its row may have gone, which is no loss.
    COMPLETING = "completing"
    COMPLETED = "completed"


class JobTransaction:
    """Made by `Job.transaction()`: a context manager and an async one; it yields the connection.

    result    the job's result; set it inside the block
    """

    def __init__(
        self,
        pairs: Sequence[tuple[int, int]],
        pools: Pools | None,
        given: Any,
        report: Callable[[Stage], None],
        doors: Doors | None = None,
    ) -> None:
        self.result: Any = None
        # The job; and, in a batch with payloads of several keys, the first jobs of the other keys: all end, or none.
        self._pairs = pairs
        self._pools = pools
        self._given = given
        self._report = report
        self._doors = doors
        self._door: Any = None

    def __enter__(self) -> Any:
        return _perform(self._begin(self._take))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _perform(self._end(error))

    async def __aenter__(self) -> Any:
        return await _perform_async(self._begin(self._take_async))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _perform_async(self._end(error))

    def _begin(self, take: Callable[[bool], Any]) -> Plan:
        door = yield partial(take, False)
        try:
            yield from self._hold(door)
        except Exception:
            # A connection of the pool may have broken since it was last used: its first statement shows it.
            if not door.is_replaceable:
                raise
            door = yield partial(take, True)
            yield from self._hold(door)
        self._door = door
        return door.connection

    def _hold(self, door: Any) -> Plan:
        try:
            yield door.begin
            if not (yield partial(door.run, consume.hold(self._pairs))):
                raise self._lost()
        except BaseException as error:
            yield partial(door.end, error)
            raise

    def _end(self, error: BaseException | None) -> Plan:
        door = self._door
        try:
            if error is None:
                self._report(Stage.COMPLETING)
                if not (yield partial(door.run, consume.complete_call(self._pairs, self.result))):
                    raise self._lost()
        except BaseException as refused:
            self._report(Stage.OPEN)
            yield partial(door.end, refused)
            raise
        try:
            yield partial(door.end, error)
        except BaseException:
            self._report(Stage.OPEN)
            raise
        if error is None:
            self._report(Stage.COMPLETED)

    def _take(self, check: bool) -> _Door:
        if self._doors is not None:
            return self._doors.sync_door(self._given)
        if self._given is None:
            pools = self._own_pools()
            return _Block(pools.take(check=check), pools)
        if _is_sqlalchemy(self._given, "Connection", "Session", "scoped_session"):
            return _SQLAlchemy(self._given)
        if drivers.is_accepted(self._given) and not drivers.is_async(self._given):
            return _Block(self._given, None)
        raise _unusable(self._given, "with", "a connection that is not async, as enqueue does")

    async def _take_async(self, check: bool) -> _AsyncDoor:
        if self._doors is not None:
            return self._doors.async_door(self._given)
        if self._given is None:
            pools = self._own_pools()
            return _AsyncBlock(await pools.take_async(check=check), pools)
        if _is_sqlalchemy(self._given, "AsyncConnection", "AsyncSession", "async_scoped_session"):
            return _AsyncSQLAlchemy(self._given)
        if drivers.is_accepted(self._given) and drivers.is_async(self._given):
            return _AsyncBlock(self._given, None)
        raise _unusable(self._given, "async with", "an async connection, as enqueue does")

    def _own_pools(self) -> Pools:
        if self._pools is None:
            raise InvalidArgument(
                "job.transaction() has no database: a worker did not make this job",
                hint="give it a connection, or run the job with pgqueue.testing",
            )
        return self._pools

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            f"the lease of job {self._pairs[0][0]} is lost; its transaction is rolled back",
            hint="let the handler end: another worker has the job, or will have it",
        )


def _perform(plan: Plan) -> Any:
    """Make the calls of a plan, and return what it returns."""
    try:
        call = next(plan)
        while True:
            try:
                answer = call()
            except BaseException as error:
                call = plan.throw(error)
            else:
                call = plan.send(answer)
    except StopIteration as end:
        return end.value


async def _perform_async(plan: Plan) -> Any:
    try:
        call = next(plan)
        while True:
            try:
                answer = await call()
            except BaseException as error:
                call = plan.throw(error)
            else:
                call = plan.send(answer)
    except StopIteration as end:
        return end.value


class _Door(Protocol):
    """Access to a synchronous connection. `end` commits, or rolls back where there is an error.

    is_replaceable   the connection is broken, and another one would do
    """

    connection: Any

    @property
    def is_replaceable(self) -> bool: ...
    def begin(self) -> None: ...
    def run(self, call: Call[T]) -> T: ...
    def end(self, error: BaseException | None) -> None: ...


class _AsyncDoor(Protocol):
    connection: Any

    @property
    def is_replaceable(self) -> bool: ...
    async def begin(self) -> None: ...
    async def run(self, call: Call[T]) -> T: ...
    async def end(self, error: BaseException | None) -> None: ...


class Doors(Protocol):
    """Where `job.transaction()` goes instead of to the worker's database. For tests."""

    def sync_door(self, given: Any) -> _Door: ...
    def async_door(self, given: Any) -> _AsyncDoor: ...


class _Block:
    """A connection whose transaction is a context manager, or a pool or engine, which lends one with its transaction.

    A connection of the worker's own goes back to `pools`.
    """

    def __init__(self, given: Any, pools: Pools | None) -> None:
        self.connection = given
        self._pools = pools
        self._block = ExitStack()

    @property
    def is_replaceable(self) -> bool:
        return self._pools is not None and self.connection.closed

    def begin(self) -> None:
        _require_none_open(self.connection)
        lent = drivers.lent(self.connection)
        if lent is not None:
            self.connection = self._block.enter_context(lent)
            _refuse_autocommit(self.connection)
        if not drivers.in_transaction(self.connection):
            self._block.enter_context(drivers.transaction_on(self.connection))

    def run(self, call: Call[T]) -> T:
        return cast(T, drivers.run(self.connection, call))

    def end(self, error: BaseException | None) -> None:
        try:
            self._block.__exit__(*_raised(error))
        finally:
            if self._pools is not None:
                self._pools.give_back(self.connection)


class _AsyncBlock:
    def __init__(self, given: Any, pools: Pools | None) -> None:
        self.connection = given
        self._pools = pools
        self._block = AsyncExitStack()

    @property
    def is_replaceable(self) -> bool:
        return self._pools is not None and self.connection.closed

    async def begin(self) -> None:
        _require_none_open(self.connection)
        lent = drivers.lent(self.connection)
        if lent is not None:
            self.connection = await self._block.enter_async_context(lent)
            _refuse_autocommit(self.connection)
        if not drivers.in_transaction(self.connection):
            await self._block.enter_async_context(drivers.transaction_on(self.connection))

    async def run(self, call: Call[T]) -> T:
        return await cast(Awaitable[T], drivers.run(self.connection, call))

    async def end(self, error: BaseException | None) -> None:
        try:
            await self._block.__aexit__(*_raised(error))
        finally:
            if self._pools is not None:
                await self._pools.give_back_async(self.connection)


class _SQLAlchemy:
    """A Connection or a Session: both begin by themselves, and have the same commit and rollback."""

    is_replaceable = False

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def begin(self) -> None:
        _require_none_open(self.connection)
        connection = self.connection.connection() if hasattr(self.connection, "get_bind") else self.connection
        try:
            _refuse_autocommit(connection)
        except InvalidArgument:
            self.connection.rollback()
            raise

    def run(self, call: Call[T]) -> T:
        # Only an async connection returns an awaitable.
        return cast(T, drivers.run(self.connection, call))

    def end(self, error: BaseException | None) -> None:
        if error is None:
            self.connection.commit()
        else:
            self.connection.rollback()


class _AsyncSQLAlchemy:
    is_replaceable = False

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def begin(self) -> None:
        _require_none_open(self.connection)
        is_session = hasattr(self.connection, "get_bind")
        connection = await self.connection.connection() if is_session else self.connection
        try:
            _refuse_autocommit(connection)
        except InvalidArgument:
            await self.connection.rollback()
            raise

    async def run(self, call: Call[T]) -> T:
        return await cast(Awaitable[T], drivers.run(self.connection, call))

    async def end(self, error: BaseException | None) -> None:
        if error is None:
            await self.connection.commit()
        else:
            await self.connection.rollback()


def _refuse_autocommit(connection: Any) -> None:
    """Refuse a connection of SQLAlchemy in AUTOCOMMIT; another one may begin a transaction all the same."""
    if not _is_sqlalchemy(connection, "Connection", "AsyncConnection"):
        return
    of_pool = getattr(connection, "sync_connection", connection).connection
    if getattr(of_pool.dbapi_connection, "autocommit", False):
        # Commit and rollback would do nothing: the lock would be gone at once, and nothing would be undone.
        raise InvalidArgument(
            "job.transaction() needs a transaction, and this connection is in AUTOCOMMIT",
            hint="give one with another isolation_level, such as READ COMMITTED",
        )


def _raised(
    error: BaseException | None,
) -> tuple[type[BaseException] | None, BaseException | None, TracebackType | None]:
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


def _require_none_open(connection: Any) -> None:
    if drivers.in_transaction(connection):
        raise _in_transaction()


def _in_transaction() -> InvalidArgument:
    return InvalidArgument(
        "job.transaction() begins a transaction, and one is open on this connection already",
        hint="commit it or roll it back first",
    )


def _unusable(given: object, how: str, expected: str) -> TypeError:
    return TypeError(f"`{how} job.transaction(...)` takes {expected}, not {type(given).__qualname__}")


def _is_sqlalchemy(given: object, *names: str) -> bool:
    # An application that has such an object has imported its package; others do not pay for the import.
    classes = []
    for module in ("sqlalchemy.engine", "sqlalchemy.orm", "sqlalchemy.ext.asyncio"):
        if module in sys.modules:
            classes += [getattr(sys.modules[module], name, None) for name in names]
    return isinstance(given, tuple(each for each in classes if isinstance(each, type)))
