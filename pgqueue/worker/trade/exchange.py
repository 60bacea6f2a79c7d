"""The one statement that reports ended jobs and claims others: SQL's `exchange`, or `reserve` where none has ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field

from pgqueue.db import consume
from pgqueue.db.consume import JobRow
from pgqueue.errors import InvalidArgument
from pgqueue.logs import how_many, one_line
from pgqueue.worker.hold.held import End, Held
from pgqueue.worker.hold.outbox import LARGE
from pgqueue.worker.link.connection import CALL_TIMEOUT, Link, is_cut_off, is_refusal, is_too_much
from pgqueue.worker.presence.identity import Identity
from pgqueue.worker.process.requests import Requests

log = logging.getLogger("pgqueue.worker")

# After an error that may concern the claim as well as the ends that went with it, each goes alone for this time, in
# seconds: an error of one must not keep the other waiting.
_APART = 5.0

# A job is reserved before its commit, which may take this many seconds.
_COMMITS_WITHIN = 10.0

# After a claim that met a row that cannot be read, claims are careful for this time, in seconds.
_CAREFUL = 60.0

# Reservations given back unknown of which a notification may still come, at most.
_REMEMBERED = 10_000


@dataclass(slots=True)
class Reply:
    """The server's reply.

    `outcomes` has a row for each failed job, and for each job whose completion was not stored. `claimed` are
    the claimed jobs, whose leases hold until the monotonic time `deadline`; None: there was no claim, or it failed.
    `is_careful`: some of them may be rows that cannot be read.
    """

    completed: list[Held]
    failed: list[Held]
    outcomes: dict[tuple[int, int], JobRow] = field(default_factory=dict)
    claimed: list[JobRow] | None = None
    deadline: float = 0.0
    is_careful: bool = False


class Exchange:
    """Performs the statement on any connection, and tracks the claims in flight.

    When the reply of a claim is lost, its jobs may be reserved for this worker without its knowledge. `is_unsure` is
    then true until `give_back_unknown` has released them; the claiming loop is roused to do so, and again whenever a
    claim ends meanwhile. A notification that handed over a job may be lost as well.
    """

    def __init__(self, claim: consume.Claim, identity: Identity, requests: Requests) -> None:
        # By claim under way, its connection, and how many jobs it asks for.
        self.in_flight: dict[object, tuple[Link, int]] = {}
        self._reply_lost = False
        # How often hand-offs were to be compared with those that came, and were; and when that was.
        self._to_compare = self._compared = 0
        self._compared_at = time.monotonic()
        # Reservations that this worker gave back without having known them.
        self._given_back: dict[tuple[int, int], None] = {}
        self._claim = claim
        self._identity = identity
        self._requests = requests
        self._apart_until = 0.0
        self._careful_until = 0.0

    @property
    def coming(self) -> int:
        """How many jobs are being claimed now."""
        return sum(jobs for _, jobs in self.in_flight.values())

    @property
    def is_unsure(self) -> bool:
        """Whether jobs may be reserved for this worker that it does not know: no claim may begin."""
        return self._reply_lost or self._compared < self._to_compare

    @property
    def is_apart(self) -> bool:
        """Whether ends and claims must not share a statement now."""
        return time.monotonic() < self._apart_until

    @property
    def is_careful(self) -> bool:
        """Whether claims may have rows that cannot be read."""
        return time.monotonic() < self._careful_until

    def go_apart(self, why: object, seconds: float = _APART) -> None:
        """Send ends and claims in separate statements for some seconds."""
        # Not shorter than another one asked for: a careful claim and ends in one statement could not be told apart.
        self._apart_until = max(self._apart_until, time.monotonic() + seconds)
        log.warning("ends and claims are sent separately for %g s (%s)", seconds, why)

    def can_be_careful(self, refusal: InvalidArgument) -> bool:
        """Return whether a claim failed by a row that cannot be read; then the next ones set such rows aside."""
        # character_not_in_repertoire, untranslatable_character
        if self.is_careful or getattr(refusal.__cause__, "sqlstate", None) not in ("22021", "22P05"):
            return False
        self._careful_until = time.monotonic() + _CAREFUL
        self.go_apart(one_line(refusal), _CAREFUL)
        return True

    async def perform(
        self, link: Link, max_jobs: int, batch: list[Held], *, patient: bool = True, ask: bool = False
    ) -> Reply:
        """Report how the jobs of `batch` ended and claim up to `max_jobs`, in one statement and one commit.

        Raises InvalidArgument when the server refuses something and has changed nothing. Any other error leaves it
        open whether anything was stored; with ends one is also raised when they may be too much for the server (see
        `is_too_much`), when it refuses one of them, or when the connection breaks while a large one is on its way. With
        `ask` the server asks the retry functions of tasks; without, it leaves what they decide on undecided.
        """
        completed = _with_end(batch, End.SUCCEEDED)
        failed = _with_end(batch, End.FAILED) if len(completed) < len(batch) else []
        results = [held.attempt.ending.result for held in completed]
        has_results = results.count(None) < len(results)
        is_large = (has_results or bool(failed)) and sum(held.attempt.ending.size for held in batch) > LARGE
        claim, is_careful = object(), self.is_careful
        if max_jobs:
            self.in_flight[claim] = link, max_jobs
        try:
            call = consume.exchange(
                self._claim,
                max_jobs,
                [held.pair for held in completed],
                results if has_results else None,
                [failure_of(held) for held in failed],
                ask=ask,
                careful=is_careful,
            )
            rows = await link.perform(
                call,
                patient=patient and not (batch and max_jobs),
                # Bytes take their time, whatever the lease is.
                within=CALL_TIMEOUT if is_large else None,
                gives_up=_unsure(batch, is_large or ask) if batch else None,
            )
        except InvalidArgument:
            raise
        except BaseException:
            self._reply_lost |= max_jobs > 0
            raise
        finally:
            self.in_flight.pop(claim, None)
            if self.is_unsure:
                self._requests.rouse()
        reply = Reply(completed, failed, is_careful=is_careful)
        if rows and rows[-1].outcome == "unclaimed":
            # The ends are stored all the same. The claim alone then raises its error.
            self.go_apart(rows.pop().note)
            max_jobs = 0
        if failed or (batch and rows and rows[0].outcome != "reserved"):
            reply.outcomes = {(row.id, row.reservation): row for row in rows if row.outcome != "reserved"}
            # In the reply of exchange.sql ends come first.
            rows = rows[len(reply.outcomes) :]
        if max_jobs:
            reply.claimed, reply.deadline = rows, link.sent_at + self._claim.lease
        return reply

    async def reconnected(self, link: Link) -> None:
        """A connection was made. When it is in the middle of a claim, the claim was sent before, on another one."""
        if link.connects > 1 and any(each is link for each, _ in self.in_flight.values()):
            self._reply_lost = True
            self._requests.rouse()

    def compare_handoffs(self) -> None:
        """Jobs may be reserved for this worker whose notification was lost."""
        self._to_compare += 1
        self._requests.rouse()

    def was_given_back(self, pair: tuple[int, int]) -> bool:
        """Whether this reservation was given back before this worker heard of it."""
        return pair in self._given_back

    async def give_back_unknown(
        self, link: Link, known: Container[tuple[int, int]], *, may_ask_less: bool = False
    ) -> None:
        """Release the jobs that are reserved for this worker and not `known`: the reply of their claim was lost.

        With `may_ask_less`, where no reply was lost: only those that were handed over since they were last compared.

        No claim may be under way, and none may begin before this returns. So a job that the server lists and this
        worker does not know is really unknown, and not of a claim whose reply is on its way. A hand-off may be on its
        way: it is given back here, and ignored when it arrives. A release that the network delivers late names old
        reservations, and so changes nothing.
        """
        assert not self.in_flight
        began, to_compare = time.monotonic(), self._to_compare
        unknown: list[tuple[int, int]] = []
        # Without its name it has nothing to give back, and is not unsure either: its loops would ask again and again.
        if self._identity.has_name:
            asks_less = may_ask_less and not self._reply_lost
            within = began - self._compared_at + _COMMITS_WITHIN if asks_less else None
            reserved = await link.perform(consume.held_by(self._claim.worker, within))
            unknown = [pair for pair in reserved if pair not in known]
        # Asked after the list was read: if the name is still this process's, so is all that is listed. Else it is what
        # another process of this name runs.
        if unknown and not await self._identity.is_taken(link.perform):
            # A job that was handed off may have come meanwhile, and runs. Nothing is awaited up to the next line.
            unknown = [pair for pair in unknown if pair not in known]
            self._given_back = dict.fromkeys([*list(self._given_back)[-_REMEMBERED:], *unknown])
            # Jobs that ended while the list was on its way no longer execute.
            over = await link.perform(consume.release(unknown)) if unknown else []
            if given_back := [job_id for job_id, _ in unknown if job_id not in over]:
                log.warning("gave back %s that it does not hold: %s", how_many(len(given_back), "job"), given_back[:20])
        self._reply_lost = False
        self._compared, self._compared_at = to_compare, began


def failure_of(held: Held) -> consume.Failure:
    """Return the failure of an attempt, as `fail` takes it."""
    ending = held.attempt.ending
    decision = ending.decision
    return consume.Failure(
        *held.pair, ending.error or {}, decision.retry_in, decision.retry, decision.policy, decision.cancel
    )


def _with_end(batch: list[Held], end: End) -> list[Held]:
    return [held for held in batch if held.attempt.ending.end is end]


def _unsure(batch: list[Held], is_long: bool) -> Callable[[BaseException], bool]:
    """Return what decides on an error of the statement that ends these: it notes that they may have been stored."""

    def gives_up(error: BaseException) -> bool:
        for held in batch:
            held.attempt.is_unsure = True
        return is_too_much(error) or is_refusal(error) or (is_long and is_cut_off(error))

    return gives_up
