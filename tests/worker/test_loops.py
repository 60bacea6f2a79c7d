"""Loops that run as long as their worker."""

from __future__ import annotations

import asyncio

import pytest

from pgqueue.worker.process.loops import keep_running
from tests.facts import wait_until_async


async def test_a_loop_that_is_cancelled_in_the_pause_before_it_starts_again_starts_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    started: list[int] = []
    is_over = False

    async def loop() -> None:
        started.append(len(started))
        await asyncio.Event().wait()

    running = keep_running("claiming", loop, "w", lambda: is_over)
    await wait_until_async(lambda: started)
    # As two handlers do, one after the other, that cancel all asyncio tasks.
    for times in (1, 2):
        running.cancel()
        await wait_until_async(lambda times=times: caplog.text.count("it starts again") == times)  # type: ignore[misc]
    await wait_until_async(lambda: len(started) > 1)
    is_over = True
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
