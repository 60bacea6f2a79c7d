"""The context of every page: the database, the user and their rights, and how to answer."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qs

import psycopg
from jinja2 import Environment, UndefinedError
from psycopg_pool import PoolTimeout
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pgqueue._filters import Filter, parse
from pgqueue._redaction import hides
from pgqueue.db import observe
from pgqueue.errors import AccessDenied, InvalidArgument, PgQueueError
from pgqueue.logs import one_line
from pgqueue.middleware import Codec
from pgqueue.web.database import PageDatabase
from pgqueue.web.render import link
from pgqueue.web.users import User

T = TypeVar("T")

# Bytes of a form, and fields.
_MOST = 1_000_000
_FIELDS = 2000


@dataclass(frozen=True, slots=True)
class Settings:
    """How the pages are set up. `places`: names and addresses of the databases, where there are several."""

    read_only: bool
    redact: tuple[str, ...]
    trace_url: str | None
    title: str
    places: tuple[tuple[str, str], ...] = ()
    codec: Codec | None = None


class Context:
    """One request."""

    def __init__(self, request: Request, database: PageDatabase, templates: Environment, settings: Settings) -> None:
        self.request = request
        self.database = database
        self.settings = settings
        self._templates = templates
        self.user: User = request.scope["pgqueue.user"]
        self.prefix = request.scope.get("pgqueue.prefix", "") + request.scope.get("root_path", "")
        self.rights: dict[str, Any] = {}
        # The parts of the page whose statement took too long.
        self.missing: list[str] = []

    async def find_rights(self) -> None:
        """Read the rights of the role of the database."""
        self.rights = await self.database.shared("rights", 5.0, observe.rights)
        self.rights.setdefault("asked", time.time())

    def may(self, what: str) -> bool:
        """Return whether this user, in this database, may do this."""
        if what in ("read", "args"):
            return what in self.user.can
        acts = self.rights.get("act") and not self.rights.get("standby") and not self.settings.read_only
        return bool(acts) and what in self.user.can

    def require(self, what: str) -> None:
        """Raise if this user may not do this."""
        if not self.may(what):
            raise HTTPException(403, f"{self.user.name} may not do this here: {self.why_not(what)}")

    def why_not(self, what: str) -> str:
        """Return why an action is not available."""
        if self.settings.read_only:
            return "the pages are read-only"
        if self.rights.get("standby"):
            return "the server is a standby"
        if not self.rights.get("act"):
            return f"role {self.rights.get('role')} is not granted operator"
        return f"the right {what} is missing"

    def query(self, name: str, default: str = "") -> str:
        """Return a parameter of the address."""
        value = self.request.query_params.get(name, default)
        if "\0" in value:
            raise InvalidArgument(f"{name} holds a NUL", hint="PostgreSQL stores none")
        return value

    def whole(self, name: str) -> int | None:
        """Return a parameter that is a number."""
        value = self.query(name)
        if value and not (value.isascii() and value.isdigit() and len(value) <= 18):
            raise InvalidArgument(f"{name} is not a number", hint="follow the links of the page")
        return int(value) if value else None

    async def form(self) -> dict[str, list[str]]:
        """Read the form that was sent."""
        body = b""
        async for chunk in self.request.stream():
            body += chunk
            if len(body) > _MOST:
                raise HTTPException(413, "the form is too long")
        try:
            return parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=_FIELDS)
        except ValueError:
            raise HTTPException(413, f"the form has more than {_FIELDS} fields") from None

    def filter(self, line: str) -> Filter:
        """Read a filter. Refuses one that would tell of args that this user may not see, or that are hidden."""
        found = parse(line)
        if "args" in found and not self.may("args"):
            raise HTTPException(403, f"{self.user.name} may not search for args: the right args is missing")
        if hides(found.get("args", []), self.settings.redact):
            raise InvalidArgument("a filter names a field whose values are hidden", hint="search for another field")
        return found

    async def part(self, name: str, reading: Awaitable[T], otherwise: T) -> T:
        """Read a part of the page; `otherwise` if its statement takes too long: then the page says what it lacks."""
        try:
            return await reading
        except psycopg.errors.QueryCanceled:
            self.missing.append(name)
            return otherwise

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """Run what changes something; take it back if the browser goes before it has ended, as it does at Stop."""
        working, gone = asyncio.create_task(work), asyncio.create_task(self._gone())
        try:
            await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise HTTPException(400, "the browser has gone: nothing was changed")
            return working.result()
        finally:
            gone.cancel()
            working.cancel()
            await asyncio.gather(working, gone, return_exceptions=True)

    async def _gone(self) -> None:
        while (await self.request.receive())["type"] != "http.disconnect":
            pass

    def now(self) -> float:
        """Return the database's time, as far as it was asked for."""
        asked = time.time() - float(self.rights.get("asked", time.time()))
        return float(self.rights.get("clock", time.time())) + asked

    def link(self, page: str, **query: object) -> str:
        """Return the address of a page."""
        return link(self.prefix, page, **query)

    def go(self, page: str, **query: object) -> Response:
        """Answer an action with a redirect to a page."""
        return RedirectResponse(self.link(page, **query), 303)

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """Answer with a page; 304 where the browser has this very one."""
        body = self._templates.get_template(template).render(
            link=partial(link, self.prefix),
            here=self._here(),
            user=self.user,
            may=self.may,
            why_not=self.why_not,
            rights=self.rights,
            settings=self.settings,
            front=self._front(),
            query=self.query,
            template=template.removesuffix(".html"),
            missing=self.missing,
            counts=(self.database.last("stats") or {}).get("total"),
            **values,
        )
        tag = f'W/"{hashlib.blake2b(body.encode(), digest_size=12).hexdigest()}"'
        if status == 200 and self.request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag, "cache-control": "no-cache"})
        return HTMLResponse(body, status, {"etag": tag, "cache-control": "no-cache, private"})

    def _here(self) -> str:
        """Return the address of this page."""
        path, line = self.request.scope.get("pgqueue.prefix", "") + self.request.url.path, self.request.url.query
        return f"{path}?{line}" if line else path

    def _front(self) -> str:
        """Return the address of the page of all databases."""
        prefix: str = self.prefix
        head, db, slug = prefix.rpartition("/db/")
        return head if db and slug in dict(self.settings.places).values() else prefix

    def problem(self, error: Exception) -> Response:
        """Answer with an error and the next step."""
        status, title, detail, hint = _problem(error)
        return self.page("problem.html", status, title=title, detail=detail, hint=hint)


def _problem(error: Exception) -> tuple[int, str, str, str]:
    if isinstance(error, HTTPException):
        return error.status_code, "This is not possible", str(error.detail), ""
    if isinstance(error, InvalidArgument):
        return 400, "This request is not valid", error.message, error.hint or ""
    if isinstance(error, psycopg.errors.QueryCanceled):
        return (
            504,
            "The database took too long",
            "The statement was ended after its time.",
            "Ask for less, or see Health.",
        )
    if isinstance(error, AccessDenied | psycopg.errors.InsufficientPrivilege):
        hint = "Grant it: pgqueue grant reader ROLE, or operator."
        return 403, "The role of the database may not do this", one_line(error), hint
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return 403, "The server takes no writes", one_line(error), "It is a standby, or read-only."
    if isinstance(error, psycopg.OperationalError | PoolTimeout):
        return 503, "The database cannot be reached", one_line(error), "The page retries by itself."
    if type(error) is PgQueueError:
        # SQLSTATE 55000: the job has ended, waits for others, and the like.
        return 409, "This is not possible now", " ".join(error.message.split()), error.hint or ""
    if isinstance(error, PgQueueError):
        # Its text has the hint as well.
        return 500, "The database refused this", " ".join(error.message.split()), error.hint or ""
    if isinstance(error, psycopg.Error):
        return 500, "The database refused this", one_line(error), ""
    if isinstance(error, UndefinedError):
        return 500, "This page cannot be shown", one_line(error), "The log of the pages has the traceback."
    raise error
