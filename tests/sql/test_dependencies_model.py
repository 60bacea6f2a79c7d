"""Random graphs of jobs that end in random ways, in random order, against a model in a few lines of Python."""

from __future__ import annotations

from dataclasses import dataclass, field

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.calls import Row, call, enqueue, maintain, reserve, state, value
from tests.databases import Cloner

RUN_IF = ("succeeded", "finished", "failed")
ENDS = ("succeeded", "dead", "cancelled", "retried")


@dataclass
class Node:
    parents: list[int]
    run_if: str
    group: int | None = None
    state: str = "blocked"


@dataclass
class Model:
    """The states of the jobs as run_if says. The number of a node is its place in the list."""

    nodes: list[Node] = field(default_factory=list)

    def settle(self) -> None:
        """Release and cancel blocked jobs, until nothing changes."""
        changed = True
        while changed:
            changed = False
            for node in self.nodes:
                if node.state == "blocked":
                    node.state = self._verdict(node)
                    changed = changed or node.state != "blocked"

    def reopen(self, retried: int) -> None:
        """A retried job brings back what was cancelled because of it, and of it alone."""
        for number, node in enumerate(self.nodes):
            alone = all(not self._failed(self.nodes[each].state) for each in node.parents)
            if node.state == "cancelled by parent" and retried in node.parents and alone:
                node.state = "blocked"
                self.reopen(number)

    def _verdict(self, node: Node) -> str:
        states = [self.nodes[each].state for each in node.parents]
        failed = any(self._failed(each) for each in states)
        is_open = any(each in ("blocked", "waiting") for each in states)
        if failed and node.run_if == "failed":
            return "waiting"
        if failed and node.run_if == "succeeded":
            return "cancelled by parent"
        if is_open:
            return "blocked"
        return "cancelled" if node.run_if == "failed" and node.parents else "waiting"

    def _failed(self, state: str) -> bool:
        return state in ("dead", "cancelled", "cancelled by parent")


@st.composite
def graphs(draw: st.DrawFn) -> list[Node]:
    nodes: list[Node] = []
    for number in range(draw(st.integers(2, 9))):
        parents = draw(st.sets(st.integers(0, number - 1), max_size=3)) if number else set()
        nodes.append(Node(sorted(parents), draw(st.sampled_from(RUN_IF)) if parents else "succeeded"))
    return nodes


@pytest.fixture(scope="module")
def shared(cloner: Cloner) -> psycopg.Connection:
    return cloner.migrated().connect()


@pytest.mark.long
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    graph=graphs(),
    ends=st.lists(st.tuples(st.integers(0, 20), st.sampled_from(ENDS), st.booleans()), min_size=5, max_size=40),
)
# Two children that look alike.
@example(
    graph=[Node([], "succeeded"), *(Node([0], "succeeded") for _ in range(2)), Node([2], "succeeded")],
    ends=[(0, "dead", False), (0, "retried", False)],
)
def test_each_job_starts_and_ends_as_run_if_says(
    shared: psycopg.Connection, graph: list[Node], ends: list[tuple[int, str, bool]]
) -> None:
    conn = shared
    conn.execute(
        "truncate pgqueue.jobs, pgqueue.history, pgqueue.dependencies, pgqueue.notes, pgqueue.heads, pgqueue.lanes"
    )
    model = Model([Node(node.parents, node.run_if) for node in graph])
    ids = [enqueue(conn, depends_on=[], args={"i": 0}) if not node.parents else None for node in graph]
    for number, node in enumerate(graph):
        if node.parents:
            ids[number] = enqueue(conn, depends_on=[ids[each] for each in node.parents], run_if=node.run_if)
    model.settle()
    for choice, how, looks in ends:
        _step(conn, model, ids, choice, how)
        model.settle()
        if looks:
            maintain(conn)
    maintain(conn)
    assert [state(conn, each) for each in ids] == [node.state.removesuffix(" by parent") for node in model.nodes]
    assert value(conn, "select coalesce(max(unblocked), 0) from pgqueue.maintenance_runs") == 0


def _step(conn: psycopg.Connection, model: Model, ids: list[int | None], choice: int, how: str) -> None:
    if how == "retried":
        ended = [number for number, node in enumerate(model.nodes) if node.state == "dead"]
        if ended:
            number = ended[choice % len(ended)]
            assert call(conn, "retry", ids[number])
            model.nodes[number].state = "waiting"
            model.reopen(number)
        return
    ready = [number for number, node in enumerate(model.nodes) if node.state == "waiting"]
    rows: dict[int, Row] = {row.id: row for row in reserve(conn, 20)}
    assert set(rows) == {ids[number] for number in ready}
    if rows:
        number = ready[choice % len(ready)]
        row = rows.pop(ids[number] or 0)
        if how == "succeeded":
            call(conn, "complete", row.id, row.reservation)
        else:
            call(conn, "fail", row.id, row.reservation, retry=False, cancel=how == "cancelled")
        model.nodes[number].state = how
    for row in rows.values():
        call(conn, "snooze", row.id, row.reservation, "0")
