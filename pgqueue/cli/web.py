"""`pgqueue web`: serve the operator's pages."""

from __future__ import annotations

import ipaddress
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

import psycopg
import typer
from psycopg.conninfo import make_conninfo

from pgqueue._redaction import REDACT
from pgqueue.cli import output, ports
from pgqueue.cli.database import databases
from pgqueue.cli.options import Dsns, commands
from pgqueue.config import describe_dsn, name_databases
from pgqueue.errors import ConfigError, PgQueueError
from pgqueue.logs import one_line
from pgqueue.schema.status import status

if TYPE_CHECKING:
    from pgqueue.web.app import Options

app = commands()

# Seconds for a database to answer at the start.
_WITHIN = 5


@app.command()
def web(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8081,
    prefix: Annotated[str, typer.Option(help="Path before all pages, such as /jobs.")] = "",
    user: Annotated[str | None, typer.Option(help="Name to log in with; with --password.")] = None,
    password: Annotated[str | None, typer.Option(help="The password; better: set PGQUEUE_WEB_PASSWORD.")] = None,
    trust_header: Annotated[
        str | None, typer.Option(help="Header in which a proxy names the user, such as X-Forwarded-User.")
    ] = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Admit every visitor, on any address.")] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="No actions.")] = False,
    hide_args: Annotated[bool, typer.Option("--hide-args", help="Hide args, headers and results.")] = False,
    redact: Annotated[
        list[str] | None,
        typer.Option(help="Pattern of another field whose value is hidden, as those of secrets are. Repeatable."),
    ] = None,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="Host name under which the pages may be reached; * for any. Repeatable.")
    ] = None,
    origin: Annotated[
        str | None, typer.Option(help="Address of the pages for browsers, behind a proxy: https://ops.example.com.")
    ] = None,
    trace_url: Annotated[str | None, typer.Option(help="Address of a trace, with {trace_id}.")] = None,
    dsn: Dsns = None,
) -> None:
    """Serve the operator's pages until Ctrl-C.

    If --dsn is given more than once, it serves all these databases: one page for all, the pages of each below /db/, and
    one /metrics with the label database.

    Without --user, --trust-header or --no-auth it listens on loopback addresses only.
    """
    ports.check_extra_web()
    # Imported here, so that an enqueue does not wait for these.
    import uvicorn  # noqa: PLC0415

    from pgqueue.web.app import Options  # noqa: PLC0415

    authorize = _authorize(user, password, trust_header, no_auth, host, hide_args)
    if prefix and (not prefix.startswith("/") or prefix.endswith("/")):
        raise ConfigError(f"--prefix is {prefix!r}", hint="give it as /jobs")
    options = Options(
        authorize=authorize,
        read_only=read_only,
        redact=(*REDACT, *(redact or ())),
        allowed_hosts=[*(allowed_host or ()), *([] if _is_wildcard(host) else [host])],
        origin=origin,
        trace_url=trace_url,
    )
    ports.check_free(host, port)
    with databases(dsn) as found:
        pages = _pages(found, options, prefix)
        with ThreadPoolExecutor(len(found)) as threads:
            for trouble in threads.map(_trouble, found):
                if trouble is not None:
                    output.message(f"pgqueue: {trouble}", "yellow")
        shown = "localhost" if _is_wildcard(host) else f"[{host}]" if ":" in host else host
        output.message(f"The pages are at http://{shown}:{port}{prefix}/ until Ctrl-C.")
        uvicorn.run(pages, host=host, port=port, log_level="warning", server_header=False, lifespan="on")


def _trouble(dsn: str) -> str | None:
    """Return why the pages of a database would show nothing but an error. They are served all the same, and retry."""
    try:
        found = status(make_conninfo(dsn, connect_timeout=_WITHIN))
    except (psycopg.Error, PgQueueError) as error:
        return f"{describe_dsn(dsn)} cannot be used now: {one_line(error)}"
    if found.revision is None:
        return f"the queue is not installed in {describe_dsn(dsn)}; run: pgqueue migrate"
    return None


def _pages(dsns: list[str], options: Options, prefix: str) -> Any:
    from starlette.applications import Starlette  # noqa: PLC0415
    from starlette.routing import Mount  # noqa: PLC0415

    from pgqueue.web.app import pages_of  # noqa: PLC0415
    from pgqueue.web.database import PageDatabase  # noqa: PLC0415
    from pgqueue.web.several import dashboards  # noqa: PLC0415

    pages: Any
    if len(dsns) > 1:
        pages = dashboards(dict(zip(name_databases(dsns), dsns, strict=True)), options)
    else:
        pages = pages_of(PageDatabase(dsns[0]), options)
    return Starlette(routes=[Mount(prefix, pages)]) if prefix else pages


def _authorize(
    user: str | None, password: str | None, trust_header: str | None, no_auth: bool, host: str, hide_args: bool
) -> Any:
    from pgqueue.web import users  # noqa: PLC0415

    if (user is None) != (password is None):
        raise ConfigError("--user and --password go together", hint="or PGQUEUE_WEB_USER and PGQUEUE_WEB_PASSWORD")
    if sum([user is not None, trust_header is not None, no_auth]) > 1:
        raise ConfigError("several ways to log in are given", hint="give one of --user, --trust-header, --no-auth")
    if user is not None and password is not None:
        found = users.by_password(user, password)
    elif trust_header is not None:
        found = users.by_header(trust_header)
    elif no_auth or _is_loopback(host):
        found = users.anyone
    else:
        raise ConfigError(
            f"{host} can be reached from other machines, and anyone could use it without a login",
            hint="give --user with PGQUEUE_WEB_PASSWORD, --trust-header behind a proxy, or --no-auth",
        )
    if not hide_args:
        return found

    def without_args(request: Any) -> Any:
        asks: Any = found(request)
        return None if asks is None else users.User(asks.name, asks.can - {"args"})

    return without_args


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
