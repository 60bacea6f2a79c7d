"""`pgqueue workers`: list workers, and act on one."""

from __future__ import annotations

from typing import Annotated

import typer

from pgqueue.cli import output, worker_table
from pgqueue.cli.database import ask, connected
from pgqueue.cli.options import AsJson, Dsn, commands
from pgqueue.cli.watch import Watch, watch
from pgqueue.db import operate
from pgqueue.db.call import perform

app = commands("List workers, and act on one.")

WorkerName = Annotated[str, typer.Argument(metavar="NAME", help="The worker.", show_envvar=False)]


@app.command(name="list")
def list_workers(again: Watch = False, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """List workers with their jobs, also dead ones that still hold jobs."""
    with connected(dsn) as connection:

        def show() -> None:
            found = perform(connection, operate.list_workers())
            if as_json:
                output.print_json(found)
            else:
                worker_table.show(found)

        watch(show, again)


@app.command(name="quiet")
def quiet_worker(name: WorkerName, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Let a worker reserve no more jobs, and keep running; its running jobs continue."""
    _answer(name, ask(dsn, operate.quiet_worker(name)), "asked to be quiet", "was asked already", as_json, dsn)


@app.command(name="resume")
def resume_worker(name: WorkerName, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Let a worker that was asked to be quiet reserve jobs again."""
    _answer(name, ask(dsn, operate.resume_worker(name)), "asked to resume", "is not quiet by a command", as_json, dsn)


@app.command(name="stop")
def stop_worker(name: WorkerName, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Let a worker exit when its last job has ended, as SIGTERM does. Its supervisor may start another."""
    _answer(name, ask(dsn, operate.stop_worker(name)), "asked to stop", "was asked already", as_json, dsn)


def _answer(name: str, done: bool, verb: str, otherwise: str, as_json: bool, dsn: str | None) -> None:
    if not done:
        if all(each["worker"] != name for each in ask(dsn, operate.list_workers())):
            output.not_found(f"There is no worker {name}")
        output.not_found(f"Worker {name} {otherwise}")
    if as_json:
        output.print_json({"worker": name, "outcome": verb})
    else:
        output.line(f"Worker {name}: {verb}")
