"""The command line `pgqueue`: its commands, and the exit codes.

Exit codes: 0 done; 1 the answer is no (there is no such job, the schema is not current, jobs were cut off); 2 wrong
settings, wrong arguments, or a database that cannot be used; 130 a question was not answered with yes.

A command's module is imported when that command runs or shows its help, so `pgqueue worker` loads no alembic and
`pgqueue --version` loads next to nothing.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, MutableMapping
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn

import psycopg
import typer
from typer.core import TyperCommand, TyperGroup

from pgqueue import __version__
from pgqueue.cli import output
from pgqueue.cli.examples import EXAMPLES
from pgqueue.errors import PgQueueError
from pgqueue.logs import one_line
from pgqueue.schema import bundled

# Each command with its module and its line in `pgqueue --help`, which imports none of them.
COMMANDS = {
    "worker": ("worker", "Run jobs until a signal stops it."),
    "run": ("run", "Run one task once, here and now, with its log, and print its result."),
    "dev": ("dev", "Run all that development needs in one terminal: database, worker, pages."),
    "migrate": ("migrate", "Create or upgrade the schema pgqueue."),
    "proxy": ("proxy", "Print the SQL of a PL/Proxy database before shards, for psql."),
    "enqueue": ("enqueue", "Enqueue one job and print its id."),
    "web": ("web", "Serve the operator's pages until Ctrl-C."),
    "top": ("top", "Watch queues, jobs, workers, schedules and limits, and act on them."),
    "doctor": ("doctor", "List problems, each with the command that solves it."),
    "mcp": ("mcp", "Serve tools for coding agents over stdin and stdout."),
    "why": ("why", "Say why the jobs of a queue wait, and what to do."),
    "metrics": ("metrics", "Print the metrics of the database in the format of Prometheus."),
    "status": ("status", "Show queues, workers and maintenance."),
    "jobs": ("jobs", "List jobs, show one, and act on one or on many."),
    "groups": ("groups", "List groups of jobs, show one, and act on their members."),
    "events": ("events", "List events, the largest first or by name, and delete them."),
    "queues": ("queues", "List queues, and act on one."),
    "tasks": ("tasks", "List tasks, and override the options that their code declares."),
    "workers": ("workers", "List workers, and act on one."),
    "limits": ("limits", "Limit how many jobs execute or start at a time; pause and throttle."),
    "shares": ("shares", "Say how many jobs a tenant of a fair queue starts in its turn."),
    "breakers": ("breakers", "Stop tasks and limit_keys for a while where too many of their attempts fail."),
    "schedules": ("schedules", "List schedules, add one, show one, and act on one."),
    "import": ("importing", "Move the waiting jobs of another queue here."),
    "grant": ("grant", "Let a role use the queue."),
    "help": ("help", "Explain an SQL function of the queue."),
    "psql": ("psql", "Open psql on the queue's database."),
    "dsn": ("dsn", "Print the DSN that all commands use."),
    "server": ("server", "Run the embedded PostgreSQL until Ctrl-C, and print its DSN."),
    "demo": ("demo", "Run a small shop: orders, payments, receipts."),
    "bench": ("bench", "Measure the queue on this machine."),
}


class _Modules(MutableMapping[str, Any]):
    """The commands by name, each imported when it is asked for."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            module = importlib.import_module(f"pgqueue.cli.{COMMANDS[name][0]}")
            command = typer.main.get_command(module.app)
            command.name = name
            _explain(command, name)
            self._loaded[name] = command
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


def _explain(command: Any, path: str) -> None:
    """Give each command an example, and one line on its variables instead of one for each option."""
    for name, each in getattr(command, "commands", {}).items():
        _explain(each, f"{path} {name}")
    for each in command.params:
        each.show_envvar = False
    if path in EXAMPLES:
        prefix = f"PGQUEUE_{path}".upper().replace(" ", "_").replace("-", "_")
        options = [each for each in command.params if each.param_type_name == "option" and each.name != "dsn"]
        # \b keeps click from wrapping it.
        command.epilog = f"\b\nExample: {EXAMPLES[path]}"
        if options:
            named = f"{prefix}_{options[0].name}".upper()
            command.epilog += f"\nEach option is also a variable: {named}, ..."


class _Lazy(TyperGroup):
    """The group of all commands. Lists them without importing them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": {}})
        self.commands = _Modules()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        # Only names and lines are needed; importing all modules, alembic among them, would take as long again.
        modules = self.commands
        self.commands = {name: TyperCommand(name, help=line) for name, (_, line) in COMMANDS.items()}
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self.commands = modules

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


cli = typer.Typer(
    cls=_Lazy,
    name="pgqueue",
    no_args_is_help=True,
    context_settings={"auto_envvar_prefix": "PGQUEUE", "help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    # Plain text: rich takes longer to import than most commands to run.
    rich_markup_mode=None,
)


@cli.callback(invoke_without_command=True)
def root(
    version: Annotated[
        bool,
        typer.Option(
            # No variable: an image that sets PGQUEUE_VERSION means something else.
            "--version",
            help="Print the versions of the package and of its schema, and the commit.",
            show_envvar=False,
            allow_from_autoenv=False,
        ),
    ] = False,
) -> None:
    """A job queue that needs nothing but PostgreSQL."""
    if version:
        output.line(_version())
        raise typer.Exit


def _version() -> str:
    commit = bundled.commit()
    return f"pgqueue {__version__}, schema {bundled.revisions()[-1]}, commit {commit[:12] if commit else 'unknown'}"


def main() -> NoReturn:
    """Run the command line and exit. Reports an error in one line."""
    output.open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A name with a character that the terminal's encoding lacks is shown as an escape.
            stream.reconfigure(errors="backslashreplace")
    try:
        if sys.argv[1:] == ["--version"]:
            # Without typer, which imports pydantic to read any option.
            output.line(_version())
            code = 0
        else:
            code = cli(standalone_mode=False) or 0
        sys.stdout.flush()
    except typer.Exit as end:
        code = end.exit_code
    except typer.Abort:
        code = 130
    except (PgQueueError, psycopg.Error, OSError) as error:
        output.message(f"pgqueue: {one_line(error)}")
        for note in getattr(error, "__notes__", ()):
            output.message(note)
        code = 2
    except Exception as error:
        show = getattr(error, "show", None)
        if show is None:
            raise
        # A usage error of the command line itself.
        show()
        code = 2
    _leave_nothing_to_write()
    sys.exit(code)


def _leave_nothing_to_write() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        # The disk is full, and that was reported. The interpreter would try once more, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
