"""`pgqueue demo`: run examples/shop for real, watch it, and check what came out of it."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import psycopg
from psycopg.rows import tuple_row
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from pgqueue import bundled, queries
from pgqueue.errors import ConfigError, PgQueueError

# Every fifth order is rolled back: its row and its job must both be gone.
_ROLLED_BACK = 5

_WORKERS = 2

# Seconds after which the demo gives up waiting.
_PATIENCE = 120.0


class _ChangedMind(Exception):
    """What makes an order roll back."""


def run_demo(dsn: str, orders: int, directory: Path, console: Console, *, as_json: bool) -> bool:
    """Run the shop on the database at `dsn`. True when every order got exactly one receipt, and nothing else did.

    Expects the schema of the queue to be there. Makes the schema pgqueue_demo anew, writes receipts into
    `directory`, and leaves both for a look.
    """
    examples = bundled.directory("examples")
    sys.path.insert(0, str(examples))
    shop = importlib.import_module("shop.app")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for old in directory.glob("order-*"):
            old.unlink()
    except OSError as error:
        raise ConfigError(
            f"receipts cannot be written to {directory}: {error.strerror}", hint="give another --directory"
        ) from error

    with psycopg.connect(dsn, autocommit=True, row_factory=tuple_row) as connection:
        first_id = _prepare(connection, examples)
        console.print(f"Two workers, queues critical and default; {orders} orders, every fifth changes its mind.")
        with _workers(dsn, examples, directory):
            placed = _place_orders(connection, shop, orders)
            finished = _watch(connection, first_id, placed, directory, console)
        verdict = _check(connection, first_id, placed, directory)
    if as_json:
        sys.stdout.write(orjson.dumps(verdict, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        _report(verdict, console)
    return finished and bool(verdict["ok"])


def _prepare(connection: psycopg.Connection[Any], examples: Path) -> int:
    connection.execute("drop schema if exists pgqueue_demo cascade")
    connection.execute((examples / "shop" / "schema.sql").read_bytes())
    for job in queries.perform(connection, queries.list_jobs(None, None, None, 1000)):
        if job["task"].startswith("shop."):
            # Of an earlier demo; what is left of it belongs to orders that are gone.
            queries.perform(connection, queries.delete(job["id"]))
    marker = queries.perform(connection, queries.enqueue("shop.marker", {}, {"delay": "1 day"}))
    queries.perform(connection, queries.delete(marker))
    return marker


@contextmanager
def _workers(dsn: str, examples: Path, directory: Path) -> Iterator[None]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(examples), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PGQUEUE_DSN": dsn,
        "SHOP_DSN": dsn,
        "SHOP_RECEIPTS": str(directory.resolve()),
    }
    processes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "pgqueue", "worker", "-r", "shop.app:app"),
                *("-q", "critical", "-q", "default", "--name", f"worker {number}", "--log-level", "error"),
            ],
            env=environment,
            stderr=subprocess.DEVNULL,
        )
        for number in range(1, _WORKERS + 1)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait(timeout=60)


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


def _watch(
    connection: psycopg.Connection[Any], first_id: int, placed: set[int], directory: Path, console: Console
) -> bool:
    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    deadline = time.monotonic() + _PATIENCE
    with Progress(*columns, console=console) as progress:
        confirmed = progress.add_task("orders confirmed", total=len(placed))
        paid = progress.add_task("payments", total=len(placed))
        receipts = progress.add_task("receipts written", total=len(placed))
        ended = progress.add_task("jobs ended", total=None)
        while time.monotonic() < deadline:
            row = connection.execute(
                "select (select count(*) from pgqueue_demo.orders where confirmed_at is not null),"
                " (select count(*) from pgqueue_demo.payments),"
                " count(*) filter (where finished_at is not null), count(*)"
                " from pgqueue.all_jobs where id > %s and task like 'shop.%%'",
                (first_id,),
            ).fetchone()
            assert row is not None
            progress.update(confirmed, completed=row[0])
            progress.update(paid, completed=row[1])
            progress.update(receipts, completed=len(list(directory.glob("order-*.txt"))))
            progress.update(ended, completed=row[2], total=row[3])
            if row[2] == row[3] and row[1] >= len(placed):
                return True
            time.sleep(0.1)
    return False


def _check(connection: psycopg.Connection[Any], first_id: int, placed: set[int], directory: Path) -> dict[str, Any]:
    ran = connection.execute(
        "select queue, task, reserved_by, state::text, count(*), sum(attempts)::int,"
        " round(1000 * percentile_cont(0.5) within group (order by extract(epoch from reserved_at - run_at))"
        " filter (where attempts = 1))::int,"
        " round(1000 * max(extract(epoch from reserved_at - run_at)) filter (where attempts = 1))::int"
        " from pgqueue.all_jobs where id > %s and task like 'shop.%%'"
        " group by 1, 2, 3, 4 order by 1, 2, 3, 4",
        (first_id,),
    ).fetchall()
    names = ("queue", "task", "worker", "state", "jobs", "tries", "median_wait_ms", "longest_wait_ms")
    written = sorted(int(path.stem.removeprefix("order-")) for path in directory.glob("order-*.txt"))
    retried = connection.execute(
        "select count(*) from pgqueue.all_jobs"
        " where id > %s and task = 'shop.confirm_order' and attempts = 3 and state = 'succeeded'",
        (first_id,),
    ).fetchone()
    receipts = connection.execute(
        "select count(*) from pgqueue.all_jobs where id > %s and task = 'shop.write_receipt'", (first_id,)
    ).fetchone()
    if retried is None or receipts is None:
        raise PgQueueError("the demo's jobs are not there")
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


def _report(verdict: dict[str, Any], console: Console) -> None:
    table = Table(title="What ran where, and how long it waited", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("queue", "task", "worker", "state"):
        table.add_column(column, overflow="fold")
    for column in ("jobs", "tries", "median", "longest"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in verdict["ran"]:
        waits = ("" if row[key] is None else f"{row[key]} ms" for key in ("median_wait_ms", "longest_wait_ms"))
        table.add_row(
            row["queue"],
            row["task"].removeprefix("shop."),
            row["worker"],
            row["state"],
            str(row["jobs"]),
            str(row["tries"]),
            *waits,
        )
    console.print(table)
    console.print(
        f"{verdict['retried_and_succeeded']} job failed twice and succeeded at its third try; "
        f"{verdict['dead']} is dead: pgqueue jobs list --state dead",
        highlight=False,
    )
    console.print(
        f"{verdict['orders']} orders, {verdict['receipts']} receipts in {verdict['directory']}/: "
        + ("every order has exactly one." if verdict["ok"] else "they do not match!"),
        style="green" if verdict["ok"] else "bold red",
        highlight=False,
    )
    if not verdict["ok"]:
        console.print(f"missing: {verdict['missing']}, unexpected: {verdict['unexpected']}", style="red")
