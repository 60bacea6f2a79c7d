"""`manage.py pgqueue_worker`: run Django's tasks until a signal stops it."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from typing import Any

import typer
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
        sys.argv = [*argv[:2], *options]
        if argv[0] != _CALLED:
            _log_once()
        try:
            if "--dsn" not in options and not {"-h", "--help"} & set(options):
                # Not as an option: it may hold a password, and every user can read options.
                os.environ["PGQUEUE_DSN"] = dsn_of(known.database)
            # Others, such as tasks declared elsewhere, may be added with -r.
            code = _worker(["-r", _APP, *options])
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


def _worker(options: list[str]) -> int:
    """Run `pgqueue worker`, which is called `manage.py pgqueue_worker` here."""
    command = typer.main.get_group(cli.cli).commands["worker"]
    done = command.main(
        options,
        prog_name="manage.py pgqueue_worker",
        standalone_mode=False,
        auto_envvar_prefix="PGQUEUE_WORKER",
        help_option_names=["-h", "--help"],
    )
    return done or 0


def _log_once() -> None:
    """Take away the console of Django's default settings, where the worker is to set up the log.

    With DEBUG it would write the lines of Django's loggers a second time, in another form.
    """
    if not logging.getLogger().handlers:
        django = logging.getLogger("django")
        for handler in [each for each in django.handlers if type(each) is logging.StreamHandler]:
            django.removeHandler(handler)
