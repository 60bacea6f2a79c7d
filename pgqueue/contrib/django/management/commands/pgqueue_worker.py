"""`manage.py pgqueue_worker`: run Django's tasks until a signal stops it."""

from __future__ import annotations

import argparse
import logging
import sys
from typing import Any

import typer
from django.core.management.base import BaseCommand, CommandError

from pgqueue import cli
from pgqueue.cli import output
from pgqueue.contrib.django.connections import dsn_of
from pgqueue.errors import PgQueueError
from pgqueue.processes.worker_main import guest

_APP = "pgqueue.contrib.django.worker"


class Command(BaseCommand):
    """Takes all options of `pgqueue worker`, and --database."""

    help = "Run Django's tasks until a signal stops it. Takes all options of `pgqueue worker`, and --database ALIAS."

    def run_from_argv(self, argv: list[str]) -> None:
        """Take the options as they are: they are those of `pgqueue worker`."""
        output.open_closed_streams()
        # Django has applied these two.
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--settings")
        parser.add_argument("--pythonpath")
        parser.add_argument("--database", default="default")
        known, options = parser.parse_known_args(argv[2:])
        sys.argv = [*argv[:2], *options]
        _log_once()
        try:
            code = _worker(known.database, options)
        except PgQueueError as error:
            # Not to Django's stderr, which is none where it was closed.
            output.message(f"pgqueue_worker: {error}", "red")
            code = 2
        sys.exit(code)

    def add_arguments(self, parser: Any) -> None:
        """Take options from call_command()."""
        parser.add_argument("--database", default="default")
        parser.add_argument("options", nargs="*")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the worker in the caller's process, for call_command("pgqueue_worker", "--", "--until-empty").

        Raises SystemExit with its exit code, and CommandError.
        """
        with guest():
            try:
                code = _worker(options["database"], options["options"])
            except PgQueueError as error:
                raise CommandError(str(error)) from error
        sys.exit(code)


def _worker(database: str, options: list[str]) -> int:
    """Run `pgqueue worker`, which is called `manage.py pgqueue_worker` here."""
    if "--dsn" not in options and not {"-h", "--help"} & set(options):
        # In this list, not in sys.argv or the environment: it may hold a password, and others can read those.
        options = ["--dsn", dsn_of(database), *options]
    # Others, such as tasks declared elsewhere, may be added with -r.
    options = ["-r", _APP, *options]
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
