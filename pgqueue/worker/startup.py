"""The start of a worker, before it claims: check the schema, write the declarations."""

from __future__ import annotations

import logging
from functools import partial

from pgqueue import __version__, _telemetry
from pgqueue.app import App
from pgqueue.config import WorkerConfig
from pgqueue.db import consume, presence
from pgqueue.errors import SchemaError
from pgqueue.logs import how_many
from pgqueue.middleware import Around
from pgqueue.schema.status import Status
from pgqueue.worker.link.connection import Link
from pgqueue.worker.presence.declarations import declare
from pgqueue.worker.presence.identity import Identity
from pgqueue.worker.run import django
from pgqueue.worker.run.handlers import Handlers
from pgqueue.worker.tell.events import Events

log = logging.getLogger("pgqueue.worker")


async def prepare(app: App, link: Link, events: Events, handlers: Handlers, place: str) -> None:
    """Declare tasks and schedules, and call the hooks. SchemaError when `place` has another schema."""
    await _check_schema(link, place)
    await declare(app, partial(link.perform, patient=False))
    for task in app.tasks.values():
        task.prepare()
    await events.start()
    if django.is_on():
        handlers.functions = {task.name: django.closing(task) for task in app.tasks.values()}
    _put_around(app, handlers)


async def take_name(identity: Identity, name: str, link: Link) -> None:
    """Take the worker's name, and give back the jobs of its former process. ConfigError while that one is alive."""
    ask = partial(link.perform, patient=False)
    await identity.take_name(ask)
    if given_back := await ask(presence.release_former(name)):
        log.warning(
            "gave back %s of a former process of this name: %s", how_many(len(given_back), "job"), given_back[:20]
        )


def describe_queues(config: WorkerConfig) -> str:
    """Name the queues that a worker serves, with their weights."""
    if config.queues is None:
        return "all"
    if config.weights is None:
        return ", ".join(config.queues)
    pairs = zip(config.queues, config.weights, strict=True)
    return ", ".join(f"{queue} (weight {weight})" for queue, weight in pairs)


async def _check_schema(link: Link, place: str) -> None:
    found = Status.of(await link.perform(consume.version(), patient=False))
    if refusal := found.refusal(place):
        raise SchemaError(refusal[0], hint=refusal[1])
    if found.is_newer:
        log.warning("the schema in %s is newer (%s) than this worker (%s)", place, found.version, __version__)


def _put_around(app: App, handlers: Handlers) -> None:
    # After the hooks for the start: one may have set a tracer provider.
    middleware = app.around_execution()
    if _telemetry.is_on():
        middleware.insert(0, _telemetry.around_execution)
    if middleware:
        handlers.around = Around(middleware)
