"""`pgqueue run` and `pgqueue dev`: what a developer runs while writing tasks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.calls import enqueue, state, value
from tests.cli.conftest import Outcome, Run
from tests.databases import Database
from tests.facts import wait_until
from tests.workers import environment_without_dsn

TASKS = """
import asyncio, logging
from datetime import UTC, datetime
from decimal import Decimal
from pgqueue import App, Cancel, Job

app = App()

@app.task
def greet(name: str):
    logging.getLogger("greet").info("hello %s", name)
    return {"said": f"hello {name}"}

@app.task(max_attempts=5)
async def fail(job: Job):
    async with job.transaction() as db:
        await db.execute("create table public.written ()")
    raise KeyError("no such order")

@app.task(name="shop.nap")
async def nap(job: Job):
    await job.step("first", lambda: 1)
    await job.sleep("nap", "1 hour")

@app.task
def compute(what: str):
    return {
        "instant": {"at": datetime(2026, 12, 24, 18, tzinfo=UTC), "price": Decimal("1.50")},
        "number": {1: "a"},
        "long": 2**70,
        "pair": {(1, 2): "a"},
        "nan": float("nan"),
    }[what]

@app.task
def give_up():
    raise Cancel("no longer needed")
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(TASKS)
    return tmp_path


def test_a_task_runs_here_with_its_log_and_prints_its_result(
    run_process: Run, here: Path, database: Database, conn: psycopg.Connection
) -> None:
    done = run_process("run", "jobs:greet", '{"name": "Ada"}', PGQUEUE_DSN=database.dsn)
    assert (done.code, done.out) == (0, '{"said":"hello Ada"}\n')
    assert "hello Ada" in done.err
    assert value(conn, "select array_agg(state::text) from pgqueue.all_jobs") == ["succeeded"]


@pytest.mark.parametrize(
    ("what", "result"),
    [
        ("instant", {"at": "2026-12-24T18:00:00Z", "price": "1.50"}),
        ("number", {"1": "a"}),
        ("long", 2**70),
        ("pair", "{(1, 2): 'a'}"),
        ("nan", "nan"),
    ],
)
@pytest.mark.parametrize("option", [[], ["--json"]])
def test_a_result_that_is_no_json_is_printed_for_its_job_is_committed(
    what: str, result: object, option: list[str], run_process: Run, here: Path, database: Database
) -> None:
    done = run_process("run", "jobs:compute", json.dumps({"what": what}), *option, PGQUEUE_DSN=database.dsn)
    assert done.code == 0, done
    assert (done.json()["result"] if option else done.json()) == result


def test_no_worker_continues_with_a_task_that_cancels_itself(
    run_process: Run, here: Path, database: Database, conn: psycopg.Connection
) -> None:
    done = run_process("run", "jobs:give_up", PGQUEUE_DSN=database.dsn)
    job_id = value(conn, "select max(id) from pgqueue.all_jobs")
    assert (done.code, done.out) == (0, f"job {job_id} is cancelled\n")


def test_a_task_that_fails_leaves_nothing(
    run_process: Run, here: Path, database: Database, conn: psycopg.Connection
) -> None:
    done = run_process("run", "jobs:fail", PGQUEUE_DSN=database.dsn)
    assert done.code == 1
    assert "KeyError: 'no such order'" in done.err
    assert "nothing was stored" in done.err
    assert value(conn, "select count(*) from pgqueue.all_jobs") == 0
    assert value(conn, "select to_regclass('public.written')") is None


def test_a_task_that_sleeps_is_left_to_a_worker(
    run_process: Run, here: Path, database: Database, conn: psycopg.Connection
) -> None:
    done = run_process("run", "jobs:shop.nap", "--json", PGQUEUE_DSN=database.dsn)
    assert done.code == 0
    assert state(conn, done.json()["id"]) == done.json()["state"] == "waiting"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["greet"], "give its module and its name: shop.tasks:send_email"),
        (["jobs:greets"], "its tasks are: compute, fail, give_up, greet, shop.nap"),
        (["jobs:greet", "{'name': 1}"], "ARGS is not JSON"),
        # A float in its place would be another amount.
        (["jobs:greet", '{"name": 100000000000000000001}'], "Integer exceeds 64-bit range"),
        (["jobs:greet", '{"nam": "Ada"}'], "missing a required argument: 'name'"),
        (["nowhere:greet"], "there is no module 'nowhere'"),
    ],
)
def test_what_cannot_be_run_is_refused(
    arguments: list[str], says: str, run_process: Run, here: Path, database: Database
) -> None:
    done: Outcome = run_process("run", *arguments, PGQUEUE_DSN=database.dsn)
    assert done.code == 2
    assert says in done.err


@pytest.fixture
def dev(here: Path, database: Database) -> Iterator[subprocess.Popen[bytes]]:
    with (here / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pgqueue", "dev", "-r", "jobs", "--no-pages"],
            cwd=here,
            env={**environment_without_dsn(), "PGQUEUE_DSN": database.dsn},
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_changed_file_starts_the_worker_anew_and_an_interrupt_ends_all(
    dev: subprocess.Popen[bytes], here: Path, conn: psycopg.Connection
) -> None:
    def workers() -> list[str]:
        return value(conn, "select coalesce(array_agg(name), '{}') from pgqueue.workers") or []

    def log() -> str:
        return (here / "log").read_text()

    wait_until(lambda: len(workers()) == 1)
    first = enqueue(conn, "greet", {"name": "Ada"})
    wait_until(lambda: state(conn, first) == "succeeded")
    [before] = workers()

    # Until it is seen: the watch begins when the worker was started.
    def changed() -> bool:
        (here / "jobs.py").write_text(TASKS.replace("hello", "good evening"))
        return "jobs.py changed" in log()

    wait_until(changed)
    wait_until(lambda: len(workers()) == 1 and workers() != [before])
    wait_until(lambda: enqueue(conn, "greet", {"name": "Eve"}) and "worker | " in log() and "good evening Eve" in log())
    dev.send_signal(signal.SIGINT)
    assert dev.wait(240) == 0
    assert workers() == []
