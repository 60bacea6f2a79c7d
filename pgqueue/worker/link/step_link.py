"""The connection on which handlers complete their steps. It is made when the first step is."""

from __future__ import annotations

import asyncio
from typing import Any

from pgqueue.db.call import Call
from pgqueue.worker.link.connection import Link


class StepLink:
    """Runs the statements of handlers: `ask` on the event loop, `ask_from_thread` in a thread."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Note the running loop, on which the connection lives."""
        self._loop = asyncio.get_running_loop()

    async def ask(self, call: Call[Any]) -> Any:
        """Run a statement."""
        return await self._link.perform(call)

    def ask_from_thread(self, call: Call[Any]) -> Any:
        """Run a statement, and block this thread until it is answered."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(self.ask(call), self._loop).result()

    def stored(self, step: str) -> None:
        """A step was stored: nothing follows from that."""

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()
