"""Random jobs in random groups, with dependencies, steps and events, against a model in a few lines of Python."""

from __future__ import annotations

from dataclasses import dataclass, field

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
ACTIONS = ("succeeded", "succeeded", "dead", "dead", "cancelled", "step", "wait", "emit", "close", "retry")
EVENTS = 3
LIVE = ("blocked", "waiting", "suspended")


@dataclass
class Node:
    """A job, or a group. Its number is its place in the list."""

    is_group: bool
    group: int | None
    parents: list[int]
    run_if: str
    state: str = "blocked"
    is_open: bool = True
    steps: dict[str, int] = field(default_factory=dict)
    awaited: int | None = None


@dataclass
class Model:
    nodes: list[Node]
    emitted: set[int] = field(default_factory=set)

    def settle(self) -> None:
        """Let jobs and groups start, be cancelled and end, until nothing changes."""
        changed = True
        while changed:
            changed = False
            for number, node in enumerate(self.nodes):
                if node.state == "blocked":
                    node.state = self._group(number) if node.is_group else self._verdict(node)
                elif node.state == "suspended" and node.awaited in self.emitted:
                    node.state = "waiting"
                    node.steps[f"event {node.awaited}"] = node.awaited or 0
                else:
                    continue
                changed = changed or node.state not in ("blocked", "suspended")

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
        # Whoever waits for what waits for its own group waits for ever.
        outer = _outer(nodes, group)
        others = [each for each in range(number) if not outer & _waits(nodes, each)]
        parents = draw(st.sets(st.sampled_from(others), max_size=2)) if others and not is_group else set()
        run_if = draw(st.sampled_from(RUN_IF)) if parents else "succeeded"
        nodes.append(Node(is_group, group, sorted(parents), run_if))
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
    model = Model([Node(node.is_group, node.group, node.parents, node.run_if) for node in nodes])
    ids: list[int] = []
    for node in model.nodes:
        options = {"group_id": ids[node.group]} if node.group is not None else {}
        if node.is_group:
            ids.append(call(conn, "open_group", "g", **options))
        else:
            if node.parents:
                options |= {"depends_on": [ids[each] for each in node.parents], "run_if": node.run_if}
            ids.append(enqueue(conn, **options))
    for choice, action in actions:
        model.settle()
        _settle(conn, clock)
        _act(conn, model, ids, choice, action)
    for number, node in enumerate(model.nodes):
        if node.is_group and node.is_open:
            call(conn, "close_group", ids[number])
            node.is_open = False
    for event in range(EVENTS):
        _act(conn, model, ids, event, "emit")
    # All that is left succeeds, so that each group ends.
    while True:
        model.settle()
        _settle(conn, clock)
        if not any(node.state == "waiting" for node in model.nodes):
            break
        _act(conn, model, ids, 0, "succeeded")
    assert [state(conn, each) for each in ids] == [node.state.removesuffix(" by parent") for node in model.nodes]
    assert not {node.state for node in model.nodes} & set(LIVE)
    for number, node in enumerate(model.nodes):
        assert {row.name for row in table(conn, "steps", ids[number])} == set(node.steps)
    assert value(conn, "select coalesce(max(unparked), 0) from pgqueue.maintenance_runs") == 0


def _settle(conn: psycopg.Connection, clock: Clock) -> None:
    for _ in range(40):
        maintain(conn)
        clock.advance("600 ms")
        if not value(conn, "select exists (select from pgqueue.notes)"):
            return
    raise AssertionError("notes are left for ever")


def _act(conn: psycopg.Connection, model: Model, ids: list[int], choice: int, action: str) -> None:
    if action == "emit":
        event = choice % EVENTS
        assert call(conn, "emit_event", f"event {event}", Jsonb(event)) is (event not in model.emitted)
        model.emitted.add(event)
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
    ready = [number for number, node in enumerate(model.nodes) if node.state == "waiting"]
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
        event = choice % EVENTS
        [found] = table(conn, "await_event", row.id, row.reservation, f"event {event}", f"event {event}")
        if event in model.emitted:
            assert (found.arrived, found.payload) == (True, event)
            node.steps[f"event {event}"] = event
            rows[row.id] = row
        else:
            assert found.arrived is None
            node.state, node.awaited = "suspended", event
    elif action == "succeeded":
        assert call(conn, "complete", row.id, row.reservation)
        node.state = action
    else:
        assert call(conn, "fail", row.id, row.reservation, retry=False, cancel=action == "cancelled") == action
        node.state = action
    for each in rows.values():
        call(conn, "snooze", each.id, each.reservation, "0")
