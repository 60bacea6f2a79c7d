"""Support for applications that use Django: set it up, and close connections that are lost or too old.

Django does both around each request. Without the first no model can be imported; without the second a thread that has
lost its connection fails every later job.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from pgqueue.tasks import Task


def set_up() -> bool:
    """Set Django up where DJANGO_SETTINGS_MODULE names its settings. For before the tasks are imported."""
    if not os.environ.get("DJANGO_SETTINGS_MODULE") or find_spec("django") is None:
        return False
    import django  # noqa: PLC0415
    from django.apps import apps  # noqa: PLC0415

    # Not under manage.py, which has done so: it would set up the log again, too.
    if not apps.ready:
        django.setup()
    return True


def is_on() -> bool:
    """Return whether Django is configured in this process."""
    conf = sys.modules.get("django.conf")
    return conf is not None and bool(conf.settings.configured)


def closing(task: Task[..., Any]) -> Callable[..., Any]:
    """Return the task's function with Django's `close_old_connections` before and after each call, in its thread."""
    from asgiref.sync import sync_to_async  # noqa: PLC0415
    from django.db import close_old_connections  # noqa: PLC0415

    function = task.function
    if task.is_async:
        # In the thread in which Django's own async interface runs all queries.
        close = sync_to_async(close_old_connections)

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            await close()
            try:
                return await function(*args, **kwargs)
            finally:
                await close()

        return call_async

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        close_old_connections()
        try:
            return function(*args, **kwargs)
        finally:
            close_old_connections()

    return call
