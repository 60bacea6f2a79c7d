"""Three servers under Patroni: what a failover costs, and what is lost, synchronous and asynchronous.

The figures are written to tests/ha/figures.json with PGQUEUE_WRITE_FIGURES=1.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest

from examples.failover import cluster as example
from examples.failover.cluster import Node
from pgqueue.schema.migrate import migrate
from tests.facts import wait_until
from tests.ha.patroni import LEASE_S, Answer, CutCluster, Producer, runs, workers
from tests.workers import WorkerProcess

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(420),
    pytest.mark.skipif(bool(example.missing()), reason=example.missing() or "-"),
]

FIGURES = Path(__file__).with_name("figures.json")


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[CutCluster]:
    directory = Path(tempfile.mkdtemp(prefix="pgqueue-cluster-"))
    found = CutCluster(directory, synchronous=request.param == "synchronous")
    try:
        found.start()
        migrate(found.dsn)
        yield found
    finally:
        found.stop()
        shutil.rmtree(directory, ignore_errors=True)


class Lag:
    """Standbys that receive nothing for a moment: what is committed meanwhile the primary alone knows."""

    def __init__(self, cluster: CutCluster, primary: Node) -> None:
        self.others = [node for node in cluster.nodes if node is not primary]
        self.cluster = cluster

    def hold(self) -> None:
        # The receivers stand still: what is sent to them stays in the network.
        for node in self.others:
            for pid in self._receivers(node):
                os.kill(pid, signal.SIGSTOP)

    def end(self) -> None:
        for node in self.others:
            for pid in self._receivers(node):
                # It ends before it reads what has come meanwhile.
                os.kill(pid, signal.SIGTERM)
                os.kill(pid, signal.SIGCONT)

    def _receivers(self, node: Node) -> list[int]:
        postmaster = node.postmaster()
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        return [int(pid) for pid in children if b"walreceiver" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.covers("D3", "A10")
@pytest.mark.parametrize(
    ("cluster", "how"),
    [
        ("synchronous", "the primary is killed"),
        ("synchronous", "the network of the primary is cut"),
        ("asynchronous", "the primary is killed behind standbys that lag"),
    ],
    indirect=["cluster"],
)
def test_a_failover(cluster: CutCluster, how: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    synchronous = cluster.synchronous
    fleet = list(workers(tmp_path, cluster.dsn, 2))
    producer = Producer(cluster.dsn)
    try:
        wait_until(lambda: len(runs(tmp_path)) > 200, timeout=60)
        primary = cluster.primary()
        assert primary is not None
        lag = None
        lagged_at = time.time()
        if "lag" in how:
            lag = Lag(cluster, primary)
            lag.hold()
            before = len(producer.answers)
            wait_until(lambda: len(producer.answers) > before + 100, timeout=30)
        broken_at = time.time()
        if "cut" in how:
            cluster.cut(primary)
        else:
            cluster.kill(primary)
        if lag is not None:
            # Stopped they would hold up the promotion, too.
            lag.end()
        new = cluster.wait_for_primary(primary, 120)
        promoted_at = time.time()
        wait_until(lambda: _first_new(runs(tmp_path), producer.answers, broken_at), timeout=90)
        first = _first_new(runs(tmp_path), producer.answers, broken_at)
        assert first is not None
        if "cut" in how:
            # It has given up by itself: there are never two.
            wait_until(lambda: cluster.ask(primary, "select pg_is_in_recovery()") != "f", timeout=60)
            cluster.join(primary)
        else:
            cluster.start_node(primary)
        producer.stop()
        with psycopg.connect(cluster.dsn, autocommit=True) as conn:
            wait_until(lambda: conn.execute("select 1 from pgqueue.jobs limit 1").fetchone() is None, timeout=90)
            ended = dict(conn.execute("select id, state::text from pgqueue.history").fetchall())
            args = {row[0] for row in conn.execute("select (args ->> 'i')::int from pgqueue.history").fetchall()}
        lost = [answer for answer in producer.answers if answer.number not in args]
        twice = _twice_within_a_lease(runs(tmp_path))
        figures = {
            "acknowledged": len(producer.answers),
            "seconds to the new primary": round(promoted_at - broken_at, 1),
            "seconds to the first job done": round(first - broken_at, 1),
            "acknowledged and lost": len(lost),
            "ran twice within a lease": len(twice),
        }
        _write(f"{'synchronous' if synchronous else 'asynchronous'}: {how}", figures)
        print(how, figures, new.name)  # noqa: T201
        if synchronous:
            assert lost == []
            assert twice == []
        else:
            # Exactly what the server lost: nothing that was committed before the standbys stood still, or after.
            assert lost
            assert all(lagged_at - 1 < answer.at < broken_at + 1 for answer in lost)
            assert all(lagged_at - LEASE_S < at < broken_at + 1 for at in twice)
        assert set(ended.values()) == {"succeeded"}
        for worker in fleet:
            assert "Traceback" not in worker.log()
            # Each has noticed, and gone on.
            assert "trying again until it answers" in worker.log()
            wait_until(partial(_says, worker, "answers again"), timeout=30)
            worker.send(signal.SIGTERM)
        assert [worker.wait() for worker in fleet] == [0, 0]
    finally:
        producer.stop()
        for worker in fleet:
            worker.kill()
            print(worker.log()[-3000:])  # noqa: T201


def _says(worker: WorkerProcess, text: str) -> bool:
    return text in worker.log()


def _first_new(begun: list[tuple[int, int, float]], answers: list[Answer], broken_at: float) -> float | None:
    """When the first job ran that was committed after the primary was gone."""
    new = {answer.number for answer in answers if answer.at > broken_at + 1}
    return min((at for _, number, at in begun if number in new), default=None)


def _twice_within_a_lease(begun: list[tuple[int, int, float]]) -> list[float]:
    """When jobs ran that had begun less than a lease ago, and not at a server that lost them."""
    times: defaultdict[int, list[float]] = defaultdict(list)
    for _, number, at in begun:
        times[number].append(at)
    return [
        later
        for each in times.values()
        for earlier, later in zip(sorted(each), sorted(each)[1:], strict=False)
        if later - earlier < LEASE_S
    ]


def _write(name: str, figures: dict[str, float]) -> None:
    if os.environ.get("PGQUEUE_WRITE_FIGURES"):
        found = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
        FIGURES.write_text(json.dumps({**found, name: figures}, indent=2) + "\n")
