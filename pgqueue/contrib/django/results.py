"""The results of jobs in the form of Django's tasks."""

from __future__ import annotations

import builtins
import copy
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.db import connections
from django.utils import timezone
from django.utils.module_loading import import_string

from pgqueue.contrib.django.api import Task, TaskError, TaskResult, TaskResultDoesNotExist, TaskResultStatus
from pgqueue.db import drivers
from pgqueue.db.call import Call, read_maybe_one
from pgqueue.db.json import loaded, micros, read_instant

_JOB = f"""
select j.id, j.task, j.state::text, j.queue, j.priority, {micros("j.run_at")}, {micros("j.created_at")},
    {micros("j.reserved_at")}, {micros("j.finished_at")}, j.args::text, j.errors::text, j.result::text, j.attempts,
    j.reserved_by
from pgqueue.all_jobs j
where j.id = %s::bigint
""".encode()

_STATUS = {
    "waiting": TaskResultStatus.READY,
    "failed": TaskResultStatus.READY,
    "blocked": TaskResultStatus.READY,
    "executing": TaskResultStatus.RUNNING,
    "succeeded": TaskResultStatus.SUCCESSFUL,
    "dead": TaskResultStatus.FAILED,
    "cancelled": TaskResultStatus.FAILED,
}

# Ends that no exception of a handler caused.
_CLASSES = {"Timeout": "builtins.TimeoutError"}


def read(result_id: str, database: str, alias: str, declared: Mapping[str, Any]) -> Any:
    """Read the result of a job, of a backend with this database and alias. Raises TaskResultDoesNotExist.

    `declared` are the tasks by their paths; others are imported.
    """
    if not result_id.isascii() or not result_id.isdigit() or len(result_id) > 18:
        raise TaskResultDoesNotExist(result_id)
    row: Any = drivers.run(connections[database], Call(_JOB, (int(result_id),), read_maybe_one))
    if row is None:
        raise TaskResultDoesNotExist(result_id)
    job_id, path, state, queue, priority, *rest, attempts, worker = row
    run_at, created_at, reserved_at, finished_at = (_as_django(raw) for raw in rest[:4])
    args, errors, result = (loaded(text) for text in rest[4:])
    task = _task(path, declared)
    if task is None or not isinstance(args, dict):
        # A job of the queue that is not a task of Django's.
        raise TaskResultDoesNotExist(result_id)
    later = {"run_after": run_at} if run_at > created_at else {}
    task = as_enqueued(task, queue_name=queue, backend=alias, priority=priority, **later)
    status = _STATUS[state]
    positional, named = call_of(args)
    found = TaskResult(
        task=task,
        id=str(job_id),
        status=status,
        enqueued_at=created_at,
        started_at=reserved_at,
        last_attempted_at=reserved_at,
        finished_at=finished_at,
        args=positional,
        kwargs=named,
        backend=alias,
        errors=[error_of(each) for each in errors or []],
        worker_ids=worker_ids(errors or [], attempts, worker),
    )
    object.__setattr__(found, "_return_value", result)
    return found


def as_enqueued(task: Any, **options: Any) -> Any:
    """Return a task with what its job has now, which is not checked.

    A retry or an operator may have moved the job to a queue that the settings do not list.
    """
    found = copy.copy(task)
    for name, value in options.items():
        object.__setattr__(found, name, value)
    return found


def call_of(payload: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and the named arguments of a job's payload, which is one of two forms.

    The call, `{"args": [...], "kwargs": {...}}`, as the backend writes it; or the arguments by their names, as SQL and
    schedules do: `{"order_id": 17}`.
    """
    args, kwargs = payload.get("args"), payload.get("kwargs")
    if len(payload) == 2 and isinstance(args, list) and isinstance(kwargs, dict):
        return args, kwargs
    return [], payload


def error_of(error: Mapping[str, Any]) -> Any:
    """Return a stored error of an attempt."""
    name = str(error.get("class", ""))
    if "." not in name:
        known = isinstance(getattr(builtins, name, None), type)
        name = f"builtins.{name}" if known else _CLASSES.get(name, "pgqueue.errors.PgQueueError")
    return TaskError(exception_class_path=name, traceback=str(error.get("traceback") or error.get("message", "")))


def worker_ids(errors: list[Mapping[str, Any]], attempts: int, worker: str | None) -> list[str]:
    """Name the worker of each attempt; "" for old attempts whose errors the job no longer keeps."""
    known = {each["attempt"]: str(each.get("worker") or "") for each in errors if "attempt" in each}
    return [known.get(n, (worker or "") if n == attempts else "") for n in range(1, attempts + 1)]


def _as_django(raw: Any) -> Any:
    """Read an instant as Django reads one from a column: naive where USE_TZ is off."""
    found = read_instant(raw)
    if found is None or settings.USE_TZ:
        return found
    return timezone.make_naive(found, timezone.get_default_timezone())


def _task(path: str, declared: Mapping[str, Any]) -> Any:
    if path in declared:
        return declared[path].django
    try:
        task = import_string(path)
    except ImportError:
        return None
    return task if isinstance(task, Task) else None
