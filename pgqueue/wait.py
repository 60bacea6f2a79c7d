"""Wait for a job to end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, overload

import psycopg
from psycopg.pq import TransactionStatus

from pgqueue.db import operate
from pgqueue.db.call import Row, perform, perform_async
from pgqueue.errors import JobNotFound, WaitTimeout, WrongIsolation

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


@overload
def wait(connection: psycopg.Connection[Any], job_id: int, timeout: float | None = None) -> Outcome: ...
@overload
def wait(connection: psycopg.AsyncConnection[Any], job_id: int, timeout: float | None = None) -> Awaitable[Outcome]: ...
def wait(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], job_id: int, timeout: float | None = None
) -> Outcome | Awaitable[Outcome]:
    """Wait until a job has ended, at most `timeout` seconds, and return its `Outcome`; async: an awaitable of it.

    It polls, from every 5 ms to once a second, and leaves no transaction open that was not. Commit the enqueue first:
    a job that is not committed does not run. The role needs worker, reader or operator rights.
    Raises WaitTimeout, JobNotFound (no such job, or history keeps none of its kind), WrongIsolation in a transaction
    above READ COMMITTED, which would never see it end.

        outcome = pgqueue.wait(connection, job_id, timeout=10)
    """
    if isinstance(connection, psycopg.Connection):
        return _wait(connection, job_id, timeout)
    if isinstance(connection, psycopg.AsyncConnection):
        return _wait_async(connection, job_id, timeout)
    raise TypeError(f"wait needs a psycopg Connection or AsyncConnection, not {type(connection).__qualname__}")


def _wait(connection: psycopg.Connection[Any], job_id: int, timeout: float | None) -> Outcome:
    idle = connection.info.transaction_status == TransactionStatus.IDLE
    state = None
    for pause in _pauses(timeout):
        if not idle:
            row = connection.execute("show transaction_isolation").fetchone()
            _check_isolation(row)
        found = perform(connection, operate.outcome(job_id))
        if idle and not connection.autocommit:
            connection.rollback()
        state = _state(job_id, found, state)
        if found is not None and state in _FINAL:
            return _outcome(job_id, found)
        if pause:
            time.sleep(pause)
    raise _too_long(job_id, timeout, state)


async def _wait_async(connection: psycopg.AsyncConnection[Any], job_id: int, timeout: float | None) -> Outcome:  # noqa: ASYNC109
    idle = connection.info.transaction_status == TransactionStatus.IDLE
    state = None
    for pause in _pauses(timeout):
        if not idle:
            cursor = await connection.execute("show transaction_isolation")
            _check_isolation(await cursor.fetchone())
        found = await perform_async(connection, operate.outcome(job_id))
        if idle and not connection.autocommit:
            await connection.rollback()
        state = _state(job_id, found, state)
        if found is not None and state in _FINAL:
            return _outcome(job_id, found)
        if pause:
            await asyncio.sleep(pause)
    raise _too_long(job_id, timeout, state)


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


def _check_isolation(row: Any) -> None:
    found = next(iter(row.values())) if isinstance(row, dict) else row[0]
    if found not in ("read committed", "read uncommitted"):
        raise WrongIsolation(
            f"this transaction is {str(found).upper()} and would never see the job end",
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


def _outcome(job_id: int, found: Row) -> Outcome:
    state, result, errors, attempts, finished_at = found
    return Outcome(job_id, state, result, errors or [], attempts, finished_at)


def _too_long(job_id: int, timeout: float | None, state: str | None) -> WaitTimeout:
    return WaitTimeout(
        f"job {job_id} has not ended within {timeout:g} s; it is {state}",
        hint="wait longer, and check that a worker serves its queue",
    )
