"""The completed steps of a job, and waits that hold no worker.

One generator yields the statements of a step, and the calls of its function. `perform` runs it in a
thread, `perform_async` on the event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Protocol, TypeAlias

from pgqueue.db import steps as db
from pgqueue.db.call import Call, Row
from pgqueue.db.json import from_json, readable, to_result
from pgqueue.errors import DuplicateStep, EventTimeout, LeaseLost
from pgqueue.logs import how_many
from pgqueue.signals import Interrupted, Suspended

# A step yields statements, calls of its function, and what it waits for.
Wanted: TypeAlias = "Call[Any] | Callable[[], Any] | Future[None]"
Plan: TypeAlias = Generator[Wanted, Any, Any]

Encode: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]


def _same(value: dict[str, Any]) -> dict[str, Any]:
    return value


class HearsSteps(Protocol):
    """Hears which steps are stored."""

    def stored(self, step: str) -> None: ...


class Steps:
    """The steps of one attempt of the job of this (id, reservation).

    `leaving` is called with True before a call that may give the job back; `hearer` hears which steps are stored.
    """

    def __init__(
        self,
        pair: tuple[int, int],
        leaving: Callable[[bool], None],
        encode: Encode = _same,
        decode: Encode = _same,
        others: Sequence[tuple[int, int]] = (),
        hearer: HearsSteps | None = None,
    ) -> None:
        self._pair = pair
        # The first jobs of the other keys in a batch of an accumulating task: they get the same steps.
        self._others = others
        self._leaving = leaving
        self._hearer = hearer
        self._encode = encode
        self._decode = decode
        # A reservation counts the claims of its job in its upper bits: the first claim finds no steps.
        self._known: dict[str, Any] | None = {} if pair[1] >> 20 == 1 else None
        self._named: set[str] = set()
        # Completed in the handler's own transactions.
        self._handed_over: set[str] = set()
        self._gate = _Gate()

    def step(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        """Plan to call a function, unless its result is stored."""
        self._name(name)
        if self._known is None:
            self._known = yield db.steps(*self._pair)
            if self._known is None:
                raise self._lost()
        if name in self._known:
            return self._decoded(name, self._known[name])
        yield from self._gate.enter(name)
        try:
            return (yield from self._run(name, partial(function, *args, **kwargs)))
        finally:
            self._gate.leave(name)

    def _run(self, name: str, function: Callable[[], Any]) -> Plan:
        token = _inside.set(_inside.get() | {name})
        try:
            value = yield function
        finally:
            # A loop that ends closes what it has left in another context.
            with suppress(ValueError):
                _inside.reset(token)
        result = self._encoded(value)
        # A function that completes the step in its own transaction decides whether it is stored: if that is rolled
        # back, or lost in a failover, so are the step's writes, and a record made here would claim that they exist.
        if name not in self._handed_over and not (yield self._complete(name, result)):
            raise self._lost()
        if self._hearer is not None:
            self._hearer.stored(name)
        # Converted as the next attempt will read it.
        stored = from_json(result)
        if self._known is not None:
            self._known[name] = stored
        return self._decoded(name, stored)

    def completion(self, name: str, result: Any) -> Call[bool]:
        """Return the statement that completes a step in a transaction of the handler's."""
        call = self._complete(name, self._encoded(result))

        def read(rows: list[Row]) -> bool:
            held = call.read(rows)
            if held:
                self._handed_over.add(name)
            return held

        return replace(call, read=read)

    @property
    def is_suspended(self) -> bool:
        """Whether the job has been given back until later."""
        return self._gate.suspended is not None

    def sleep(self, name: str, delay: timedelta | float | str) -> Plan:
        """Plan to sleep."""
        self._name(name)
        call = db.sleep_step(*self._pair, name, delay, self._others)
        yield from self._give_back(call, lambda over: over is False, f"it sleeps: {name}")

    def wait(self, jobs: Sequence[int]) -> Plan:
        """Plan to wait for jobs, and read their states and results."""
        call = db.suspend(*self._pair, jobs, self._others)
        yield from self._give_back(
            call, lambda state: state == "suspended", f"it waits for {how_many(len(jobs), 'job')}"
        )
        outcomes = yield db.outcomes(jobs)
        for job_id, (_, result) in outcomes.items():
            readable(result, f"the result of job {job_id}")
        return outcomes

    def wait_event(self, event: str, timeout: timedelta | float | str | None, step: str | None) -> Plan:
        """Plan to wait for an event, and read its payload."""
        name = event if step is None else step
        self._name(name)
        call = db.await_event(*self._pair, name, event, timeout, self._others)
        arrived, payload = yield from self._give_back(
            call, lambda found: found is not None and found[0] is None, f"it waits for the event {event}"
        )
        if not arrived:
            raise EventTimeout(f"the event {event} did not come within {timeout}")
        return readable(payload, f"the payload of the event {event}")

    def _complete(self, name: str, result: str) -> Call[bool]:
        return db.complete_step(*self._pair, name, result, self._others)

    def _decoded(self, name: str, stored: Any) -> Any:
        readable(stored, f"the result of the step {name}")
        return None if stored is None else self._decode({"result": stored})["result"]

    def _encoded(self, value: Any) -> str:
        return to_result(None if value is None else self._encode({"result": value})["result"]).decode()

    def _give_back(self, call: Call[Any], suspends: Callable[[Any], bool], reason: str) -> Plan:
        """Ask to give the job back when its running steps have ended. Raises Suspended, or returns the answer."""
        yield from self._gate.close()
        suspended = None
        # From here on another worker may have the job, which is no loss.
        self._leaving(True)
        try:
            answer = yield call
            if answer is None:
                # Held no more: it was lost, or this call has given it back before, and the reply did not arrive. No
                # error, which a handler might answer by undoing what it did.
                raise Interrupted(f"job {self._pair[0]} is not held any more: another worker has it, or will have it")
            if suspends(answer):
                suspended = reason
        finally:
            if suspended is None:
                # Also if the call was refused, or its reply lost: the handler may continue, and must learn of a loss.
                self._leaving(False)
            self._gate.open(suspended)
        if suspended is not None:
            raise Suspended(suspended)
        return answer

    def _name(self, name: str) -> None:
        if name in self._named:
            raise DuplicateStep(
                f"this attempt has two steps named {name!r}", hint="put the id of the item into the name of its step"
            )
        self._named.add(name)

    def _lost(self) -> LeaseLost:
        return LeaseLost(
            f"the lease of job {self._pair[0]} is lost", hint="let the handler end: another worker has the job"
        )


# The steps of whose functions this is a part: a step may be made of steps, or sleep.
_inside: ContextVar[frozenset[str]] = ContextVar("pgqueue_inside_steps", default=frozenset())


class _Gate:
    """Lets the running steps of a job end before it is given back, and starts none meanwhile.

    The branches of a handler run side by side, in a `gather` or in threads. Code inside a step does not wait for it.
    """

    def __init__(self) -> None:
        self.suspended: str | None = None
        self._lock = threading.Lock()
        self._running: set[str] = set()
        # Two, where one is inside a step for which the other waits.
        self._closers = 0
        self._waiting: list[Future[None]] = []

    def enter(self, step: str) -> Plan:
        """Plan to start a step."""
        yield from self._pass(partial(self._try_enter, step))

    def leave(self, step: str) -> None:
        """A step has ended."""
        with self._lock:
            self._running.discard(step)
        self._wake()

    def close(self) -> Plan:
        """Plan to give the job back: wait for the running steps."""
        yield from self._pass(self._try_close)
        try:
            yield from self._pass(lambda: self._running <= _inside.get())
        except BaseException:
            self.open(None)
            raise

    def open(self, suspended: str | None) -> None:
        """End the attempt to give the job back, whether or not it was given back."""
        with self._lock:
            self.suspended = suspended or self.suspended
            self._closers -= 1
        self._wake()

    def _try_enter(self, step: str) -> bool:
        may = not self._closers or bool(_inside.get())
        if may:
            self._running.add(step)
        return may

    def _try_close(self) -> bool:
        may = not self._closers or bool(_inside.get())
        self._closers += may
        return may

    def _pass(self, attempt: Callable[[], bool]) -> Plan:
        while True:
            with self._lock:
                if self.suspended is not None:
                    raise Suspended(self.suspended)
                if attempt():
                    return
                changed: Future[None] = Future()
                self._waiting.append(changed)
            yield changed

    def _wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for changed in waiting:
            # Its branch may have been cancelled.
            if changed.set_running_or_notify_cancel():
                changed.set_result(None)


def perform(plan: Plan, ask: Callable[[Call[Any]], Any]) -> Any:
    """Run a plan in this thread."""
    answer = None
    # Closed where a call raises: what the plan has begun is undone before the handler continues.
    with closing(plan):
        while True:
            try:
                wanted = plan.send(answer)
            except StopIteration as stop:
                return stop.value
            if isinstance(wanted, Call):
                answer = ask(wanted)
            else:
                answer = wanted.result() if isinstance(wanted, Future) else wanted()


async def perform_async(plan: Plan, ask: Callable[[Call[Any]], Awaitable[Any]]) -> Any:
    """Run a plan on the event loop; the step's function may be async."""
    answer = None
    with closing(plan):
        while True:
            try:
                wanted = plan.send(answer)
            except StopIteration as stop:
                return stop.value
            if isinstance(wanted, Call):
                answer = await ask(wanted)
                continue
            answer = asyncio.wrap_future(wanted) if isinstance(wanted, Future) else wanted()
            if inspect.isawaitable(answer):
                answer = await answer
