"""Django's tasks as tasks of a `pgqueue.App`, for its worker."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature, iscoroutinefunction, signature
from typing import Any, get_type_hints

from asgiref.sync import sync_to_async
from django.apps import apps
from django.utils import timezone
from django.utils.module_loading import module_has_submodule

from pgqueue import App, Cancel, Job
from pgqueue._annotations import hints_of
from pgqueue._options import JobOptions
from pgqueue.app import made_task
from pgqueue.contrib.django.api import TaskContext, TaskResult, TaskResultStatus, normalize_json, signals
from pgqueue.contrib.django.connections import clean_connections
from pgqueue.contrib.django.results import as_enqueued, call_of, error_of, worker_ids
from pgqueue.errors import InvalidArgument, InvalidPayload
from pgqueue.hooks import Dead
from pgqueue.job import current_job
from pgqueue.tasks import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext(TaskContext):
    """What a task with takes_context=True gets: Django's context, and `job`, the job of the queue."""

    job: Job

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.job.attempt


class TaskFailed(Exception):
    """The error of a task's last attempt, as the queue has stored it: what `sys.exc_info()` is for task_finished."""


class Native(Task[..., Any]):
    """One of Django's tasks as a task of the queue's; `django` is Django's own."""

    django: Any

    called = {"queue": "queue_name", "run_at": "run_after"}
    options_of_jobs = {*JobOptions.__annotations__, *called.values(), "backend"} - called.keys()
    first_in_enqueue = ""

    def check_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise InvalidArgument for arguments that the function does not take."""
        self._bound(args, kwargs)

    def by_name(self, args: Any) -> Any:
        """Return arguments as `Task.by_name` does, also those in the form of a call."""
        if isinstance(args, dict):
            args, named = call_of(args)
            return {**super().by_name(args), **named}
        return super().by_name(args)

    def as_given(self, stored: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a job by their names; as they are stored where they do not fit the function."""
        try:
            found: dict[str, Any] = self.by_name(super().decode(stored))
        except InvalidArgument:
            return stored
        return found

    def decode(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by their names, for types to read them. Raises InvalidPayload."""
        positional, named = call_of(super().decode(args))
        if not positional:
            return named
        try:
            return self._named(tuple(positional), named)
        except InvalidArgument as error:
            raise InvalidPayload(error.message, hint=error.hint) from None


# Every task that was declared with a backend of ours, by its path: what a worker runs.
declared: dict[str, Native] = {}


def declare(task: Any) -> None:
    """Have one of Django's tasks run by workers. Raises ConfigError for an unusable option, under the task's name."""
    # In an App of its own, of which only the task is kept.
    declared.update({path: each for path, each in add(App(), task).items() if path not in declared})


def make_app() -> App:
    """Return an App with all tasks of the installed apps: from their modules `tasks`, or imported by now."""
    for config in apps.get_app_configs():
        if config.module is not None and module_has_submodule(config.module, "tasks"):
            importlib.import_module(f"{config.name}.tasks")
    app = App()
    for each in {id(each.django): each.django for each in declared.values()}.values():
        add(app, each)
    app.on_dead(_died)
    return app


def add(app: App, task: Any) -> dict[str, Native]:
    """Declare one of Django's tasks, and its schedules, in an App. Returns it by its path and by its former paths."""
    found = {}
    for path in (task.module_path, *task.aliases):
        found[path] = made_task(Native, path, _handler(task), task.task_options(), app)
        found[path].django = task
    app.tasks.update(found)
    native = found[task.module_path]
    given = task.schedule
    for each in [given] if isinstance(given, str | Mapping) else given or ():
        rule = {"expression": each} if isinstance(each, str) else dict(each)
        if "every" not in rule:
            rule.setdefault("timezone", timezone.get_default_timezone_name())
        app.schedule(rule.pop("expression", None), **rule)(native)
    return found


def _handler(task: Any) -> Callable[..., Any]:
    handler: Any
    parameters = list(signature(task.func).parameters.values())[1 if task.takes_context else 0 :]
    by_position = [each for each in parameters if each.kind is Parameter.POSITIONAL_ONLY]
    if iscoroutinefunction(task.func):

        async def run_async(**payload: Any) -> Any:
            return await _run_async(task, current_job(), *_placed(by_position, *call_of(payload)))

        handler = run_async
    else:

        def run(**payload: Any) -> Any:
            return _run(task, current_job(), *_placed(by_position, *call_of(payload)))

        handler = run
    handler.__module__, handler.__doc__ = task.func.__module__, task.func.__doc__
    # A job may name these too, although the function takes them by position only.
    named = [
        each.replace(kind=Parameter.POSITIONAL_OR_KEYWORD) if each.kind is Parameter.POSITIONAL_ONLY else each
        for each in parameters
    ]
    handler.__signature__ = Signature(named)
    # If it takes any number by position, arguments have no names by which their types could be found.
    if task.validate or all(each.kind is not Parameter.VAR_POSITIONAL for each in named):
        hints = get_type_hints(task.func, include_extras=True) if task.validate else hints_of(task.func)
        handler.__annotations__ = {each.name: hints[each.name] for each in named if each.name in hints}
    function: Callable[..., Any] = handler
    return function


def _placed(
    by_position: Sequence[Parameter], args: list[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Move arguments that the function takes by position only from the names to their positions."""
    if args or not by_position:
        return args, kwargs
    rest = dict(kwargs)
    for each in by_position:
        if each.name not in rest and each.default is Parameter.empty:
            break
        args.append(rest.pop(each.name, each.default))
    return args, rest


def _run(task: Any, job: Job, args: list[Any], kwargs: dict[str, Any]) -> Any:
    clean_connections()
    try:
        result = _start(task, job)
        try:
            value = normalize_json(task.func(*_context(task, job, result), *args, **kwargs))
        except Cancel:
            _finish(result, TaskResultStatus.FAILED)
            raise
        _finish(result, TaskResultStatus.SUCCESSFUL, value)
        return value
    finally:
        clean_connections()


async def _run_async(task: Any, job: Job, args: list[Any], kwargs: dict[str, Any]) -> Any:
    # Django's async ORM works in threads: the connections to be cleaned are there, as are the receivers of signals.
    await sync_to_async(clean_connections)()
    try:
        result = await sync_to_async(_start)(task, job)
        try:
            value = normalize_json(await task.func(*_context(task, job, result), *args, **kwargs))
        except Cancel:
            await sync_to_async(_finish)(result, TaskResultStatus.FAILED)
            raise
        await sync_to_async(_finish)(result, TaskResultStatus.SUCCESSFUL, value)
        return value
    finally:
        await sync_to_async(clean_connections)()


def _context(task: Any, job: Job, result: Any) -> list[Any]:
    return [JobContext(task_result=result, job=job)] if task.takes_context else []


def _start(task: Any, job: Job) -> Any:
    result = _result(task, job, TaskResultStatus.RUNNING, [])
    signals.task_started.send_robust(type(task.get_backend()), task_result=result)
    return result


def _finish(result: Any, status: Any, value: Any = None) -> None:
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", timezone.now())
    object.__setattr__(result, "_return_value", value)
    signals.task_finished.send_robust(type(result.task.get_backend()), task_result=result)


def _died(dead: Dead) -> None:
    """Signal to Django that a task has failed for good. A retried attempt is not its end."""
    clean_connections()
    try:
        native = declared.get(dead.job.task)
        # Args that cannot be read are no mapping.
        if native is None or not isinstance(dead.job.args, dict):
            return
        result = _result(native.django, dead.job, TaskResultStatus.FAILED, [dead.error])
        try:
            raise TaskFailed(result.errors[0].traceback)
        except TaskFailed as error:
            # The handler has ended. Receivers take its error from here; Django's own receiver writes it to the log.
            error.__traceback__ = None
            _finish(result, TaskResultStatus.FAILED)
    finally:
        clean_connections()


def _result(task: Any, job: Job, status: Any, errors: list[dict[str, Any]]) -> Any:
    # The arguments of the job, which are JSON; those of the handler may be of the annotated types.
    args, kwargs = call_of(job.args)
    now = timezone.now()
    return TaskResult(
        task=as_enqueued(task, queue_name=job.queue),
        id=str(job.id),
        status=status,
        enqueued_at=job.created_at,
        started_at=now,
        last_attempted_at=now,
        finished_at=None,
        args=args,
        kwargs=kwargs,
        backend=task.backend,
        errors=[error_of(each) for each in errors],
        worker_ids=worker_ids([], job.attempt, "pgqueue"),
    )
