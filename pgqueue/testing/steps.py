"""Steps of handlers in a test: on the test's own connection, in its transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from pgqueue.db.call import Call
from pgqueue.errors import InvalidArgument
from pgqueue.testing.access import Access, stepped
from pgqueue.testing.attempts import loop_runs, uses_asgiref
from pgqueue.worker.hold.held import End, Held


class StepDoor:
    """Runs attempts, each in a savepoint that a stored step ends: the writes before it are kept, as by a commit.

    `crash_after`: steps after which an attempt ends as if its worker had crashed, once for each.
    """

    def __init__(self, access: Access, crash_after: set[str]) -> None:
        self._access = access
        self._crash_after = crash_after
        self._crashed = False
        self._block: AbstractAsyncContextManager[None] | None = None
        # The branches of a handler take turns.
        self._turn = asyncio.Lock()

    async def attempt(self, held: Held, run: Callable[[], Awaitable[object]]) -> bool:
        """Run an attempt; unless it succeeds, undo what it wrote since its last step. Returns whether it crashed."""
        self._crashed = False
        undo = True
        await self._begin()
        try:
            await run()
            undo = self._crashed or held.attempt.ending.end not in (End.SUCCEEDED, End.SETTLED, End.SUSPENDED)
        except BaseException:
            if not self._crashed:
                raise
        finally:
            await self._end(undo=undo)
        return self._crashed

    async def ask(self, call: Call[Any]) -> Any:
        """Run a statement of a step for an async handler."""
        if uses_asgiref(self._access.connection) and loop_runs():
            # In the thread of the test, where Django's connection is.
            from asgiref.sync import sync_to_async  # noqa: PLC0415

            return await sync_to_async(self.ask_from_thread)(call)
        return await self._ask(call)

    def ask_from_thread(self, call: Call[Any]) -> Any:
        """Run a statement of a step for a sync handler."""
        if self._access.is_async:
            raise InvalidArgument(
                "a sync handler with steps cannot use an async connection", hint="drain it on a sync connection"
            )
        return stepped(self._ask(call))

    def stored(self, step: str) -> None:
        """Crash here, after a step was stored, if the test asks for that."""
        if step in self._crash_after:
            self._crash_after.discard(step)
            self._crashed = True
            raise _Crash

    async def _ask(self, call: Call[Any]) -> Any:
        async with self._turn:
            await self._end()
            try:
                async with self._access.savepoint():
                    return await self._access.run(call)
            finally:
                await self._begin()

    async def _begin(self) -> None:
        self._block = self._access.savepoint()
        await self._block.__aenter__()

    async def _end(self, *, undo: bool = False) -> None:
        block, self._block = self._block, None
        if block is not None:
            error = _Undone() if undo else None
            await block.__aexit__(None if error is None else _Undone, error, None)


class _Undone(Exception):
    """Raised in a savepoint to undo its writes."""


class _Crash(BaseException):
    """Ends a handler where its worker is to crash."""
