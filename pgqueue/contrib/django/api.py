"""The door to Django's tasks: `django.tasks`, or the package `django_tasks` where Django has none."""

from __future__ import annotations

try:
    from django.tasks import base as _base
    from django.tasks import signals
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.utils.json import normalize_json
except ImportError:
    try:
        from django_tasks import base as _base
        from django_tasks import signals
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.exceptions import TaskResultDoesNotExist
        from django_tasks.utils import normalize_json
    except ImportError as error:
        raise ImportError("this Django has no tasks of its own; run: pip install django-tasks") from error

Task = _base.Task
TaskContext = _base.TaskContext
TaskError = _base.TaskError
TaskResult = _base.TaskResult
TaskResultStatus = _base.TaskResultStatus

# The module that checks the backends of a project.
CHECKS = f"{_base.__package__}.checks"

__all__ = [
    "CHECKS",
    "BaseTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "signals",
]
