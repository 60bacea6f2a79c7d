"""A backend for Django's tasks: `django.tasks` (Django 6), or the package `django_tasks` before it.

    INSTALLED_APPS = [..., "pgqueue.contrib.django"]
    TASKS = {"default": {"BACKEND": "pgqueue.contrib.django.Backend", "QUEUES": []}}

See docs/how-to/django.md. What stands here is imported when it is asked for, as Django imports an app before its
settings are ready.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgqueue.contrib.django.backend import Backend, PgqueueTask, task
    from pgqueue.contrib.django.handlers import make_app
    from pgqueue.contrib.django.testing import assert_enqueued, drain, enqueued, refute_enqueued

_WHERE = {
    "Backend": "backend",
    "PgqueueTask": "backend",
    "task": "backend",
    "make_app": "handlers",
    "assert_enqueued": "testing",
    "drain": "testing",
    "enqueued": "testing",
    "refute_enqueued": "testing",
}

__all__ = [
    "Backend",
    "PgqueueTask",
    "assert_enqueued",
    "drain",
    "enqueued",
    "make_app",
    "refute_enqueued",
    "task",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
