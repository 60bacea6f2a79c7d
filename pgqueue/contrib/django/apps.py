"""The app `pgqueue` of a Django project."""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import post_migrate


class PgqueueConfig(AppConfig):
    """Migrates the queue's schema with the project's, checks it, and shows it in the admin."""

    name = "pgqueue.contrib.django"
    label = "pgqueue"
    verbose_name = "pgqueue"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks, and the handler that runs after a migration."""
        # The checks of task backends are registered by this import, which no other part of Django makes. Without tasks
        # there are none.
        with suppress(ImportError):
            importlib.import_module(importlib.import_module("pgqueue.contrib.django.api").CHECKS)
        checks.register(check_schema, checks.Tags.database)
        post_migrate.connect(_load_functions, sender=self, dispatch_uid="pgqueue")


def check_schema(app_configs: Any = None, databases: Any = None, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check that the schema is the one that this version needs: `manage.py check --database default`.

    It is a warning, because `manage.py migrate`, which corrects it, refuses to begin if a check finds an error.
    """
    from pgqueue.contrib.django.schema import aliases, trouble  # noqa: PLC0415

    found: list[checks.CheckMessage] = []
    for alias in aliases():
        if alias in (databases or ()):
            seen = trouble(alias)
            if seen is not None:
                found.append(checks.Warning(seen[0], hint=seen[1], id="pgqueue.W002"))
    return found


def _load_functions(using: str, **kwargs: Any) -> None:
    from pgqueue.contrib.django.schema import aliases, bring_to_head  # noqa: PLC0415

    # A release may change functions without a new revision.
    if using in aliases():
        bring_to_head(using)
