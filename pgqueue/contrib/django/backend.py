"""The backend for Django's tasks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.db import connections
from django.utils import timezone

from pgqueue._options import Interval, JobOptions, RetryPolicy, RetryRule, TaskOptions, check_job_options, no_option
from pgqueue.contrib.django import results
from pgqueue.contrib.django.api import CHECKS, BaseTaskBackend, Task, TaskResult, TaskResultStatus, signals
from pgqueue.contrib.django.connections import check_no_connection
from pgqueue.contrib.django.handlers import Native, declare, declared
from pgqueue.enqueue import one, send
from pgqueue.errors import ConfigError, InvalidArgument
from pgqueue.tasks import no_attribute

T = TypeVar("T")

# Registers the check that asks the backends, also if our app, which does the same, is not installed.
with suppress(ImportError):
    import_module(CHECKS)

_APP = "pgqueue.contrib.django"
_INSTALL = f"Add {_APP!r} to INSTALLED_APPS"

# Options that are kept under another name, because `task.delay(1)` is a call that other queues have, with an answer
# here.
_KEPT_AS = {"delay": "job_delay"}

# Options of a task that one of its jobs cannot have.
_OF_TASKS = {"schedule", "aliases", *TaskOptions.__slots__} - JobOptions.__annotations__.keys()


@dataclass(frozen=True, kw_only=True)
class PgqueueTask(Task):
    """A task of Django's with options of the queue.

    The first block of attributes has the options of the task, for `@task(...)`: see `pgqueue.TaskOptions`.
    `aliases` are former paths of its function: jobs that were enqueued under them run it, too. `schedule` is a cron
    expression; or a mapping with the options of `pgqueue.App.schedule`, and the expression as "expression"; or a list
    of such mappings, each with a "name". Without "timezone" it is read in the TIME_ZONE of Django's settings.

    The second block has the options of one job, for `.using(...)`: see `pgqueue.enqueue`. In `@task(...)` they apply to
    every job that is enqueued through the task. The third block has options that are both. `delay` is kept as
    `job_delay`.
    """

    aliases: Sequence[str] = ()
    schedule: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None = None
    validate: bool = False
    retry: RetryRule | None = None
    retry_jitter: float | None = None
    retry_cap: Interval | None = None
    retry_delays: Sequence[Interval] | None = None
    discard_on: type[BaseException] | tuple[type[BaseException], ...] = ()
    max_crashes: int | None = None
    retention_succeeded: Interval | None = None
    retention_cancelled: Interval | None = None
    retention_dead: Interval | None = None
    shutdown_timeout: float | None = None
    on_shutdown: Literal["fail", "release"] = "fail"
    docs: str | None = None
    owner: str | None = None

    key: str | None = None
    limit_key: str | None = None
    cost: int | None = None
    score: int | float | Decimal | None = None
    dedupe: str | None = None
    dedupe_for: Interval | None = None
    on_conflict: Literal["skip", "replace", "merge", "debounce", "supersede", "raise"] | None = None
    debounce_max: Interval | None = None
    depends_on: Sequence[int] | None = None
    run_if: Literal["succeeded", "finished", "failed"] | None = None
    group_id: int | None = None
    job_delay: Interval | None = None
    headers: Mapping[str, Any] | None = None
    tags: Sequence[str] | None = None
    retention: Interval | None = None

    max_attempts: int | None = None
    timeout: Interval | None = None
    expires_in: Interval | None = None
    retry_policy: RetryPolicy | None = None
    retry_delay: Interval | None = None
    retry_queue: str | None = None

    def __new__(cls, **options: Any) -> PgqueueTask:
        # Before the generated __init__, whose error does not name the option that was meant.
        for name in options.keys() - cls.__dataclass_fields__.keys():
            raise _no_option("a task", name, _OPTIONS)
        made: PgqueueTask = super().__new__(cls)
        return made

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.module_path not in declared:
            check_job_options(self._own(JobOptions.__annotations__.keys() - set(TaskOptions.__slots__)))
            declare(self)

    if not TYPE_CHECKING:  # To a type checker, a name that is not there is an error.

        def __getattr__(self, name: str) -> Any:
            # Only what other queues call it, and what is not there, comes here.
            raise no_attribute(
                self,
                name,
                "enqueue it, in the open transaction, with which the job is committed: {task}.enqueue(...),"
                " or later: {task}.using(delay=60).enqueue(...)",
                "enqueue it, and what runs after it with depends_on: first = {task}.enqueue(...);"
                " other.using(depends_on=[int(first.id)]).enqueue(...)",
            )

    def using(self, **changes: Any) -> PgqueueTask:
        """Return this task with other options for its next jobs.

        Raises TypeError for an option that jobs do not have, and InvalidArgument for a value that none can have.
        """
        for name in changes.keys() - Native.options_of_jobs:
            if name in _OF_TASKS:
                raise TypeError(f"{name} is an option of the task and not of one job: give it to @task(...)")
            raise _no_option("a job", name, Native.options_of_jobs)
        at = changes.get("run_after")
        if at is not None and not isinstance(at, datetime):
            # Django asks it for its time zone, which only a datetime has.
            raise InvalidArgument(
                f"run_after is {at!r}", hint=f"give a datetime; or how long from now: {self.name}.using(delay=60)"
            )
        # The values of the others are Django's to check.
        check_job_options({name: changes[name] for name in changes if name in _OPTIONS})
        return replace(self, **_kept({name: value for name, value in changes.items() if value is not None}))

    @property
    def native(self) -> Native:
        """This task as one of the queue's, for `pgqueue.testing`."""
        return declared[self.module_path]

    def task_options(self) -> Mapping[str, Any]:
        """Return the options that a worker declares, as `pgqueue.TaskOptions` takes them."""
        own = {"queue": self.queue_name, "priority": self.priority or None}
        return {**self._own(TaskOptions.__slots__), **own, "store_result": True}

    def job_options(self) -> Mapping[str, Any]:
        """Return the options of a job, as `pgqueue.enqueue` takes them."""
        first = declared[self.module_path].django
        run_at = self.run_after
        if run_at is not None and timezone.is_naive(run_at):
            run_at = timezone.make_aware(run_at)
        # Zero is Django's default: then the queue, or an operator, may set another.
        own = {"queue": self.queue_name, "priority": self.priority or None, "run_at": run_at}
        given = self._own(JobOptions.__annotations__)
        # The worker applies what the task declares, because an operator may override it.
        changed = {
            name: value
            for name, value in given.items()
            if name not in TaskOptions.__slots__ or value != getattr(first, name)
        }
        return {name: value for name, value in {**changed, **own}.items() if value is not None}

    def _own(self, names: Iterable[str]) -> dict[str, Any]:
        found = ((name, getattr(self, _KEPT_AS.get(name, name))) for name in names if name in _OPTIONS)
        return {name: value for name, value in found if value is not None}


# The options of ours, as they stand above.
_OPTIONS = frozenset(PgqueueTask.__annotations__) - set(_KEPT_AS.values()) | _KEPT_AS.keys()

# What Django's tasks have instead of an option.
_INSTEAD = {
    "bind": "give takes_context=True, and the function receives a context first, with the job as context.job",
    "ignore_result": "Django reads results, so they are kept; retention_succeeded=0 keeps no succeeded job",
}


def _no_option(of: str, name: str, known: Iterable[str]) -> TypeError:
    if name in _KEPT_AS:
        return TypeError(f"Django's own @task has no option {name!r}: from pgqueue.contrib.django import task")
    own = {"priority", "queue_name", "backend", "takes_context"} if of == "a task" else set()
    return no_option(of, name, sorted(own | set(known)), Native.called, _INSTEAD)


def _is_in_settings() -> bool:
    # A test with `available_apps` hides apps that the settings have.
    return apps.is_installed(_APP) or any(each.startswith(_APP) for each in settings.INSTALLED_APPS)


def _kept(options: Mapping[str, Any]) -> dict[str, Any]:
    return {_KEPT_AS.get(name, name): value for name, value in options.items()}


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

    Raises ConfigError and InvalidArgument for a value that an option cannot have, TypeError for an unknown option.

    @task(max_attempts=3, timeout="5 min", schedule="30 2 * * *")
    def send_reminders(): ...
    """

    for name in options.keys() - _OPTIONS:
        raise _no_option("a task", name, _OPTIONS)

    def make(func: Callable[..., Any]) -> PgqueueTask:
        return PgqueueTask(
            priority=priority,
            func=func,
            queue_name=queue_name,
            backend=backend,
            takes_context=takes_context,
            run_after=None,
            **_kept(options),
        )

    return make if function is None else make(function)


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
        # A task that only a view imports makes this backend during `manage.py check`, too late for its check. One that
        # is declared while Django reads the apps makes it too early to know them.
        if apps.apps_ready and not _is_in_settings():
            warnings.warn(f"{self._lacks_app()}. {_INSTALL}.", RuntimeWarning, stacklevel=2)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue a call of a task, and return its pending result.

        Raises InvalidArgument for arguments that the function does not take, and ConfigError where our app, without
        which nothing runs the job, is not installed.
        """
        # Nothing imports the checks in a project without our app and that of the tasks.
        if not _is_in_settings():
            raise ConfigError(self._lacks_app(), hint=_INSTALL)
        self.validate_task(task)
        native = declared[task.module_path]
        check_no_connection(native.name, self.database, (*args, *kwargs.values()))
        if native.typed is not None:
            args, kwargs = (), native.bind(*args, **kwargs)
        else:
            native.check_call(args, kwargs)
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
        payload = {"args": result.args, "kwargs": result.kwargs} if native.typed is None else result.kwargs
        job_id: Any = send(connections[self.database], native, [payload], task.job_options(), one)
        object.__setattr__(result, "id", str(job_id))
        signals.task_enqueued.send_robust(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the result of a job. Raises TaskResultDoesNotExist, also when its history has expired."""
        return results.read(result_id, self.database, self.alias, declared)

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """Check the settings of this backend."""
        if not apps.is_installed(_APP):
            yield checks.Error(f"{self._lacks_app()}.", hint=f"{_INSTALL}.", id="pgqueue.E001")
        if self.database not in connections.settings:
            yield checks.Error(
                f"TASKS[{self.alias!r}] names the database {self.database!r}, and DATABASES has none of that name.",
                id="pgqueue.E002",
            )
        elif connections[self.database].vendor != "postgresql":
            yield checks.Error(
                f"TASKS[{self.alias!r}] uses the database {self.database!r}, which is not PostgreSQL.",
                id="pgqueue.E003",
            )
        elif self.database != "default":
            yield checks.Warning(
                f"TASKS[{self.alias!r}] uses the database {self.database!r}, and models are in 'default'.",
                hint="A job is committed and rolled back with writes to its own database alone: inside atomic() of"
                " another one it stays when that is rolled back.",
                id="pgqueue.W001",
            )

        for task in {id(each.django): each.django for each in declared.values()}.values():
            if task.backend == self.alias and self.queues and task.retry_queue not in (None, *self.queues):
                yield checks.Warning(
                    f"{task.module_path} has retry_queue={task.retry_queue!r}, which is not among QUEUES of"
                    f" TASKS[{self.alias!r}].",
                    hint="Add it, or correct the name; and see that a worker serves it.",
                    id="pgqueue.W003",
                )

    def _lacks_app(self) -> str:
        return (
            f"INSTALLED_APPS lacks {_APP!r}, which the backend of TASKS[{self.alias!r}] needs:"
            " it migrates the queue's schema and runs the worker"
        )
