"""Claim jobs while there is capacity for them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import psycopg

from pgqueue.config import WorkerConfig
from pgqueue.db import consume
from pgqueue.db.call import Call
from pgqueue.db.consume import JobRow
from pgqueue.worker.hold.handoffs import Handoffs
from pgqueue.worker.hold.held import End, Held, batches, set_aside
from pgqueue.worker.link.connection import Link
from pgqueue.worker.link.links import Links
from pgqueue.worker.process.state import State
from pgqueue.worker.run.runner import Runner
from pgqueue.worker.tell.events import Events
from pgqueue.worker.trade.exchange import Exchange, Reply
from pgqueue.worker.trade.leases import Leases
from pgqueue.worker.trade.sleeper import Sleeper

log = logging.getLogger("pgqueue.worker")

# With until_empty the worker stops after claims in a row that find nothing, with these pauses between them, in seconds.
# The last is longer than the 0.2 s after which the database looks again at a child whose row another session had
# locked: the last claim looks at each that was locked when the one before it looked.
_EMPTY_PAUSES = (0.05, 0.25)

# Jobs that cannot be read have failed after this time, as a rule, in seconds.
_FAILED_BY_THEN = 1.0

# Slots that hand-offs have filled for this time, in seconds, are full: the worker is not idle any more.
_FULL_FOR = 0.02

# Seconds after which all that was handed to this worker has come, or is lost.
_ARRIVED_WITHIN = 1.0


class Claimer:
    """Claims with `claim_forever`, and sizes the claims that go along with reported ends.
    `report_and_claim` performs a claim, with the ends that wait, and has `took` called with the reply. `is_behind`
    tells whether too many ends wait. `give_back` takes a job that this worker holds and cannot start.
    `jobs_wait` is true when the last claim came back full; `claimed_at` is the monotonic time of the last answer.
    `before_claim` is called before the capacity is read; it may change it.
    """

    def __init__(
        self,
        config: WorkerConfig,
        links: Links,
        exchange: Exchange,
        runner: Runner,
        leases: Leases,
        events: Events,
        state: State,
        *,
        report_and_claim: Callable[[Link, int, bool], Awaitable[int]],
        is_behind: Callable[[], bool],
        hello: Callable[[], Call[str]],
        give_back: Callable[[Held], None],
        before_claim: Callable[[], object] | None = None,
    ) -> None:
        self.jobs_wait = False
        self.waits_for_capacity = False
        self.claimed_at: float | None = None
        self._empty_claims = 0
        # Producers are to look for another worker; and when to look whether hand-offs still fill the slots.
        self._leaves_idle = False
        self._full_check: asyncio.TimerHandle | None = None
        # When to compare hand-offs, and whether to do so once more after that.
        self._comparing: asyncio.TimerHandle | None = None
        self._compares_again = False
        # A hand-off took a slot for which a claim under way may bring a job.
        self._took_beside = False
        self._config = config
        self._links = links
        self._exchange = exchange
        self._runner = runner
        self._leases = leases
        self._events = events
        self._state = state
        self._report_and_claim = report_and_claim
        self._is_behind = is_behind
        self._before_claim = before_claim
        self.handoffs = Handoffs()
        self._give_back = give_back
        self.sleeper = Sleeper(
            config,
            links.first,
            runner,
            state,
            capacity=self.capacity,
            hello=hello,
            handoffs=self.handoffs,
            on_ended=self.compare_soon,
        )

    async def claim_forever(self) -> None:
        """Claim jobs until the worker stops; sleep while there are none."""
        try:
            await self._claim_forever()
            # Else producers would hand jobs to a worker that stops.
            await self.sleeper.wake_up()
            if self.handoffs.were_offered:
                # A commit that chose this worker may wait for NOTIFY's lock. That is fair: it comes before this one.
                with suppress(psycopg.Error):
                    await self._links.first.perform(consume.announce("pgqueue_last", ""))
        finally:
            await self.sleeper.close()
            if self._comparing is not None:
                self._comparing.cancel()

    async def _claim_forever(self) -> None:
        while not self._state.stopping.is_set():
            await self._give_back_unknown()
            if self._state.quiet:
                # A quiet worker would not claim when it is woken.
                await self.sleeper.wake_up()
                if self._state.retiring and not self._leases.held:
                    self._state.stop()
            if self._leaves_idle:
                self._leaves_idle = False
                await self.sleeper.wake_up()
            capacity = self.capacity()
            if capacity == 0:
                await self._wait_for_capacity()
                continue
            # Read before the claim: one already under way did not see a job enqueued just before the end of another.
            nothing_held = not self._leases.held and not self._exchange.in_flight
            claimed = await self.claim(capacity)
            if claimed == 0:
                if self._config.until_empty:
                    await self._stop_if_empty(nothing_held)
                else:
                    await self.sleeper.sleep()
                continue
            self._empty_claims = 0
            if claimed == capacity or self._runner.is_busy:
                await self.sleeper.wake_up()
            elif self.sleeper.is_registered:
                # No other job was due, and producers announce new ones.
                await self.sleeper.sleep()

    async def claim(self, capacity: int, *, patient: bool = True) -> int:
        """Claim up to `capacity` single jobs or batches; returns how many came."""
        self._state.wake.clear()
        await self._give_back_unknown()
        return await self._report_and_claim(self._links.free(), capacity, patient)

    def capacity(self) -> int:
        """Return how many jobs to claim now."""
        if self._state.quiet or self._is_behind():
            return 0
        if self._before_claim is not None:
            self._before_claim()
        return self._runner.capacity(self._exchange.coming)

    async def capacity_beside(self) -> int:
        """Return how many jobs to claim along with reported ends: some under load, while jobs keep coming."""
        capacity = self._capacity_beside()
        for _ in range(3):
            if capacity or not self.jobs_wait or not self._runner.unstarted:
                break
            # Under load handlers end soon: they are reported in a batch, with a claim.
            await asyncio.sleep(0)
            capacity = self._capacity_beside()
        return capacity

    def took(self, reply: Reply, asked_for: int) -> int:
        """Hold and run the jobs of a reply; returns how many single jobs or batches those are."""
        rows = reply.claimed or []
        now = time.monotonic()
        self.claimed_at = now
        if self._exchange.is_careful:
            rows = self._set_aside(rows, reply.deadline)
        taken = [Held(row, reply.deadline, now) for row in rows if row.leader is None]
        for held in taken:
            self._leases.add(held)
        if len(taken) < len(rows):
            for leader in batches(rows, reply.deadline):
                taken.append(leader)
                for held in (leader, *leader.members):
                    self._leases.add(held)
        if self._before_claim is not None:
            # Another claim may have been sized meanwhile.
            self._before_claim()
        self._runner.take(self._with_slots(taken))
        self.jobs_wait = len(taken) >= asked_for
        if rows:
            log.debug("reserved %d jobs in %d calls", len(rows), len(taken))
            self._events.reserved(len(rows))
            self.sleeper.load.came(len(rows), now)
        if len(taken) < asked_for:
            # Until now its slots counted as used, and another database may wait for them.
            self._runner.on_free()
        if self._state.quiet or self._state.stopping.is_set():
            # The worker became quiet while the claim was in flight.
            self._runner.give_back_unstarted()
        return len(taken)

    def _set_aside(self, rows: list[JobRow], deadline: float) -> list[JobRow]:
        rows, unreadable, put_back = set_aside(rows, deadline)
        for held in unreadable:
            log.error("%s cannot be read, and fails", held)
            self._leases.add(held)
            self._give_back(held)
        for held in put_back:
            self._leases.add(held)
            # Later: else their batch could take the others along, before they have failed.
            asyncio.get_running_loop().call_later(_FAILED_BY_THEN, self._give_back, held)
        return rows

    def _with_slots(self, taken: list[Held]) -> list[Held]:
        """Return the jobs of a claim, without those whose slots hand-offs took meanwhile: they are given back."""
        if not self._took_beside:
            return taken
        self._took_beside = bool(self._exchange.in_flight)
        room = max(self._runner.room, 0)
        for leader in taken[room:]:
            for held in (leader, *leader.members):
                held.ended = End.RELEASED
                self._give_back(held)
        return taken[:room]

    def handed_off(self, payload: str) -> None:
        """Run a job that was reserved for this worker when it was enqueued."""
        held, age = self.handoffs.read(payload)
        self.sleeper.load.came(1, held.taken)
        if self.sleeper.load.heard(age, held.taken):
            self.leave_idle()
        if held.pair in self._leases.held or self._exchange.was_given_back(held.pair):
            return
        self._leases.add(held)
        self._events.reserved(1)
        log.debug("%s was handed to this worker", held)
        if self._before_claim is not None:
            self._before_claim()
        is_claiming = not self._state.quiet and not self._state.stopping.is_set()
        # The lease may be over: its commit waited for long, or this process stood still.
        if is_claiming and self._runner.room > 0 and held.deadline > held.taken:
            self._took_beside |= bool(self._exchange.in_flight)
            self._runner.take([held])
        else:
            held.ended = End.RELEASED
            self._give_back(held)
        if self._is_full() and self._full_check is None:
            self._full_check = asyncio.get_running_loop().call_later(_FULL_FOR, self._check_full)

    def announced(self, committed_at: float) -> None:
        """A job is ready. Its transaction began to commit then, by the clock of the database."""
        now = time.monotonic()
        if self.sleeper.load.heard(self.handoffs.age(committed_at, now), now):
            self._leaves_idle = True
        self._state.wake.set()

    def leave_idle(self) -> None:
        """Let producers look for another worker, until this one runs dry again."""
        self._leaves_idle = True
        self._state.rouse()

    def compare_soon(self) -> None:
        """An offer of hand-offs ended: in a second, give back what was handed to this worker and has not come."""
        if not self.handoffs.were_offered:
            return
        if self._comparing is None:
            self._comparing = asyncio.get_running_loop().call_later(_ARRIVED_WITHIN, self._compare)
        else:
            self._compares_again = True

    def _compare(self) -> None:
        self._comparing = None
        self._exchange.compare_handoffs()
        if self._compares_again:
            self._compares_again = False
            self.compare_soon()

    def _is_full(self) -> bool:
        return self._runner.is_busy or self._runner.room <= 0

    def _check_full(self) -> None:
        self._full_check = None
        if self._is_full():
            self.leave_idle()

    def _capacity_beside(self) -> int:
        if (
            self._state.stopping.is_set()
            or not self.jobs_wait
            or self._exchange.is_unsure
            or self._exchange.is_apart
            or not self._runner.is_busy
        ):
            return 0
        return self.capacity()

    async def _give_back_unknown(self) -> None:
        # No claim begins meanwhile: this loop is here, and no claim goes along with ends while `is_unsure`.
        if self._exchange.is_unsure and not self._exchange.in_flight:
            await self._exchange.give_back_unknown(self._links.first, self._leases.held, may_ask_less=True)

    async def _wait_for_capacity(self) -> None:
        self._state.freed.clear()
        must_give_back = self._exchange.is_unsure and not self._exchange.in_flight
        if self.capacity() == 0 and not self._state.stopping.is_set() and not must_give_back:
            self.waits_for_capacity = True
            try:
                await self._state.freed.wait()
            finally:
                self.waits_for_capacity = False

    async def _stop_if_empty(self, nothing_held: bool) -> None:
        """Stop after some claims in a row that find nothing, with maintenance between them.

        An end may release a child, and that one's group another, each in a later transaction.
        """
        if nothing_held:
            if self._empty_claims == len(_EMPTY_PAUSES):
                self._state.stop()
                return
            pause = _EMPTY_PAUSES[self._empty_claims]
            self._empty_claims += 1
            await self._links.first.perform(consume.maintain())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._state.wake.wait(), pause)
        await self._wait_for_end()

    async def _wait_for_end(self) -> None:
        self._state.freed.clear()
        if self._leases.held and not self._exchange.is_unsure:
            await self._state.freed.wait()
