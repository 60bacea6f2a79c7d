"""What must hold after faults, checked against what was written down while they happened.

Pure: reads streams of records and returns violations. `recorder.py` describes where the records come from and how they
are sorted; the tests of this module write theirs by hand.

There are three sources. Producers record which jobs were committed, rolled back, or sent with a commit that was never
answered. Handlers record which job they ran under which reservation, from when to when, each in a file that outlives
its process. The ledger records when the database gave a reservation out and when it took it back; a trigger writes it
in the queue's own transactions, and a sequence numbers it: of two numbers the lower was drawn first.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import attrgetter
from typing import NamedTuple

from tests.chaos.findings import Findings, Violation
from tests.chaos.workflow_checker import Workflows, check_workflows

COMMITTED = "committed"
ROLLED_BACK = "rolled back"
UNKNOWN = "unknown"

HELD = "h"
LEFT = "l"
GONE = "g"


class Promise(NamedTuple):
    """A job in a producer's log. `at` is when the answer to its commit came; times are seconds since the epoch."""

    job: int
    outcome: str
    at: float
    kind: str
    token: str


class Entry(NamedTuple):
    """A line of the ledger: a reservation was given out, or ended while the job lives on, or the job is gone.

    `asked_at` is when the statement came that did it, `clock` what the queue took for the time. `lease_until` is when
    the lease ends by the queue's clock: the new lease of a claim, the old one when a reservation ends. `counted_lost`:
    the reservation ended because the queue took the job back, for its lease was over; not because the process that
    held it is dead, and another one has its name.
    """

    job: int
    n: int
    what: str
    reservation: int
    at: float
    asked_at: float
    clock: float
    queue: str
    key: str | None
    leader: int | None
    was_executing: bool
    lease_until: float | None = None
    counted_lost: bool = False


class Extension(NamedTuple):
    """A lease that `extend` reported as held until `until`, at `clock` of the queue and `at` of the server.

    The call began `asked_at`.
    """

    job: int
    reservation: int
    until: float
    clock: float
    at: float
    asked_at: float


class Step(NamedTuple):
    """A step of the queue's clock by `seconds`, made some time between `began` and `ended`."""

    began: float
    ended: float
    seconds: float


class Run(NamedTuple):
    """A call of a handler, from its file. `how` is ok, failed, or empty for one that never came to its end."""

    job: int
    reservation: int
    started_at: float
    ended_at: float | None
    how: str


class Effect(NamedTuple):
    """What a handler wrote in its job's own transaction. `turn` counts the effects of its key."""

    job: int
    reservation: int
    turn: int | None


class End(NamedTuple):
    """A row of history."""

    job: int
    reservation: int
    state: str
    token: str
    merged: bool


class Live(NamedTuple):
    """A job that is still there when everything should have ended, and why.

    `awaited_at`: when the event that it waits for was emitted, as the emitter knows, where the database does not.
    """

    job: int
    why: str
    token: str
    awaited_at: float | None = None


class Birth(NamedTuple):
    """A keyed job: when its producer knew that it was committed (None: it never knew), and when it was due."""

    queue: str
    key: str
    job: int
    acknowledged_at: float | None
    due_at: float


class Turn(NamedTuple):
    """An effect of a key."""

    queue: str
    key: str
    turn: int
    job: int


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit, and the ledger of the jobs under it in the order of `n`."""

    name: str
    max_executing: int | None
    rate: int | None
    per: float
    ledger: Iterable[Entry]


@dataclass(frozen=True, slots=True)
class Still:
    """What was paused or throttled, from when to when, and the ledger of its jobs in the order of `n`.

    From the commit on no claim may begin that starts one of them; a claim under way at that moment may. `began` is some
    time after the commit, so that none of these is left. A claim that is under way as it ends may read after that.
    """

    name: str
    spans: Sequence[tuple[float, float]]
    ledger: Iterable[Entry]


@dataclass(slots=True)
class Evidence:
    """All that was written down. The first six are sorted by job (the ledger by job and n), each read once.

    births and keyed   by queue, key, job and by queue, key, n
    turns              the effects of keys, by queue, key, turn
    transactional      kinds whose handlers write an effect in their job's transaction
    unrun              kinds whose jobs may succeed with no run of their own: other payloads' calls take them along
    cancellable        kinds whose jobs may have been cancelled
    losses             times in which a server took what it had acknowledged with it
    lease              seconds for which workers may start what they have claimed
    extensions         what `extend` reported as held, by job
    steps              the steps of the queue's clock
    unblocked           jobs that the net under the keys had to release
    hidden             lanes with something ready below their heads, which the net under the heads had to find
    found_lanes        lanes without a registration
    stepped            the queue's clock was set back: what a job waits for may then be due no longer, and the nets are
                       what finds it
    workflows          dependencies, groups, steps and events
    still              what was paused and throttled
    """

    promises: Iterable[Promise] = ()
    ledger: Iterable[Entry] = ()
    runs: Iterable[Run] = ()
    effects: Iterable[Effect] = ()
    ends: Iterable[End] = ()
    live: Iterable[Live] = ()
    births: Iterable[Birth] = ()
    keyed: Iterable[Entry] = ()
    turns: Iterable[Turn] = ()
    limits: Sequence[Limit] = ()
    transactional: frozenset[str] = frozenset()
    unrun: frozenset[str] = frozenset()
    cancellable: frozenset[str] = frozenset()
    losses: Sequence[tuple[float, float]] = ()
    lease: float = 3.0
    extensions: Iterable[Extension] = ()
    steps: Sequence[Step] = ()
    unblocked: int = 0
    hidden: int = 0
    found_lanes: int = 0
    stepped: bool = False
    workflows: Workflows = field(default_factory=Workflows)
    still: Sequence[Still] = ()


def check(evidence: Evidence) -> Findings:
    """Return what does not hold."""
    findings = Findings()
    streams = (
        evidence.promises,
        evidence.ledger,
        evidence.runs,
        evidence.effects,
        evidence.ends,
        evidence.live,
        evidence.extensions,
    )
    merged = heapq.merge(*streams, key=attrgetter("job"))
    for job, records in groupby(merged, key=attrgetter("job")):
        story = _Story(job)
        for record in records:
            story.add(record)
        findings.add(_check_job(story, evidence, findings.counts))
    findings.add(_check_keys(evidence, findings.counts))
    findings.add(_check_turns(evidence.turns))
    for limit in evidence.limits:
        findings.add(_check_limit(limit, evidence.steps, findings.counts))
    for still in evidence.still:
        findings.add(_check_still(still, evidence, findings.counts))
    # A handler may go on for a lease with what its server has forgotten.
    lost = [(start, end + evidence.lease) for start, end in evidence.losses]
    findings.add(check_workflows(evidence.workflows, lost, findings.counts))
    if evidence.unblocked and not evidence.stepped:
        what = f"{evidence.unblocked} jobs were blocked behind no job until the net found them"
        findings.add([Violation("net", "keys", what)])
    if evidence.hidden:
        findings.add([Violation("net", "heads", f"{evidence.hidden} lanes held something ready below their heads")])
    findings.counts["nets: blocked behind no job"] += evidence.unblocked
    findings.counts["nets: hidden below a head"] += evidence.hidden
    findings.counts["nets: unregistered lanes"] += evidence.found_lanes
    return findings


@dataclass(slots=True)
class _Story:
    """All that is known of one job id."""

    job: int
    promises: list[Promise] = field(default_factory=list)
    ledger: list[Entry] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    live: list[Live] = field(default_factory=list)
    extensions: list[Extension] = field(default_factory=list)

    def add(self, record: object) -> None:
        match record:
            case Promise():
                self.promises.append(record)
            case Entry():
                self.ledger.append(record)
            case Run():
                self.runs.append(record)
            case Effect():
                self.effects.append(record)
            case End():
                self.ends.append(record)
            case Live():
                self.live.append(record)
            case Extension():
                self.extensions.append(record)

    def breaks(self, rule: str, what: str) -> Violation:
        return Violation(rule, f"job {self.job}", what)


def _check_job(story: _Story, evidence: Evidence, counts: Counter[str]) -> Iterator[Violation]:
    yield from _check_promises(story, evidence, counts)
    yield from _check_ledger(story, counts)
    yield from _check_runs(story, evidence, counts)
    yield from _check_leases(story, evidence, counts)
    if len(story.ends) > 1:
        yield story.breaks("ended twice", f"history has {len(story.ends)} rows: {_states(story)}")
    for end in story.ends:
        counts[f"ended: {end.state}"] += 1
        yield from _check_end(story, end, evidence)
    for live in story.live:
        if live.awaited_at is not None and _is_lost(live.awaited_at, evidence):
            counts["lost with the server: events"] += 1
        else:
            yield story.breaks("stuck", live.why)


def _check_promises(story: _Story, evidence: Evidence, counts: Counter[str]) -> Iterator[Violation]:
    tokens = {end.token for end in story.ends} | {live.token for live in story.live}
    for promise in story.promises:
        counts[f"promised: {promise.outcome}"] += 1
        is_there = promise.token in tokens
        if promise.outcome == COMMITTED and not is_there:
            if _is_lost(promise.at, evidence):
                counts["lost with the server: jobs"] += 1
            else:
                what = f"a {promise.kind}, committed at {promise.at:.3f}, has not ended and is not there"
                yield story.breaks("lost", what)
        elif promise.outcome == ROLLED_BACK and is_there:
            yield story.breaks("rolled back", f"a {promise.kind} is there, though its transaction was rolled back")
        elif promise.outcome == UNKNOWN:
            counts["promised: unknown, and there" if is_there else "promised: unknown, and not there"] += 1
    if story.runs and story.promises and all(each.outcome == ROLLED_BACK for each in story.promises):
        yield story.breaks("rolled back", "a handler ran it, though its transaction was rolled back")


def _check_ledger(story: _Story, counts: Counter[str]) -> Iterator[Violation]:
    held: Entry | None = None
    last = 0
    gone = 0
    for entry in story.ledger:
        if gone:
            yield story.breaks("ended twice", f"the ledger goes on after its end, with {entry.what} at {entry.n}")
        if entry.what == HELD:
            counts["reservations"] += 1
            if held is not None:
                yield story.breaks("two holders", f"{entry.reservation} was given out while {held.reservation} held")
            if entry.reservation <= last:
                yield story.breaks("reservation", f"{entry.reservation} came after {last}: they must grow")
            held, last = entry, entry.reservation
            continue
        if entry.was_executing and (held is None or held.reservation != entry.reservation):
            holder = "no reservation" if held is None else str(held.reservation)
            yield story.breaks("fence", f"{entry.reservation} ended at {entry.n} while {holder} held")
        held = None
        gone += entry.what == GONE
    if gone != len(story.ends) and not (gone > 1 or len(story.ends) > 1):
        yield story.breaks("history", f"it went {gone} times, and history has {len(story.ends)} rows")


def _check_runs(story: _Story, evidence: Evidence, counts: Counter[str]) -> Iterator[Violation]:
    # Of one that was given out twice, the first time.
    given = {entry.reservation: entry for entry in reversed(story.ledger) if entry.what == HELD}
    taken = {entry.reservation: entry for entry in story.ledger if entry.what != HELD and entry.was_executing}
    for reservation, times in Counter(run.reservation for run in story.runs).items():
        if times > 1:
            yield story.breaks("ran twice", f"handlers ran it {times} times under {reservation}")
    for run in story.runs:
        counts["runs"] += 1
        if run.ended_at is None:
            counts["runs that never came to their end"] += 1
        held = given.get(run.reservation)
        if held is None:
            # Whoever claimed it in time does not know that the server has forgotten, and may start it for a lease.
            if _is_lost(run.started_at, evidence, evidence.lease):
                counts["lost with the server: runs"] += 1
            else:
                yield story.breaks("unheld", f"a handler ran it under {run.reservation}, which was never given out")
        elif run.started_at < held.at:
            early = held.at - run.started_at
            yield story.breaks("unheld", f"a handler ran it {early:.3f} s before {run.reservation} was given out")
        end = taken.get(run.reservation)
        if end is not None and run.ended_at is not None and run.ended_at > end.at:
            counts["runs that went on after their lease"] += 1


def _check_leases(story: _Story, evidence: Evidence, counts: Counter[str]) -> Iterator[Violation]:
    """A lease that is held is not taken back, and no second handler starts beside the one that holds it."""
    runs = {run.reservation: run for run in story.runs}
    left = {entry.reservation: entry for entry in story.ledger if entry.what == LEFT and entry.was_executing}
    given = {entry.reservation for entry in story.ledger if entry.what == HELD}
    counts["extended leases"] += len({each.reservation for each in story.extensions})
    # A clock that is moved during the call may be read by extend before the step, and by the recorder after it.
    over = next(
        (each for each in story.extensions if each.until <= each.clock and not _stepped(each, evidence.steps)), None
    )
    if over is not None:
        yield story.breaks(
            "lease", f"extend reported {over.reservation} as held, until {over.clock - over.until:.3f} s ago"
        )
    for entry in story.ledger:
        # What a worker is given, it has for its own lease, however it came by it.
        if entry.what != HELD or entry.lease_until is None or _stepped(entry, evidence.steps):
            continue
        if (lasts := entry.lease_until - entry.clock) < evidence.lease - 0.5:
            yield story.breaks("lease", f"{entry.reservation} was given out for {lasts:.3f} s")
    for entry in left.values():
        if entry.leader not in (None, story.job) or _is_lost(entry.at, evidence) or _stepped(entry, evidence.steps):
            continue
        by_row = entry.lease_until is not None and entry.lease_until > entry.clock
        reported = _reported_until(story, entry, evidence.lease)
        run = runs.get(entry.reservation)
        if entry.counted_lost and not by_row and reported is not None:
            what = f"{entry.reservation} lapsed {reported - entry.clock:.3f} s before the time that extend had reported"
            yield story.breaks("lease", what)
        if not by_row and reported is None:
            continue
        if run is not None and run.started_at >= entry.at:
            yield story.breaks("given back", f"{entry.reservation} ended before its handler began, its lease did not")
        elif run is not None and (run.ended_at or 0.0) > entry.at:
            yield story.breaks("given back", f"{entry.reservation} ended while its handler ran, and its lease held")
    for first, second in pairwise(sorted(story.runs, key=attrgetter("started_at"))):
        entry = left.get(first.reservation)
        if first.reservation == second.reservation or entry is None or (first.ended_at or 0.0) <= second.started_at:
            continue
        counts["handlers of one job side by side"] += 1
        before = left.get(second.reservation)
        is_forgotten = second.reservation not in given or (before is not None and before.counted_lost)
        if is_forgotten and _is_lost(second.started_at, evidence, evidence.lease):
            # The server gave it out after the first had lapsed, and has forgotten both; or it has forgotten that it
            # extended the second's lease, and took it back.
            continue
        if not _stepped(entry, evidence.steps) and not _is_lost(entry.at, evidence):
            second_at = second.started_at + entry.clock - entry.at
            until = max(entry.lease_until or 0.0, _reported_until(story, entry, evidence.lease) or 0.0)
            if until > second_at:
                what = (
                    f"{second.reservation} started {until - second_at:.3f} s before {first.reservation}'s lease ended"
                )
                yield story.breaks("two handlers", what)


def _reported_until(story: _Story, entry: Entry, lease: float) -> float | None:
    """Until when the lease that ended here was reported as held, if that was not over yet.

    Neither by the queue's clock, nor by the seconds that have passed: that clock may have been set back since, also
    in the middle of the report, and no report is worth more seconds than a lease has.
    """
    return max(
        (
            each.until
            for each in story.extensions
            if each.reservation == entry.reservation
            and each.at < entry.at < each.at + min(each.until - each.clock, lease)
            and each.until > entry.clock
        ),
        default=None,
    )


def _stepped(entry: Entry | Extension, steps: Sequence[Step]) -> bool:
    """Whether the clock was moved in the middle of what this line reports."""
    return any(step.began <= entry.at and step.ended >= entry.asked_at for step in steps)


def _check_end(story: _Story, end: End, evidence: Evidence) -> Iterator[Violation]:
    kinds = {promise.kind for promise in story.promises if promise.token == end.token}
    # Of the last end: what came before belongs to a job that a server has lost.
    left = next((entry for entry in reversed(story.ledger) if entry.what == GONE), None)
    if end.state == "cancelled" and kinds and not kinds & evidence.cancellable:
        yield story.breaks("cancelled", f"a {'/'.join(kinds)} ended as cancelled, which was not requested")
    if end.state == "succeeded" and not kinds & evidence.unrun and not end.merged:
        finished = [run for run in story.runs if run.reservation == end.reservation and run.how == "ok"]
        if not finished:
            yield story.breaks("fence", f"it succeeded under {end.reservation}, which no handler had finished")
        elif left is not None and all((run.ended_at or 0) > left.at for run in finished):
            yield story.breaks("fence", f"it was gone before the handler under {end.reservation} had finished")
    if kinds & evidence.transactional:
        expected = 1 if end.state == "succeeded" else 0
        if len(story.effects) != expected:
            what = f"a {'/'.join(kinds)} that {end.state} left {len(story.effects)} effects"
            yield story.breaks("effects", what)
    for effect in story.effects:
        if effect.reservation != end.reservation:
            yield story.breaks("effects", f"{effect.reservation} left one, and {end.reservation} ended it")


def _check_keys(evidence: Evidence, counts: Counter[str]) -> Iterator[Violation]:
    place = attrgetter("queue", "key")
    births = groupby(evidence.births, key=place)
    born = next(births, None)
    for name, entries in groupby(evidence.keyed, key=place):
        while born is not None and born[0] < name:
            born = next(births, None)
        mine = list(born[1]) if born is not None and born[0] == name else []
        counts["keys"] += 1
        yield from check_key(mine, entries, evidence.steps)


def check_key(births: Sequence[Birth], ledger: Iterable[Entry], steps: Sequence[Step] = ()) -> Iterator[Violation]:
    """Check one key: nothing overlaps, and none is claimed while an earlier one has its place."""
    by_job = {birth.job: birth for birth in births}
    standing = sorted(by_job)
    first_held: dict[int, float] = {}
    holder: tuple[int, int] | None = None
    for entry in ledger:
        if entry.leader not in (None, entry.job):
            continue
        subject = f"key {entry.key} of {entry.queue}"
        if entry.what != HELD:
            if holder == (entry.job, entry.reservation):
                holder = None
            if entry.what == GONE:
                at = bisect_left(standing, entry.job)
                if at < len(standing) and standing[at] == entry.job:
                    del standing[at]
            continue
        if holder is not None and holder[0] != entry.job:
            what = f"job {entry.job} was claimed at {entry.n} while job {holder[0]} was held"
            yield Violation("overlap", subject, what)
        holder = (entry.job, entry.reservation)
        # Payloads of an accumulating task go by score, those that can be had together; one that is locked comes
        # with the next call. They have an order towards jobs of other tasks alone, of which this load has none.
        for job in standing if entry.leader is None else ():
            if job >= entry.job:
                break
            if first_held.get(job, entry.asked_at) < entry.asked_at or _was_due(by_job.get(job), entry, steps):
                yield Violation("order", subject, f"job {entry.job} was claimed at {entry.n} before job {job}")
                break
        first_held.setdefault(entry.job, entry.at)
        if entry.job not in by_job and entry.job not in standing:
            # Of one whose commit was never answered nothing is known until it is held; then it has its place.
            insort(standing, entry.job)


def _was_due(birth: Birth | None, claim: Entry, steps: Sequence[Step]) -> bool:
    """Whether it was committed and due when this claim read the table."""
    if birth is None or birth.acknowledged_at is None or birth.acknowledged_at >= claim.asked_at:
        return False
    # The clock of the claim was read at its end. It read the table at some time after its statement came, and saw
    # what was due then. A clock that was moved meanwhile may have been read before the step or after it.
    moved = claim.clock - claim.at if steps else 0.0
    moved -= sum(abs(step.seconds) for step in steps if step.began <= claim.at and step.ended >= claim.asked_at)
    return birth.due_at <= claim.asked_at + moved


def _check_turns(turns: Iterable[Turn]) -> Iterator[Violation]:
    for (queue, key, turn), same in groupby(turns, key=attrgetter("queue", "key", "turn")):
        jobs = [each.job for each in same]
        if len(jobs) > 1:
            yield Violation("overlap", f"key {key} of {queue}", f"the effects of jobs {jobs} are both number {turn}")


def _check_limit(limit: Limit, steps: Sequence[Step], counts: Counter[str]) -> Iterator[Violation]:
    counts["limits"] += 1
    executing: set[int] = set()
    starts: deque[float] = deque()
    last_at = 0.0
    for entry in limit.ledger:
        if entry.what != HELD:
            executing.discard(entry.job)
            continue
        executing.add(entry.job)
        if limit.max_executing is not None and len(executing) > limit.max_executing:
            what = f"{len(executing)} executed at {entry.n}, and {limit.max_executing} may"
            yield Violation("limit", limit.name, what)
        if limit.rate is None:
            continue
        # A step of the queue's clock begins a new count: the same time comes twice, or never.
        if any(step.began <= entry.at and step.ended >= last_at for step in steps):
            starts.clear()
        last_at = entry.asked_at
        insort(starts, entry.clock)
        while starts and starts[0] <= starts[-1] - limit.per:
            starts.popleft()
        if len(starts) > limit.rate:
            what = f"{len(starts)} started within {limit.per} s at {entry.n}, and {limit.rate} may"
            yield Violation("limit", limit.name, what)


def _check_still(still: Still, evidence: Evidence, counts: Counter[str]) -> Iterator[Violation]:
    # A server that lost what it had acknowledged may have lost the pause as well.
    spans = [
        span for span in still.spans if not any(start <= span[1] and end >= span[0] for start, end in evidence.losses)
    ]
    counts["pauses"] += len(spans)
    for entry in still.ledger:
        if entry.what == HELD and any(began <= entry.asked_at and entry.at <= ended for began, ended in spans):
            what = f"job {entry.job} was claimed at {entry.n}, while it was paused"
            yield Violation("paused", still.name, what)


def _is_lost(at: float, evidence: Evidence, late: float = 0.0) -> bool:
    return any(start <= at <= end + late for start, end in evidence.losses)


def _states(story: _Story) -> str:
    return ", ".join(end.state for end in story.ends)
