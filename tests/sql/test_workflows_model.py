"""Random jobs in random groups, with dependencies, keys, steps, sleeps and events, against a model in Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import Row, call, enqueue, maintain, reserve, state, table, value
from tests.databases import Cloner, Database

RUN_IF = ("succeeded", "finished", "failed")
# What happens to a job that is ready, to a group, or from outside.
ACTIONS = (
    *("succeeded", "succeeded", "dead", "dead", "cancelled", "step", "wait", "wait", "sleep", "join"),
    *("emit", "close", "retry", "cancel", "later"),
)
EVENTS = 4
# A wait for one of these has a timeout. It ends, as a sleep does, with the next "later".
TIMED = (2, 3)
LIVE = ("blocked", "waiting", "suspended", "joined")


@dataclass
class Node:
    """A job, or a group. Its number is its place in the list."""

    is_group: bool
    group: int | None
    parents: list[int]
    run_if: str
    key: str | None = None
    state: str = "blocked"
    is_open: bool = True
    # Of a sleep, the number of the hour in which it began.
    steps: dict[str, int | None] = field(default_factory=dict)
    # The events that it waits for, and the hour in which it began to.
    awaits: dict[int, int] = field(default_factory=dict)
    # The hour after which a suspended job comes back by itself.
    until: int | None = None
    joined: int = 0


@dataclass
class Model:
    nodes: list[Node]
    emitted: set[int] = field(default_factory=set)
    hour: int = 0

    def settle(self) -> None:
        """Let jobs and groups start, be cancelled and end, until nothing changes."""
        changed = True
        while changed:
            changed = False
            for number, node in enumerate(self.nodes):
                if node.state == "blocked":
                    node.state = self._group(number) if node.is_group else self._verdict(node)
                elif node.state == "joined" and self.nodes[node.joined].state not in LIVE:
                    node.state = "waiting"
                else:
                    continue
                changed = changed or node.state != "blocked"

    def emit(self, event: int) -> None:
        self.emitted.add(event)
        for node in self.nodes:
            if event in node.awaits and node.state in ("waiting", "suspended"):
                del node.awaits[event]
                node.steps[f"event {event}"] = event
                node.state = "waiting"

    def later(self) -> None:
        self.hour += 1
        for node in self.nodes:
            if node.state == "suspended" and node.until is not None and node.until < self.hour:
                node.state = "waiting"

    def end(self, number: int, state: str) -> None:
        self.nodes[number].state = state
        self.nodes[number].awaits.clear()

    def ready(self) -> list[int]:
        """The jobs that wait, the first of each key only. One that began keeps its position."""
        held: set[str] = set()
        found = []
        for number, node in enumerate(self.nodes):
            if node.state == "waiting" and node.key not in held:
                found.append(number)
            if node.key is not None and node.state in ("waiting", "suspended", "joined"):
                held.add(node.key)
        return found

    def bring_back(self, number: int, state: str) -> None:
        """A job lives again: so does its group, and what was cancelled because of either alone."""
        node = self.nodes[number]
        node.state = state
        if node.group is not None and self.nodes[node.group].state != "blocked":
            self.bring_back(node.group, "blocked")
        for child, other in enumerate(self.nodes):
            alone = not any(self._failed(each) for each in other.parents)
            if other.state == "cancelled by parent" and number in other.parents and alone:
                self.bring_back(child, "blocked")

    def _group(self, number: int) -> str:
        states = [node.state for node in self.nodes if node.group == number]
        if self.nodes[number].is_open or any(each in LIVE for each in states):
            return "blocked"
        if "dead" in states:
            return "dead"
        return "cancelled" if any(each != "succeeded" for each in states) else "succeeded"

    def _verdict(self, node: Node) -> str:
        failed = any(self._failed(each) for each in node.parents)
        if failed and node.run_if == "failed":
            return "waiting"
        if failed and node.run_if == "succeeded":
            return "cancelled by parent"
        if any(self.nodes[each].state in LIVE for each in node.parents):
            return "blocked"
        return "cancelled" if node.run_if == "failed" and node.parents else "waiting"

    def _failed(self, number: int) -> bool:
        return self.nodes[number].state in ("dead", "cancelled", "cancelled by parent")


@st.composite
def workflows(draw: st.DrawFn) -> list[Node]:
    nodes: list[Node] = []
    for number in range(draw(st.integers(3, 10))):
        groups = [each for each in range(number) if nodes[each].is_group]
        group = draw(st.sampled_from([None, *groups, *groups]))
        is_group = draw(st.integers(0, 2)) == 0
        # A job that waits for what waits for its own group waits for ever.
        outer = _outer(nodes, group)
        others = [each for each in range(number) if not outer & _waits(nodes, each)]
        parents = draw(st.sets(st.sampled_from(others), max_size=2)) if others and not is_group else set()
        run_if = draw(st.sampled_from(RUN_IF)) if parents else "succeeded"
        key = None if is_group else draw(st.sampled_from([None, None, "k", "l"]))
        nodes.append(Node(is_group, group, sorted(parents), run_if, key))
    return nodes


def _outer(nodes: list[Node], group: int | None) -> set[int]:
    found = set()
    while group is not None:
        found.add(group)
        group = nodes[group].group
    return found


def _waits(nodes: list[Node], number: int) -> set[int]:
    """What must end before this one does, itself included."""
    found: set[int] = set()
    left = [number]
    while left:
        each = left.pop()
        if each not in found:
            found.add(each)
            left += nodes[each].parents
            left += [member for member, node in enumerate(nodes) if node.group == each]
    return found


@pytest.fixture(scope="module")
def shared(cloner: Cloner) -> tuple[Database, psycopg.Connection, Clock]:
    database = cloner.migrated()
    return database, database.connect(), Clock(database.connect())


@pytest.mark.long
@pytest.mark.timeout(600)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    nodes=workflows(),
    actions=st.lists(st.tuples(st.integers(0, 20), st.sampled_from(ACTIONS)), min_size=5, max_size=30),
)
def test_groups_steps_and_events_go_as_the_model_says(
    shared: tuple[Database, psycopg.Connection, Clock], nodes: list[Node], actions: list[tuple[int, str]]
) -> None:
    _, conn, clock = shared
    conn.execute(
        "truncate pgqueue.jobs, pgqueue.history, pgqueue.dependencies, pgqueue.notes, pgqueue.heads, pgqueue.lanes,"
        " pgqueue.steps, pgqueue.events, pgqueue.event_waits"
    )
    # The example is used again while hypothesis shrinks it.
    model = Model([Node(node.is_group, node.group, node.parents, node.run_if, node.key) for node in nodes])
    ids: list[int] = []
    for node in model.nodes:
        options: dict[str, Any] = {"group_id": ids[node.group]} if node.group is not None else {}
        if node.is_group:
            ids.append(call(conn, "open_group", "g", **options))
        else:
            options["key"] = node.key
            if node.parents:
                options |= {"depends_on": [ids[each] for each in node.parents], "run_if": node.run_if}
            ids.append(enqueue(conn, **options))
    for choice, action in actions:
        model.settle()
        _settle(conn, clock)
        _act(conn, model, clock, ids, choice, action)
    for number, node in enumerate(model.nodes):
        if node.is_group and node.is_open:
            call(conn, "close_group", ids[number])
            node.is_open = False
    for event in range(EVENTS):
        _act(conn, model, clock, ids, event, "emit")
    # All that is left succeeds, so that each group ends.
    while True:
        _act(conn, model, clock, ids, 0, "later")
        model.settle()
        _settle(conn, clock)
        if not any(node.state == "waiting" for node in model.nodes):
            break
        _act(conn, model, clock, ids, 0, "succeeded")
    assert [state(conn, each) for each in ids] == [node.state.removesuffix(" by parent") for node in model.nodes]
    assert not {node.state for node in model.nodes} & set(LIVE)
    for number, node in enumerate(model.nodes):
        assert {row.name for row in table(conn, "steps", ids[number])} == set(node.steps)
    assert value(conn, "select coalesce(max(unblocked), 0) from pgqueue.maintenance_runs") == 0


def _settle(conn: psycopg.Connection, clock: Clock) -> None:
    for _ in range(40):
        maintain(conn)
        clock.advance("600 ms")
        if not value(conn, "select exists (select from pgqueue.notes)"):
            return
    raise AssertionError("notes are left for ever")


def _act(conn: psycopg.Connection, model: Model, clock: Clock, ids: list[int], choice: int, action: str) -> None:
    if action == "emit":
        event = choice % EVENTS
        assert call(conn, "emit_event", f"event {event}", Jsonb(event)) is (event not in model.emitted)
        model.emit(event)
    elif action == "later":
        clock.advance("15 min")
        model.later()
    elif action == "cancel":
        live = [number for number, node in enumerate(model.nodes) if node.state in LIVE and not node.is_group]
        if live:
            number = live[choice % len(live)]
            assert call(conn, "cancel", ids[number]) == "cancelled"
            model.end(number, "cancelled")
    elif action == "close":
        open_ = [number for number, node in enumerate(model.nodes) if node.is_group and node.is_open]
        if open_:
            number = open_[choice % len(open_)]
            assert call(conn, "close_group", ids[number])
            model.nodes[number].is_open = False
    elif action == "retry":
        dead = [number for number, node in enumerate(model.nodes) if node.state == "dead" and not node.is_group]
        if dead:
            number = dead[choice % len(dead)]
            assert call(conn, "retry", ids[number])
            model.bring_back(number, "waiting")
    else:
        _run(conn, model, ids, choice, action)


def _run(conn: psycopg.Connection, model: Model, ids: list[int], choice: int, action: str) -> None:
    """Reserve all that are ready, do one thing to one of them, and give the others back."""
    ready = model.ready()
    rows: dict[int, Row] = {row.id: row for row in reserve(conn, 30)}
    assert set(rows) == {ids[number] for number in ready}
    if not ready:
        return
    number = ready[choice % len(ready)]
    node, row = model.nodes[number], rows.pop(ids[number])
    known = {each.name: each.result for each in table(conn, "steps", row.id)}
    assert set(known) == set(node.steps)
    if action == "step":
        name = f"step {choice % 3}"
        assert call(conn, "complete_step", row.id, row.reservation, name, Jsonb(choice))
        node.steps.setdefault(name, choice)
        stored = {each.name: each.result for each in table(conn, "steps", row.id)}
        assert stored[name] == node.steps[name]
        rows[row.id] = row
    elif action == "wait":
        if not _wait(conn, model, node, row, choice % EVENTS):
            rows[row.id] = row
    elif action == "sleep":
        name = f"sleep {choice % 2}"
        began = node.steps.setdefault(name, model.hour)
        assert began is not None
        assert call(conn, "sleep_step", row.id, row.reservation, name, "10 min") is (began < model.hour)
        if began < model.hour:
            rows[row.id] = row
        else:
            node.state, node.until = "suspended", began
    elif action == "join":
        # Later ones that wait for nothing: no circle.
        others = [
            other
            for other, each in enumerate(model.nodes[number + 1 :], number + 1)
            if not (each.is_group or each.parents or each.key or each.group is not None)
        ]
        if not others:
            rows[row.id] = row
        else:
            node.joined = others[choice % len(others)]
            lives = model.nodes[node.joined].state in LIVE
            answer = call(conn, "suspend", row.id, row.reservation, depends_on=[ids[node.joined]])
            assert answer == ("suspended" if lives else "ready")
            if lives:
                node.state = "joined"
            else:
                rows[row.id] = row
    elif action == "succeeded":
        assert call(conn, "complete", row.id, row.reservation)
        model.end(number, action)
    else:
        assert call(conn, "fail", row.id, row.reservation, retry=False, cancel=action == "cancelled") == action
        model.end(number, action)
    for each in rows.values():
        call(conn, "snooze", each.id, each.reservation, "0")


def _wait(conn: psycopg.Connection, model: Model, node: Node, row: Row, event: int) -> bool:
    """Wait for an event as a step; false: go on."""
    name = f"event {event}"
    timeout = "10 min" if event in TIMED else None
    [found] = table(conn, "await_event", row.id, row.reservation, name, name, timeout)
    began = node.awaits.get(event, model.hour)
    if name not in node.steps and event in model.emitted:
        node.steps[name] = event
    elif name not in node.steps and event in TIMED and began < model.hour:
        node.steps[name] = None
    if name in node.steps:
        assert (found.arrived, found.payload) == (node.steps[name] is not None, node.steps[name])
        node.awaits.pop(event, None)
        return False
    assert found.arrived is None
    node.awaits[event] = began
    node.state, node.until = "suspended", began if event in TIMED else None
    return True
