"""The thread that names what blocks the event loop."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pgqueue.worker.process import blocked_loop
from pgqueue.worker.process.blocked_loop import Watchdog


class Runner:
    def name_running(self, current: asyncio.Task[Any] | None) -> list[str]:
        return []


class Waits:
    """The waits of the watchdog: how long each took, and what the process computed meanwhile; a beat comes before."""

    def __init__(self, watchdog: Watchdog, clock: SimpleNamespace, *waits: tuple[float, float, bool]) -> None:
        self._watchdog, self._clock, self._waits = watchdog, clock, list(waits)

    def wait(self, timeout: float) -> bool:
        if not self._waits:
            return True
        took, computed, beats = self._waits.pop(0)
        if beats:
            self._watchdog._beat_at = self._clock.now
        self._clock.now += took
        self._clock.used += computed
        return False


@pytest.mark.parametrize(
    ("waits", "warned"),
    [
        # It stood still, and the loop beats before the next look.
        ([(3.0, 0.0, True), (0.3, 0.0, True)], []),
        # A handler that holds the interpreter keeps this thread from looking, too.
        ([(3.0, 3.0, True)], [2.75]),
        # One that waits does not.
        ([(0.5, 0.0, True), (0.5, 0.0, False), (0.5, 0.0, False)], [1.25]),
    ],
    ids=["stood still", "computes", "waits"],
)
def test_a_process_that_stood_still_as_a_whole_was_blocked_by_no_handler(
    waits: list[tuple[float, float, bool]], warned: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=100.0, used=0.0)
    times = SimpleNamespace(monotonic=lambda: clock.now, process_time=lambda: clock.used)
    monkeypatch.setattr(blocked_loop, "time", times)
    watchdog = Watchdog(Runner())
    said: list[float] = []
    monkeypatch.setattr(watchdog, "_warn", said.append)
    watchdog._stopped = Waits(watchdog, clock, *waits)  # type: ignore[assignment]
    watchdog._watch()
    assert said == warned
