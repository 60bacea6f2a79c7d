"""Waiting for facts, so that no test sleeps and hopes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

import psycopg

T = TypeVar("T")

_POLL_S = 0.01

# On a machine that is busy everything takes longer. A fact that comes ends the wait, so patience costs nothing.
PATIENCE = 4


def wait_until(fact: Callable[[], T], timeout: float = 30) -> T:
    """Ask for a fact until it is true; returns it. AssertionError after four times `timeout` seconds.

    `timeout` is what it takes at most on a machine that has nothing else to do. An AssertionError in the fact counts as
    "not yet", and is shown if it stays so.

    wait_until(lambda: second.waits_behind(first))
    """
    deadline = time.monotonic() + timeout * PATIENCE
    while True:
        value, reason = _ask(fact)
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout * PATIENCE:g} s still {reason or repr(value)}")
        time.sleep(_POLL_S)


async def wait_until_async(fact: Callable[[], T], timeout: float = 30) -> T:  # noqa: ASYNC109
    """The same for tests that run on the event loop, which goes on meanwhile."""
    deadline = time.monotonic() + timeout * PATIENCE
    while True:
        value, reason = _ask(fact)
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout * PATIENCE:g} s still {reason or repr(value)}")
        await asyncio.sleep(_POLL_S)


def _ask(fact: Callable[[], T]) -> tuple[T | None, str]:
    try:
        return fact(), ""
    except AssertionError as error:
        return None, str(error) or "an AssertionError"


def flush_statistics(conn: psycopg.Connection) -> None:
    """Have the server count all that this session has read so far."""
    if conn.info.server_version >= 150000:
        conn.execute("select pg_stat_force_next_flush()")
        return
    # A session sends its counts with a commit, twice a second at most, and a process collects them.
    time.sleep(0.6)
    conn.execute("select 1")
    time.sleep(0.6)
