"""Jobs that belong together: chains, groups, events.

Thin helpers over the options `depends_on`, `run_if` and `group_id`. Ids are known when `enqueue` returns, all in the
caller's transaction, so any other shape is built by ordinary code:

    a = fetch.enqueue(connection, 1)
    b = fetch.enqueue(connection, 2)
    load.using(depends_on=[a, b]).enqueue(connection)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, ParamSpec

from pgqueue import _telemetry
from pgqueue.db import drivers, produce
from pgqueue.db import steps as db
from pgqueue.db.results import BatchResult
from pgqueue.errors import InvalidArgument, PgQueueError
from pgqueue.tasks import Task, TaskCall

P = ParamSpec("P")


def chain(connection: Any, *jobs: Mapping[str, Any]) -> Any:
    """Enqueue jobs that run one after the other, each when the one before has succeeded, and return their ids.

    Jobs are what `Task.job` returns. On an async connection, await it. All or none: where one is refused, this raises
    InvalidArgument, nothing was enqueued, and the transaction continues.

        chain(connection, fetch.job(1), load.job(), report.using(run_if="finished").job())
    """
    linked: list[dict[str, object]] = []
    for number, job in enumerate(jobs):
        each: dict[str, object] = {**job, "ref": f"chain {number}"}
        if number:
            each["depends_on"] = [*(job.get("depends_on") or ()), f"chain {number - 1}"]
        linked.append(each)
    answer: Any = _telemetry.around_batch(
        "chain", linked, lambda given: drivers.run(connection, produce.enqueue_batch(given, all_or_none=True))
    )
    return _chained_async(answer) if drivers.is_async(connection) else _chained(answer)


def emit_event(
    connection: Any, name: str, payload: Any = None, *, keep_for: timedelta | float | str | None = None
) -> Any:
    """Emit an event in the connection's transaction; jobs that wait for it continue. False: it was emitted before.

    A job that begins to wait later gets it for `keep_for`, 7 days by default. On an async connection, await it.

        emit_event(connection, f"paid:{order}", {"amount": 5})
    """
    return drivers.run(connection, db.emit_event(name, payload, keep_for))


class Group:
    """Jobs that are awaited together: a context manager, with `async with` on an async connection. See `App.group`.

    id      the group's id, for `depends_on` of its callbacks and `group_id` of its members
    """

    def __init__(self, connection: Any, name: str | None, options: Mapping[str, Any]) -> None:
        self.id = 0
        self._connection = connection
        self._open = produce.open_group(name, options)

    def enqueue(self, task: Task[P, Any] | TaskCall[P], /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Enqueue a member: a task, or one with options by `using`."""
        return self._with(task, group_id=self.id).enqueue(self._connection, *args, **kwargs)

    def enqueue_many(self, task: Task[..., Any] | TaskCall[...], /, args: Iterable[Mapping[str, Any]]) -> Any:
        """Enqueue a member for each mapping of keyword arguments."""
        return self._with(task, group_id=self.id).enqueue_many(self._connection, args)

    def then(self, task: Task[P, Any] | TaskCall[P], /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Enqueue a job that runs when all members have succeeded; for another run_if give `task.using(run_if=...)`.

        Jobs that `task.using(depends_on=...)` names are waited for as well.
        """
        before = (task.options.get("depends_on") or ()) if isinstance(task, TaskCall) else ()
        return self._with(task, depends_on=[*before, self.id]).enqueue(self._connection, *args, **kwargs)

    def __enter__(self) -> Group:
        opened: Any = drivers.run(self._connection, self._open)
        self.id = opened
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            drivers.run(self._connection, produce.close_group(self.id))

    async def __aenter__(self) -> Group:
        opened: Any = drivers.run(self._connection, self._open)
        self.id = await opened
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            closed: Any = drivers.run(self._connection, produce.close_group(self.id))
            await closed

    def _with(self, task: Any, **options: Any) -> Any:
        if isinstance(task, TaskCall):  # Its own options are kept.
            return task.task.using(**{**task.options, **options})
        return task.using(**options)


async def _chained_async(answer: Any) -> list[int]:
    return _chained(await answer)


def _chained(results: list[BatchResult]) -> list[int]:
    ids = []
    for number, result in enumerate(results):
        if result.outcome == "undone":
            continue
        if result.job_id is None:
            raise _refused(number, result)
        ids.append(result.job_id)
    return ids


def _refused(number: int, result: BatchResult) -> PgQueueError:
    error = result.error or {}
    return InvalidArgument(f"job {number} of the chain: {error.get('message')}", hint=error.get("hint"))
