"""`pgqueue jobs`: list jobs, show one, and act on one or on many."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import psycopg
import typer

from pgqueue._filters import ORDERS, Filter, exactly, parse, quoted
from pgqueue._options import is_age
from pgqueue.cli import bulk, job_table, output
from pgqueue.cli.completion import STATES
from pgqueue.cli.database import ask, connected
from pgqueue.cli.options import (
    AsJson,
    ByKey,
    ByQueue,
    ByState,
    ByTask,
    ChunkSize,
    CreatedAfter,
    CreatedBefore,
    Dsn,
    Everything,
    FinishedAfter,
    FinishedBefore,
    JobId,
    JobIds,
    Where,
    Yes,
    commands,
    parse_object,
)
from pgqueue.cli.output import when
from pgqueue.cli.tables import on_one_line
from pgqueue.cli.watch import Watch, watch
from pgqueue.db import groups, observe, operate
from pgqueue.db.call import perform
from pgqueue.db.json import Document
from pgqueue.errors import ConfigError
from pgqueue.logs import how_many

app = commands("List jobs, show one, and act on one or on many.")

# Jobs that facets are read from.
_SAMPLE = 2000

# Children of a job that are shown.
_CHILDREN = 1000

# Seconds within which a worker answers.
_ANSWERS = 10.0

# Seconds after the end of a job within which its last lines are stored: a worker stores the lines of all its jobs once
# a second, and up to a second later how many it did not keep. The other three are for a slow statement.
_LAST_LINES = 5.0

# A job of an unknown task stays in one of these.
_UNSTARTED = ("waiting", "failed", "blocked")


@app.command(name="list")
def list_jobs(
    queue: ByQueue = None,
    task: ByTask = None,
    state: ByState = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Only of this key.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only with this tag.")] = None,
    ids: Annotated[list[int] | None, typer.Option("--id", help="Only this job. Repeatable.")] = None,
    worker: Annotated[str | None, typer.Option(help="Only jobs that this worker holds, or held last.")] = None,
    error: Annotated[str | None, typer.Option(help="Only with this in an error: 'Timeout'.")] = None,
    since: Annotated[str | None, typer.Option(help="Only enqueued since: '2 hours', '2026-12-24 18:00'.")] = None,
    until: Annotated[str | None, typer.Option(help="Only enqueued before: '10 min', '2026-12-25'.")] = None,
    where: Where = None,
    order: Annotated[
        str, typer.Option(help="newest, oldest, or due: waiting and failed jobs, the one due first at the top.")
    ] = ORDERS[0],
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most N jobs.", min=1)] = 20,
    again: Watch = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """List jobs, newest first, or in another order."""
    if order not in ORDERS:
        raise ConfigError(f"there is no order {order!r}", hint=f"orders: {', '.join(ORDERS)}")
    if state is not None and state not in STATES:
        raise ConfigError(f"there is no state {state!r}", hint=f"states: {', '.join(STATES)}")
    only = {"queue": queue, "task": task, "state": state, "key": key, "tag": tag, "ids": ids or None}
    only = {**only, "worker": worker, "error": error, "since": since, "until": until}
    wanted = parse(where or "")
    if where and any(only.values()):
        raise ConfigError(
            "--where excludes other filters",
            hint="write all of it in --where, such as 'queue:mail state:dead id:17,18'",
        )
    if order != ORDERS[0] and not where:
        wanted = _as_filter(only)
    with connected(dsn) as connection:

        def show() -> None:
            found = _find(connection, wanted, limit, order) if where or order != ORDERS[0] else None
            if found is None:
                found = perform(connection, operate.list_jobs(only, limit))
            if as_json:
                output.print_json(found)
                return
            job_table.show_table(found)
            if len(found) == limit:
                # To find out whether there is one more may take reading all of history.
                output.line(f"Shown: {how_many(limit, 'job')}. There may be more: --limit N.", "dim")
            _show_unknown_tasks(connection, found)

        watch(show, again)


def _show_unknown_tasks(connection: psycopg.Connection[Any], jobs: Sequence[Document]) -> None:
    # Groups are no tasks of a worker.
    waiting = {job["task"]: job["id"] for job in jobs if job["state"] in _UNSTARTED and job["task"] != "@group"}
    if waiting:
        for task in perform(connection, operate.unknown_tasks(waiting)):
            output.line(f"No worker has declared task {task}: see pgqueue jobs explain {waiting[task]}.", "yellow")


def _find(connection: psycopg.Connection[Any], wanted: Filter, limit: int, order: str) -> list[Document]:
    ids = bulk.search(connection, wanted, limit, order)
    found = {job["id"]: job for job in perform(connection, operate.list_jobs({"ids": ids}, limit))}
    # One may have been deleted since.
    return [found[job_id] for job_id in ids if job_id in found]


def _as_filter(only: Mapping[str, Any]) -> Filter:
    """Return the options as a filter."""
    named = {"queue": "queues", "task": "tasks", "key": "keys", "tag": "tags", "worker": "workers", "error": "errors"}
    wanted: Filter = {field: [exactly(only[name])] for name, field in named.items() if only[name] is not None}
    if only["state"] is not None:
        wanted["states"] = [only["state"]]
    if only["ids"]:
        wanted["ids"] = only["ids"]
    for name, end, age in (("since", "created_from", "age_to"), ("until", "created_to", "age_from")):
        if only[name] is not None:
            wanted[age if is_age(only[name]) else end] = re.sub(r"\s*ago\s*$", "", only[name], flags=re.IGNORECASE)
    return wanted


@app.command(name="facets")
def show_facets(
    where: Annotated[str, typer.Option(help="A filter, as of the page: 'queue:mail state:waiting'.")] = "",
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Count the tasks, tenants, keys, tags and workers of the newest jobs that match."""
    with connected(dsn) as connection:
        ids = bulk.search(connection, parse(where), _SAMPLE)
        rows = perform(connection, observe.facets(ids))
    if as_json:
        output.print_json([{"facet": facet, "value": value, "jobs": jobs} for facet, value, jobs in rows])
        return
    which = f"of the newest {_SAMPLE} that match" if len(ids) == _SAMPLE else f"of {len(ids)} that match"
    output.line(f"Jobs {which}:")
    for facet, value, jobs in rows:
        share = f"{100 * jobs / len(ids):3.0f} %"
        output.line(f"{facet:6} {jobs:6} {share}  {on_one_line(value)}  {facet}:{quoted(value)}")


@app.command(name="show")
def show_job(job_id: JobId, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Show everything about one job."""
    with connected(dsn) as connection:
        job = perform(connection, observe.job(job_id))
        if job is None:
            output.no_job(job_id)
        parents, steps = perform(connection, groups.relations(job_id)) or ([], [])
        children = perform(connection, groups.children(job_id, _CHILDREN + 1))
        why = perform(connection, operate.explain(job_id))
    waits = why["detail"] if why["state"] == "blocked" or why["reason"] in ("event", "sleep") else None
    if as_json:
        more = {"parents": parents, "children": children[:_CHILDREN], "steps": steps, "waits": waits}
        more["more_children"] = len(children) > _CHILDREN
        output.print_json(Document({**job.texts, **{name: json.dumps(found) for name, found in more.items()}}))
        return
    job_table.show_page(job)
    for each in parents:
        output.line(f"parent {each['id']} ({each['task'] or 'unknown task'}): {each['state']}")
    for each in children[:_CHILDREN]:
        run_if = f", run_if {each['run_if']}" if each["run_if"] else ""
        output.line(f"child {each['id']} ({each['task']}): {each['state']}{run_if}")
    if len(children) > _CHILDREN:
        output.line(f"There are more children: select * from pgqueue.children({job_id}, 10000)")
    for each in steps:
        output.line(f"step {each['name']}: {when(each['at'])}, attempt {each['attempt']}")
    if waits:
        output.line(waits)


@app.command(name="explain")
def explain_job(job_id: JobId, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Explain why a job is not running."""
    found = ask(dsn, operate.explain(job_id))
    if found["state"] == "unknown":
        output.no_job(job_id)
    if as_json:
        output.print_json(found)
        return
    output.line(f"Job {job_id}: {found['state']}; {found['reason']}")
    output.line(found["detail"])


@app.command(name="logs")
def show_logs(
    job_id: JobId,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Continue until the job has ended, and five seconds more, for its last lines."
        ),
    ] = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Print the log lines of a job: what its handler wrote with job.log.

    With --follow and --json: each line as one JSON object on a line of its own.
    """
    with connected(dsn) as connection:
        if perform(connection, observe.job(job_id)) is None:
            output.no_job(job_id)
        if as_json and not follow:
            output.print_json(_log_after(connection, job_id, 0))
            return
        after = 0
        while True:
            # Asked before the lines are read: what is stored between both is printed in the next round.
            ended = perform(connection, observe.ended_ago(job_id))
            lines = perform(connection, observe.job_log(job_id, after))
            for each in lines:
                _print_line(each, as_json)
            output.flush()
            if lines:
                after = lines[-1]["n"]
            elif not follow or (ended is not None and ended > _LAST_LINES):
                return
            else:
                time.sleep(0.5)


@app.command(name="stack")
def show_stack(job_id: JobId, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Print where the handler of an executing job stands, as its worker answers."""
    with connected(dsn) as connection:
        if perform(connection, observe.job(job_id)) is None:
            output.no_job(job_id)
        last = max((each["n"] for each in _stack(connection, job_id, 0)), default=0)
        worker = perform(connection, operate.ask_stack(job_id))
        if worker is None:
            output.not_found(f"Job {job_id} does not execute, or its worker is not registered")
        deadline = time.monotonic() + _ANSWERS
        while not (lines := _stack(connection, job_id, last)):
            if time.monotonic() > deadline:
                output.not_found(
                    f"Worker {worker} did not answer within {_ANSWERS:g} s: its event loop is blocked, or it is older"
                    " than this program. Send it TTIN, and read its log"
                )
            time.sleep(0.1)
    if as_json:
        output.print_json(lines)
        return
    output.line(f"Job {job_id} on worker {worker}:")
    for each in lines:
        output.line(each["line"])


def _stack(connection: psycopg.Connection[Any], job_id: int, after: int) -> list[dict[str, Any]]:
    return [each for each in _log_after(connection, job_id, after) if each["level"] == "STACK"]


def _log_after(connection: psycopg.Connection[Any], job_id: int, after: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while lines := perform(connection, observe.job_log(job_id, after)):
        found += lines
        after = lines[-1]["n"]
    return found


def _print_line(line: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        output.print_json_line(line)
        return
    colour = {"ERROR": "red", "CRITICAL": "red", "WARNING": "yellow"}.get(line["level"])
    output.line(f"{when(line['at'])} attempt {line['attempt']} {line['level']:8} {line['line']}", colour)


@app.command(name="run")
def run_jobs(
    job_ids: JobIds = None,
    queue: ByQueue = None,
    task: ByTask = None,
    key: ByKey = None,
    state: ByState = None,
    created_after: CreatedAfter = None,
    created_before: CreatedBefore = None,
    where: Where = None,
    everything: Everything = False,
    chunk: ChunkSize = 1000,
    yes: Yes = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Run scheduled and failed jobs now, by id or by filter."""
    given = bulk.filters(queue, task, key, state, created_after, created_before)
    bulk.run("run", "due now", job_ids, given, everything, chunk, yes, as_json, dsn, where)


@app.command(name="kill")
def kill_jobs(
    job_ids: JobIds = None,
    queue: ByQueue = None,
    task: ByTask = None,
    key: ByKey = None,
    state: ByState = None,
    created_after: CreatedAfter = None,
    created_before: CreatedBefore = None,
    where: Where = None,
    everything: Everything = False,
    chunk: ChunkSize = 1000,
    yes: Yes = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Make waiting, failed and blocked jobs dead, by id or by filter."""
    given = bulk.filters(queue, task, key, state, created_after, created_before)
    bulk.run("kill", "dead", job_ids, given, everything, chunk, yes, as_json, dsn, where)


@app.command(name="retry")
def retry_jobs(
    job_ids: JobIds = None,
    queue: ByQueue = None,
    task: ByTask = None,
    key: ByKey = None,
    state: ByState = None,
    created_after: CreatedAfter = None,
    created_before: CreatedBefore = None,
    finished_after: FinishedAfter = None,
    finished_before: FinishedBefore = None,
    where: Where = None,
    everything: Everything = False,
    chunk: ChunkSize = 1000,
    yes: Yes = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Bring dead jobs back (or cancelled ones: --state cancelled); their attempts count from zero.

    One job, by its id, may also be a failed one: it runs now.
    """
    given = bulk.filters(queue, task, key, state, created_after, created_before, finished_after, finished_before)
    if job_ids is not None and len(job_ids) == 1 and not given and where is None:
        [job_id] = job_ids
        _answer(
            job_id,
            ask(dsn, operate.retry(job_id)),
            "retried",
            "dead, cancelled and failed ones are retried",
            as_json,
            dsn,
        )
        return
    bulk.run("retry", "retried", job_ids, given, everything, chunk, yes, as_json, dsn, where)


@app.command(name="update")
def update_jobs(
    job_ids: JobIds = None,
    args: Annotated[
        str | None, typer.Option(help="Other arguments, a JSON object; also of dead and failed jobs.")
    ] = None,
    run_at: Annotated[str | None, typer.Option(help="When it is to run: '2026-12-24 18:00'.")] = None,
    priority: Annotated[int | None, typer.Option(help="Its priority: -100 to 100.")] = None,
    queue: Annotated[str | None, typer.Option(help="The queue to move it to.")] = None,
    limit_key: Annotated[
        str | None, typer.Option(help="The value to which limits of the kind limit_key apply; '' for none.")
    ] = None,
    where: Where = None,
    chunk: ChunkSize = 1000,
    yes: Yes = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Change jobs that were never started, by id or by filter. Options that are left out keep their values."""
    given = {"args": args, "run_at": run_at, "priority": priority, "queue": queue, "limit_key": limit_key}
    changes: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if args is not None:
        # They are sent as written, because parsing would round long numbers.
        parse_object(args, "--args")
    if not changes:
        raise ConfigError("change what?", hint="give --args, --run-at, --priority, --queue or --limit-key")
    if job_ids is not None and len(job_ids) == 1 and where is None:
        [job_id] = job_ids
        _answer(job_id, ask(dsn, operate.update_job(job_id, changes)), "changed", "it cannot be changed", as_json, dsn)
        return
    bulk.update(job_ids, where, changes, chunk, yes, as_json, dsn)


@app.command(name="cancel")
def cancel_jobs(
    job_ids: JobIds = None,
    queue: ByQueue = None,
    task: ByTask = None,
    key: ByKey = None,
    state: ByState = None,
    created_after: CreatedAfter = None,
    created_before: CreatedBefore = None,
    where: Where = None,
    everything: Everything = False,
    chunk: ChunkSize = 1000,
    yes: Yes = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Cancel jobs, by id or by filter; executing ones are asked to stop."""
    given = bulk.filters(queue, task, key, state, created_after, created_before)
    if job_ids is None or len(job_ids) != 1 or given or where is not None:
        bulk.run("cancel", "cancelled or asked to stop", job_ids, given, everything, chunk, yes, as_json, dsn, where)
        return
    [job_id] = job_ids
    outcome = ask(dsn, operate.cancel(job_id))
    _answer(job_id, outcome is not None, outcome or "", "there is nothing to cancel", as_json, dsn)


@app.command(name="delete")
def delete_jobs(
    job_ids: JobIds = None,
    queue: ByQueue = None,
    task: ByTask = None,
    key: ByKey = None,
    state: ByState = None,
    created_after: CreatedAfter = None,
    created_before: CreatedBefore = None,
    finished_after: FinishedAfter = None,
    finished_before: FinishedBefore = None,
    where: Where = None,
    everything: Everything = False,
    chunk: ChunkSize = 1000,
    yes: Yes = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Delete jobs that are not executing, and rows of history, by id or by filter (with --state)."""
    given = bulk.filters(queue, task, key, state, created_after, created_before, finished_after, finished_before)
    if job_ids is not None and len(job_ids) == 1 and not given and where is None:
        [job_id] = job_ids
        _answer(job_id, ask(dsn, operate.delete(job_id)), "deleted", "cancel it before you delete it", as_json, dsn)
        return
    bulk.run("delete", "deleted", job_ids, given, everything, chunk, yes, as_json, dsn, where)


def _answer(job_id: int, done: bool, verb: str, otherwise: str, as_json: bool, dsn: str | None) -> None:
    """Print what was done; if it was not, print the state of the job, or that there is none, and exit with 1."""
    if not done:
        state = ask(dsn, operate.explain(job_id))["state"]
        if state == "unknown":
            output.no_job(job_id)
        output.not_found(f"Job {job_id} is {state}: {otherwise}")
    _print_outcome(job_id, verb, as_json)


def _print_outcome(job_id: int, outcome: str, as_json: bool) -> None:
    if as_json:
        output.print_json({"id": job_id, "outcome": outcome})
    else:
        output.line(f"Job {job_id}: {outcome}")
