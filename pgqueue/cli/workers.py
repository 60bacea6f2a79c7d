"""`pgqueue workers`: list workers, and act on one."""

from __future__ import annotations

import time
from typing import Annotated, Any

import psycopg
import typer

from pgqueue.cli import output, worker_table
from pgqueue.cli.database import ask, connected
from pgqueue.cli.options import AsJson, Dsn, commands
from pgqueue.cli.watch import Watch, watch
from pgqueue.db import observe, operate
from pgqueue.db.call import perform
from pgqueue.errors import ConfigError

app = commands("List workers, and act on one.")

# Seconds within which a worker that does not listen reads a command: its heartbeat, and a bit.
_ANSWERS = 15.0

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


@app.command(name="kill")
def kill_worker(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The worker.", show_envvar=False)] = None,
    job: Annotated[int | None, typer.Option("--job", help="The worker that executes this job.", min=1)] = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """End the process of a worker at once: for a handler that does not end when its job is cancelled.

    Its supervisor starts another, and gives back all jobs that it held. Each one that it ran counts a crash.
    """
    if (name is None) == (job is None):
        raise ConfigError("kill which worker?", hint="give its name, or --job with the id of a job that it executes")
    with connected(dsn) as connection:
        found = perform(connection, operate.kill_worker(name, job))
        known = name if found is None else found
        if known is None or (_row(connection, known) is None and found is None):
            output.not_found(f"There is no worker {name}" if job is None else f"Job {job} executes on no worker")
        # Also one that was asked before, and did not answer.
        deadline = time.monotonic() + _ANSWERS
        while (row := _row(connection, known)) is not None and row["command"] == "kill" and row["obeyed_at"] is None:
            if time.monotonic() > deadline:
                info = row["info"] if isinstance(row["info"], dict) else {}
                output.not_found(
                    f"Worker {known} was asked, and did not answer within {_ANSWERS:g} s: its event loop is blocked, or"
                    " it is older than this program. A supervisor ends it after two leases; else end process"
                    f" {info.get('pid')} on {info.get('host')}"
                )
            time.sleep(0.1)
    if as_json:
        output.print_json({"worker": known, "outcome": "killed"})
    else:
        output.line(f"Worker {known}: killed")


def _row(connection: psycopg.Connection[Any], name: str) -> dict[str, Any] | None:
    return perform(connection, observe.worker(name))


def _answer(name: str, done: bool, verb: str, otherwise: str, as_json: bool, dsn: str | None) -> None:
    if not done:
        if all(each["worker"] != name for each in ask(dsn, operate.list_workers())):
            output.not_found(f"There is no worker {name}")
        output.not_found(f"Worker {name} {otherwise}")
    if as_json:
        output.print_json({"worker": name, "outcome": verb})
    else:
        output.line(f"Worker {name}: {verb}")
