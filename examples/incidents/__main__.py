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

from examples.incidents.cure import commands_of, end
from examples.incidents.scenes import INCIDENTS
from examples.incidents.stage import Stage
from pgqueue.schema.migrate import migrate
from pgqueue.schema.status import status

# What ends it, with its workers.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.incidents", description=__doc__)
    parser.add_argument("name", nargs="?", choices=[*INCIDENTS], help="which; none: list them")
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
    incident = INCIDENTS[given.name]
    if status(given.dsn).revision is None:
        migrate(given.dsn)
    for number in _ENDING:
        # Under nohup SIGHUP stays ignored.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    stage = Stage(given.dsn, given.small)
    try:
        if stage.live("true") or stage.value("select count(*) from pgqueue.workers"):
            parser.error("the database has jobs or workers: give one for practice alone")
        incident.happen(stage)
        wait = 90.0 + 60 * float(incident.after.partition(" ")[0] or 0)
        say(f"{incident.says} It is to be seen {f'in {incident.after}' if incident.after else 'soon'}.")
        found = stage.until(lambda: incident.found(stage), wait)
        say(f"{found.get('cause') or found.get('topic')}: {found['evidence']}")
        for command in commands_of(found["remedy"]):
            say(f"    {command}")
        if given.cure:
            with pages(given.dsn) as get:
                took = end(incident, stage, get)
            say(f"{took.pages} pages, {took.cause:.2f} s to the cause, {took.cure:.1f} s to the cure")
            return 0
        say("It stands until Ctrl-C: pgqueue web, pgqueue top, pgqueue why, pgqueue doctor.")
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        return 0
    finally:
        # A second signal must not leave a worker behind.
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)
        stage.close()


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
