"""The jobs that a runner has taken: those that wait for a slot, and those whose handlers run."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Container
from typing import Any

from pgqueue.worker.hold.held import Held

# How long a handler may continue after its timeout before it counts as overdue, in seconds: time to clean up.
_GRACE = 5.0


class Waiting(deque[Held]):
    """Jobs that wait for a slot, in order. Threads take from it as well, so it is emptied one by one."""

    def next(self) -> Held | None:
        """Take the first one, if there is one."""
        try:
            return self.popleft()
        except IndexError:
            return None

    def of_age(self, age: float) -> list[Held]:
        """Return the jobs that were taken `age` seconds ago or earlier."""
        if not self:
            return []
        limit = time.monotonic() - age
        return [held for held in list(self) if held.taken <= limit]

    def take_out(self, age: float, only: Container[int] | None) -> list[Held]:
        """Remove the jobs `of_age`; with `only`, those with these ids, and what is in a batch with one of them."""
        limit = time.monotonic() - age
        taken: list[Held] = []
        kept: list[Held] = []
        while (held := self.next()) is not None:
            spared = only is not None and all(each.row.id not in only for each in (held, *held.members))
            (kept if held.taken > limit or spared else taken).append(held)
        self.extend(kept)
        return taken


class Running(set[Held]):
    """Jobs whose handlers run."""

    def overdue(self, grace: float = _GRACE) -> list[Held]:
        """Return the jobs whose handlers continue although their timeout passed `grace` seconds ago."""
        now = time.monotonic()
        return [
            held
            for held in list(self)
            if held.timeout is not None
            and (started := held.attempt.started) is not None
            and now > started + held.timeout + grace
        ]

    def name_running(self, current: asyncio.Task[Any] | None) -> list[str]:
        """Name the task whose handler is this asyncio task, or all running async ones if it is none of ours."""
        on_loop = [held for held in list(self) if held.attempt.asyncio_task is not None]
        return list({f"task {held.row.task}" for held in on_loop if held.attempt.asyncio_task is current}) or list(
            {f"task {held.row.task}" for held in on_loop}
        )
