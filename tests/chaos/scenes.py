"""Which scenes there are: every fault alone, all of them mixed, servers that fail over, a disk that is full."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from pgqueue import embedded
from pgqueue.schema.migrate import migrate
from tests.calls import value
from tests.chaos import patroni
from tests.chaos.checker import Findings
from tests.chaos.faults import CLIENT_FAULTS, SERVER_FAULTS, Fault, backends_terminated, worker_killed, worker_stopped
from tests.chaos.operators import OPERATOR_FAULTS
from tests.chaos.scene import Scene, Server, Verdict
from tests.facts import wait_until

ALONE: list[Fault] = [*CLIENT_FAULTS, *SERVER_FAULTS, *OPERATOR_FAULTS]

# What else happens while servers fail over.
BESIDE: list[Fault] = [backends_terminated, worker_killed, worker_stopped]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run: for `seconds` in all, over at least `jobs`."""

    directory: Path
    seed: int
    seconds: float
    jobs: int
    only: tuple[str, ...] = ()

    def wants(self, name: str) -> bool:
        return not self.only or name.startswith(self.only)


def scenes(plan: Plan) -> Iterator[Verdict]:
    """Run them, one after the other."""
    began = time.monotonic()
    jobs = 0
    # A quarter of the time for the faults alone, an eighth for failovers, the rest for all of them mixed.
    each = max(4.0, plan.seconds / 4 / len(ALONE) - 8)
    with running(plan.directory / "alone") as server:
        for number, fault in enumerate(ALONE):
            name = f"alone {fault.__name__}"
            if plan.wants(name):
                verdict = alone(server, fault, plan, name, number, each)
                jobs += verdict.committed
                yield verdict
    for name, play in OF_THEIR_OWN.items():
        if plan.wants(name):
            verdict = play(plan, name, plan.seconds / 24)
            jobs += verdict.committed
            yield verdict
    if plan.wants("mixed"):
        left = max(plan.seconds / 10, plan.seconds - (time.monotonic() - began))
        if plan.only:
            left = plan.seconds
        yield mixed(plan, "mixed", left, max(0, plan.jobs - jobs))


def alone(server: Server, fault: Fault, plan: Plan, name: str, number: int, seconds: float) -> Verdict:
    """One fault again and again, with a load of its own in a database of its own."""
    database = f"alone_{number}"
    scene = Scene(name, server.database(database), plan.directory / database, plan.seed + number, server=server)
    try:
        return run(scene, [[fault]], seconds)
    finally:
        server.execute(f"drop database {database} with (force)")


def mixed(plan: Plan, name: str, seconds: float, jobs: int) -> Verdict:
    """Three faults at any time: one done to clients, one to the server, and one by others who work in the database."""
    with running(plan.directory / "mixed") as server:
        pace = max(1500.0, 1.5 * jobs / seconds)
        scene = Scene(name, server.database("mixed"), plan.directory / "m", plan.seed, server=server, pace=pace)
        return run(scene, [CLIENT_FAULTS, SERVER_FAULTS, OPERATOR_FAULTS], seconds, jobs)


def handed_off(plan: Plan, name: str, seconds: float) -> Verdict:
    """Jobs come one by one to idle workers: enqueue reserves them. Two faults at any time."""
    with running(plan.directory / "handed_off") as server:
        scene = Scene(name, server.database("calm"), plan.directory / "h", plan.seed, server=server, is_calm=True)
        return run(scene, [CLIENT_FAULTS, [*SERVER_FAULTS, *OPERATOR_FAULTS]], seconds)


def run(scene: Scene, groups: Sequence[Sequence[Any]], seconds: float, jobs: int = 0) -> Verdict:
    """Run a scene from its beginning to its verdict."""
    try:
        scene.prepare()
        scene.start()
        # Something to be disturbed.
        wait_until(lambda: scene.ask("select 1 from pgqueue.history where reserved_by !~ '^sql' limit 1"), timeout=180)
        scene.run_faults(groups, seconds, jobs)
        drained = scene.drain()
    finally:
        scene.stop()
    return scene.verdict(drained)


def synchronous(plan: Plan, name: str, seconds: float) -> Verdict:
    """The primary crashes, and the standby that had to confirm every commit takes its place: nothing is lost."""
    return _failovers(plan, name, seconds, _fails_over_synchronously)


def asynchronous(plan: Plan, name: str, seconds: float) -> Verdict:
    """The standby that takes its place has not heard the last of it: what is lost is what the server lost."""
    return _failovers(plan, name, seconds, _fails_over_asynchronously)


class Pair:
    """A primary and its standby, which change places; `dsn` names both."""

    def __init__(self, directory: Path, *, synchronous: bool) -> None:
        self._directory = directory
        self._synchronous = synchronous
        directory.mkdir(parents=True)
        self.primary = Server(directory / "a")
        self.standby = self.primary.standby(directory / "b")
        hosts = f"{self.primary.host},{self.standby.host}"
        self.dsn = f"postgresql://postgres@/pgqueue?host={hosts}&port=5432,5432&target_session_attrs=read-write"
        migrate(self.primary.dsn)
        self._attach()

    def promote(self) -> None:
        """The standby becomes the primary, and a new standby is made where the old primary was."""
        self.standby.execute("alter system reset synchronous_standby_names")
        # In a process that becomes who the server runs as: pg_ctl does not run as root.
        command = [str(embedded.binaries() / "pg_ctl"), "promote", "--pgdata", str(self.standby.directory / "data")]
        subprocess.run([sys.executable, "-c", _AS_THE_SERVER, *command], check=True, capture_output=True)
        self.primary, self.standby = self.standby, self.primary

    def rebuild(self) -> None:
        embedded.stop(self.standby.directory)
        for left in reversed(range(5)):
            shutil.rmtree(self.standby.directory)
            try:
                self.standby = self.primary.standby(self.standby.directory)
                break
            except subprocess.CalledProcessError:
                # Another fault may have ended the session that copies.
                if not left:
                    raise
        self._attach()

    def close(self) -> None:
        for server in (self.primary, self.standby):
            embedded.stop(server.directory)

    def _attach(self) -> None:
        if self._synchronous:
            self.primary.execute("alter system set synchronous_standby_names = 'standby'")
            self.primary.execute("select pg_reload_conf()")
        wanted = "sync" if self._synchronous else "async"
        with psycopg.connect(self.primary.dsn, autocommit=True) as conn:
            question = "select bool_or(state = 'streaming' and sync_state = %s) from pg_stat_replication"
            wait_until(lambda: value(conn, question, wanted), timeout=60)


_AS_THE_SERVER = """
import os, pwd, subprocess, sys
from pgqueue.embedded.keeper import _preparation
account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
sys.exit(subprocess.run(sys.argv[1:], preexec_fn=_preparation(account)).returncode)
"""


def _failovers(
    plan: Plan, name: str, seconds: float, fail_over: Callable[[Pair, Scene, random.Random], None]
) -> Verdict:
    pair = Pair(plan.directory / name.replace(" ", "_"), synchronous=fail_over is _fails_over_synchronously)
    try:
        scene = Scene(name, pair.dsn, plan.directory / f"{name}_records", plan.seed, fleet="small", pace=800)

        def failover(scene: Scene, rng: random.Random) -> str | None:
            fail_over(pair, scene, rng)
            time.sleep(2)
            pair.rebuild()
            time.sleep(1)
            return None

        failover.__name__ = fail_over.__name__.removeprefix("_")
        return run(scene, [[failover], BESIDE], seconds)
    finally:
        pair.close()


def _fails_over_synchronously(pair: Pair, scene: Scene, rng: random.Random) -> None:
    pair.primary.crash()
    pair.promote()


def _fails_over_asynchronously(pair: Pair, scene: Scene, rng: random.Random) -> None:
    """The standby is cut off for a moment before the primary goes: the jobs and claims of that moment are lost."""
    lost_from = time.time()
    pair.standby.execute("alter system set primary_conninfo = 'host=/nowhere'")
    pair.standby.execute("select pg_reload_conf()")
    with psycopg.connect(pair.standby.dsn, autocommit=True) as conn:
        wait_until(lambda: not value(conn, "select exists (select from pg_stat_wal_receiver)"))
    time.sleep(rng.random())
    pair.primary.crash()
    # A producer or a handler may write down a little later what was answered before.
    scene.records.losses.append((lost_from - 1, time.time() + 0.5))
    pair.promote()
    pair.primary.execute("alter system reset primary_conninfo")


def under_patroni(plan: Plan, name: str, seconds: float) -> Verdict:
    """Three servers under Patroni, synchronous: the primary is killed, or its network is cut; nothing is lost."""
    return patroni.failovers(plan.directory, name, plan.seed, max(seconds, 60.0), run)


def disk_full(plan: Plan, name: str, seconds: float) -> Verdict:
    """The server's disk is full for a while: it panics, or refuses to write, and recovers when there is space again."""
    disk = plan.directory / "small_disk"
    disk.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "none", str(disk)], capture_output=True)
    if mounted.returncode:
        why = f"no small file system can be mounted here: {mounted.stderr.decode().strip()}"
        return Verdict(name, plan.seed, 0.0, 0.0, Findings(), Counter(), {"disk_full": why})
    try:
        with running(disk / "s", {"max_wal_size": "64MB", "shared_buffers": "64MB"}) as server:
            records = plan.directory / "disk_full"
            scene = Scene(name, server.dsn, records, plan.seed, server=server, fleet="small", pace=500)
            migrate(server.dsn)

            def server_disk_full(scene: Scene, rng: random.Random) -> str | None:
                filler = disk / "filler"
                try:
                    with filler.open("wb", buffering=0) as file, suppress(OSError):
                        while True:
                            file.write(b"\0" * 65536)
                    time.sleep(rng.choice((1, 4)))
                finally:
                    filler.unlink()
                log = (disk / "s" / "log").read_text(errors="replace")
                if "No space left on device" not in log:
                    raise AssertionError("the server has not noticed that its disk is full")
                # It may have given up.
                server.start()
                time.sleep(2)
                return None

            return run(scene, [[server_disk_full], [worker_killed]], seconds)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False, capture_output=True)


@contextmanager
def running(directory: Path, options: dict[str, str] | None = None) -> Iterator[Server]:
    """A server of its own for a while."""
    kind = type("Server", (Server,), {"options": Server.options | (options or {})})
    server: Server = kind(directory)
    try:
        yield server
    finally:
        embedded.stop(directory)


OF_THEIR_OWN: dict[str, Callable[[Plan, str, float], Verdict]] = {
    "handed off": handed_off,
    "failover synchronous": synchronous,
    "failover asynchronous": asynchronous,
    "patroni": under_patroni,
    "disk full": disk_full,
}
