"""What the modules of commands share: how each creates its Typer, and common arguments and options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from pgqueue.cli.completion import queues, states, tasks
from pgqueue.db.json import Unreadable, from_json
from pgqueue.errors import ConfigError


def commands(help: str | None = None) -> typer.Typer:
    """Return a Typer for one command, or with `help` for a group. Its help is plain text: rich is slow to import."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=help is not None, help=help)


Dsn = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        envvar="PGQUEUE_DSN",
        help="Database. Default: PGQUEUE_DSN, DATABASE_URL, the libpq variables (PGHOST, ...), the embedded server.",
        show_default=False,
    ),
]


def one_of_variable(ctx: typer.Context, param: typer.CallbackParam, value: list[str] | None) -> list[str] | None:
    """Return what was given; a variable holds one DSN, which has been cut at its spaces."""
    whole = param.resolve_envvar_value(ctx)
    return [whole] if value and whole is not None and value == whole.split() else value


Dsns = Annotated[
    list[str] | None,
    typer.Option(
        "--dsn",
        envvar="PGQUEUE_DSN",
        callback=one_of_variable,
        help="The database. Repeat it for several. Default: PGQUEUE_DSN, DATABASE_URL, the libpq variables"
        " (PGHOST, ...), the embedded server.",
        show_default=False,
    ),
]
LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Reason = Annotated[str | None, typer.Option(help="Why: shown by why, explain and doctor.")]
For = Annotated[str | None, typer.Option("--for", help="For this time: '1 hour'. Default: until it is resumed.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

JobId = Annotated[int, typer.Argument(help="The job's id.", show_envvar=False)]
JobIds = Annotated[list[int] | None, typer.Argument(help="The ids of the jobs; or give filters.", show_envvar=False)]

ByQueue = Annotated[str | None, typer.Option("--queue", "-q", help="Only of this queue.", autocompletion=queues)]
ByTask = Annotated[str | None, typer.Option("--task", "-t", help="Only of this task.", autocompletion=tasks)]
ByKey = Annotated[str | None, typer.Option("--key", "-k", help="Only of this key; with --queue.")]
ByState = Annotated[
    str | None,
    typer.Option(
        "--state",
        "-s",
        help="Only in this state: waiting, executing, failed, blocked, succeeded, dead or cancelled.",
        autocompletion=states,
    ),
]
Reset = Annotated[
    list[str] | None, typer.Option(help="Reset this option: the declared value, or the default, applies. Repeatable.")
]
CreatedAfter = Annotated[str | None, typer.Option(help="Only jobs enqueued since: '2 hours', '2026-12-24 18:00'.")]
CreatedBefore = Annotated[str | None, typer.Option(help="Only jobs enqueued before.")]
FinishedAfter = Annotated[str | None, typer.Option(help="Only jobs that ended then or later.")]
FinishedBefore = Annotated[str | None, typer.Option(help="Only jobs that ended before.")]
Where = Annotated[
    str | None,
    typer.Option("--where", help="Filter, as on the pages: 'queue:mail state:dead error:Timeout age:>1h'."),
]
Everything = Annotated[bool, typer.Option("--everything", help="Act on all jobs: needed if no filter is given.")]
ChunkSize = Annotated[int, typer.Option("--chunk", help="Jobs per transaction.", min=1, max=10_000)]


def working_directory() -> Path | None:
    """Return the directory that this process is in; None where it was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def parse_object(text: str, what: str) -> dict[str, Any]:
    """Read a JSON object that was given as `what`."""
    value = from_json(text)
    if isinstance(value, Unreadable):
        raise ConfigError(f"{what} is not JSON: {value.reason}", hint="""quote it for the shell: '{"to": "a@b.c"}'""")
    if not isinstance(value, dict):
        raise ConfigError(f"{what} is not a JSON object", hint="""give named arguments: '{"to": "a@b.c"}'""")
    return value


def object_as_written(text: str, what: str) -> orjson.Fragment:
    """Check that the text is a JSON object. It is sent as written, because parsing would round long numbers."""
    parse_object(text, what)
    return orjson.Fragment(text)
