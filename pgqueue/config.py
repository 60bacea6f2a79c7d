"""The settings: which database, and the options of a worker."""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgqueue.errors import ConfigError

# libpq gives up on a silently lost peer only after hours; a worker must know within a lease.
_TCP_DEFAULTS = {
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}


def find_dsn(explicit: str | None = None, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the DSN to use, or None when nothing is configured anywhere (then the embedded server is the default).

    In this order: `explicit`, PGQUEUE_DSN, DATABASE_URL, the libpq variables (PGHOST, PGSERVICE, ...; the DSN is
    then empty). Raises ConfigError when it is no valid DSN.
    """
    given = environ.get("PGQUEUE_DSN")
    for source, dsn in (
        # The command line has read the variable for its option.
        ("PGQUEUE_DSN" if explicit == given else "--dsn", explicit),
        ("PGQUEUE_DSN", given),
        ("DATABASE_URL", environ.get("DATABASE_URL")),
    ):
        if dsn:
            return check_dsn(source, dsn)
    if any(environ.get(name) for name in ("PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE", "PGPORT", "PGUSER")):
        return ""
    return None


def check_dsn(source: str, dsn: str) -> str:
    """Return the DSN, without the name of a driver. ConfigError, naming `source` and no password, if it is none."""
    # SQLAlchemy's way of naming a driver: postgresql+psycopg://
    dsn = re.sub(r"^(postgres(?:ql)?)\+\w+://", r"\1://", dsn)
    try:
        parts = conninfo_to_dict(dsn)
    except (psycopg.Error, UnicodeEncodeError) as error:
        # libpq quotes the text that it cannot read, with the password in it.
        reason = re.sub(r"//[^/@]*@", "//...@", str(error).strip())
        if isinstance(error, UnicodeEncodeError):
            reason = "it is not text in UTF-8"
        elif "password" in dsn.lower():
            reason = "it cannot be read (not shown, for it holds a password)"
        raise ConfigError(
            f"{source} is not a PostgreSQL DSN: {reason}",
            hint="give it as postgresql://user@host/database or as host=... dbname=...",
        ) from error
    if not re.fullmatch(r"[\d,]*", str(parts.get("port") or "")) or "@" in str(parts.get("dbname") or ""):
        # A password with a slash makes such parts; printed, they would reveal it.
        raise ConfigError(
            f"{source} has no port or database that could be one",
            hint="write / as %2F, @ as %40, : as %3A in a user's name or password",
        )
    return dsn


def own_dsn(dsn: str, application_name: str = "pgqueue", environ: Mapping[str, str] = os.environ) -> str:
    """Add what each connection of pgqueue's own needs: UTF-8, whatever the database is in, and a name if it has none.

    Without it psycopg would read bytes from a database in SQL_ASCII, and JSON in another encoding from one in LATIN1.
    """
    extra = {"client_encoding": "UTF8"}
    if "application_name" not in conninfo_to_dict(dsn) and not environ.get("PGAPPNAME"):
        extra["application_name"] = application_name[:63]
    return make_conninfo(dsn, **extra)


def writing_dsn(dsn: str, application_name: str, environ: Mapping[str, str] = os.environ) -> str:
    """As `own_dsn`; of several hosts it is the one that takes writes, unless the DSN or the environment says which."""
    given = conninfo_to_dict(dsn)
    hosts = [given.get(name) or environ.get(f"PG{name.upper()}") or "" for name in ("host", "hostaddr")]
    is_said = given.get("target_session_attrs") or environ.get("PGTARGETSESSIONATTRS")
    if "," in "".join(map(str, hosts)) and not is_said:
        dsn = make_conninfo(dsn, target_session_attrs="read-write")
    return own_dsn(dsn, application_name, environ)


def worker_dsn(dsn: str, application_name: str, lease: float = 30.0, environ: Mapping[str, str] = os.environ) -> str:
    """Add the parameters of a long-lived connection that neither the DSN nor the environment sets.

    These are UTF-8, a name, keepalives, a connect_timeout of a sixth of the lease (2 to 10 s, for each host of a list),
    and target_session_attrs=read-write, so that it skips standbys and demoted primaries and connects to the server that
    takes writes.
    """
    given = conninfo_to_dict(dsn)
    extra = {name: value for name, value in _TCP_DEFAULTS.items() if name not in given}
    for name, variable, value in (
        ("connect_timeout", "PGCONNECT_TIMEOUT", str(int(min(max(lease / 6, 2.0), 10.0)))),
        ("target_session_attrs", "PGTARGETSESSIONATTRS", "read-write"),
    ):
        if name not in given and not environ.get(variable):
            extra[name] = value
    return own_dsn(make_conninfo(dsn, **extra), application_name, environ)


def describe_dsn(dsn: str) -> str:
    """Name the server and database of a DSN for people, without its password."""
    parts = conninfo_to_dict(dsn)
    host = parts.get("host") or parts.get("hostaddr") or os.environ.get("PGHOST") or "the local socket"
    database = parts.get("dbname") or os.environ.get("PGDATABASE") or "the default database"
    return f"{database} on {host}"


def name_databases(dsns: Sequence[str]) -> list[str]:
    """Return a short name for each database: its own, with the host and the port where those tell some apart.

    Raises ConfigError when two DSNs name one database.
    """
    parts = [conninfo_to_dict(dsn) for dsn in dsns]
    places = [(each.get("service"), *_address(each)) for each in parts]
    for place, dsn in zip(places, dsns, strict=True):
        if places.count(place) > 1:
            raise ConfigError(f"--dsn names {describe_dsn(dsn)} twice", hint="give each database once")
    names = [str(dbname or service or "default") for service, dbname, _, _ in places]
    hosts = [f"{name}@{host}" for name, (_, _, host, _) in zip(names, places, strict=True)]
    ports = [f"{host}:{port}" for host, (_, _, _, port) in zip(hosts, places, strict=True)]
    services = [f"{port} {service or ''}".strip() for port, (service, *_) in zip(ports, places, strict=True)]
    return [
        next((form for form, all_forms in forms if all_forms.count(form) == 1), forms[-1][0])
        for forms in (
            list(zip(each, (names, hosts, ports, services), strict=True))
            for each in zip(names, hosts, ports, services, strict=True)
        )
    ]


def _address(parts: Mapping[str, object]) -> tuple[object, str, str]:
    host = str(parts.get("host") or parts.get("hostaddr") or os.environ.get("PGHOST") or "local")
    return parts.get("dbname") or os.environ.get("PGDATABASE"), host, str(parts.get("port") or "5432")


def _default_name() -> str:
    # Unique for each process: release_unheld gives back what is booked under the name and not in the list.
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How a worker behaves. Durations are in seconds.

    queues            the queues to serve; None: all of them
    weights           one for each queue; None: those in pgqueue.queues, 1 where none is set
    strategy          how `reserve` chooses among queues: weighted, strict, lag or round_robin
    concurrency       handlers that run at the same time
    min_concurrency   with it, that number moves between this and `concurrency` with the work; None: it is fixed
    lease             how long a reservation holds; extended at a third of it
    poll_interval     how long an idle worker sleeps without a notification
    shutdown_timeout  how long running jobs may continue after a first TERM or INT; a task may have a shorter one
    listen            False: poll only
    listen_dsn        where to listen, when `dsn` leads to a pooler in transaction mode: the same database, directly
    prepare           False: no prepared statements and no session settings, for use behind such a pooler; None: True
                      if the worker listens on `dsn` itself, which does not work behind such a pooler
    until_empty       whether to stop when no job is due
    max_memory        bytes above which a supervisor replaces this process, which reports them; None: it does not
    supervised        a supervisor replaces this process when it ends: it ends with exit code 75 when a handler cannot
                      be stopped at its timeout
    keep_log          loggers whose lines the database keeps with the running job, in addition to those of `job.log`
    name              unique name of the worker process
    """

    queues: tuple[str, ...] | None = None
    weights: tuple[int, ...] | None = None
    strategy: str = "weighted"
    concurrency: int = 20
    min_concurrency: int | None = None
    lease: float = 30.0
    poll_interval: float = 5.0
    shutdown_timeout: float = 30.0
    listen: bool = True
    listen_dsn: str | None = field(default=None, repr=False)
    prepare: bool | None = None
    until_empty: bool = False
    max_memory: int | None = None
    supervised: bool = False
    keep_log: tuple[str, ...] = ()
    name: str = field(default_factory=_default_name)

    @property
    def pooled(self) -> bool:
        """Whether to leave nothing in a session."""
        if self.prepare is None:
            return not self.listen or self.listen_dsn is not None
        return not self.prepare

    def __post_init__(self) -> None:
        if self.listen_dsn is not None:
            object.__setattr__(self, "listen_dsn", check_dsn("--listen-dsn", self.listen_dsn))
        for name, low, high in (
            ("concurrency", 1, 10_000),
            ("min_concurrency", 1, self.concurrency),
            ("lease", 1.0, 86_400.0),
            ("poll_interval", 0.01, 3_600.0),
            ("shutdown_timeout", 0.0, 86_400.0),
        ):
            value = getattr(self, name)
            if value is None and name == "min_concurrency":
                continue
            kinds = (int,) if name.endswith("concurrency") else (int, float)
            if not isinstance(value, kinds) or isinstance(value, bool) or not low <= value <= high:
                what = "value" if isinstance(value, kinds) else "number" if float in kinds else "whole number"
                raise ConfigError(
                    f"{name.replace('_', '-')} is {value!r}", hint=f"give a {what} between {low:g} and {high:g}"
                )
        for name, names in (("queues", self.queues), ("keep_log", self.keep_log)):
            if isinstance(names, str):
                # Else each of its letters would be one.
                raise ConfigError(f"{name} is {names!r}", hint="give a list of names")
