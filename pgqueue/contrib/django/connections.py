"""Django's databases: which one the queue is in, and its connections around a job."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import psycopg
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.connection import ConnectionProxy
from psycopg.conninfo import make_conninfo

from pgqueue.errors import ConfigError, InvalidArgument

_CONNECTIONS = (ConnectionProxy, BaseDatabaseWrapper, psycopg.Connection, psycopg.AsyncConnection)

# Options of psycopg that libpq does not know.
_NOT_LIBPQ = {"context", "cursor_factory", "prepare_threshold", "row_factory", "autocommit", "isolation_level", "pool"}


def dsn_of(alias: str) -> str:
    """Return the DSN of one of Django's databases. Raises ConfigError when that is no PostgreSQL."""
    connection: Any = connections[alias]
    if connection.vendor != "postgresql":
        raise ConfigError(
            f"the database {alias!r} is {connection.vendor}, and the queue needs PostgreSQL",
            hint='name another one: TASKS = {"default": {..., "OPTIONS": {"database": "alias"}}}',
        )
    names = {"database": "dbname"}
    parameters = {
        names.get(name, name): value
        for name, value in connection.get_connection_params().items()
        if name not in _NOT_LIBPQ and value is not None
    }
    role = connection.settings_dict["OPTIONS"].get("assume_role")
    if role:
        # Django sets it in a session of its own, after it has connected, and takes it from the parameters.
        given = parameters.get("options")
        escaped = re.sub(r"([\\\s])", r"\\\1", role)
        parameters["options"] = " ".join(filter(None, (given, f"-c role={escaped}")))
    return make_conninfo("", **parameters)


def check_no_connection(task: str, database: str, values: Iterable[Any]) -> None:
    """Raise InvalidArgument for a connection among the arguments of a task: the backend has its own."""
    if any(isinstance(each, _CONNECTIONS) for each in values):
        raise InvalidArgument(
            f"a task of Django's takes no connection: {task} is enqueued on that of the database {database!r},"
            " in its transaction",
            hint=f"leave the connection out: {task}.enqueue(...)",
        )


def clean_connections() -> None:
    """Close connections that are broken or too old, before and after a job in its thread, as around a request.

    One in an atomic block is left alone: it is the caller's, such as that of a TestCase.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
        # Not those that a test counts, as assertNumQueries does.
        if not connection.force_debug_cursor:
            connection.queries_log.clear()
