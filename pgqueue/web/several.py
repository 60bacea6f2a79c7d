"""The pages of several databases: one for all of them, and the dashboard of each below it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import psycopg
from psycopg_pool import PoolTimeout
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from pgqueue import metrics, verdict
from pgqueue.db import observe
from pgqueue.errors import PgQueueError
from pgqueue.logs import one_line
from pgqueue.web.app import Options, guard, pages_of, static_files
from pgqueue.web.context import Context, Settings
from pgqueue.web.database import PageDatabase
from pgqueue.web.render import environment, stamp

T = TypeVar("T")


def dashboards(databases: Mapping[str, str], options: Options) -> Starlette:
    """Return the pages of several databases as an ASGI app. `databases`: DSNs by the names to show.

    / lists them, /db/NAME is the dashboard of one, /metrics has the label `database`. A database that cannot be read is
    listed as such, and the others are shown.
    """
    slugs = _slugs(databases)
    found = {name: PageDatabase(dsn) for name, dsn in databases.items()}
    templates = environment()
    places = tuple(slugs.items())
    settings = Settings(True, (), None, options.title, places)

    def context(request: Request) -> Context:
        return Context(request, next(iter(found.values())), templates, settings)

    async def index(request: Request) -> Response:
        stats, troubles = await _ask_each(found, lambda each: each.shared("stats", 1.0, observe.stats))
        numbers = {name: _numbers(each, found[name].age("stats")) for name, each in stats.items()}
        return context(request).page("databases.html", numbers=numbers, troubles=troubles, slugs=slugs)

    async def metrics_text(request: Request) -> Response:
        if not metrics.is_available():
            missing = HTTPException(404, "prometheus-client is not installed: pip install 'pgqueue-sql[metrics]'")
            return context(request).problem(missing)
        rows, troubles = await _ask_each(found, lambda each: each.shared("metrics", 60.0, observe.metrics))
        times, _ = await _ask_each(found, PageDatabase.times_of_queues)
        families = [*metrics.of_database(metrics.of_several(rows, troubles)), *metrics.of_times(times)]
        return Response(metrics.as_text(families), media_type=metrics.CONTENT_TYPE)

    each = {slug: pages_of(found[name], replace(options, title=name, places=places)) for name, slug in places}

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for one in each.values():
                await stack.enter_async_context(one.router.lifespan_context(one))
            yield

    front = Starlette(
        routes=[Route("/", index), Route("/metrics", metrics_text), static_files()],
        middleware=[guard(options)],
    )
    mounts = [Mount(f"/db/{slug}", one) for slug, one in each.items()]
    return Starlette(routes=[*mounts, Mount("/", front)], lifespan=lifespan)


def _numbers(stats: Mapping[str, Any], age: float) -> dict[str, Any]:
    """Return the numbers of a database, `age` seconds after they were read, with the queue whose jobs wait longest."""
    now = stamp(stats["at"]) + age
    return {
        **stats["total"],
        "worst": verdict.worst(each for each in stats["queues"] if not each["queue"].startswith("@")),
        "alive": len(verdict.living(stats)),
        "at": stats["sampled_at"] or stats["at"],
        "now": now,
    }


async def _ask_each(
    databases: Mapping[str, PageDatabase], question: Callable[[PageDatabase], Awaitable[T]]
) -> tuple[dict[str, T], dict[str, str]]:
    """Ask all at the same time; returns the answers, and what is wrong with the others."""

    async def ask(database: PageDatabase) -> Any:
        try:
            return await question(database)
        except (psycopg.Error, PgQueueError, PoolTimeout, OSError) as error:
            return error

    answers = await asyncio.gather(*map(ask, databases.values()))
    found = dict(zip(databases, answers, strict=True))
    return (
        {name: answer for name, answer in found.items() if not isinstance(answer, Exception)},
        {name: one_line(answer) for name, answer in found.items() if isinstance(answer, Exception)},
    )


def _slugs(names: Mapping[str, object]) -> dict[str, str]:
    """Return what stands for each name in an address."""
    found: dict[str, str] = {}
    for number, name in enumerate(names, 1):
        slug = re.sub(r"[^A-Za-z0-9_.@-]", "-", name)
        found[name] = f"{slug}-{number}" if slug in found.values() or slug in (".", "..") else slug
    return found
