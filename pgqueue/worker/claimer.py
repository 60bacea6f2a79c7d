"""Claim jobs while there is capacity for them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from pgqueue.config import WorkerConfig
from pgqueue.db import consume
from pgqueue.db.call import Call
from pgqueue.worker.connection import Link
from pgqueue.worker.events import Events
from pgqueue.worker.exchange import Exchange, Reply
from pgqueue.worker.handoff import Handoffs
from pgqueue.worker.held import End, Held, batches
from pgqueue.worker.leases import Leases
from pgqueue.worker.links import Links
from pgqueue.worker.runner import Runner
from pgqueue.worker.sleeper import Sleeper
from pgqueue.worker.state import State

log = logging.getLogger("pgqueue.worker")

# With until_empty the worker stops after this number of claims in a row that find nothing, with pauses between them, in
# seconds: the database looks again after 0.2 s at a child whose row another session had locked.
_EMPTY_CLAIMS = 3
_EMPTY_PAUSE = 0.15

# Slots that hand-offs have filled for this time, in seconds, are full: the worker is not idle any more.
_FULL_FOR = 0.02


class Claimer:
    """Claims with `claim_forever`, and sizes the claims that go along with reported ends.
    `report_and_claim` performs a claim, with the ends that wait, and has `took` called with the reply. `is_behind`
    tells whether too many ends wait. `give_back` takes a job that was handed to this worker and cannot start.
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
        # Hand-offs have filled the slots, or come in a stream; and when to look whether they still do.
        self._is_filled = False
        self._full_check: asyncio.TimerHandle | None = None
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
            config, links.first, runner, state, capacity=self.capacity, hello=hello, handoffs=self.handoffs
        )

    async def claim_forever(self) -> None:
        """Claim jobs until the worker stops; sleep while there are none."""
        try:
            await self._claim_forever()
            # Else producers would hand jobs to a worker that stops.
            await self.sleeper.wake_up()
        finally:
            await self.sleeper.close()

    async def _claim_forever(self) -> None:
        while not self._state.stopping.is_set():
            await self._give_back_unknown()
            if self._state.quiet:
                # A quiet worker would not claim when it is woken.
                await self.sleeper.wake_up()
                if self._state.retiring and not self._leases.held:
                    self._state.stop()
            if self._is_filled:
                # By hand-offs: producers are to look for another worker.
                self._is_filled = False
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
        if len(taken) < asked_for:
            # Until now its slots counted as used, and another database may wait for them.
            self._runner.on_free()
        if self._state.quiet or self._state.stopping.is_set():
            # The worker became quiet while the claim was in flight.
            self._runner.give_back_unstarted()
        return len(taken)

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
        """Run a job that enqueue() reserved for this worker."""
        held, is_fresh = self.handoffs.read(payload)
        if held.pair in self._leases.held or self._exchange.was_given_back(held.pair):
            return
        if is_fresh:
            self._take_handed_off(held)
            return
        # Its transaction stayed open after the enqueue. Since then its queue may have been paused, a limit set, the job
        # have expired or been cancelled, and its lease may be over: all that a claim looks at.
        log.debug("%s was handed to this worker late and is given back", held)
        self._leases.add(held)
        self._give_back_handed_off(held)

    def cancel_asked(self) -> None:
        """One of the jobs that this worker holds is asked to cancel."""
        # Perhaps in the transaction that enqueued it: then this notification comes right behind the job, which has not
        # started yet.
        self._runner.give_back_unstarted(handed_off=True)
        self._leases.extend_now.set()

    def _take_handed_off(self, held: Held) -> None:
        held.is_handed_off = True
        self._leases.add_short(held)
        self._events.reserved(1)
        log.debug("%s was handed to this worker", held)
        if self._before_claim is not None:
            self._before_claim()
        is_claiming = not self._state.quiet and not self._state.stopping.is_set()
        if is_claiming and self._runner.room > 0:
            self._took_beside |= bool(self._exchange.in_flight)
            self._runner.take([held])
        else:
            self._give_back_handed_off(held)
        if self._is_full() and self._full_check is None:
            self._full_check = asyncio.get_running_loop().call_later(_FULL_FOR, self._check_full)

    def _give_back_handed_off(self, held: Held) -> None:
        held.ended = End.RELEASED
        self._give_back(held)

    def _is_full(self) -> bool:
        return self._runner.is_busy or self._runner.room <= 0

    def _check_full(self) -> None:
        self._full_check = None
        if self._is_full():
            self._is_filled = True
            self._state.rouse()

    def _capacity_beside(self) -> int:
        if (
            self._state.stopping.is_set()
            or not self.jobs_wait
            or self._exchange.reply_lost
            or self._exchange.is_apart
            or not self._runner.is_busy
        ):
            return 0
        return self.capacity()

    async def _give_back_unknown(self) -> None:
        # No claim begins meanwhile: this loop is here, and no claim goes along with ends while `reply_lost`.
        if self._exchange.reply_lost and not self._exchange.in_flight:
            await self._exchange.give_back_unknown(self._links.first, self._leases.held)

    async def _wait_for_capacity(self) -> None:
        self._state.freed.clear()
        must_give_back = self._exchange.reply_lost and not self._exchange.in_flight
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
            self._empty_claims += 1
            if self._empty_claims == _EMPTY_CLAIMS:
                self._state.stop()
                return
            await self._links.first.perform(consume.maintain())
            with suppress(TimeoutError):
                await asyncio.wait_for(self._state.wake.wait(), _EMPTY_PAUSE)
        await self._wait_for_end()

    async def _wait_for_end(self) -> None:
        self._state.freed.clear()
        if self._leases.held and not self._exchange.reply_lost:
            await self._state.freed.wait()
