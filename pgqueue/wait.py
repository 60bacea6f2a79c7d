"""Wait for a job to end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Generator, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeAlias, cast, overload

from pgqueue.db import drivers, operate
from pgqueue.db.call import Call, Row
from pgqueue.db.drivers import AsyncConnection, SyncConnection
from pgqueue.db.json import readable
from pgqueue.errors import JobNotFound, NotCommitted, WaitTimeout, WrongIsolation

_FINAL = ("succeeded", "dead", "cancelled")

# Pauses between polls, in seconds: a quick job is seen at once, a long one costs a poll a second.
_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended: `state` is succeeded, dead or cancelled, `errors` the last ten, oldest first.

    `result` is the return value of the handler if its task has store_result; else None.
    """

    job_id: int
    state: str
    result: Any
    errors: list[dict[str, Any]]
    attempts: int
    finished_at: datetime

    @property
    def succeeded(self) -> bool:
        """Whether the job succeeded."""
        return self.state == "succeeded"


class ReadsResults(Protocol):
    """A task, which knows the type of its results."""

    def load_result(self, stored: Any) -> Any: ...


@overload
def wait(
    connection: SyncConnection, job_id: int, timeout: float | None = None, *, task: ReadsResults | None = None
) -> Outcome: ...
@overload
def wait(
    connection: AsyncConnection, job_id: int, timeout: float | None = None, *, task: ReadsResults | None = None
) -> Awaitable[Outcome]: ...
def wait(
    connection: SyncConnection | AsyncConnection,
    job_id: int,
    timeout: float | None = None,
    *,
    task: ReadsResults | None = None,
) -> Outcome | Awaitable[Outcome]:
    """Wait until a job has ended, at most `timeout` seconds, and return its `Outcome`; async: an awaitable of it.

    The connection is any that `enqueue` takes. It polls, from every 5 ms to once a second, and leaves no transaction
    open that was not; a session of SQLAlchemy without a transaction lends its bind. The role needs worker, reader or
    operator rights. With `task`, the result has the type that its function is annotated to return, instead of JSON's.

    Raises NotCommitted when the connection's own open transaction has enqueued the job, because no worker sees it;
    WaitTimeout; JobNotFound (no such job, or history keeps none of its kind); WrongIsolation in a transaction above
    READ COMMITTED, which would never see it end.

        outcome = pgqueue.wait(connection, job_id, timeout=10)
    """
    plan = _plan(job_id, timeout, drivers.in_transaction(connection), task)
    return _wait_async(connection, plan) if drivers.is_async(connection) else _wait(connection, plan)


# Yields what to ask, or how many seconds to pause.
Plan: TypeAlias = Generator[Call[Row | None] | float, Row | None, Outcome]


def _plan(job_id: int, timeout: float | None, is_open: bool, task: ReadsResults | None) -> Plan:
    state = None
    for pause in _pauses(timeout):
        found = yield operate.outcome(job_id)
        state = _state(job_id, found, state)
        if found is not None and state in _FINAL:
            return _outcome(job_id, found, task)
        _check_can_end(job_id, found, is_open)
        if pause:
            yield pause
    raise _too_long(job_id, timeout, state)


def _wait(connection: Any, plan: Plan) -> Outcome:
    found: Any = None
    while True:
        try:
            wanted = plan.send(found)
        except StopIteration as end:
            return cast(Outcome, end.value)
        if isinstance(wanted, Call):
            found = drivers.run_briefly(connection, wanted)
        else:
            time.sleep(wanted)


async def _wait_async(connection: Any, plan: Plan) -> Outcome:
    found: Any = None
    while True:
        try:
            wanted = plan.send(found)
        except StopIteration as end:
            return cast(Outcome, end.value)
        if isinstance(wanted, Call):
            found = await cast("Awaitable[Any]", drivers.run_briefly(connection, wanted))
        else:
            await asyncio.sleep(wanted)


def _pauses(timeout: float | None) -> Iterator[float]:
    """Yield the pause after each poll; the last one, after the last poll, is zero."""
    end = None if timeout is None else time.monotonic() + timeout
    pause = _FIRST_PAUSE
    while True:
        left = pause if end is None else end - time.monotonic()
        if left <= 0:
            yield 0.0
            return
        yield min(pause, left)
        pause = min(pause * 1.5, _LONGEST_PAUSE)


def _check_can_end(job_id: int, found: Row | None, is_open: bool) -> None:
    if found is None:
        return
    *_, uncommitted, isolation = found
    if uncommitted:
        raise NotCommitted(
            f"job {job_id} cannot end: the open transaction of this connection has enqueued or changed it,"
            " and no worker sees that",
            hint="commit first, then wait",
        )
    if is_open and isolation not in ("read committed", "read uncommitted"):
        raise WrongIsolation(
            f"this transaction is {isolation.upper()} and would never see the job end",
            hint="wait outside of the transaction, or in a READ COMMITTED one",
        )


def _state(job_id: int, found: Row | None, before: str | None) -> str:
    if found is not None:
        return str(found[0])
    if before is None:
        raise JobNotFound(
            f"there is no job {job_id} that this connection can see",
            hint="wait after the commit of its enqueue, and before its retention ends",
        )
    raise JobNotFound(
        f"job {job_id} was {before} and is gone: it ended and history keeps none of its kind, or it was deleted",
        hint="give the job, or its task, a retention above zero",
    )


def _outcome(job_id: int, found: Row, task: ReadsResults | None) -> Outcome:
    state, result, errors, attempts, finished_at, *_ = found
    result = readable(result, f"the result of job {job_id}")
    if task is not None:
        result = task.load_result(result)
    return Outcome(job_id, state, result, errors or [], attempts, finished_at)


def _too_long(job_id: int, timeout: float | None, state: str | None) -> WaitTimeout:
    return WaitTimeout(
        f"job {job_id} has not ended within {timeout:g} s; it is {state}",
        hint="wait longer, and check that a worker serves its queue",
    )
