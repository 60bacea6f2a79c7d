"""`pgqueue run`: run one task once, here and now."""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from contextlib import suppress
from typing import Annotated, Any

import psycopg
import typer

from pgqueue.app import App
from pgqueue.cli import output
from pgqueue.cli.database import database
from pgqueue.cli.modules import load
from pgqueue.cli.options import AsJson, Dsn, LogLevel, commands, parse_object
from pgqueue.config import own_dsn
from pgqueue.db import operate
from pgqueue.db.call import Row, perform, perform_async
from pgqueue.db.json import to_json
from pgqueue.errors import ConfigError, InvalidArgument
from pgqueue.job import Job
from pgqueue.logs import set_up as set_up_logs
from pgqueue.tasks import Task, TaskCall
from pgqueue.testing import Drained, drain, drain_async

app = commands()

# A queue that no worker serves; the job is not committed before it has ended.
_QUEUE = "pgqueue-run"

_LEFT_TO_A_WORKER = ("waiting", "failed", "blocked")


@app.command()
def run(
    task: Annotated[str, typer.Argument(help="Its module and its name: shop.tasks:send_email.", show_envvar=False)],
    args: Annotated[str, typer.Argument(help="Its arguments, a JSON object.", show_envvar=False)] = "{}",
    log_level: LogLevel = "info",
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Run one task once, here and now, with its log, and print its result.

    One transaction creates, runs and ends the job, so no worker takes it. If the handler fails, everything that it
    wrote by job.transaction() is rolled back, no job is left, and the exit code is 1.
    """
    module, colon, name = task.partition(":")
    if not colon:
        raise ConfigError(f"{task!r} names no task", hint="give its module and its name: shop.tasks:send_email")
    tasks = load([module])
    found = _find(tasks, module, name)
    set_up_logs(log_level, "console", "pgqueue run")
    results: list[Any] = []

    @tasks.middleware
    async def keep(job: Job, call_next: Any) -> Any:
        results.append(await call_next())
        return results[-1]

    with database(dsn) as found_dsn:
        here = own_dsn(found_dsn, "pgqueue run")
        one = found.using(queue=_QUEUE, max_attempts=1)
        given = parse_object(args, "ARGS")
        # An async handler takes only async connections, a plain one only others.
        if found.is_async:
            job_id, ended = asyncio.run(_run_async(one, given, tasks, here))
        else:
            job_id, ended = _run(one, given, tasks, here)
    state = ended[0] if ended is not None else "succeeded"
    result = _as_json(found, results[-1] if results else None)
    if as_json:
        output.print_json({"id": job_id, "state": state, "result": json.loads(result)})
    elif state == "succeeded":
        output.line(result)
    else:
        left = ": a worker continues with it" if state in _LEFT_TO_A_WORKER else ""
        output.line(f"job {job_id} is {state}{left}")


def _as_json(task: Task[Any, Any], result: Any) -> str:
    """Write a result as JSON, whatever it is: the job is committed by now, and an error would say that it is not."""
    with suppress(Exception):
        result = task.dump_result(result)
    try:
        return to_json(result, "result")
    except InvalidArgument:
        pass
    try:
        return json.dumps(result, default=str, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        return json.dumps(str(result))


def _run(call: TaskCall[Any], args: dict[str, Any], tasks: App, dsn: str) -> tuple[int, Row | None]:
    with psycopg.connect(dsn) as connection:
        job_id = call.enqueue(connection, **args)
        _check(drain(connection, tasks, _QUEUE, recursive=False, raise_errors=False))
        return job_id, perform(connection, operate.outcome(job_id))


async def _run_async(call: TaskCall[Any], args: dict[str, Any], tasks: App, dsn: str) -> tuple[int, Row | None]:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        job_id = await call.enqueue(connection, **args)
        _check(await drain_async(connection, tasks, _QUEUE, recursive=False, raise_errors=False))
        return job_id, await perform_async(connection, operate.outcome(job_id))


def _check(done: Drained) -> None:
    """Show the error of a handler, and exit: leaving the block of the connection rolls back."""
    for error in done.errors:
        traceback.print_exception(error, file=sys.stderr)
    if done.errors or done.dead:
        output.message("the task failed, and nothing was stored", "red")
        raise typer.Exit(1)


def _find(tasks: App, module: str, name: str) -> Task[Any, Any]:
    """Return the task that has this name in the module, or as a task."""
    there = getattr(sys.modules[module], name, None)
    if isinstance(there, Task):
        return there
    if name in tasks.tasks:
        return tasks.tasks[name]
    names = ", ".join(sorted(tasks.tasks)) or "none"
    raise ConfigError(f"there is no task {name!r} in {module}", hint=f"its tasks are: {names}")
