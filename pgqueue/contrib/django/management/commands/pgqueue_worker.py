"""`manage.py pgqueue_worker`: run Django's tasks until a signal stops it."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from pgqueue import cli
from pgqueue.contrib.django.connections import dsn_of
from pgqueue.errors import PgQueueError

_APP = "pgqueue.contrib.django.worker"

# Instead of the path of manage.py.
_CALLED = "call_command"


class Command(BaseCommand):
    """Takes all options of `pgqueue worker`, and --database."""

    help = "Run Django's tasks until a signal stops it. Takes all options of `pgqueue worker`, and --database ALIAS."

    def run_from_argv(self, argv: list[str]) -> None:
        """Take the options as they are: they are those of `pgqueue worker`."""
        # Django has applied these two.
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--settings")
        parser.add_argument("--pythonpath")
        parser.add_argument("--database", default="default")
        known, options = parser.parse_known_args(argv[2:])
        if "--dsn" not in options and not {"-h", "--help"} & set(options):
            # Not as an option: it may hold a password, and every user can read options.
            os.environ["PGQUEUE_DSN"] = dsn_of(known.database)
        sys.argv = [*argv[:2], *options]
        # Others, such as tasks declared elsewhere, may be added with -r.
        try:
            code = cli.cli(["worker", "-r", _APP, *options], standalone_mode=False) or 0
        except PgQueueError as error:
            if argv[0] == _CALLED:
                raise CommandError(str(error)) from error
            self.stderr.write(self.style.ERROR(f"pgqueue_worker: {error}"))
            code = 2
        sys.exit(code)

    def add_arguments(self, parser: Any) -> None:
        """Take options from call_command()."""
        parser.add_argument("options", nargs="*")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the worker for call_command("pgqueue_worker", "--until-empty")."""
        self.run_from_argv([_CALLED, "pgqueue_worker", *options["options"]])
