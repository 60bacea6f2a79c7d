"""Values that a shell completes: of options with few values, and names from the database."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
from psycopg.conninfo import make_conninfo

from pgqueue import embedded
from pgqueue.config import find_dsn, own_dsn
from pgqueue.errors import PgQueueError

STATES = ("waiting", "executing", "failed", "blocked", "succeeded", "dead", "cancelled")
STRATEGIES = ("weighted", "strict", "lag", "round_robin")


def words(*known: str) -> Callable[[str], list[str]]:
    """Return a completion of a few words."""

    def complete(incomplete: str) -> list[str]:
        return [each for each in known if each.startswith(incomplete)]

    return complete


states = words(*STATES)
strategies = words(*STRATEGIES)
kinds_of_limits = words("queue", "task", "key", "limit_key")
kinds_of_pauses = words("queue", "task", "limit_key")
kinds_of_breakers = words("task", "limit_key")
sources_of_pauses = words("operator", "throttle", "breaker")
kinds_of_roles = words("producer", "worker", "operator", "reader")


def queues(incomplete: str) -> list[str]:
    """Complete the name of a queue."""
    return _names("select queue from pgqueue.lanes union select name from pgqueue.queues", incomplete)


def tasks(incomplete: str) -> list[str]:
    """Complete the name of a task."""
    return _names("select name from pgqueue.tasks", incomplete)


def functions(incomplete: str) -> list[str]:
    """Complete the name of an SQL function of the queue."""
    return _names("select name from pgqueue.manual", incomplete)


def _names(query: str, incomplete: str) -> list[str]:
    """Ask the configured database; on any error, return nothing, because a completion must not print one."""
    try:
        dsn = find_dsn()
        if dsn is None:
            # A completion must not start a server.
            dsn, is_running = embedded.dsn_of() if embedded.available() else ("", False)
            if not is_running:
                return []
        with psycopg.connect(make_conninfo(own_dsn(dsn), connect_timeout="2"), autocommit=True) as connection:
            rows = connection.execute(f"select distinct n from ({query}) q (n) order by 1".encode()).fetchall()
    except (PgQueueError, psycopg.Error, OSError):
        return []
    return [str(name) for (name,) in rows if str(name).startswith(incomplete)]
