"""The start of a worker, before it claims: check the schema, write the declarations."""

from __future__ import annotations

import logging
from functools import partial

from pgqueue import __version__, telemetry
from pgqueue.app import App
from pgqueue.config import WorkerConfig
from pgqueue.db import consume
from pgqueue.errors import SchemaError
from pgqueue.middleware import Around
from pgqueue.schema import bundled
from pgqueue.worker import django
from pgqueue.worker.connection import Link
from pgqueue.worker.declarations import declare
from pgqueue.worker.events import Events
from pgqueue.worker.handlers import Handlers
from pgqueue.worker.identity import Identity

log = logging.getLogger("pgqueue.worker")


async def prepare(app: App, link: Link, events: Events, handlers: Handlers, place: str) -> None:
    """Declare tasks and schedules, and call the hooks. Raises SchemaError when `place` holds an older schema."""
    await _check_schema(link, place)
    await declare(app, partial(link.perform, patient=False))
    await events.start()
    if django.is_on():
        handlers.functions = {task.name: django.closing(task) for task in app.tasks.values()}
    _put_around(app, events, handlers)


async def take_name(identity: Identity, name: str, link: Link) -> None:
    """Take the worker's name, and give back the jobs of its former process. ConfigError while that one is alive."""
    ask = partial(link.perform, patient=False)
    await identity.take_name(ask)
    if given_back := await ask(consume.release_former(name)):
        log.warning("gave back %d jobs of a former process of this name: %s", len(given_back), given_back[:20])


def describe_queues(config: WorkerConfig) -> str:
    """Name the queues that a worker serves, with their weights."""
    if config.queues is None:
        return "all"
    if config.weights is None:
        return ", ".join(config.queues)
    pairs = zip(config.queues, config.weights, strict=True)
    return ", ".join(f"{queue} (weight {weight})" for queue, weight in pairs)


async def _check_schema(link: Link, place: str) -> None:
    installed = await link.perform(consume.version(), patient=False)
    known = bundled.revisions()
    if installed is None or installed[1] < known[-1]:
        raise SchemaError(
            f"the schema in {place} is older than this worker (it is at {installed and installed[1]},"
            f" the worker needs {known[-1]})",
            hint="run: pgqueue migrate",
        )
    if installed[1] == known[-1] and installed[2] != bundled.sql_digest():
        if _release_of(installed[0]) <= _release_of(__version__):
            raise SchemaError(
                f"the functions in {place} are older than this worker ({installed[0]})", hint="run: pgqueue migrate"
            )
        log.warning("the schema in %s is newer (%s) than this worker (%s)", place, installed[0], __version__)


def _release_of(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _put_around(app: App, events: Events, handlers: Handlers) -> None:
    # After the hooks for the start: one may have set a tracer provider.
    middleware = app.around_execution()
    if telemetry.is_on():
        middleware.insert(0, telemetry.around_execution)
    if middleware:
        handlers.around = Around(middleware)
    if events.is_on:
        handlers.on_event = events.report
