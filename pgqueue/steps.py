"""The completed steps of a job, and waits that hold no worker.

One generator yields the statements of a step, and the calls of its function. `perform` runs it in a
thread, `perform_async` on the event loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

from pgqueue.db import steps as db
from pgqueue.db.call import Call, Row
from pgqueue.db.json import from_json, to_result
from pgqueue.errors import DuplicateStep, EventTimeout, LeaseLost
from pgqueue.signals import Suspended

# A step yields statements and calls of its function.
Wanted: TypeAlias = "Call[Any] | Callable[[], Any]"
Plan: TypeAlias = Generator[Wanted, Any, Any]

Encode: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]


def _same(value: dict[str, Any]) -> dict[str, Any]:
    return value


class Steps:
    """The steps of one attempt. `leaving` is called with True before a call that may give the job back."""

    def __init__(
        self,
        job_id: int,
        reservation: int,
        leaving: Callable[[bool], None],
        encode: Encode = _same,
        decode: Encode = _same,
        others: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._pair = (job_id, reservation)
        # The first jobs of the other keys of an accumulating task's call: they go the same way.
        self._others = others
        self._leaving = leaving
        self._encode = encode
        self._decode = decode
        # A reservation counts the claims of its job in its upper bits: the first claim finds no steps.
        self._known: dict[str, Any] | None = {} if reservation >> 20 == 1 else None
        self._named: set[str] = set()
        # Completed in the handler's own transactions.
        self._handed_over: set[str] = set()

    def step(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        """Plan to call a function, unless its result is stored."""
        self._name(name)
        if self._known is None:
            self._known = yield db.steps(*self._pair)
            if self._known is None:
                raise self._lost()
        if name in self._known:
            return self._decode({"result": self._known[name]})["result"] if self._known[name] is not None else None
        value = yield partial(function, *args, **kwargs)
        result = self._encoded(value)
        # A function that completes the step in its own transaction decides whether it is stored: if that is rolled
        # back, or lost in a failover, so are the step's writes, and a record made here would claim that they exist.
        if name not in self._handed_over and not (yield self._complete(name, result)):
            raise self._lost()
        # Converted as the next attempt will read it.
        stored = from_json(result)
        self._known[name] = stored
        return None if stored is None else self._decode({"result": stored})["result"]

    def completion(self, name: str, result: Any) -> Call[bool]:
        """Return the statement that completes a step in a transaction of the handler's."""
        call = self._complete(name, self._encoded(result))

        def read(rows: list[Row]) -> bool:
            held = call.read(rows)
            if held:
                self._handed_over.add(name)
            return held

        return replace(call, read=read)

    def sleep(self, name: str, delay: timedelta | str) -> Plan:
        """Plan to sleep."""
        self._name(name)
        over = yield from self._give_back(db.sleep_step(*self._pair, name, delay, self._others))
        if over is None:
            raise self._lost()
        if not over:
            raise Suspended(f"it sleeps: {name}")
        self._leaving(False)

    def wait(self, jobs: Sequence[int]) -> Plan:
        """Plan to wait for jobs, and read their states and results."""
        state = yield from self._give_back(db.suspend(*self._pair, jobs, self._others))
        if state is None:
            raise self._lost()
        if state == "suspended":
            raise Suspended(f"it waits for {len(jobs)} jobs")
        self._leaving(False)
        return (yield db.outcomes(jobs))

    def wait_event(self, event: str, timeout: timedelta | str | None, step: str | None) -> Plan:
        """Plan to wait for an event, and read its payload."""
        name = event if step is None else step
        self._name(name)
        found = yield from self._give_back(db.await_event(*self._pair, name, event, timeout, self._others))
        if found is None:
            raise self._lost()
        arrived, payload = found
        if arrived is None:
            raise Suspended(f"it waits for the event {event}")
        self._leaving(False)
        if not arrived:
            raise EventTimeout(f"the event {event} did not come within {timeout}")
        return payload

    def _complete(self, name: str, result: str) -> Call[bool]:
        return db.complete_step(*self._pair, name, result, self._others)

    def _encoded(self, value: Any) -> str:
        return to_result(None if value is None else self._encode({"result": value})["result"]).decode()

    def _give_back(self, call: Call[Any]) -> Plan:
        # From here on another worker may have the job, which is no loss.
        self._leaving(True)
        try:
            return (yield call)
        except BaseException:
            # Refused, or lost on its way: see `perform`. The handler may go on, and has to learn of a loss.
            self._leaving(False)
            raise

    def _name(self, name: str) -> None:
        if name in self._named:
            raise DuplicateStep(
                f"this attempt has two steps named {name!r}", hint="put the id of the item into the name of its step"
            )
        self._named.add(name)

    def _lost(self) -> LeaseLost:
        self._leaving(False)
        return LeaseLost(
            f"the lease of job {self._pair[0]} is lost", hint="let the handler end: another worker has the job"
        )


def perform(plan: Plan, ask: Callable[[Call[Any]], Any]) -> Any:
    """Run a plan in this thread."""
    answer = None
    # Closed where a call raises: what the plan has begun is undone before the handler goes on.
    with closing(plan):
        while True:
            try:
                wanted = plan.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = ask(wanted) if isinstance(wanted, Call) else wanted()


async def perform_async(plan: Plan, ask: Callable[[Call[Any]], Awaitable[Any]]) -> Any:
    """Run a plan on the event loop; the step's function may be async."""
    answer = None
    with closing(plan):
        while True:
            try:
                wanted = plan.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = await ask(wanted) if isinstance(wanted, Call) else wanted()
            if inspect.isawaitable(answer):
                answer = await answer
