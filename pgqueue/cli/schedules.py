"""`pgqueue schedules`: list schedules, show one, and act on one."""

from __future__ import annotations

from typing import Annotated, Any, NoReturn

import typer

from pgqueue.cli import names, output, page
from pgqueue.cli.completion import queues, tasks
from pgqueue.cli.database import ask, connected
from pgqueue.cli.names import Create
from pgqueue.cli.options import AsJson, Dsn, Reset, commands, object_as_written
from pgqueue.cli.output import when
from pgqueue.cli.tables import Table
from pgqueue.db import declare, operate
from pgqueue.db.call import perform
from pgqueue.errors import ConfigError

app = commands("List schedules, add one, show one, and act on one.")

ScheduleName = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.", show_envvar=False)]


@app.command(name="list")
def list_schedules(as_json: AsJson = False, dsn: Dsn = None) -> None:
    """List schedules, the next one due first."""
    found = ask(dsn, operate.list_schedules())
    if as_json:
        output.print_json(found)
        return
    headings = ("name", "when", "task", "next", "last", "last job", "state")
    table = Table(headings, right=frozenset({"last job"}), cut=frozenset({"name", "when", "task", "state"}))
    for each in found:
        state = f"paused since {when(each['paused_at'])}" if each["paused_at"] else each["error"]
        times = (when(each["next_at"]), when(each["last_at"]))
        table.add(each["name"], _rule(each), each["task"], *times, each["last_job_id"], state)
    table.show()


@app.command(name="show")
def show_schedule(
    name: ScheduleName,
    runs: Annotated[int, typer.Option("--runs", "-n", help="Its last N runs.", min=0)] = 10,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Show one schedule and the outcome of its last runs."""
    found = ask(dsn, operate.find_schedule(name, runs))
    if found is None:
        _not_found(name)
    if as_json:
        output.print_json(found)
        return
    page.show(found, [name for name in found if name != "runs"])
    headings = ("due", "decided", "outcome", "job", "state", "error")
    history = Table(headings, "Last runs", right=frozenset({"job"}), cut=frozenset({"error"}))
    for each in found["runs"]:
        times = (when(each["at"]), when(each["decided_at"]))
        history.add(*times, each["outcome"], each["job_id"], each["job_state"], each["error"])
    history.show()


@app.command(name="add")
def add_schedule(
    name: ScheduleName,
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task.", show_envvar=False, autocompletion=tasks)],
    args: Annotated[
        str, typer.Argument(metavar="[ARGS]", help="Its arguments, a JSON object.", show_envvar=False)
    ] = "{}",
    cron: Annotated[str | None, typer.Option(help="A cron expression: '30 2 * * *'.")] = None,
    every: Annotated[str | None, typer.Option(help="Or an interval: '90 s'.")] = None,
    timezone: Annotated[
        str | None, typer.Option(help="The time zone of the expression: Europe/Berlin; default: UTC.")
    ] = None,
    catch_up: Annotated[
        str | None, typer.Option(help="Which missed runs are made up for: last (the default), skip or all.")
    ] = None,
    overlap: Annotated[
        str | None, typer.Option(help="While its last job has not ended: start (the default) or skip.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", help="Queue; default: the task's.", autocompletion=queues)
    ] = None,
    priority: Annotated[int | None, typer.Option(help="Priority of its jobs: -100 to 100.")] = None,
    create: Create = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Add a schedule. Schedules that the code declares need no command."""
    options = {
        "every": every, "timezone": timezone, "catch_up": catch_up, "overlap": overlap, "queue": queue,
        "priority": priority,
    }  # fmt: skip
    call = declare.schedule(name, cron, task, object_as_written(args, "ARGS"), options)
    with connected(dsn) as connection:
        names.require(connection, "task", task, create)
        if perform(connection, operate.find_schedule(name, 0)) is not None:
            output.not_found(f"There is a schedule {name} already; pgqueue schedules set changes it, remove removes it")
        due = perform(connection, call)
    next_at = None if due is None else due.isoformat()
    if as_json:
        output.print_json({"name": name, "next_at": next_at})
    else:
        output.line(f"Schedule {name}: added, next {when(next_at)}")


@app.command(name="pause")
def pause_schedule(name: ScheduleName, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Pause a schedule until it is resumed; deploys do not change that."""
    _answer(name, ask(dsn, operate.pause_schedule(name)), "paused", as_json, dsn)


@app.command(name="resume")
def resume_schedule(name: ScheduleName, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Resume a paused schedule."""
    _answer(name, ask(dsn, operate.resume_schedule(name)), "resumed", as_json, dsn)


@app.command(name="set")
def set_schedule(
    name: ScheduleName,
    expression: Annotated[str | None, typer.Option(help="Another cron expression: '0 4 * * *'.")] = None,
    timezone: Annotated[str | None, typer.Option(help="The time zone in which it is read: Europe/Berlin.")] = None,
    reset: Reset = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Override the expression or the time zone of a schedule; deploys do not change that."""
    reset_names = [option.replace("-", "_") for option in reset or ()]
    if expression is None and timezone is None and not reset_names:
        raise ConfigError("change what?", hint="give --expression, --timezone or --reset")
    done = ask(dsn, operate.configure_schedule(name, expression, timezone, reset_names))
    _answer(name, done, "set", as_json, dsn)


@app.command(name="run")
def run_schedule(name: ScheduleName, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Enqueue one job of a schedule now, in addition to its times, and print its id."""
    job_id = ask(dsn, operate.run_schedule_now(name))
    if job_id is None:
        _not_found(name)
    if as_json:
        output.print_json({"name": name, "id": job_id})
    else:
        output.line(job_id)


@app.command(name="remove")
def remove_schedule(name: ScheduleName, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Remove a schedule; its jobs remain. A worker that declares it adds it again at its next start."""
    if not ask(dsn, operate.unschedule(name)):
        _not_found(name)
    _say(name, "removed", as_json)


def _answer(name: str, done: bool, verb: str, as_json: bool, dsn: str | None) -> None:
    if not done and ask(dsn, operate.find_schedule(name, 0)) is None:
        _not_found(name)
    _say(name, verb if done else "unchanged", as_json)


def _say(name: str, outcome: str, as_json: bool) -> None:
    if as_json:
        output.print_json({"name": name, "outcome": outcome})
    else:
        output.line(f"Schedule {name}: {outcome}")


def _not_found(name: str) -> NoReturn:
    output.not_found(f"There is no schedule {name}")


def _rule(schedule: dict[str, Any]) -> str:
    if schedule["expression"] is None:
        return f"every {schedule['every']}"
    return f"{schedule['expression']} ({schedule['timezone']})"
