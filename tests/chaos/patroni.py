"""Failovers under Patroni: the primary is killed, or its network is cut, and a standby takes its place by itself."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from examples.failover.cluster import missing
from pgqueue.schema.migrate import migrate
from tests.chaos.checker import Findings
from tests.chaos.scene import Scene, Verdict
from tests.ha.patroni import CutCluster

Fault = Callable[[Scene, random.Random], str | None]
Run = Callable[[Scene, list[list[Fault]], float], Verdict]


def failovers(directory: Path, name: str, seed: int, seconds: float, run: Run) -> Verdict:
    """Synchronous failovers for some seconds, with the load of the chaos tests."""
    if why := missing():
        return Verdict(name, seed, 0.0, 0.0, Findings(), Counter(), {"patroni": why})
    # Where the account of the servers may go.
    cluster = CutCluster(Path(tempfile.mkdtemp(prefix="pgqueue-patroni-")))
    try:
        cluster.start()
        migrate(cluster.dsn)

        def primary_killed_under_patroni(scene: Scene, rng: random.Random) -> str | None:
            primary = cluster.wait_for_primary()
            cluster.kill(primary)
            cluster.wait_for_primary(primary)
            cluster.start_node(primary)
            cluster.wait_for_standbys(2)
            return None

        def network_cut_under_patroni(scene: Scene, rng: random.Random) -> str | None:
            primary = cluster.wait_for_primary()
            cluster.cut(primary)
            try:
                cluster.wait_for_primary(primary)
            finally:
                cluster.join(primary)
            cluster.wait_for_standbys(2)
            return None

        scene = Scene(name, cluster.dsn, directory / "patroni_records", seed, fleet="small", pace=200)
        return run(scene, [[primary_killed_under_patroni, network_cut_under_patroni]], seconds)
    finally:
        cluster.stop()
