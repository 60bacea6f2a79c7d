"""`pgqueue worker`: run jobs in this process, or in several under a supervisor."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from pgqueue.cli.completion import queues, strategies
from pgqueue.cli.database import databases
from pgqueue.cli.modules import load
from pgqueue.cli.options import Dsns, LogLevel, commands, one_of_variable, working_directory
from pgqueue.config import WorkerConfig, check_dsn
from pgqueue.errors import ConfigError
from pgqueue.logs import set_up as set_up_logs
from pgqueue.processes import first_process
from pgqueue.processes.control_pipe import ControlPipe
from pgqueue.processes.service_manager import ServiceManager
from pgqueue.processes.supervisor import Supervisor
from pgqueue.processes.worker_main import is_guest, run_worker
from pgqueue.processes.worker_process import same_command
from pgqueue.worker.process.memory import parse as parse_memory
from pgqueue.worker.run.concurrency import parse as parse_concurrency

app = commands()

Require = Annotated[
    list[str] | None,
    typer.Option("--require", "-r", help="Module with the tasks: package.module or package.module:app. Repeatable."),
]
Queues = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        "-q",
        help="Queue to serve, with a weight: critical,8. Repeatable. Default: all.",
        autocompletion=queues,
    ),
]
Strategy = Annotated[
    str,
    typer.Option(help="weighted, strict (in the order given), lag or round_robin.", autocompletion=strategies),
]
Concurrency = Annotated[
    str,
    typer.Option(
        "--concurrency", "-c", help="How many jobs run at the same time; 4:64: between 4 and 64, by the load."
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        help="How many worker processes to run under a supervisor. Default: this process alone.", min=1, max=1000
    ),
]
MaxMemory = Annotated[
    str | None, typer.Option(help="Replace a process with more memory than this, after its running jobs: 500M.")
]
MaxJobs = Annotated[
    int | None, typer.Option(help="Replace a process that has run N jobs, after its running jobs.", min=1)
]
ReplaceTimeout = Annotated[
    float, typer.Option(help="Seconds that the running jobs of a replaced process have to end.", min=0)
]
Lease = Annotated[float, typer.Option(help="Seconds that a reservation holds; extended at a third of it.")]
PollInterval = Annotated[float, typer.Option(help="Seconds between polls of an idle worker without notification.")]
ShutdownTimeout = Annotated[float, typer.Option(help="Seconds that running jobs have to end after TERM or INT.")]
Listen = Annotated[bool, typer.Option(help="Wait for NOTIFY, or only poll.")]
ListenDsn = Annotated[
    list[str] | None,
    typer.Option(
        envvar=["PGQUEUE_LISTEN_DSN", "PGQUEUE_WORKER_LISTEN_DSN"],
        callback=one_of_variable,
        help="Where to listen when --dsn leads to PgBouncer: the same database, directly. One for each --dsn.",
        show_default=False,
    ),
]
Prepare = Annotated[
    bool | None,
    typer.Option(
        "--prepare/--no-prepare",
        help="Use prepared statements and session settings; not behind PgBouncer. Default: yes, except with"
        " --no-listen or --listen-dsn.",
        show_default=False,
    ),
]
UntilEmpty = Annotated[bool, typer.Option("--until-empty", help="Exit when no job is due.")]
Name = Annotated[str | None, typer.Option(help="Unique name of this process. Default: host:pid:random.")]
HealthPort = Annotated[
    int | None, typer.Option(help="Serve /live, /ready, /status and /metrics here.", min=0, max=65535)
]
HealthHost = Annotated[str, typer.Option(help="The address to serve them on.")]
KeepLog = Annotated[
    list[str] | None,
    typer.Option(help="Store the lines of this logger with the running job, as those of job.log. Repeatable."),
]
LogFormat = Annotated[str, typer.Option(help="console, or json: one object a line.")]


@app.command()
def worker(
    require: Require = None,
    queue: Queues = None,
    strategy: Strategy = "weighted",
    concurrency: Concurrency = "20",
    processes: Processes = None,
    max_memory: MaxMemory = None,
    max_jobs: MaxJobs = None,
    replace_timeout: ReplaceTimeout = 3600.0,
    lease: Lease = 30.0,
    poll_interval: PollInterval = 5.0,
    shutdown_timeout: ShutdownTimeout = 30.0,
    listen: Listen = True,
    listen_dsn: ListenDsn = None,
    prepare: Prepare = None,
    until_empty: UntilEmpty = False,
    name: Name = None,
    health_port: HealthPort = None,
    health_host: HealthHost = "127.0.0.1",
    log_level: LogLevel = "info",
    log_format: LogFormat = "console",
    keep_log: KeepLog = None,
    dsn: Dsns = None,
) -> None:
    """Run jobs until a signal stops it.

    If --dsn is given more than once, it serves all these databases, which share --concurrency.

    TERM or INT: reserve nothing more, let running jobs end, release unstarted ones. A second one ends at once.
    HUP: the same; with --processes, a rolling restart. USR1: reserve nothing more, and stay; USR2: resume. TTIN: write
    all stacks to the log.
    """
    if not is_guest():
        first_process.go_on_in_child()
    pipe, manager = ControlPipe.take(), ServiceManager.take()
    queues, weights = _queues(queue or [])
    low, high = parse_concurrency(concurrency)
    listens = [check_dsn("--listen-dsn", each) for each in listen_dsn or [] if each]
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
        listen_dsn=listens[0] if len(listens) == 1 else None,
        prepare=prepare,
        until_empty=until_empty,
        max_memory=None if max_memory is None else parse_memory(max_memory),
        **_identity(name, pipe, keep_log),
    )
    set_up_logs(log_level, log_format, config.name)
    health = None if health_port is None or pipe is not None else (health_host, health_port)
    if pipe is not None or (processes is None and max_memory is None and max_jobs is None):
        raise typer.Exit(_run_here(require, dsn, config, listens, health, pipe, manager))
    limits: dict[str, Any] = {"max_memory": config.max_memory, "max_jobs": max_jobs, "replace_timeout": replace_timeout}
    raise typer.Exit(_supervise(require, dsn, config, processes or 1, health, manager, limits))


def _run_here(
    modules: list[str] | None,
    dsns: list[str] | None,
    config: WorkerConfig,
    listen_dsns: list[str],
    health: tuple[str, int] | None,
    pipe: ControlPipe | None,
    manager: ServiceManager | None,
) -> int:
    here = working_directory() or Path()
    tasks = load(modules or [])
    # A module may have changed the directory.
    with databases(dsns, within=here) as found:
        return run_worker(tasks, found, config, listen_dsns=listen_dsns, health=health, pipe=pipe, manager=manager)


def _supervise(
    modules: list[str] | None,
    dsns: list[str] | None,
    config: WorkerConfig,
    processes: int,
    health: tuple[str, int] | None,
    manager: ServiceManager | None,
    limits: dict[str, Any],
) -> int:
    if not modules:
        # Refuses that.
        load([])
    with databases(dsns) as found:
        # The option names several, and the child processes get it, too.
        one = found[0] if len(found) == 1 else ""
        environment = {**os.environ, **({"PGQUEUE_DSN": one} if one else {})}
        supervisor = Supervisor(same_command(), found, config, processes, environment=environment, **limits)
        return asyncio.run(supervisor.run(health, manager))


def _identity(name: str | None, pipe: ControlPipe | None, keep_log: list[str] | None) -> dict[str, Any]:
    kept = {"keep_log": tuple(keep_log or ())}
    if pipe is not None:
        return {**kept, "name": pipe.name, "supervised": True}
    return kept if name is None else {**kept, "name": name}


def _queues(options: list[str]) -> tuple[tuple[str, ...] | None, tuple[int, ...] | None]:
    """Read -q critical,8 -q default into names and weights, 1 where none is given; no weight at all: None."""
    if not options:
        return None, None
    weighted = any("," in option for option in options)
    names, weights = [], []
    for option in options:
        name, comma, weight = option.rpartition(",")
        if not comma:
            name, weight = option, "1"
        # Not isdigit(): it accepts ², which is no number.
        if not re.fullmatch(r"\s*[0-9]{1,9}\s*", weight):
            raise ConfigError(f"-q {option}: {weight!r} is no weight", hint="give a queue as name or name,weight")
        if name in names:
            raise ConfigError(f"-q {option}: queue {name} is given twice", hint="give each queue once")
        names.append(name)
        weights.append(int(weight))
    # Without weights here, those of pgqueue.queues apply.
    return tuple(names), tuple(weights) if weighted else None
