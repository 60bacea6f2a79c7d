"""The app: its routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from jinja2 import Environment, UndefinedError
from psycopg_pool import PoolTimeout
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from pgqueue import __version__
from pgqueue._redaction import REDACT
from pgqueue.errors import PgQueueError
from pgqueue.middleware import Codec
from pgqueue.web import actions, dead, overview, pages, schedules, sharing, tasks, workers, workflows
from pgqueue.web.context import Context, Settings
from pgqueue.web.database import PageDatabase, Pool
from pgqueue.web.guard import Guard
from pgqueue.web.render import environment
from pgqueue.web.users import Authorize

_Handler = Callable[[Context], Awaitable[Response]]

_PAGES: dict[str, _Handler] = {
    "/": overview.overview,
    "/queues": pages.queues,
    "/queue": pages.queue,
    "/jobs": pages.jobs,
    "/jobs/{id}": pages.job,
    "/groups": workflows.all_groups,
    "/group": workflows.group,
    "/tasks": tasks.tasks,
    "/task": tasks.task,
    "/workers": workers.workers,
    "/worker": workers.worker,
    "/schedules": schedules.schedules,
    "/schedule": schedules.schedule,
    "/limits": pages.limits,
    "/tenants": sharing.tenants,
    "/events": sharing.events,
    "/dead": dead.dead,
    "/audit": pages.audit,
    "/health": pages.health,
    "/metrics": pages.metrics_text,
    "/series": pages.points,
}
# Without a navigation, which has the number of the dead.
_NUMBERS = (pages.metrics_text, pages.points)
_ACTIONS: dict[str, _Handler] = {
    "/act": actions.act,
    "/queue": actions.queue,
    "/group": actions.group,
    "/worker": workers.act_on_worker,
    "/schedule": schedules.act_on_schedule,
    "/limit": actions.limit,
    "/task": tasks.act_on_task,
    "/event": sharing.act_on_event,
}


class _Static(StaticFiles):
    """Files whose address contains the version: a browser can cache them forever."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers["cache-control"] = "public, max-age=31536000, immutable"
        return response


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the pages are served; see `dashboard`. `places`: names and addresses of several databases' pages."""

    authorize: Authorize
    read_only: bool = False
    redact: Sequence[str] = REDACT
    allowed_hosts: Collection[str] = ()
    origin: str | None = None
    trace_url: str | None = None
    title: str = "pgqueue"
    places: tuple[tuple[str, str], ...] = ()
    codec: Codec | None = None


def dashboard(
    database: str | Pool,
    *,
    authorize: Authorize,
    read_only: bool = False,
    redact: Sequence[str] = REDACT,
    allowed_hosts: Collection[str] = (),
    origin: str | None = None,
    trace_url: str | None = None,
    title: str = "pgqueue",
    codec: Codec | None = None,
) -> Starlette:
    """Return the pages as an ASGI app.

    database       a DSN, or a psycopg_pool.AsyncConnectionPool that is open; its role limits the actions
    authorize      takes the request and returns its User, or None; may be async
    read_only      no actions, whatever the role may do
    redact         patterns of field names whose values are not shown, in args, headers and results at any depth; they
                   take the place of those that suggest secrets
    allowed_hosts  host names that it accepts, beside those of loopback; "*": any
    origin         where a browser sees the pages, such as https://ops.example.com, behind a proxy that changes Host
    trace_url      address of a trace, with {trace_id}
    codec          that of the App: shows args decoded, else as they are stored
    """
    options = Options(
        authorize=authorize,
        read_only=read_only,
        redact=redact,
        allowed_hosts=allowed_hosts,
        origin=origin,
        trace_url=trace_url,
        title=title,
        codec=codec,
    )
    return pages_of(PageDatabase(database), options)


def pages_of(found: PageDatabase, options: Options) -> Starlette:
    """Return the pages of one database."""
    templates = environment()
    redact = tuple(options.redact)
    settings = Settings(options.read_only, redact, options.trace_url, options.title, options.places, options.codec)

    def endpoint(handler: _Handler) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return await _answer(handler, Context(request, found, templates, settings))

        return answer

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        await found.close()

    return Starlette(
        routes=[
            *(Route(path, endpoint(handler), methods=["GET"]) for path, handler in _PAGES.items()),
            *(Route(path, endpoint(handler), methods=["POST"]) for path, handler in _ACTIONS.items()),
            static_files(),
        ],
        middleware=[guard(options)],
        exception_handlers={404: _not_found(templates, found, settings)},
        lifespan=lifespan,
    )


def static_files() -> Mount:
    """Return the directory of the files of the pages."""
    return Mount(f"/static/{__version__}", _Static(directory=Path(__file__).with_name("static")))


def guard(options: Options) -> Middleware:
    """Return what admits requests: known hosts, users, and changes that the pages themselves ask for."""
    return Middleware(Guard, authorize=options.authorize, hosts=options.allowed_hosts, origin=options.origin)


async def _answer(handler: _Handler, context: Context) -> Response:
    try:
        await context.find_rights()
        if handler not in _NUMBERS:
            await context.database.have_numbers()
        return await handler(context)
    except (HTTPException, PgQueueError, psycopg.Error, PoolTimeout) as error:
        return context.problem(error)
    except UndefinedError as error:
        pages.log.exception("a page cannot be shown: %s", context.request.url.path)
        return context.problem(error)
    except (asyncio.CancelledError, OSError) as error:
        if isinstance(error, asyncio.CancelledError):
            raise
        return context.problem(psycopg.OperationalError(str(error)))


def _not_found(
    templates: Environment, database: PageDatabase, settings: Settings
) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(request: Request, error: Exception) -> Response:
        if "pgqueue.user" not in request.scope:
            return Response(status_code=404)
        return Context(request, database, templates, settings).problem(error)

    return answer
