"""Make an incident happen, and keep it: python -m examples.incidents NAME --dsn ..."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socket import create_server

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from examples.incidents.cure import end, ways_of
from examples.incidents.scenes import INCIDENTS, Incident
from examples.incidents.stage import Stage
from pgqueue.schema.migrate import migrate
from pgqueue.schema.status import status

# What ends it, with its workers.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.incidents", description=__doc__)
    parser.add_argument(
        "name",
        nargs="?",
        choices=[*INCIDENTS, "all"],
        help="which; all: one after the other, with --cure; none: list them",
    )
    parser.add_argument("--dsn", default=os.environ.get("PGQUEUE_DSN"), help="a database for practice")
    parser.add_argument("--small", action="store_true", help="with a few jobs")
    parser.add_argument(
        "--cure", action="store_true", help="open the pages, run the printed commands, say how long it took"
    )
    given = parser.parse_args()
    if given.name is None:
        for each in INCIDENTS.values():
            say(f"{each.name:15} {each.says}")
        return 0
    if given.dsn is None:
        parser.error("give --dsn, or set PGQUEUE_DSN")
    for number in _ENDING:
        # Under nohup SIGHUP stays ignored.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        if given.name == "all":
            for each in INCIDENTS.values():
                with database(given.dsn, f"incident_{each.name}") as dsn:
                    play(each, dsn, given.small, True)
        elif not play(INCIDENTS[given.name], given.dsn, given.small, given.cure):
            parser.error("the database has jobs or workers: give one for practice alone")
    except KeyboardInterrupt:
        pass
    return 0


def play(incident: Incident, dsn: str, small: bool, is_cured: bool) -> bool:
    """Make it happen, and end it, or keep it until Ctrl-C; False: the database is in use."""
    if status(dsn).revision is None:
        migrate(dsn)
    stage = Stage(dsn, small)
    try:
        if stage.live("true") or stage.value("select count(*) from pgqueue.workers"):
            return False
        incident.happen(stage)
        wait = 90.0 + 60 * float(incident.after.partition(" ")[0] or 0)
        say(f"{incident.says} It is to be seen {f'in {incident.after}' if incident.after else 'soon'}.")
        found = stage.until(lambda: incident.found(stage), wait)
        say(f"{found.get('cause') or found.get('topic')}: {found['evidence']}")
        for commands in ways_of(found["remedy"]):
            for command in commands:
                say(f"    {command}")
        if is_cured:
            with pages(dsn) as get:
                took = end(incident, stage, get)
            say(
                f"{incident.name}: {took.cause:.2f} s from opening the page to the cause, {took.cure:.1f} s to the cure"
            )
            return True
        say("It stands until Ctrl-C: pgqueue web, pgqueue top, pgqueue why, pgqueue doctor.")
        while True:
            time.sleep(3600)
    finally:
        # A second signal must not leave a worker behind.
        before = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDING}
        stage.close()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def database(dsn: str, name: str) -> Iterator[str]:
    """Make a database on the server of `dsn`, yield its DSN, and drop it. Raises where one of its name is there."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        try:
            yield make_conninfo(dsn, dbname=name)
        finally:
            conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@contextmanager
def pages(dsn: str) -> Iterator[Callable[[str], str]]:
    """Serve the pages, and yield what opens one."""
    with create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "pgqueue", "web", "--port", str(port), "--dsn", dsn]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as served:
        try:
            deadline = time.monotonic() + 30
            while True:
                try:
                    open_page(port, "/health")
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.2)
            yield lambda path: open_page(port, path)
        finally:
            served.terminate()


def open_page(port: int, path: str) -> str:
    """Return a page."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def say(text: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
