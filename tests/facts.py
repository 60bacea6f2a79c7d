"""Waiting for facts, so that no test sleeps and hopes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_POLL_S = 0.01


def wait_until(fact: Callable[[], T], timeout: float = 30) -> T:
    """Ask for a fact until it is true; returns it. AssertionError after `timeout` seconds.

    An AssertionError in the fact counts as "not yet", and is shown if it stays so.

    wait_until(lambda: second.waits_behind(first))
    """
    deadline = time.monotonic() + timeout
    while True:
        value, reason = _ask(fact)
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout} s still {reason or repr(value)}")
        time.sleep(_POLL_S)


async def wait_until_async(fact: Callable[[], T], timeout: float = 30) -> T:  # noqa: ASYNC109
    """The same for tests that run on the event loop, which goes on meanwhile."""
    deadline = time.monotonic() + timeout
    while True:
        value, reason = _ask(fact)
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"after {timeout} s still {reason or repr(value)}")
        await asyncio.sleep(_POLL_S)


def _ask(fact: Callable[[], T]) -> tuple[T | None, str]:
    try:
        return fact(), ""
    except AssertionError as error:
        return None, str(error) or "an AssertionError"
