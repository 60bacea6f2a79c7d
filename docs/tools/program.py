"""The reference of the program: commands, settings, errors, metrics, signals and the Python API."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import typer

from docs.tools.catalog import _cell, _prose
from pgqueue import errors as tree
from pgqueue import metrics, signals
from pgqueue.cli.main import COMMANDS, cli
from pgqueue.config import WorkerConfig

ROOT = Path(__file__).parents[2]

# Variables that the package itself reads, apart from those of the options of a command.
_ENVIRONMENT = {
    "PGQUEUE_DSN": "The database. Wins over `DATABASE_URL` and over libpq's variables; `--dsn` wins over it.",
    "PGQUEUE_LISTEN_DSN": "Where a worker listens when `--dsn` leads to PgBouncer. Also `PGQUEUE_WORKER_LISTEN_DSN`.",
    "PGQUEUE_EMBEDDED_BINARIES": "The folder with the programs of PostgreSQL that the embedded server is to use.",
    "PGQUEUE_TEST_DSN": "A server for tests: their databases are made there. The role needs CREATEDB.",
    "PGQUEUE_TEST_IMAGE": "The image of PostgreSQL that tests start where Docker is.",
    "PGQUEUE_WEB_USER": "The name for logging in to the pages of `pgqueue web`.",
    "PGQUEUE_WEB_PASSWORD": "The password for logging in to the pages of `pgqueue web`.",
}
# Set and read by pgqueue's own processes, or read by no part of the package.
_INTERNAL = {"PGQUEUE_CONTROL_PIPE", "PGQUEUE_WORKER", "PGQUEUE_WORKER_LISTEN_DSN", "PGQUEUE_VERSION"}
_OTHERS = {
    "DATABASE_URL": "The database, when `PGQUEUE_DSN` is not set.",
    "PGHOST": "libpq's variables (`PGDATABASE`, `PGPORT`, `PGUSER`, `PGSERVICE`, ...): when neither of the two is set.",
    "PGAPPNAME": "The name of the connections, in place of `pgqueue` and the name of the worker.",
    "NOTIFY_SOCKET": "Set by systemd: the worker reports there. See [systemd](../operate/deploy.md#systemd).",
    "WATCHDOG_USEC": "Set by systemd: how often it wants a sign of life.",
    "WATCHDOG_PID": "Set by systemd: the process that is to give it.",
    "TZ": "The zone in which the command line shows times.",
    "NO_COLOR": "Any value: no colours on the command line.",
}
# Settings of a session or transaction: set_config('pgqueue.actor', 'alice', true).
_SESSION = {
    "actor": "Who did it, for `pgqueue.audit`. Default: the role.",
    "via": "By which program it was done, for `pgqueue.audit`. Default: `sql`.",
    "notify": "`off`: enqueue sends no NOTIFY, for bulk loads and before PREPARE TRANSACTION. Workers then poll.",
    "hand_off": "`off`: enqueue announces each job, and hands none to a worker. For tests.",
    "fast_path": "The former name of `pgqueue.hand_off`.",
}
# Written by functions for themselves: leave them alone.
_SESSION_INTERNAL = {"offered", "noted", "woken", "maintenance_run", "step_under_way", "turn", "drawn"}

# SQLSTATE: Python error, when.
_STATES = {
    "22023": ("InvalidArgument", "a value is refused; the detail says what was found, the hint what to do"),
    "0A000": ("UnsupportedOption", "only the proxy of a sharded queue: parents, a group or a `ref` on two shards"),
    "25001": ("WrongIsolation", "`reserve`, `exchange`, `idle` or `maintain` outside READ COMMITTED"),
    "42501": ("AccessDenied", "the role has no right to call this; `pgqueue grant` gives it"),
    "55P03": ("LockTimeout", "another transaction holds the job or the dedupe key; nothing was changed"),
    "23505": ("DuplicateJob", "`on_conflict => 'raise'`, and a job stands for the dedupe key"),
    "55000": ("PgQueueError", "the state of the queue does not allow it: the message says what to do first"),
    "57014": ("PgQueueError", "a maintenance step was ended by its statement_timeout; the next run goes on"),
}

_SIGNALS = {
    "SIGTERM": (
        "reserve no more, give back unstarted jobs, let running ones end within `--shutdown-timeout`; then they have "
        "failed, or are given back, as `on_shutdown` of their tasks says",
        "the same, for all processes",
    ),
    "SIGINT": (
        "the same as TERM; a second TERM or INT ends at once: running jobs come back by their lease",
        "the same",
    ),
    "SIGHUP": (
        "the same as TERM; ignored under nohup",
        "a rolling restart: each process is replaced, one after another",
    ),
    "SIGUSR1": ("reserve no more, and stay (quiet)", "the same, for all processes"),
    "SIGUSR2": ("reserve again", "the same, for all processes"),
    "SIGTTIN": ("write the stacks of all threads and tasks to the log", "the same, for all processes"),
}

# The labels of the metrics of a database. Those of a queue have its name where nothing else stands here.
_LABELS = {
    "pgqueue_queue_jobs": "queue, state",
    "pgqueue_queue_late_seconds": "queue, cause",
    "pgqueue_queue_attempts_total": "queue, task, outcome",
    "pgqueue_pauses": "kind, source",
    "pgqueue_breakers_open": "kind, state",
    "pgqueue_workers": "queue",
    "pgqueue_slots": "state",
    "pgqueue_heartbeat_memory_bytes": "worker",
    "pgqueue_tenant_jobs": "tenant",
    "pgqueue_dead_jobs": "task, class, error",
    "pgqueue_limit_executing": "kind, target",
    "pgqueue_limit_waiting": "kind, target",
    "pgqueue_schedule_lag_seconds": "name",
    "pgqueue_task_info": "task, queue, owner",
    "pgqueue_dead_tuples": "table",
    "pgqueue_database_up": "database",
}

# Public modules beside pgqueue itself, in the order of the page.
_MODULES = {
    "pgqueue": "What most programs use",
    "pgqueue.tasks": "Tasks",
    "pgqueue.job": "The job in a handler",
    "pgqueue.signals": "What a handler may raise",
    "pgqueue.errors": "Errors",
    "pgqueue.workflows": "Workflows",
    "pgqueue.wait": "Wait for the end of a job",
    "pgqueue.hooks": "Hooks",
    "pgqueue.middleware": "Middleware",
    "pgqueue.config": "Configuration",
    "pgqueue.lifespan": "A worker in a web process",
    "pgqueue.testing": "Testing",
    "pgqueue.web": "The pages",
}


# Names of those modules that are for other parts of the package.
_PRIVATE = {
    "pgqueue.tasks.JobTask",
    "pgqueue.tasks.Declare",
    "pgqueue.job.Flag",
    "pgqueue.job.Surroundings",
    "pgqueue.job.Statements",
    "pgqueue.job.KeepsProgress",
    "pgqueue.job.KeepsLeases",
    "pgqueue.job.KeepsLines",
    "pgqueue.job.Execution",
    "pgqueue.job.set_current",
    "pgqueue.signals.as_interval",
    "pgqueue.middleware.is_async",
    "pgqueue.middleware.definition",
    "pgqueue.middleware.around_enqueue",
    "pgqueue.middleware.Around",
    "pgqueue.middleware.chained",
    "pgqueue.middleware.checked",
    "pgqueue.config.check_dsn",
    "pgqueue.config.own_dsn",
    "pgqueue.config.worker_dsn",
    "pgqueue.config.describe_dsn",
}


def command_line() -> str:
    """Return the page of the command line: each command with its arguments and options."""
    lines = [
        "# The command line",
        "",
        "`pgqueue COMMAND --help` says the same. Each option is also a variable: `PGQUEUE_`, the command, the option,",
        "in capitals with underscores, such as `PGQUEUE_WORKER_CONCURRENCY`.",
        "",
        "| command | what it does |",
        "|---|---|",
        *(f"| [`{name}`](#pgqueue-{name}) | {_cell(line)} |" for name, (_, line) in COMMANDS.items()),
        "",
    ]
    group = typer.main.get_command(cli)
    for name in COMMANDS:
        lines += _command(f"pgqueue {name}", group.commands[name])  # type: ignore[attr-defined]
    return "\n".join(lines)


def _command(path: str, command: Any) -> Iterator[str]:
    yield from (f"## {path}", "")
    text = inspect.cleandoc(command.help or "")
    yield from (_prose(re.sub(r"[\b\f]\n?", "", text)), "")
    rows = [row for each in command.params if not getattr(each, "hidden", False) and (row := _parameter(each))]
    if rows:
        yield from ("| argument or option | what it is | default |", "|---|---|---|", *rows, "")
    if command.epilog and (example := re.search(r"Example: (.*)", command.epilog)):
        yield from ("```text", example[1], "```", "")
    for name, each in getattr(command, "commands", {}).items():
        yield from _command(f"{path} {name}", each)


def _parameter(parameter: Any) -> str:
    if parameter.name == "help":
        return ""
    if parameter.param_type_name == "argument":
        names = f"`{(parameter.metavar or parameter.name).upper()}`"
    else:
        names = ", ".join(f"`{each}`" for each in [*parameter.opts, *parameter.secondary_opts])
    default = parameter.default
    if parameter.required:
        shown = "required"
    elif default in (None, "", (), []) or callable(default) or type(default).__name__ == "Sentinel":
        shown = ""
    else:
        shown = f"`{str(default).lower() if isinstance(default, bool) else default}`"
    return f"| {names} | {_cell(getattr(parameter, 'help', None) or '')} | {shown} |"


def settings(conn: psycopg.Connection[Any]) -> str:
    """Return the page of settings: of a worker, of the environment, of a session, of the schema."""
    lines = ["# Settings and environment", "", "## A worker", ""]
    lines += [
        "`pgqueue worker` has an option for each; in Python they are the fields of `pgqueue.config.WorkerConfig`."
    ]
    lines += ["Durations are in seconds.", "", "| field | what it is | default |", "|---|---|---|"]
    texts = dict(_columns(inspect.getdoc(WorkerConfig) or ""))
    for name, each in WorkerConfig.__dataclass_fields__.items():
        default = "host:pid:random" if name == "name" else each.default
        lines.append(f"| `{name}` | {_cell(texts[name])} | `{default}` |")
    lines += ["", "## The environment", "", "| variable | what it is |", "|---|---|"]
    for name in sorted(environment_variables() - _INTERNAL):
        lines.append(f"| `{name}` | {_ENVIRONMENT[name]} |")
    lines += [f"| `{name}` | {text} |" for name, text in _OTHERS.items()]
    lines += ["", "Each option of a command is a variable too: see [The command line](command-line.md).", ""]
    lines += [
        "## A session or transaction",
        "",
        "`select set_config('pgqueue.actor', 'alice', true);` sets one for this",
    ]
    lines += ["transaction.", "", "| setting | what it does |", "|---|---|"]
    lines += [f"| `pgqueue.{name}` | {_SESSION[name]} |" for name in sorted(session_settings() - _SESSION_INTERNAL)]
    lines += ["", "## The schema", "", "The one row of `pgqueue.settings`. A change takes effect at once.", ""]
    lines += ["| column | what it holds | value after `pgqueue migrate` |", "|---|---|---|"]
    row = conn.execute("select to_jsonb(s) from pgqueue.settings s").fetchone()
    for name, comment in conn.execute(
        "select attname, col_description(attrelid, attnum) from pg_attribute"
        " where attrelid = 'pgqueue.settings'::regclass and attnum > 0 and not attisdropped order by attnum"
    ).fetchall():
        value = None if row is None else row[0][name]
        lines.append(f"| `{name}` | {_cell(comment)} | {'' if value is None else f'`{value}`'} |")
    lines += ["", "Options of queues and tasks are columns of [`queues` and `tasks`](tables.md#queues).", ""]
    return "\n".join(lines)


def environment_variables() -> set[str]:
    """Return every variable of ours that the package names."""
    text = "\n".join(path.read_text() for path in (ROOT / "pgqueue").rglob("*.py"))
    return set(re.findall(r"\bPGQUEUE_[A-Z_]*[A-Z]\b", text))


def session_settings() -> set[str]:
    """Return every setting of ours that the SQL reads or writes, and the program sets."""
    text = "\n".join(path.read_text() for path in (ROOT / "sql").rglob("*.sql"))
    return set(re.findall(r"(?:current_setting|set_config)\(\s*'pgqueue\.(\w+)'", text))


def errors() -> str:
    """Return the page of errors: SQLSTATEs, and the tree in Python."""
    lines = [
        "# Errors",
        "",
        "## SQLSTATEs",
        "",
        "The errors of the functions of the queue. The message is the problem, the detail",
    ]
    lines += ["what was found, the hint what to do. Other states are PostgreSQL's own.", ""]
    lines += ["| SQLSTATE | Python | when |", "|---|---|---|"]
    lines += [f"| {state} | `{_STATES[state][0]}` | {_STATES[state][1]} |" for state in sorted(sqlstates())]
    lines += ["", "Below each error psql prints the lines of our functions that led to it (`CONTEXT: ...`).", ""]
    lines += ["## In Python", "", "All stand in `pgqueue.errors`, and `PgQueueError` in `pgqueue`.", ""]
    lines += ["```text", *(tree.__doc__ or "").split("\n\n", 1)[1].rstrip().splitlines(), "```", ""]
    lines += ["| error | what it means |", "|---|---|"]
    for name, each in vars(tree).items():
        if inspect.isclass(each) and issubclass(each, tree.PgQueueError):
            lines.append(f"| `{name}` | {_cell((inspect.getdoc(each) or '').split(chr(10) * 2)[0])} |")
    lines += [
        "",
        "What a handler raises to decide on its job is no error: see [Signals](signals.md#exceptions-of-a-handler).",
        "",
    ]
    return "\n".join(lines)


def sqlstates() -> set[str]:
    """Return every SQLSTATE that the SQL raises or the program turns into an error of its own."""
    found = {"42501"}
    for path in (ROOT / "sql" / "functions").rglob("*.sql"):
        text = re.sub(r"--.*", "", path.read_text())
        found |= set(re.findall(r"'([0-9][0-9A-Z][0-9A-Z]{3})'(?=\s*(?:\)|\]|;|,|--))", text)) & set(
            _known_states(text)
        )
    return (
        found
        | set(re.findall(r"text default '(\w{5})'", (ROOT / "sql/functions/common/_refuse.sql").read_text()))
        | {"0A000"}
    )


def _known_states(text: str) -> Iterator[str]:
    """Yield what stands where a state does: errcode, or the last argument of a refusal."""
    yield from re.findall(r"errcode = '(\w{5})'", text)
    yield from re.findall(r"'(\d[0-9A-Z]{4})'\s*[)\]]", text)


def metric_names() -> str:
    """Return the page of metrics."""
    lines = [
        "# Metrics",
        "",
        "In the text format of Prometheus. [Operating](../operate/operating.md#what-to-watch) says what to watch.",
        "",
    ]
    lines += [
        "## Of the database",
        "",
        "`select * from pgqueue.metrics()`, `pgqueue metrics`, or `/metrics` of the pages: ask one of them, once",
    ]
    lines += ["for each database. Where one page has several, each metric has the label `database` too.", ""]
    lines += ["| metric | labels | what it is |", "|---|---|---|"]
    lines += [f"| `{name}` | {labels_of(name)} | {_cell(text)} |" for name, text in metrics.OF_DATABASE.items()]
    lines += ["", "## Of a worker", "", "`/metrics` at its `--health-port`; needs the extra `metrics`.", ""]
    lines += ["| metric | labels | type | what it is |", "|---|---|---|---|"]
    for family in worker_families():
        labels = sorted({name for sample in family.samples for name in sample.labels} - {"le"})
        name = family.name + ("_total" if family.type == "counter" else "")
        lines.append(f"| `{name}` | {', '.join(labels)} | {family.type} | {_cell(family.documentation)} |")
    return "\n".join([*lines, ""])


def labels_of(metric: str) -> str:
    """Return the labels of a metric of a database, as the page lists them."""
    return _LABELS.get(metric, "queue" if metric.startswith("pgqueue_queue_") else "")


def worker_families() -> list[Any]:
    """Return the families that a worker serves, with a sample each."""
    times = {"sum": 1.0, "max": 0.5, "buckets": [1] * (len(metrics.BOUNDS) + 1)}
    ended: Any = {"queue": "q", "task": "t", "run": times, "wait": times, **dict.fromkeys(metrics.OUTCOMES, 1)}
    return list(metrics.of_workers({"worker": "w", "claims": times}, [ended]))


def signals_and_exit_codes() -> str:
    """Return the page of POSIX signals, exit codes, and exceptions of a handler."""
    lines = [
        "# Signals and exit codes",
        "",
        "## Signals",
        "",
        "| signal | a worker | with `--processes` |",
        "|---|---|---|",
    ]
    lines += [f"| {name} | {_SIGNALS[name][0]} | {_SIGNALS[name][1]} |" for name in handled_signals()]
    lines += ["", "## Exit codes", "", "| code | meaning |", "|---|---|"]
    text = importlib.import_module("pgqueue.cli.main").__doc__ or ""
    found = re.search(r"Exit codes: (.*?)\n\n", text, re.DOTALL)
    if found is None:
        raise ValueError("pgqueue.cli.main no longer says what its exit codes mean")
    codes = [each.split(" ", 1) for each in " ".join(found[1].rstrip(".").split()).split("; ")]
    codes.append(
        ["75", "a supervised worker wants to be replaced: a handler did not stop at its timeout, or an operator asked"]
    )
    codes.append(["137", "`pgqueue workers kill` ended the worker at once"])
    codes.append(["128 + n", "a second signal n ended the worker at once"])
    lines += [f"| {code} | {_cell(meaning)} |" for code, meaning in codes]
    lines += [
        "",
        "## Exceptions of a handler",
        "",
        "A handler decides on its job by raising one of these, from `pgqueue`:",
        "",
    ]
    lines += ["| exception | what becomes of the job |", "|---|---|"]
    for name, each in vars(signals).items():
        if inspect.isclass(each) and issubclass(each, BaseException) and each.__module__ == signals.__name__:
            summary = " ".join((inspect.getdoc(each) or "").split("\n\n")[0].split())
            lines.append(f"| `{name}` | {_cell(summary)} |")
    return "\n".join([*lines, ""])


def handled_signals() -> list[str]:
    """Return the signals for which a worker or a supervisor has a handler, in the order of _SIGNALS."""
    names = ("pgqueue/worker/operator_signals.py", "pgqueue/processes/supervisor.py")
    found: set[str] = set()
    for name in names:
        for node in ast.walk(ast.parse((ROOT / name).read_text())):
            if isinstance(node, ast.Attribute) and re.fullmatch(r"SIG[A-Z0-9]+", node.attr):
                found.add(node.attr)
    # SIGPIPE is only ignored, and SIGCHLD only taken back from being so.
    found -= {"SIGCHLD", "SIGKILL", "SIGPIPE"}
    if unknown := found - set(_SIGNALS):
        raise KeyError(f"docs/tools/program.py does not describe {sorted(unknown)}")
    return [name for name in _SIGNALS if name in found]


def python_api() -> str:
    """Return the page of the Python API: autodoc reads the docstrings when the pages are built."""
    lines = [
        "# Python API",
        "",
        "From the docstrings of the package. A name that does not stand here may change in any release. The options of",
        "`enqueue` are the arguments of [the function in SQL](functions-produce.md#enqueue), with a sentence for each.",
        "",
    ]
    for module, title in _MODULES.items():
        named = [*public_names(module)]
        lines += [f"## {title}: `{module}`", "", "~~~{eval-rst}", f".. module:: {module}", ""]
        if len(named) > 2:
            lines += [".. autosummary::", "   :nosignatures:", "", *(f"   {name}" for name, _ in named), ""]
        for name, kind in named:
            lines += [f".. {kind}:: {module}.{name}"]
            lines += ["   :members:", ""] if kind in ("autoclass", "autoexception") else [""]
        lines += ["~~~", ""]
    return "\n".join(lines)


def public_names(module: str) -> Iterator[tuple[str, str]]:
    """Yield each public name of a module that another module of the page does not have, with its directive."""
    found = importlib.import_module(module)
    for name in getattr(found, "__all__", None) or [each for each in vars(found) if not each.startswith("_")]:
        each = getattr(found, name)
        home = getattr(each, "__module__", "")
        here = home == module or (hasattr(found, "__all__") and home not in _MODULES)
        if not here or not callable(each) or f"{module}.{name}" in _PRIVATE:
            continue
        if inspect.isclass(each):
            yield name, "autoexception" if issubclass(each, BaseException) else "autoclass"
        elif inspect.isfunction(each):
            yield name, "autofunction"


def _columns(text: str) -> Iterator[tuple[str, str]]:
    """Read a docstring's columns: a name, two spaces or more, what it is, on one line or more."""
    rows: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if named := re.match(r"(\w+) {2,}(\S.*)", line):
            rows.append((named[1], [named[2]]))
        elif rows and line.startswith("    "):
            rows[-1][1].append(line.strip())
    for name, parts in rows:
        yield name, " ".join(parts)
