"""What must hold of dependencies, groups, steps and events after faults.

Pure, as checker.py: `workflow_recorder.py` reads the records, already joined by the server. Numbers are those of the
ledger: of two the lower was drawn first. A lock on the job's row, or the end of its parent, stands between the two
that are compared, so their order is that of their commits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from tests.chaos.findings import Violation

SUCCEEDED = "succeeded"


class Edge(NamedTuple):
    """A job that has ended, and one that it depended on.

    `began` is the number of its first claim (of a group: of its end), None if it never began; `parent_gone` that of
    the parent's end. `error` is the class of its last error.
    """

    child: int
    parent: int
    run_if: str
    is_group: bool
    state: str
    error: str | None
    began: int | None
    ended_at: float
    parent_state: str | None
    parent_gone: int | None


class Group(NamedTuple):
    """A group that has ended: what its result counts, what history counts, and the number of the last member's end.

    outer_state is how the group ended of which this one is a member.
    """

    group: int
    state: str
    gone: int
    ended_at: float
    result: tuple[int, int, int]
    members: tuple[int, int, int]
    last_gone: int | None
    live: int
    error: str | None
    outer_state: str | None = None


class Call(NamedTuple):
    """A step's function was called: the numbers of the claim under which it was, and of the step's completion."""

    job: int
    name: str
    reservation: int
    held: int | None
    completed: int | None


class Result(NamedTuple):
    """What a handler got of a step at `at`, and whether that is what is stored. `stored` None: nothing is."""

    job: int
    name: str
    value: str
    at: float
    stored: str | None
    times: int


class Payment(NamedTuple):
    """A step that is completed in a transaction with its effect: how often each is there.

    `called_at`: when its function was last called. If a server loses that transaction, the worker completes the step.
    """

    job: int
    name: str
    completed: int
    effects: int
    called_at: float | None = None


class Await(NamedTuple):
    """A handler went on at `at` because a job had ended, which it did at `gone_at`."""

    job: int
    awaited: int
    at: float
    gone_at: float | None


class Arrival(NamedTuple):
    """The end of a wait for an event, by a statement that came at `asked_at`.

    `emissions` is how often the event was emitted, `emitted` the payload of the first; `acknowledged_at` is when an
    emitter first knew that it was committed.
    """

    job: int
    event: str
    asked_at: float
    arrived: bool
    payload: str | None
    emissions: int
    emitted: str | None
    acknowledged_at: float | None


@dataclass(frozen=True, slots=True)
class Workflows:
    """The records, each sorted by its first field.

    left    steps and waits of jobs that are gone
    away    times in which history was not whole, for partitions of it were moved: what had ended may look deleted
    """

    edges: Iterable[Edge] = ()
    groups: Iterable[Group] = ()
    calls: Iterable[Call] = ()
    results: Iterable[Result] = ()
    payments: Iterable[Payment] = ()
    awaits: Iterable[Await] = ()
    arrivals: Iterable[Arrival] = ()
    left: int = 0
    away: Sequence[tuple[float, float]] = ()


def check_workflows(
    found: Workflows, losses: Sequence[tuple[float, float]], counts: Counter[str]
) -> Iterator[Violation]:
    """Return what does not hold. `losses`: times in which a server took what it had acknowledged with it."""
    for _, edges in groupby(found.edges, key=attrgetter("child")):
        yield from _check_child(list(edges), found.away, counts)
    for group in found.groups:
        counts["groups"] += 1
        yield from _check_group(group, found.away)
    for call in found.calls:
        counts["calls of steps"] += 1
        yield from _check_call(call)
    yield from _check_twice(found.results, losses, counts)
    for payment in found.payments:
        if payment.called_at is not None and _within(payment.called_at, losses):
            counts["lost with the server: effects of steps"] += payment.completed - payment.effects
        elif payment.effects != payment.completed or payment.completed > 1:
            what = f"{payment.name} was completed {payment.completed} times, with {payment.effects} effects"
            yield Violation("step", f"job {payment.job}", what)
    for each in found.awaits:
        counts["jobs awaited by handlers"] += 1
        if (each.gone_at is None or each.gone_at > each.at) and not _within(each.at, losses):
            yield Violation("dependency", f"job {each.job}", f"it went on before job {each.awaited} had ended")
    for arrival in found.arrivals:
        counts["waits for events"] += 1
        yield from _check_arrival(arrival, losses)
    if found.left:
        yield Violation("left behind", "steps", f"{found.left} steps and waits of jobs that are gone")


def _check_child(
    edges: Sequence[Edge], away: Sequence[tuple[float, float]], counts: Counter[str]
) -> Iterator[Violation]:
    child = edges[0]
    subject = f"job {child.child}"
    counts["dependencies"] += len(edges)
    counts[f"children that were to run if {child.run_if}"] += 1
    failed = [each for each in edges if each.parent_state not in (None, SUCCEEDED)]
    if child.began is None or (child.is_group and child.error in ("ParentFailed", "NotNeeded")):
        if _within(child.ended_at, away):
            return
        if child.error == "ParentFailed" and not (failed and child.run_if == "succeeded"):
            what = f"it was cancelled for a parent's sake, is to run if they {child.run_if}, and none failed"
            yield Violation("dependency", subject, what)
        if child.error == "NotNeeded" and (failed or child.run_if != "failed"):
            yield Violation("dependency", subject, "it was cancelled as not needed, and it was")
        return
    if child.is_group and child.state == "cancelled":
        return
    late = [each for each in edges if each.parent_gone is None or each.parent_gone > child.began]
    if child.run_if == "failed":
        if all(each in late for each in failed) and not _within(child.ended_at, away):
            yield Violation("dependency", subject, f"it began at {child.began}, and no parent had failed")
        return
    for each in late:
        what = f"it began at {child.began}, before its parent {each.parent} had ended at {each.parent_gone}"
        yield Violation("dependency", subject, what)
    if child.run_if == "succeeded" and failed:
        what = f"it began, though its parent {failed[0].parent} is {failed[0].parent_state}"
        yield Violation("dependency", subject, what)


def _check_group(group: Group, away: Sequence[tuple[float, float]]) -> Iterator[Violation]:
    subject = f"group {group.group}"
    if group.live:
        yield Violation("group", subject, f"it has ended, and {group.live} members have not")
    if group.last_gone is not None and group.last_gone > group.gone:
        yield Violation("group", subject, f"it ended at {group.gone}, before its last member at {group.last_gone}")
    if _within(group.ended_at, away):
        return
    if group.result != group.members:
        yield Violation("group", subject, f"its result counts {group.result}, and its members are {group.members}")
    _, dead, cancelled = group.members
    should = "dead" if dead else "cancelled" if cancelled else SUCCEEDED
    is_cancelled_whole = group.error == "ParentFailed" or (
        group.error == "GroupCancelled" and group.outer_state == "cancelled"
    )
    if group.state != should and not (group.state == "cancelled" and is_cancelled_whole):
        yield Violation(
            "group",
            subject,
            f"it is {group.state} ({group.error}), and of its members {dead} are dead, {cancelled} cancelled",
        )


def _check_call(call: Call) -> Iterator[Violation]:
    if call.held is not None and call.completed is not None and call.completed < call.held:
        what = f"{call.name} was completed at {call.completed}, and ran again under the claim at {call.held}"
        yield Violation("step", f"job {call.job}", what)


def _check_twice(
    results: Iterable[Result], losses: Sequence[tuple[float, float]], counts: Counter[str]
) -> Iterator[Violation]:
    for each in results:
        counts["results of steps"] += 1
        subject = f"job {each.job}"
        if each.times > 1:
            yield Violation("step", subject, f"{each.name} was completed {each.times} times")
        if each.stored is None and not _within(each.at, losses):
            yield Violation("step", subject, f"a handler got {each.value} of {each.name}, which is not stored")
        elif each.stored is not None and each.stored != each.value and not _within(each.at, losses):
            yield Violation("step", subject, f"a handler got {each.value} of {each.name}, and {each.stored} is stored")


def _check_arrival(arrival: Arrival, losses: Sequence[tuple[float, float]]) -> Iterator[Violation]:
    subject = f"event {arrival.event}"
    if arrival.emissions > 1:
        yield Violation("event", subject, f"it was emitted {arrival.emissions} times")
    if arrival.arrived and (not arrival.emissions or arrival.payload != arrival.emitted):
        yield Violation("event", subject, f"job {arrival.job} got {arrival.payload}, and {arrival.emitted} was emitted")
    known_at = arrival.acknowledged_at
    if known_at is None or arrival.arrived or _within(known_at, losses):
        return
    if known_at < arrival.asked_at:
        late = arrival.asked_at - known_at
        yield Violation("event", subject, f"job {arrival.job} gave up {late:.3f} s after it had been emitted")


def _within(at: float, windows: Sequence[tuple[float, float]]) -> bool:
    return any(start <= at <= end for start, end in windows)
