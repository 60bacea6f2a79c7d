"""`pgqueue demo`: run examples/shop for real, watch it, and check the results."""

from __future__ import annotations

import importlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import psycopg
import typer
from psycopg.rows import tuple_row

from pgqueue.cli import demo_pages, output, ports
from pgqueue.cli.child import interrupted_by_signals
from pgqueue.cli.database import database
from pgqueue.cli.demo_workflow import in_words, run_order
from pgqueue.cli.options import AsJson, Dsn, Yes, commands
from pgqueue.cli.progress import progress
from pgqueue.cli.tables import Table
from pgqueue.config import describe_dsn, find_dsn, own_dsn
from pgqueue.db import produce
from pgqueue.db.call import perform
from pgqueue.errors import ConfigError, PgQueueError
from pgqueue.schema import bundled

app = commands()

# Every fifth order is rolled back: its row and its job must both be gone.
_ROLLED_BACK = 5

_WORKERS = 2

# Seconds. Short, so that the job of the killed worker comes back during the demo.
_LEASE = 3

# Seconds after which the demo gives up waiting.
_PATIENCE = 120.0


class _ChangedMind(Exception):
    """Rolls an order back."""


@app.command()
def demo(
    orders: Annotated[int, typer.Option(help="How many orders to place.", min=1, max=10_000)] = 40,
    directory: Annotated[Path, typer.Option(help="Where the receipts are written.")] = Path("receipts"),
    pages: Annotated[
        bool, typer.Option("--pages", help="Then keep the shop busy, with the operator's pages, until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(help="Port of the pages.", min=1, max=65535)] = 8081,
    yes: Yes = False,
    as_json: AsJson = False,
    dsn: Dsn = None,
) -> None:
    """Run a small shop: orders, payments, receipts.

    It is examples/shop, with a retry, a dead job, a killed worker and orders that are rolled back; and a workflow of
    examples/workflows, which waits for an event. Where a database is configured, it asks first.
    """
    if not yes and (configured := find_dsn(dsn)) is not None:
        _ask(configured, pages)
    # What the commands that it prints need to reach the same database.
    is_said = dsn is not None and dsn != os.environ.get("PGQUEUE_DSN")
    option = f" --dsn {shlex.quote(str(dsn))}" if is_said else ""
    if pages:
        ports.check_extra_web()
        ports.check_free("127.0.0.1", port)
    with interrupted_by_signals(), database(dsn) as found:
        if not run_demo(found, orders, directory, as_json=as_json, option=option):
            raise typer.Exit(1)
        if pages:
            try:
                demo_pages.keep_open(found, port)
            except KeyboardInterrupt:
                raise typer.Exit from None


def _ask(dsn: str, pages: bool) -> None:
    """Print what the demo does to a database that is not its own, and ask."""
    queues = "critical, default, mail, webhooks, products and reports" if pages else "critical and default"
    output.message(
        f"The demo would run on {describe_dsn(dsn)}: it makes the schema pgqueue_demo anew, and enqueues jobs."
    )
    output.message(f"Its workers run the jobs of its tasks, such as shop.confirm_order, in the queues {queues}.")
    typer.confirm("Continue?", abort=True, err=True)


def run_demo(dsn: str, orders: int, directory: Path, *, as_json: bool, option: str = "") -> bool:
    """Run the shop on the database at `dsn`. True when every order got exactly one receipt, and nothing else did.

    Expects the schema of the queue to be there. Creates the schema pgqueue_demo again, writes receipts into
    `directory`, and leaves both for inspection.
    """
    say: Callable[[str], None] = output.message if as_json else output.line
    examples = bundled.directory("examples")
    sys.path.insert(0, str(examples))
    shop = importlib.import_module("shop.app")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for old in _receipts(directory):
            old.unlink()
    except OSError as error:
        raise ConfigError(
            f"receipts cannot be written to {directory}: {error.strerror}", hint="give another --directory"
        ) from error

    with psycopg.connect(own_dsn(dsn, "pgqueue demo"), autocommit=True, row_factory=tuple_row) as connection:
        first_id = _prepare(connection, examples, tuple(shop.app.tasks))
        say(f"Two workers, queues critical and default; {orders} orders, every fifth is rolled back.")
        with _workers(dsn, examples, directory) as workers:
            # Else the first figures would include the start of two Pythons.
            _await_workers(connection, workers)
            packing, killed = _kill_a_worker(connection, workers)
            say(f"{killed} was killed while it ran job {packing}; its lease of {_LEASE} s has to lapse.")
            placed = _place_orders(connection, shop, orders)
            finished = _watch(connection, first_id, placed, list(shop.app.tasks))
            order = run_order(connection, first_id, _await)
        verdict = _check(connection, first_id, placed, directory, list(shop.app.tasks))
        verdict["killed"] = _came_back(connection, packing, killed)
        verdict["workflow"] = order
        verdict["ok"] = verdict["ok"] and {verdict["killed"]["state"], order["state"]} == {"succeeded"}
    if as_json:
        output.print_json(verdict)
    else:
        _report(verdict, option)
    return finished and bool(verdict["ok"])


def _receipts(directory: Path) -> list[Path]:
    """Return the files that a demo wrote, and no other whose name begins like theirs."""
    return [path for path in directory.glob("order-[0-9]*.txt") if path.stem.removeprefix("order-").isdecimal()]


def _prepare(connection: psycopg.Connection[Any], examples: Path, tasks: Collection[str]) -> int:
    for earlier in _first_ids(connection):
        # Jobs of an earlier demo belong to orders that no longer exist.
        demo_pages.delete_jobs(connection, earlier, tasks, None)
    connection.execute("drop schema if exists pgqueue_demo cascade")
    connection.execute((examples / "shop" / "schema.sql").read_bytes())
    marker = demo_pages.mark(connection)
    connection.execute("insert into pgqueue_demo.runs (first_id) values (%s)", (marker,))
    return marker


def _first_ids(connection: psycopg.Connection[Any]) -> list[int]:
    """Return the id from which on an earlier demo enqueued its jobs, if there was one."""
    row = connection.execute("select to_regclass('pgqueue_demo.runs') is not null").fetchone()
    if row is None or not row[0]:
        return []
    return [each for (each,) in connection.execute("select first_id from pgqueue_demo.runs").fetchall()]


@contextmanager
def _workers(dsn: str, examples: Path, directory: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(examples), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PGQUEUE_DSN": dsn,
        "SHOP_DSN": dsn,
        "SHOP_RECEIPTS": str(directory.resolve()),
    }
    names = [f"worker {number}" for number in range(1, _WORKERS + 1)]
    processes = {
        name: subprocess.Popen(
            [
                *(sys.executable, "-m", "pgqueue", "worker", "-r", "shop.app:app", "-r", "workflows.app:app"),
                *("--lease", str(_LEASE)),
                *("-q", "critical", "-q", "default", "--name", name, "--log-level", "error"),
            ],
            env=environment,
            stderr=subprocess.DEVNULL,
        )
        for name in names
    }
    try:
        yield processes
    finally:
        for process in processes.values():
            process.send_signal(signal.SIGTERM)
        for process in processes.values():
            process.wait(timeout=60)


def _await_workers(connection: psycopg.Connection[Any], workers: dict[str, subprocess.Popen[bytes]]) -> None:
    """Wait until both workers are idle."""
    _await(
        connection,
        "select count(distinct i.worker) >= %s from pgqueue.idle_workers i where i.worker = any (%s)"
        " and i.until > clock_timestamp()",
        (len(workers), list(workers)),
    )


def _kill_a_worker(connection: psycopg.Connection[Any], workers: dict[str, subprocess.Popen[bytes]]) -> tuple[int, str]:
    """Enqueue a job that takes a second, kill the worker that runs it, and return both. The other one continues."""
    job_id = perform(connection, produce.enqueue("shop.pack_parcel", {"seconds": 1}, {}))
    _await(connection, "select exists (select from pgqueue.jobs where id = %s and state = 'executing')", (job_id,))
    row = connection.execute("select reserved_by from pgqueue.jobs where id = %s", (job_id,)).fetchone()
    if row is None or row[0] not in workers:
        raise PgQueueError("another worker serves the queues of the demo", hint="stop it, and run the demo again")
    workers[row[0]].kill()
    return job_id, row[0]


def _came_back(connection: psycopg.Connection[Any], job_id: int, killed: str) -> dict[str, Any]:
    """Return the state of the job of the killed worker."""
    row = connection.execute(
        "select state::text, reserved_by, round(extract(epoch from reserved_at - run_at)::numeric, 1)::float8"
        " from pgqueue.all_jobs where id = %s",
        (job_id,),
    ).fetchone()
    state, worker, seconds = row or ("lost", None, None)
    return {"job_id": job_id, "killed": killed, "state": state, "worker": worker, "seconds": seconds}


def _await(connection: psycopg.Connection[Any], question: str, params: tuple[object, ...]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while (row := connection.execute(question.encode(), params).fetchone()) is None or not row[0]:
        if time.monotonic() > deadline:
            raise PgQueueError("the demo's workers do not start", hint="run pgqueue worker -r ... and read its log")
        time.sleep(0.02)


def _place_orders(connection: psycopg.Connection[Any], shop: Any, orders: int) -> set[int]:
    placed = set()
    for number in range(1, orders + 1):
        try:
            with connection.transaction():
                coupon = "SUMMER" if number == 3 else "10" if number == 4 else None
                order_id = shop.place_order(connection, f"Customer {number}", 100 * number + 99, coupon)
                if number % _ROLLED_BACK == 0:
                    raise _ChangedMind
        except _ChangedMind:
            continue
        placed.add(order_id)
    return placed


def _watch(connection: psycopg.Connection[Any], first_id: int, placed: set[int], tasks: list[str]) -> bool:
    deadline = time.monotonic() + _PATIENCE
    with progress("jobs ended") as line:
        while time.monotonic() < deadline:
            row = connection.execute(
                "select (select count(*) from pgqueue_demo.payments),"
                " count(*) filter (where finished_at is not null), count(*)"
                " from pgqueue.all_jobs where id > %s and task = any (%s)",
                (first_id, tasks),
            ).fetchone()
            assert row is not None
            paid, ended, jobs = row
            line.show(ended, jobs)
            if ended == jobs and paid >= len(placed):
                return True
            time.sleep(0.1)
    return False


def _check(
    connection: psycopg.Connection[Any], first_id: int, placed: set[int], directory: Path, tasks: list[str]
) -> dict[str, Any]:
    ran = connection.execute(
        "select queue, task, reserved_by, state::text, count(*), sum(attempts)::int,"
        " round(1000 * percentile_cont(0.5) within group (order by extract(epoch from reserved_at - run_at))"
        " filter (where attempts = 1 and losses = 0))::int,"
        " round(1000 * max(extract(epoch from reserved_at - run_at)) filter (where attempts = 1 and losses = 0))::int"
        " from pgqueue.all_jobs where id > %s and task = any (%s)"
        " group by 1, 2, 3, 4 order by 1, 2, 3, 4",
        (first_id, tasks),
    ).fetchall()
    names = ("queue", "task", "worker", "state", "jobs", "attempts", "median_wait_ms", "longest_wait_ms")
    written = sorted(int(path.stem.removeprefix("order-")) for path in _receipts(directory))
    retried = connection.execute(
        "select count(*) from pgqueue.all_jobs"
        " where id > %s and task = 'shop.confirm_order' and attempts = 3 and state = 'succeeded'",
        (first_id,),
    ).fetchone()
    receipts = connection.execute(
        "select count(*) from pgqueue.all_jobs where id > %s and task = 'shop.write_receipt'", (first_id,)
    ).fetchone()
    if retried is None or receipts is None:
        raise PgQueueError("the jobs of the demo are missing")
    return {
        "ok": written == sorted(placed) and receipts[0] == len(placed),
        "orders": len(placed),
        "receipts": len(written),
        "missing": sorted(placed - set(written)),
        "unexpected": sorted(set(written) - placed),
        "retried_and_succeeded": retried[0],
        "dead": sum(row[4] for row in ran if row[3] == "dead"),
        "directory": str(directory),
        "ran": [dict(zip(names, row, strict=True)) for row in ran],
    }


def _report(verdict: dict[str, Any], option: str) -> None:
    numbers = ("jobs", "attempts", "median", "longest")
    headings = ("queue", "task", "worker", "state", *numbers)
    table = Table(headings, "What ran where, and how long it waited", right=frozenset(numbers))
    for row in verdict["ran"]:
        waits = [None if row[key] is None else f"{row[key]} ms" for key in ("median_wait_ms", "longest_wait_ms")]
        task = row["task"].removeprefix("shop.")
        table.add(row["queue"], task, row["worker"], row["state"], row["jobs"], row["attempts"], *waits)
    table.show()
    killed = verdict["killed"]
    output.line(
        f"{killed['killed']} was killed while it ran job {killed['job_id']}: {killed['worker']} started it again "
        f"{killed['seconds']} s after its enqueue, and it {killed['state']}."
    )
    output.line(in_words(verdict["workflow"]))
    output.line(
        f"{verdict['retried_and_succeeded']} job failed twice and succeeded at its third attempt; "
        f"{verdict['dead']} is dead."
    )
    output.line(
        f"{verdict['orders']} orders, {verdict['receipts']} receipts in {verdict['directory']}/: "
        + ("every order has exactly one." if verdict["ok"] else "they do not match!"),
        "green" if verdict["ok"] else "red",
    )
    output.line("Inspect it:")
    for command in ("jobs list --state dead", f"jobs show {killed['job_id']}", "status"):
        output.line(f"  {_program()} {command}{option}")
    if not verdict["ok"]:
        output.line(f"missing: {verdict['missing']}, unexpected: {verdict['unexpected']}", "red")


def _program() -> str:
    """Return the command line of this program so that it works as typed, without an active virtual environment."""
    if shutil.which("pgqueue") is not None:
        return "pgqueue"
    beside = Path(sys.executable).with_name("pgqueue")
    if not beside.exists():
        return f"{shlex.quote(sys.executable)} -m pgqueue"
    here = os.path.relpath(beside)
    return shlex.quote(str(beside) if here.startswith("..") else here)
