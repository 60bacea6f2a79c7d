"""Django's tasks as tasks of a `pgqueue.App`, for its worker."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import sync_to_async
from django.apps import apps
from django.utils import timezone
from django.utils.module_loading import module_has_submodule

from pgqueue import App, Cancel, Job
from pgqueue.contrib.django import backend as backends
from pgqueue.contrib.django.api import TaskContext, TaskResult, TaskResultStatus, normalize_json, signals
from pgqueue.contrib.django.connections import clean_connections
from pgqueue.contrib.django.results import error_of, worker_ids
from pgqueue.errors import InvalidPayload
from pgqueue.hooks import Dead
from pgqueue.job import current_job


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


def make_app() -> App:
    """Return an App with all tasks of the installed apps: from their modules `tasks`, or imported by now."""
    for config in apps.get_app_configs():
        if config.module is not None and module_has_submodule(config.module, "tasks"):
            importlib.import_module(f"{config.name}.tasks")
    app = App()
    for path, task in backends.declared.items():
        add(app, path, task)
    app.on_dead(_died)
    return app


def add(app: App, path: str, task: Any) -> None:
    """Declare one of Django's tasks in an App."""
    options = {"max_attempts": task.max_attempts, "retry": task.retry, "timeout": task.timeout}
    handler = partial(_run_async if iscoroutinefunction(task.func) else _run, task)
    app.task(name=path, store_result=True, **options)(_named(handler, iscoroutinefunction(task.func)))


def _named(handler: Callable[..., Any], is_async: bool) -> Callable[..., Any]:
    # Not the partial itself: its signature has the parameters of `_run`.
    if is_async:

        async def run_async(args: list[Any], kwargs: dict[str, Any]) -> Any:
            return await handler(current_job(), args, kwargs)

        return run_async

    def run(args: list[Any], kwargs: dict[str, Any]) -> Any:
        return handler(current_job(), args, kwargs)

    return run


def _run(task: Any, job: Job, args: list[Any], kwargs: dict[str, Any]) -> Any:
    clean_connections()
    try:
        result = _start(task, job, args, kwargs)
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
        result = await sync_to_async(_start)(task, job, args, kwargs)
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


def _start(task: Any, job: Job, args: list[Any], kwargs: dict[str, Any]) -> Any:
    result = _result(task, job, args, kwargs, TaskResultStatus.RUNNING, [])
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
        task = backends.declared.get(dead.job.task)
        payload = dead.job.args
        if task is None or not isinstance(payload, dict) or not {"args", "kwargs"} <= payload.keys():
            return
        result = _result(task, dead.job, payload["args"], payload["kwargs"], TaskResultStatus.FAILED, [dead.error])
        try:
            raise TaskFailed(result.errors[0].traceback)
        except TaskFailed as error:
            # The handler is over. Receivers take its error from here: Django's own writes it to the log.
            error.__traceback__ = None
            _finish(result, TaskResultStatus.FAILED)
    finally:
        clean_connections()


def _result(
    task: Any, job: Job, args: list[Any], kwargs: dict[str, Any], status: Any, errors: list[dict[str, Any]]
) -> Any:
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise InvalidPayload(
            f"the arguments of job {job.id} are not those of a Django task",
            hint='enqueue {"args": [...], "kwargs": {...}}, or through the task',
        )
    now = timezone.now()
    return TaskResult(
        task=task.using(queue_name=job.queue),
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
