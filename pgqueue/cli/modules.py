"""The user's modules: imported, and their tasks put together."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

import pgqueue
from pgqueue import logs
from pgqueue.app import App
from pgqueue.cli.options import working_directory
from pgqueue.errors import ConfigError, PgQueueError
from pgqueue.logs import one_line
from pgqueue.worker.run import django


def load(modules: list[str], command: str = "worker") -> App:
    """Import the user's modules, for a command, and return one App with the tasks of all Apps in them."""
    if not modules:
        raise ConfigError("no module with tasks was given", hint=f"name it: pgqueue {command} -r package.module")
    here = working_directory()
    if here is not None:
        sys.path.insert(0, str(here))
    _set_django_up()
    together = App()
    for each in modules:
        name, _, attribute = each.partition(":")
        if not all(map(str.isidentifier, name.split("."))):
            # A path such as ./tasks.py, which import would take for a relative name.
            raise _no_module(name)
        module = _imported(name)
        if attribute:
            candidates = [getattr(module, attribute, None)]
        else:
            candidates = list({id(value): value for value in vars(module).values() if isinstance(value, App)}.values())
        apps = [candidate for candidate in candidates if isinstance(candidate, App)]
        if not apps:
            raise ConfigError(f"there is no pgqueue.App in {each!r}", hint="make one: app = pgqueue.App()")
        for app in apps:
            together.include(app)
    logs.take_over()
    return together


def _set_django_up() -> None:
    try:
        django.set_up()
    except Exception as error:
        settings = os.environ.get("DJANGO_SETTINGS_MODULE")
        raise _refusal(f"Django cannot be set up with DJANGO_SETTINGS_MODULE={settings}", error) from error


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and name.startswith(str(error.name)):
            raise _no_module(name) from error
        raise _refusal(f"module {name!r} cannot be imported", error) from error


def _no_module(name: str) -> ConfigError:
    return ConfigError(
        f"there is no module {name!r}", hint="give -r as it is written after import, from the directory you are in"
    )


def _refusal(what: str, error: Exception) -> ConfigError:
    shown, place = _described(error)
    refusal = ConfigError(f"{what}: {place}{type(error).__name__}: {one_line(error)}")
    # Printed below the line with the error.
    refusal.add_note(shown)
    return refusal


def _described(error: Exception) -> tuple[str, str]:
    """Return the traceback of a failed import from the user's first frame on, and the file and line it points at."""
    found = traceback.TracebackException.from_exception(error)
    frames = list(found.stack)
    while frames and _is_ours(frames[0]):
        del frames[0]
    if isinstance(error, PgQueueError):
        # A refused declaration: the mistake is in the user's line, not in the code that refuses it.
        while frames and _is_ours(frames[-1]):
            del frames[-1]
    found.stack = traceback.StackSummary.from_list(frames)
    shown = "".join(found.format(chain=True)).rstrip()
    if isinstance(error, SyntaxError) and error.filename is not None:
        return shown, f"{_relative(error.filename)}:{error.lineno}: "
    users = [frame for frame in frames if not _is_ours(frame)]
    return shown, f"{_relative(users[-1].filename)}:{users[-1].lineno}: " if users else ""


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith(("<frozen ", str(Path(pgqueue.__file__).parent), importlib.__file__))


def _relative(filename: str) -> str:
    here = working_directory()
    return os.path.relpath(filename) if here is not None and Path(filename).is_relative_to(here) else filename
