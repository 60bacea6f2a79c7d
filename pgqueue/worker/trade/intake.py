"""Take in jobs: from the reply to a claim, or handed over when they are enqueued."""

from __future__ import annotations

import asyncio
import logging
import time

from pgqueue.db.consume import JobRow
from pgqueue.logs import how_many
from pgqueue.worker.hold.handoffs import Handoffs
from pgqueue.worker.hold.held import UNREADABLE, Held, Holding, set_aside
from pgqueue.worker.hold.outbox import Outbox
from pgqueue.worker.process.requests import Requests
from pgqueue.worker.run.runner import Runner
from pgqueue.worker.run.slots import Slots
from pgqueue.worker.tell.tell import Tell
from pgqueue.worker.trade.exchange import Exchange, Reply
from pgqueue.worker.trade.notify_load import NotifyLoad

log = logging.getLogger("pgqueue.worker")

# Seconds after which jobs that cannot be read have usually failed.
_FAILED_BY_THEN = 1.0

# A worker whose slots hand-offs have filled for this time, in seconds, or that got too many, is no longer idle.
_FULL_FOR = 0.02

# Seconds after which all that was handed to this worker has come, or is lost.
_ARRIVED_WITHIN = 1.0


class Intake:
    """Holds what comes in, and gives it to the runner, or back.

    `jobs_wait`: the last claim returned as many jobs as it asked for. `claimed_at`: the monotonic time of the last
    answer. `leaves_idle`: producers are to look for another worker; the claiming loop resets it.
    """

    def __init__(
        self,
        holding: Holding,
        runner: Runner,
        outbox: Outbox,
        exchange: Exchange,
        tell: Tell,
        slots: Slots,
        requests: Requests,
    ) -> None:
        self.jobs_wait = False
        self.claimed_at: float | None = None
        self.leaves_idle = False
        self.handoffs = Handoffs()
        self.load = NotifyLoad()
        # When to look whether hand-offs still fill the slots.
        self._full_check: asyncio.TimerHandle | None = None
        # When to compare hand-offs, and whether to do so once more after that.
        self._comparing: asyncio.TimerHandle | None = None
        self._compares_again = False
        # When the transaction that notified last began to commit.
        self._committed_at = 0.0
        # A hand-off took a slot for which a claim under way may bring a job.
        self._took_beside = False
        self._holding = holding
        self._runner = runner
        self._outbox = outbox
        self._exchange = exchange
        self._tell = tell
        self._slots = slots
        self._requests = requests

    def took(self, reply: Reply, asked_for: int) -> int:
        """Hold and run the jobs of a reply; returns how many single jobs or batches those are."""
        rows = reply.claimed or []
        now = time.monotonic()
        self.claimed_at = now
        if reply.is_careful:
            rows = self._set_aside(rows, reply.deadline)
        taken = self._holding.take_in(rows, reply.deadline, now)
        is_short = len(taken) < asked_for
        self._runner.take(self._with_slots(taken))
        self.jobs_wait = not is_short
        # Only now: before, what came would count as in no slot.
        self._slots.answered(is_short)
        if rows:
            log.debug("reserved %s in %s", how_many(len(rows), "job"), how_many(len(taken), "call"))
            if self._tell.events.is_on:
                self._tell.events.reserved(len(rows))
            self.load.came(len(rows), now)
        if self._requests.quiet or self._requests.stopping.is_set():
            # The worker became quiet while the claim was in flight.
            self._runner.give_back_unstarted()
        # What was set aside was claimed as well: the queue is not empty.
        return len(taken) + len(reply.claimed or []) - len(rows)

    def handed_off(self, payload: str) -> None:
        """Run a job that was reserved for this worker when it was enqueued."""
        held, committed_at = self.handoffs.read(payload)
        self.load.came(1, held.taken, handed=True)
        self.committed(committed_at)
        if held.pair in self._holding.held or self._exchange.was_given_back(held.pair):
            return
        self._holding.add(held)
        if self._tell.events.is_on:
            self._tell.events.reserved(1)
        log.debug("%s was handed to this worker", held)
        self._slots.settle()
        is_claiming = not self._requests.quiet and not self._requests.stopping.is_set()
        # The lease may be over: its commit waited for long, or this process stood still.
        if is_claiming and self._runner.room > 0 and held.attempt.deadline > held.taken:
            self._took_beside |= bool(self._exchange.in_flight)
            self._runner.take([held])
        else:
            self._outbox.give_back(held)
        if self._full_check is None and self._is_full():
            self._full_check = asyncio.get_running_loop().call_later(_FULL_FOR, self._check_full)

    def committed(self, at: float) -> None:
        """A transaction that notified this worker began to commit then, by the clock of the database."""
        # One that hands off a job and announces others sends several notifications.
        if at != self._committed_at:
            self._committed_at = at
            now = time.monotonic()
            if self.load.heard(self.handoffs.age(at, now), now):
                self.leave_idle()

    def leave_idle(self) -> None:
        """Let producers look for another worker until this one runs out of jobs again."""
        self.leaves_idle = True
        self._requests.rouse()

    def compare_soon(self) -> None:
        """An offer of hand-offs ended: in a second, give back what was handed to this worker and has not come."""
        if not self.handoffs.were_offered:
            return
        if self._comparing is None:
            self._comparing = asyncio.get_running_loop().call_later(_ARRIVED_WITHIN, self._compare)
        else:
            self._compares_again = True

    def _set_aside(self, rows: list[JobRow], deadline: float) -> list[JobRow]:
        rows, unreadable, put_back = set_aside(rows, deadline)
        for held in unreadable:
            log.error("%s cannot be read, and fails", held)
            self._holding.add(held)
            self._outbox.end(held, UNREADABLE)
        for held in put_back:
            self._holding.add(held)
            # Later: else their batch could take the others along, before they have failed.
            self._outbox.give_back(held, _FAILED_BY_THEN)
        return rows

    def _with_slots(self, taken: list[Held]) -> list[Held]:
        """Return the jobs of a claim, without those whose slots hand-offs took meanwhile: they are given back."""
        if not self._took_beside:
            return taken
        self._took_beside = bool(self._exchange.in_flight)
        room = max(self._runner.room, 0)
        for leader in taken[room:]:
            for held in (leader, *leader.members):
                self._outbox.give_back(held)
        return taken[:room]

    def _compare(self) -> None:
        self._comparing = None
        self._exchange.compare_handoffs()
        if self._compares_again:
            self._compares_again = False
            self.compare_soon()

    def _is_full(self) -> bool:
        runner = self._runner
        # While jobs wait for slots and no claim begins, hand-offs would go before what is announced, of any priority.
        is_behind = runner.running + runner.unstarted > runner.concurrency and not runner.capacity()
        return runner.room <= 0 or is_behind or self.load.outruns_handoffs(time.monotonic())

    def _check_full(self) -> None:
        self._full_check = None
        if self._is_full():
            self.leave_idle()
