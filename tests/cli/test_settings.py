"""Where the command line gets its settings from: flags, variables, and the embedded server when there are none."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
import typer

from pgqueue import cli, embedded
from pgqueue.cli.main import COMMANDS
from tests.calls import enqueue, job, state, value
from tests.cli.commands import commands, top
from tests.cli.conftest import Run
from tests.databases import Database
from tests.facts import wait_until
from tests.workers import environment_without_dsn, write_module

ROOT = Path(__file__).parents[2]

TASKS = """
    from pgqueue import App
    app = App()

    @app.task
    def greet(name="you"):
        print("Hello", name)
"""


def options() -> list[tuple[tuple[str, ...], Any]]:
    return [
        (path, each)
        for path, command in commands()
        for each in command.params
        if each.param_type_name == "option" and each.name != "help"
    ]


def test_there_are_the_commands_that_the_readme_names() -> None:
    assert {" ".join(path) for path, _ in commands()} == {
        *(
            "worker",
            "run",
            "dev",
            "migrate",
            "proxy",
            "enqueue",
            "status",
            "why",
            "grant",
            "help",
            "bench",
            "demo",
            "psql",
            "dsn",
            "server",
        ),
        *(
            f"jobs {each}"
            for each in (
                "list",
                "show",
                "explain",
                "logs",
                "facets",
                "stack",
                "run",
                "kill",
                "retry",
                "update",
                "cancel",
                "delete",
            )
        ),
        *(f"queues {each}" for each in ("list", "pause", "resume", "set", "purge")),
        *("tasks list", "tasks set", "tasks schema", "tasks types", "web", "top", "mcp", "metrics", "doctor", "why"),
        *(f"groups {each}" for each in ("list", "show", "cancel", "retry")),
        *(f"events {each}" for each in ("list", "delete")),
        *(f"import {each}" for each in ("procrastinate", "pgqueuer", "graphile-worker", "pgmq")),
        *(f"limits {each}" for each in ("list", "set", "drop", "pause", "pauses", "throttle", "resume")),
        *(f"breakers {each}" for each in ("list", "set", "remove", "close")),
        *(f"shares {each}" for each in ("list", "set", "drop")),
        *(f"schedules {each}" for each in ("list", "add", "show", "set", "pause", "resume", "run", "remove")),
        *(f"workers {each}" for each in ("list", "quiet", "resume", "stop", "kill")),
    }


@pytest.mark.parametrize(
    ("path", "option"), options(), ids=lambda each: "-".join(each) if isinstance(each, tuple) else each.name
)
def test_every_option_of_every_command_is_also_an_environment_variable(
    path: tuple[str, ...], option: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGQUEUE_DSN", raising=False)
    command: Any = typer.main.get_command(cli.cli)
    context = command.make_context("pgqueue", list(path), resilient_parsing=True)
    for name in path:
        command = command.commands[name]
        context = command.make_context(name, [], parent=context, resilient_parsing=True)
    # Benchmarks make databases of their own: not on the server that works, unless it is named for them.
    is_common = option.name == "dsn" and path != ("bench",)
    variable = "PGQUEUE_DSN" if is_common else "_".join(("PGQUEUE", *path, option.name)).upper().replace("-", "_")
    assert option.resolve_envvar_value(context) is None
    monkeypatch.setenv(variable, "given")
    assert option.resolve_envvar_value(context) == "given"


def test_everything_that_prints_prints_json_when_asked() -> None:
    printing = {" ".join(path) for path, each in commands() if any(p.name == "as_json" for p in each.params)}
    # The worker logs, web and mcp serve, and print nothing; psql has formats of its own, a schema is JSON, types are
    # code, and proxy prints SQL. What was imported is a count for people.
    others = {"worker", "dev", "web", "mcp", "psql", "tasks schema", "tasks types", "proxy"}
    imports = {" ".join(path) for path, _ in commands() if path[0] == "import"}
    assert printing == {" ".join(path) for path, _ in commands()} - others - imports


def test_every_command_and_option_has_a_help_text() -> None:
    for path, command in commands():
        assert command.help, path
        for each in command.params:
            if each.name != "help":
                assert each.help, (path, each.name)


def test_the_list_of_commands_shows_the_first_line_of_their_own_help() -> None:
    assert {name: line for name, (_, line) in COMMANDS.items()} == {
        name: command.help.split("\n")[0] for name, command in top().items()
    }


HEAVY = "alembic sqlalchemy rich asyncpg django psycopg2 psycopg_pool textual starlette opentelemetry pgqueue.worker"


def imported(arguments: str, **environment: str) -> set[str]:
    """What a new process has imported when it has run `pgqueue` with these arguments, which must be right."""
    program = (
        "import sys; from pgqueue import cli\n"
        f"sys.argv = 'pgqueue {arguments}'.split()\n"
        "try: cli.main()\n"
        "finally: print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=os.environ | environment
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        ("--version", "pydantic pgqueue.config pgqueue.cli.database"),
        ("--help", "pgqueue.config pgqueue.cli.database"),
        ("jobs list --help", ""),
    ],
)
def test_what_the_version_and_the_help_do_not_need_is_not_imported(arguments: str, more: str) -> None:
    assert imported(arguments) & {*HEAVY.split(), *more.split()} == set()


def test_the_help_of_the_worker_imports_no_migration() -> None:
    assert imported("worker --help") & {"alembic", "sqlalchemy", "rich"} == set()


@pytest.mark.parametrize("begun", ["", "jo"])
def test_the_name_of_a_command_is_completed_without_importing_a_command(begun: str) -> None:
    found = imported("", _PGQUEUE_COMPLETE="complete_bash", COMP_WORDS=f"pgqueue {begun}", COMP_CWORD="1")
    assert found & set(HEAVY.split()) == set()
    assert found & {f"pgqueue.cli.{module}" for module, _ in COMMANDS.values()} == set()


def test_a_variable_stands_in_for_a_flag_and_the_flag_wins(
    run: Run, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGQUEUE_ENQUEUE_QUEUE", "from-environment")
    monkeypatch.setenv("PGQUEUE_ENQUEUE_PRIORITY", "9")
    monkeypatch.setenv("PGQUEUE_ENQUEUE_AS_JSON", "1")
    by_variable = job(conn, run("enqueue", "t").json()["id"])
    assert (by_variable.queue, by_variable.priority) == ("from-environment", 9)
    by_flag = job(conn, run("enqueue", "t", "-q", "from-flag").json()["id"])
    assert (by_flag.queue, by_flag.priority) == ("from-flag", 9)


def test_a_variable_that_names_the_version_of_an_image_stops_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGQUEUE_VERSION", "1.2.3")
    assert run("status", "--json").code == 0


def test_the_worker_takes_all_its_settings_from_the_environment(
    database: Database, conn: psycopg.Connection, run_process: Run, tmp_path: Path
) -> None:
    write_module(tmp_path, TASKS)
    here, elsewhere = enqueue(conn, "greet", queue="here"), enqueue(conn, "greet", queue="elsewhere")
    done = run_process(
        "worker",
        PGQUEUE_DSN=database.dsn,
        PGQUEUE_WORKER_REQUIRE="jobs",
        PGQUEUE_WORKER_QUEUE="here there,1",
        PGQUEUE_WORKER_UNTIL_EMPTY="1",
        PGQUEUE_WORKER_NAME="environmentalist",
        PGQUEUE_WORKER_LOG_LEVEL="error",
    )
    assert (done.code, done.out, done.err) == (0, "Hello you\n", "")
    assert job(conn, here).reserved_by == "environmentalist"
    assert state(conn, elsewhere) == "waiting"


@pytest.mark.parametrize("source", ["--dsn", "PGQUEUE_DSN", "DATABASE_URL", "PGHOST"])
def test_the_database_is_found_in_each_place_that_is_documented(
    source: str, database: Database, conn: psycopg.Connection, run_process: Run
) -> None:
    if source == "--dsn":
        # It wins over all the others.
        done = run_process("enqueue", "t", "--dsn", database.dsn, PGQUEUE_DSN="postgresql:///x", DATABASE_URL="y")
    elif source == "PGHOST":
        parts = psycopg.conninfo.conninfo_to_dict(database.dsn)
        names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE", "password": "PGPASSWORD"}
        done = run_process("enqueue", "t", **{names[name]: str(text) for name, text in parts.items() if name in names})
    else:
        done = run_process("enqueue", "t", **{source: database.dsn})
    assert (done.code, done.out) == (0, "1\n"), done.err
    assert value(conn, "select count(*) from pgqueue.jobs") == 1


def test_a_dsn_in_the_way_sqlalchemy_writes_it_is_understood(
    database: Database, conn: psycopg.Connection, run_process: Run
) -> None:
    dsn = re.sub("^postgresql://", "postgresql+psycopg://", database.dsn)
    assert run_process("enqueue", "t", DATABASE_URL=dsn).code == 0
    assert value(conn, "select count(*) from pgqueue.jobs") == 1


def test_a_server_that_is_not_there_is_one_line(run_process: Run) -> None:
    done = run_process("status", "--dsn", "postgresql://127.0.0.1:1/x")
    assert (done.code, done.out) == (2, "")
    [line] = done.err.splitlines()
    assert line.startswith("pgqueue: ")
    assert "refused" in line


def test_a_dsn_that_is_no_text_is_refused(run: Run) -> None:
    # As the system hands over a byte that is no UTF-8.
    refused = run("status", "--dsn", "host=\udcff")
    assert (refused.code, refused.out) == (2, "")
    assert "--dsn is not a PostgreSQL DSN: it is not text in UTF-8" in refused.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no disk that is always full")
@pytest.mark.parametrize("command", [["--version"], ["migrate", "--sql"]])
def test_output_that_cannot_be_written_is_one_line(command: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "pgqueue", *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (2, "pgqueue: [Errno 28] No space left on device\n")


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_worker_runs_without_stderr(closed: str, database: Database, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text("from pgqueue import App\napp = App()\n@app.task\ndef quick(): ...\n")
    with database.connect() as conn:
        job_id = enqueue(conn, "quick")
        command = f'"$0" -m pgqueue worker -r jobs --until-empty --dsn "$1" {closed}'
        done = subprocess.run(
            ["sh", "-c", command, sys.executable, database.dsn],
            cwd=tmp_path,
            env=environment_without_dsn(),
            check=False,
        )
        assert (done.returncode, state(conn, job_id)) == (0, "succeeded")


def test_output_may_be_closed() -> None:
    done = subprocess.run(
        ["sh", "-c", '"$0" -m pgqueue --version >&-', sys.executable], stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&- <&-"])
def test_a_worker_without_stdout_runs_jobs_and_so_do_the_programs_of_its_handlers(
    database: Database, conn: psycopg.Connection, tmp_path: Path, closed: str
) -> None:
    write_module(tmp_path, PRINTING)
    job_id = enqueue(conn, "loud")
    command = f'"$0" -m pgqueue worker -r jobs --until-empty {closed}'
    environment = {**os.environ, "PGQUEUE_DSN": database.dsn}
    done = subprocess.run(
        ["sh", "-c", command, sys.executable], cwd=tmp_path, env=environment, check=False, timeout=280
    )
    assert done.returncode == 0
    assert job(conn, job_id).state == "succeeded"


PRINTING = """
import subprocess
from pgqueue import App

app = App()

@app.task
def loud() -> None:
    print("Hello")
    subprocess.run(["echo", "Hello"], check=True)
"""


def test_commands_work_in_a_directory_that_was_removed(
    database: Database, conn: psycopg.Connection, tmp_path: Path
) -> None:
    modules, gone = tmp_path / "modules", tmp_path / "gone"
    modules.mkdir()
    gone.mkdir()
    write_module(modules, TASKS)
    job_id = enqueue(conn, "greet", {"name": "Ada"})
    environment = {**os.environ, "PGQUEUE_DSN": database.dsn, "PYTHONPATH": f"{modules}:{ROOT}"}
    ours = '"$0" -m pgqueue'
    for command, says in (
        (f"{ours} worker -r jobs --until-empty --log-level error", "Hello Ada"),
        (f'{ours} run jobs:greet \'{{"name": "Ada"}}\'', "Hello Ada"),
        (f"{ours} jobs list", "greet"),
        (f"{ours} tasks schema -r jobs", '"greet"'),
        (f"{ours} psql -Atc 'select 5'", "5"),
        (f"unset PGQUEUE_DSN; {ours} status", "the working directory was removed"),
    ):
        if "psql" in command and shutil.which("psql") is None and not embedded.available():
            continue
        script = f"rmdir {gone}; {command} 2>&1; status=$?; mkdir {gone}; exit $status"
        done = subprocess.run(
            ["sh", "-c", script, sys.executable], cwd=gone, env=environment, capture_output=True, text=True, timeout=280
        )
        assert says in done.stdout, command
        assert done.returncode == (2 if "removed" in says else 0), command
    assert job(conn, job_id).state == "succeeded"


@pytest.mark.long
@pytest.mark.skipif(not embedded.available(), reason="the embedded server is not installed")
def test_without_any_dsn_a_private_server_is_started_and_said_so_in_one_line(run_process: Run, tmp_path: Path) -> None:
    project = tmp_path / "a project of mine"
    project.mkdir()
    write_module(project, TASKS)
    said = "No DSN configured: using the embedded PostgreSQL in ./.pgqueue/\n"
    try:
        first = run_process("enqueue", "greet", '{"name": "Ada"}', cwd=project)
        assert (first.code, first.out, first.err) == (0, "1\n", said)
        worked = run_process("worker", "-r", "jobs", "--until-empty", "--log-level", "error", cwd=project)
        # It runs still, and that was said.
        assert (worked.code, worked.out, worked.err) == (0, "Hello Ada\n", "")
        listed = run_process("jobs", "list", "--json", cwd=project)
        assert [each["state"] for each in listed.json()] == ["succeeded"]
    finally:
        embedded.stop(project / ".pgqueue")
    wait_until(lambda: not (project / ".pgqueue" / "socket").exists())


@pytest.mark.skipif(not embedded.available(), reason="the embedded server is not installed")
def test_the_private_server_is_not_started_anew_for_a_command_that_follows(run_process: Run, tmp_path: Path) -> None:
    directory = tmp_path / ".pgqueue"
    try:
        first = run_process("enqueue", "greet")
        assert (first.code, first.out) == (0, "1\n")
        assert "using the embedded PostgreSQL" in first.err
        started = (directory / "data" / "postmaster.pid").read_text()
        second = run_process("enqueue", "greet")
        assert (second.code, second.out, second.err) == (0, "2\n", "")
        assert (directory / "data" / "postmaster.pid").read_text() == started
        # A minute later, here at once.
        os.utime(directory / "users.lock")
        wait_until(lambda: not (directory / "data" / "postmaster.pid").exists())
    finally:
        embedded.stop(directory)


@pytest.mark.long
@pytest.mark.skipif(not embedded.available(), reason="the embedded server is not installed")
def test_the_private_server_can_be_kept_running_and_reached_by_other_programs(run_process: Run, tmp_path: Path) -> None:
    before = run_process("dsn")
    assert (before.code, before.err) == (0, "The embedded server does not run now: start it with pgqueue server\n")
    program = [sys.executable, "-m", "pgqueue", "server"]
    with subprocess.Popen(
        program, cwd=tmp_path, env=environment_without_dsn(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            dsn = server.stdout.readline().strip()
            # The same each time, and known before it starts.
            assert dsn == before.out.strip()
            assert (run_process("dsn").out.strip(), run_process("dsn").err) == (dsn, "")
            assert run_process("dsn", "--json").json() == {"dsn": dsn}
            assert run_process("enqueue", "greet").out == "1\n"
            with psycopg.connect(dsn) as conn:
                assert value(conn, "select task from pgqueue.jobs") == "greet"
            # Another program, as the user of the operating system, without a name given.
            parts = psycopg.conninfo.conninfo_to_dict(dsn)
            with psycopg.connect(host=str(parts["host"]), dbname="pgqueue") as conn:
                assert value(conn, "select current_user") == pwd.getpwuid(os.geteuid()).pw_name
            done = run_process("psql", "-Atc", "select state from pgqueue.jobs")
            assert (done.code, done.out) == (0, "waiting\n")
            # With no functions that a user does not know in its errors.
            refused = run_process("psql", "-c", "select pgqueue.enqueue('')")
            assert refused.code == 1
            assert "task must be" in refused.err
            assert "CONTEXT" not in refused.err
            server.send_signal(signal.SIGINT)
            assert server.wait(240) == 0
        finally:
            server.kill()
            embedded.stop(tmp_path / ".pgqueue")
    assert run_process("dsn").out.strip() == dsn


def test_psql_opens_the_configured_database_and_hides_its_password(
    run_process: Run, database: Database, tmp_path: Path
) -> None:
    # A psql that prints what it is given.
    (tmp_path / "psql").write_text('#!/bin/sh\necho "$@"\necho "$PGPASSWORD"\nexit 3\n')
    (tmp_path / "psql").chmod(0o755)
    done = run_process("psql", "-x", "--dsn", "postgresql://ada:hunter2@h/app", PATH=f"{tmp_path}:/usr/bin:/bin")
    assert (done.code, done.err) == (3, "")
    arguments, password = done.out.splitlines()
    assert password == "hunter2"
    assert "hunter2" not in arguments
    assert arguments.endswith("-x")
    assert "--dbname=user=ada dbname=app host=h" in arguments


def test_dsn_prints_what_the_commands_use(run_process: Run) -> None:
    assert run_process("dsn", "--dsn", "postgresql://h/app").out == "postgresql://h/app\n"
    assert run_process("dsn", DATABASE_URL="postgresql+psycopg://h/app").out == "postgresql://h/app\n"
    parts = psycopg.conninfo.conninfo_to_dict(run_process("dsn", PGHOST="h", PGDATABASE="app").out)
    assert (parts["host"], parts["dbname"]) == ("h", "app")


@pytest.mark.long
def test_a_worker_on_the_private_server_logs_nothing_of_the_migration(run_process: Run, tmp_path: Path) -> None:
    (tmp_path / "quiet.py").write_text("from pgqueue import App\napp = App()\n@app.task\ndef t(): ...\n")
    ran = run_process("worker", "-r", "quiet:app", "--until-empty")
    assert ran.code == 0, ran.err
    assert "alembic" not in ran.err
