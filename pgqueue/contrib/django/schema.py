"""The queue's schema in Django's databases. Alembic's table in it is authoritative; Django's migrations follow it."""

from __future__ import annotations

from typing import Any

import psycopg
from django.conf import settings
from django.db import connections
from django.db.migrations.operations import RunPython

from pgqueue.contrib.django.connections import dsn_of
from pgqueue.errors import AccessDenied
from pgqueue.logs import one_line
from pgqueue.schema.status import Status, status

_REMEDY = "Run: manage.py migrate"

_BACKEND = "pgqueue.contrib.django."


def aliases() -> list[str]:
    """Return the databases that hold a queue, by the settings."""
    tasks = getattr(settings, "TASKS", None) or {}
    ours = [each for each in tasks.values() if str(each.get("BACKEND", "")).startswith(_BACKEND)]
    found = [each.get("OPTIONS", {}).get("database", "default") for each in ours] or ["default"]
    return [alias for alias in dict.fromkeys(found) if connections[alias].vendor == "postgresql"]


# The tables whose rows belong to jobs. Settings, schedules, limits and breakers stay.
_OF_JOBS = (
    "jobs", "history", "dedupe_keys", "dependencies", "traces", "steps", "events", "event_waits", "notes", "key_notes",
    "limit_waits", "limit_starts", "limit_levels", "breaker_ends", "retry_bookings", "lease_promises", "schedule_runs",
    "job_logs",
)  # fmt: skip


def jobs_flush(alias: str) -> list[str]:
    """Return the statements that delete all jobs and what they left, or none where the queue is not installed."""
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "select to_regclass('pgqueue.jobs') is not null, to_regclass('pgqueue_testing.clock') is not null"
        )
        [(installed, has_clock)] = cursor.fetchall()
    if not installed:
        return []
    return [
        f"truncate {', '.join(f'pgqueue.{each}' for each in _OF_JOBS)}",
        # What an operator paused stays so; what a job throttled, or a breaker stopped, does not.
        "delete from pgqueue.pauses where source <> 'operator'",
        # Moved by drain(scheduled=True) in a test that commits.
        *(["select pgqueue_testing.real_clock()"] if has_clock else []),
    ]


def trouble(alias: str) -> tuple[str, str] | None:
    """Return what keeps this version from using the queue in a database, and what to do; None: nothing does."""
    try:
        now = standing(alias)
    except psycopg.OperationalError as error:
        return (
            f"The database {alias!r} cannot be asked for the queue's schema: {one_line(error)}",
            "Start PostgreSQL, or correct this database in the setting DATABASES.",
        )
    except AccessDenied as error:
        return f"The queue's schema in the database {alias!r} cannot be read: {error.message}", f"{error.hint}"
    if now.current:
        return None
    if now.revision is None:
        return f"The database {alias!r} has no queue: the schema 'pgqueue' is missing.", _REMEDY
    refusal = now.refusal(f"the database {alias!r}")
    assert refusal is not None
    what, remedy = refusal
    return f"{what[0].upper()}{what[1:]}.", remedy if now.is_newer or now.is_too_old else _REMEDY


def standing(alias: str) -> Status:
    """Read the status of the schema of a database."""
    return status(dsn_of(alias))


def bring_to(alias: str, revision: str) -> None:
    """Migrate a database to a revision of ours, unless it is there or further."""
    now = standing(alias).revision
    if now is None or now < revision:
        _migrate(alias, revision)


def bring_to_head(alias: str) -> None:
    """Migrate a database to the newest revision, and load the functions of this version."""
    now = standing(alias)
    # A database that a newer version has migrated is left alone.
    if not now.current and not now.is_newer:
        _migrate(alias, "head")


class Migrate(RunPython):
    """The operation of a migration: bring the queue's schema to a revision. Backwards it does nothing."""

    def __init__(self, revision: str) -> None:
        self.revision = revision
        super().__init__(self._forwards, RunPython.noop, atomic=False)

    def deconstruct(self) -> Any:
        """Return how this operation is written."""
        return type(self).__qualname__, [self.revision], {}

    def describe(self) -> str:
        """Return what `migrate --plan` shows."""
        return f"Bring the queue's schema to {self.revision}"

    def _forwards(self, apps: Any, schema_editor: Any) -> None:
        if schema_editor.connection.alias in aliases():
            bring_to(schema_editor.connection.alias, self.revision)


def _migrate(alias: str, revision: str) -> None:
    # Alembic and SQLAlchemy take long to import.
    from pgqueue.schema.migrate import migrate  # noqa: PLC0415

    migrate(dsn_of(alias), to=revision)
