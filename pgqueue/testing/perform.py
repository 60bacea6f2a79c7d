"""Run one handler with a job that has no row."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pgqueue.app import App
from pgqueue.db.consume import JobRow
from pgqueue.db.json import to_json
from pgqueue.errors import LeaseLost
from pgqueue.job import Job, Surroundings
from pgqueue.tasks import Task
from pgqueue.testing.access import Access, access_to, stepped
from pgqueue.testing.attempts import Attempts, uses_asgiref
from pgqueue.testing.drain import Savepoints
from pgqueue.testing.enqueued import interval
from pgqueue.worker.hold.held import End, Held

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

# Below zero: no job has such an id.
_ids = itertools.count(-1, -1)


@dataclass(frozen=True, slots=True)
class Performed:
    """How one attempt ended.

    state     "succeeded", "failed" (it would be retried), "dead" (it would not), "snoozed" or "cancelled"
    result    the return value of the handler
    error     its exception, with raise_errors=False
    reason    the reason of its Retry, Discard or Cancel
    retry_in  when the handler, or the task's rule, decides: the delay until the retry
    delay     of its Snooze or Throttled
    job       the job that it got
    """

    state: str
    job: Job
    result: Any = None
    error: BaseException | None = None
    reason: str = ""
    retry_in: timedelta | str | None = None
    delay: timedelta | str | None = None


def perform(
    task: Task[Any, Any],
    /,
    *args: Any,
    connection: Any = None,
    attempt: int = 1,
    max_attempts: int = 11,
    headers: dict[str, Any] | None = None,
    queue: str = "default",
    key: str | None = None,
    raise_errors: bool = True,
    app: App | None = None,
    **kwargs: Any,
) -> Performed:
    """Run a task's handler once with these arguments, as a worker would, and return how that ended.

    The arguments go to JSON and back, through the task's validation and codec. The handler gets a real `Job` without a
    row in the database; `job.transaction()` yields `connection`, in a savepoint. A decision of the handler by
    Retry, Snooze, Discard or Cancel is returned; other exceptions are raised here, unless raise_errors is False. `app`
    adds its middleware. A handler's parameter of the same name as an option here is given by position.

        assert perform(send_email, "a@b.c", attempt=3).state == "succeeded"
    """
    access = None if connection is None else access_to(connection)
    one = Performance(task, access, app, raise_errors, on_loop=False)
    options = Given(attempt, max_attempts, headers, queue, key)
    return stepped(one.run(_written(task, args, kwargs), options))


async def perform_async(
    task: Task[Any, Any],
    /,
    *args: Any,
    connection: Any = None,
    attempt: int = 1,
    max_attempts: int = 11,
    headers: dict[str, Any] | None = None,
    queue: str = "default",
    key: str | None = None,
    raise_errors: bool = True,
    app: App | None = None,
    **kwargs: Any,
) -> Performed:
    """Run a task's handler once as `perform` does, an async one on the running event loop."""
    access = None if connection is None else access_to(connection)
    one = Performance(task, access, app, raise_errors, on_loop=True)
    return await one.run(_written(task, args, kwargs), Given(attempt, max_attempts, headers, queue, key))


@dataclass(frozen=True, slots=True)
class Given:
    """The fields of a job without a row."""

    attempt: int = 1
    max_attempts: int = 11
    headers: dict[str, Any] | None = None
    queue: str = "default"
    key: str | None = None


class Performance:
    """Runs one handler. For `perform` and `inline`."""

    def __init__(
        self, task: Task[Any, Any], access: Access | None, app: App | None, raise_errors: bool, *, on_loop: bool
    ) -> None:
        self._task = task
        self._raise_errors = raise_errors
        doors = NoRow(access)
        connection = None if access is None else access.connection
        self._attempts = Attempts(
            app or App(), Surroundings(doors=doors), on_loop=on_loop, uses_asgiref=uses_asgiref(connection)
        )

    async def run(self, written: str, given: Given) -> Performed:
        """Run the handler with arguments that are written as JSON."""
        held = Held(_row(self._task, written, given), float("inf"))
        try:
            await self._attempts.attempt(held, self._task)
        finally:
            self._attempts.close()
        error = self._attempts.error
        if error is not None and self._raise_errors:
            raise error
        ending = held.attempt.ending
        return Performed(
            _state(held),
            self._attempts.job_of(held),
            self._attempts.value,
            error,
            str((ending.error or {}).get("message", "")) if error is None else "",
            ending.decision.retry_in,
            ending.snooze if ending.end is End.SNOOZED else None,
        )


class NoRow(Savepoints):
    """Directs `job.transaction()` of a job without a row to the caller's connection, if there is one."""

    def __init__(self, access: Access | None) -> None:
        super().__init__(_AlwaysHeld(access) if access is not None else _Nowhere(None))


class _AlwaysHeld(Access):
    # There is no row to hold and to complete.
    def __init__(self, access: Access) -> None:
        super().__init__(access.connection)
        self.is_async = access.is_async
        self.block = access.block  # type: ignore[method-assign]

    async def run(self, call: Any) -> Any:
        return True


class _Nowhere(Access):
    async def run(self, call: Any) -> Any:
        return True

    def block(self) -> Any:
        raise LeaseLost(
            "job.transaction() has no database to go to", hint="give perform() a connection: connection=..."
        )


def _state(held: Held) -> str:
    ending = held.attempt.ending
    match ending.end:
        case End.SNOOZED:
            return "snoozed"
        case End.FAILED if ending.decision.cancel:
            return "cancelled"
        case End.FAILED if ending.decision.retry and held.row.attempt < held.row.max_attempts:
            return "failed"
        case End.FAILED:
            return "dead"
    return "succeeded"


def _written(task: Task[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    codec = task.codec()
    bound = task.bind(*args, **kwargs)
    return to_json(bound if codec is None else codec.encode(bound), "args")


def _row(task: Task[Any, Any], written: str, given: Given) -> JobRow:
    now = (datetime.now(UTC) - _EPOCH) // timedelta(microseconds=1)
    return JobRow(
        id=next(_ids),
        task=task.name,
        args=b"\x01" + written.encode(),
        headers=None if given.headers is None else b"\x01" + to_json(given.headers, "headers").encode(),
        queue=given.queue,
        key=given.key,
        priority=task.options.priority or 0,
        attempt=given.attempt,
        max_attempts=given.max_attempts,
        reservation=1,
        run_at=now,
        created_at=now,
        lease_expires_at=now + 30_000_000,
        leader=None,
        timeout=_timeout(task),
        losses=0,
        crashes=0,
        store_result=bool(task.options.store_result),
        outcome="reserved",
        note=None,
    )


def _timeout(task: Task[Any, Any]) -> timedelta | None:
    try:
        return None if task.options.timeout is None else interval(task.options.timeout)
    except ValueError:
        # A text that PostgreSQL alone reads.
        return None
