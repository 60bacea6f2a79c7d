"""`manage.py flush`, which a TransactionTestCase runs after each test: it empties the queue too."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.core.management.commands import flush
from django.db import connections

from pgqueue.contrib.django.schema import aliases, jobs_flush


class Command(flush.Command):
    """Django's command, which empties the tables of managed models; those of the queue are not managed."""

    def handle(self, **options: Any) -> None:
        """Empty the tables of both in one transaction, once Django has asked."""
        alias = options["database"]
        if alias not in aliases():
            super().handle(**options)
            return
        operations: Any = connections[alias].ops
        operations.execute_sql_flush = partial(_flush, operations.execute_sql_flush, alias)
        try:
            super().handle(**options)
        finally:
            del operations.execute_sql_flush


def _flush(execute: Any, alias: str, statements: list[str]) -> None:
    execute([*statements, *jobs_flush(alias)])
