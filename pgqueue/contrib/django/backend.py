"""The backend for Django's tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib import import_module
from typing import Any, Generic, TypeVar

from django.apps import apps
from django.core import checks
from django.db import connections
from django.utils import timezone

import pgqueue
from pgqueue.contrib.django import results
from pgqueue.contrib.django.api import CHECKS, BaseTaskBackend, Task, TaskResult, TaskResultStatus, signals
from pgqueue.options import RetryRule

T = TypeVar("T")

# Registers the check that asks the backends, also where our app, which does so too, is not installed.
with suppress(ImportError):
    import_module(CHECKS)

# Every task that was declared with a backend of ours, by its path: what a worker runs.
declared: dict[str, PgqueueTask] = {}


@dataclass(frozen=True, kw_only=True)
class PgqueueTask(Task):
    """A task of Django's with options of the queue, for `@task(...)` and `.using(...)`.

    max_attempts, retry, timeout    for the worker: see `pgqueue.options.TaskOptions`
    key, dedupe, depends_on, delay  for one job: see `pgqueue.enqueue`
    """

    max_attempts: int | None = None
    retry: RetryRule | None = None
    timeout: timedelta | str | None = None
    key: str | None = None
    dedupe: str | None = None
    depends_on: Sequence[int] | None = None
    delay: timedelta | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        declared.setdefault(self.module_path, self)

    def using(self, **changes: Any) -> PgqueueTask:
        """Return this task with other options for its next jobs."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    def job_options(self) -> Mapping[str, Any]:
        """Return the options of a job, as `pgqueue.enqueue` takes them."""
        first = declared.get(self.module_path)
        run_at = self.run_after
        if run_at is not None and timezone.is_naive(run_at):
            run_at = timezone.make_aware(run_at)
        options = {
            "queue": self.queue_name,
            # Zero is Django's default: then the queue, or an operator, may set another.
            "priority": self.priority or None,
            "run_at": run_at,
            "delay": self.delay,
            "key": self.key,
            "dedupe": self.dedupe,
            "depends_on": self.depends_on,
            "timeout": self.timeout if first is None or first.timeout != self.timeout else None,
            "max_attempts": self.max_attempts if first is None or first.max_attempts != self.max_attempts else None,
        }
        return {name: value for name, value in options.items() if value is not None}


def task(
    function: Callable[..., Any] | None = None,
    *,
    priority: int = 0,
    queue_name: str = "default",
    backend: str = "default",
    takes_context: bool = False,
    **options: Any,
) -> Any:
    """Declare a task as Django's `@task` does, with the options of `PgqueueTask` as well.

    @task(max_attempts=3, timeout="5 min")
    def send_receipt(order_id): ...
    """

    def declare(func: Callable[..., Any]) -> PgqueueTask:
        return PgqueueTask(
            priority=priority,
            func=func,
            queue_name=queue_name,
            backend=backend,
            takes_context=takes_context,
            run_after=None,
            **options,
        )

    return declare if function is None else declare(function)


class Backend(BaseTaskBackend, Generic[T]):
    """Enqueues in the current transaction of a Django database, so inside `atomic()` a job is committed with the rest.

    TASKS = {"default": {"BACKEND": "pgqueue.contrib.django.Backend", "QUEUES": [], "OPTIONS": {"database": "default"}}}
    """

    task_class = PgqueueTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self.database: str = self.options.get("database", "default")

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue a call of a task, and return its pending result."""
        self.validate_task(task)
        result = TaskResult(
            task=task,
            id="",
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        payload = {"args": result.args, "kwargs": result.kwargs}
        job_id = pgqueue.enqueue(connections[self.database], task.module_path, payload, **task.job_options())
        object.__setattr__(result, "id", str(job_id))
        signals.task_enqueued.send_robust(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the result of a job. Raises TaskResultDoesNotExist, also when its history has expired."""
        return results.read(result_id, self.database, self.alias, declared)

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """Check the settings of this backend."""
        if not apps.is_installed("pgqueue.contrib.django"):
            yield checks.Error(
                "INSTALLED_APPS lacks 'pgqueue.contrib.django', which the backend of "
                f"TASKS[{self.alias!r}] needs: it migrates the queue's schema and runs the worker.",
                hint="Add 'pgqueue.contrib.django' to INSTALLED_APPS.",
                id="pgqueue.E001",
            )
        if self.database not in connections.settings:
            yield checks.Error(
                f"TASKS[{self.alias!r}] names the database {self.database!r}, and DATABASES has none of that name.",
                id="pgqueue.E002",
            )
        elif connections[self.database].vendor != "postgresql":
            yield checks.Error(
                f"TASKS[{self.alias!r}] uses the database {self.database!r}, which is no PostgreSQL.", id="pgqueue.E003"
            )
        elif self.database != "default":
            yield checks.Warning(
                f"TASKS[{self.alias!r}] uses the database {self.database!r}, and models are in 'default'.",
                hint="A job is committed and rolled back with writes to its own database alone: inside atomic() of"
                " another one it stays when that is rolled back.",
                id="pgqueue.W001",
            )
