"""A cluster of three under Patroni whose network can be cut, and jobs that write down when they ran."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg

from examples.failover.cluster import PASSWORD, Cluster, Node, free_port
from pgqueue import enqueue
from tests.proxy import Proxy
from tests.workers import WorkerProcess, write_module

LEASE_S = 6.0

TASKS = """
    import os
    import time
    from pgqueue import App, Job

    app = App()

    @app.task
    def t(job: Job, i: int):
        # One write: what a process that is killed has begun is there.
        began = time.time()
        fd = os.open("runs", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{job.id} {i} {began}\\n".encode())
        os.close(fd)
        time.sleep(0.01)
"""


class CutCluster(Cluster):
    """A node reaches etcd, and is reached, through proxies: cut, it runs on and is alone."""

    def __init__(self, directory: Path, *, synchronous: bool = True) -> None:
        super().__init__(directory, synchronous=synchronous)
        self._ways: dict[str, tuple[Proxy, Proxy]] = {}
        for node in self.nodes:
            inward = Proxy(f"postgresql://127.0.0.1:{node.port}/x")
            outward = Proxy(f"postgresql://127.0.0.1:{self.etcd_port}/x")
            self._ways[node.name] = (inward, outward)
            node.seen_at, node.etcd = _port(inward), _port(outward)

    def cut(self, node: Node) -> None:
        """Nothing passes between the node and others any more, and no side is told."""
        for way in self._ways[node.name]:
            way.freeze()

    def join(self, node: Node) -> None:
        """Its network is back."""
        for way in self._ways[node.name]:
            way.drop()
            way.thaw()

    def stop(self) -> None:
        for ways in self._ways.values():
            for way in ways:
                way.thaw()
        super().stop()
        for ways in self._ways.values():
            for way in ways:
                with suppress(Exception):
                    way.close()


def _port(proxy: Proxy) -> int:
    return int(proxy.dsn.rpartition(":")[2].partition("/")[0])


@dataclass(frozen=True, slots=True)
class Answer:
    """What a producer was told: this job is committed, at this time."""

    number: int
    job_id: int
    at: float


class Producer(threading.Thread):
    """Enqueues about a hundred jobs a second, wherever the primary is, until it is stopped."""

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self._dsn = dsn
        self._stopped = threading.Event()
        self.answers: list[Answer] = []
        self.number = 0
        self.start()

    def run(self) -> None:
        while not self._stopped.is_set():
            with suppress(psycopg.Error), psycopg.connect(self._dsn, autocommit=True, tcp_user_timeout=3000) as conn:
                while not self._stopped.is_set():
                    self.number += 1
                    job_id = enqueue(conn, "t", {"i": self.number})
                    self.answers.append(Answer(self.number, job_id, time.time()))
                    self._stopped.wait(0.01)
            self._stopped.wait(0.05)

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def runs(directory: Path) -> list[tuple[int, int, float]]:
    """Return (job id, number, time) of what handlers began."""
    file = directory / "runs"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(int(job_id), int(number), float(at)) for job_id, number, at in map(str.split, lines)]


def workers(directory: Path, dsn: str, count: int) -> Iterator[WorkerProcess]:
    """Start workers in a directory."""
    write_module(directory, TASKS)
    for n in range(count):
        yield WorkerProcess(directory, dsn, "-r", "jobs", "--lease", str(LEASE_S), "--name", f"w{n}").started()


__all__ = ["LEASE_S", "PASSWORD", "Answer", "CutCluster", "Producer", "free_port", "runs", "workers"]
