"""The reports to systemd: by real worker processes, over a datagram socket as systemd has one."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest

from pgqueue.processes import service_manager
from pgqueue.processes.service_manager import ServiceManager
from tests.calls import enqueue, state
from tests.facts import wait_until
from tests.worker.conftest import Start
from tests.workers import write_module

pytestmark = pytest.mark.long

TASKS = """
    import os, pathlib, socket, time
    from pgqueue import App

    app = App()
    here = pathlib.Path(__file__).parent

    @app.task
    async def block(seconds: float):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.connect(str(here / "notify"))
            manager.send(b"BLOCKED=1")
            time.sleep(seconds)
            manager.send(b"BLOCKED=0")

    @app.task
    def environment():
        found = [name for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID") if name in os.environ]
        (here / "environment").write_text(" ".join(found))
"""


@dataclass
class Manager:
    """The other end. `received` has (pid of the sender, line) of each line, in the order in which they were sent."""

    address: str
    found: socket.socket
    received: list[tuple[int, str]] = field(default_factory=list)

    def lines(self, prefix: str = "") -> list[str]:
        self.read()
        return [line for _, line in self.received if line.startswith(prefix)]

    def senders(self) -> set[int]:
        return {pid for pid, _ in self.received}

    def read(self) -> None:
        while True:
            try:
                data, ancillary, _, _ = self.found.recvmsg(4096, socket.CMSG_SPACE(12))
            except BlockingIOError:
                return
            [(_, _, credentials)] = ancillary
            pid = struct.unpack("iII", credentials)[0]
            self.received += [(pid, line) for line in data.decode().splitlines()]

    def hears(self, line: str, times: int = 1) -> Callable[[], bool]:
        return lambda: len([each for each in self.lines() if each == line]) >= times


def listen(address: str) -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    found.bind("\0" + address[1:] if address.startswith("@") else address)
    found.setblocking(False)
    return found


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    write_module(tmp_path, TASKS)
    address = str(tmp_path / "notify")
    with listen(address) as found:
        yield Manager(address, found)


def test_a_worker_says_when_it_is_ready_what_it_does_and_when_it_stops(manager: Manager, start_worker: Start) -> None:
    worker = start_worker("-r", "jobs", NOTIFY_SOCKET=manager.address)
    wait_until(manager.hears("READY=1"), timeout=30)
    assert manager.lines("WATCHDOG") == []
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    lines = manager.lines()
    assert [line for line in lines if not line.startswith("STATUS=")] == ["READY=1", "STOPPING=1"]
    texts = manager.lines("STATUS=")
    assert re.fullmatch(r"STATUS=ready: 0 running, 0 succeeded, 0 failed", texts[-2])
    assert texts[-1].startswith("STATUS=it stops")


def test_a_worker_that_cannot_start_is_never_ready(manager: Manager, start_worker: Start) -> None:
    worker = start_worker("-r", "no_such_module", NOTIFY_SOCKET=manager.address)
    assert worker.wait() == 2
    assert manager.lines("READY") == []


def test_signs_of_life_come_from_a_worker_that_has_a_watchdog(manager: Manager, start_worker: Start) -> None:
    start_worker("-r", "jobs", NOTIFY_SOCKET=manager.address, WATCHDOG_USEC="1500000")
    wait_until(manager.hears("WATCHDOG=1", times=3), timeout=30)


@pytest.mark.parametrize("watchdog", [0.4, 1.5, 30.0])
async def test_signs_of_life_come_twice_within_the_watchdogs_time(
    manager: Manager, monkeypatch: pytest.MonkeyPatch, watchdog: float
) -> None:
    now, signs = 0.0, list[float]()

    async def sleep(seconds: float) -> None:
        nonlocal now
        if manager.lines("WATCHDOG=1")[len(signs) :]:
            signs.append(now)
        now += seconds
        if now > 5 * watchdog:
            raise asyncio.CancelledError

    clock = SimpleNamespace(monotonic=lambda: now, monotonic_ns=lambda: round(now * 1e9))
    monkeypatch.setattr(service_manager, "time", clock)
    monkeypatch.setattr(service_manager, "asyncio", SimpleNamespace(sleep=sleep))
    with pytest.raises(asyncio.CancelledError):
        await ServiceManager(manager.address, watchdog).notify_forever(lambda: {"started": True})
    assert max(after - before for before, after in pairwise(signs)) <= watchdog / 2 + 1e-9


def test_no_sign_of_life_comes_from_a_process_whose_event_loop_is_blocked(
    manager: Manager, start_worker: Start, conn: psycopg.Connection
) -> None:
    start_worker("-r", "jobs", NOTIFY_SOCKET=manager.address, WATCHDOG_USEC="400000")
    wait_until(manager.hears("READY=1"), timeout=30)
    # As long as ten signs of life take.
    enqueue(conn, "block", {"seconds": 2.0})
    wait_until(manager.hears("BLOCKED=0"), timeout=30)
    signs = len(manager.lines("WATCHDOG=1"))
    wait_until(manager.hears("WATCHDOG=1", times=signs + 1), timeout=30)
    lines = manager.lines()
    assert lines[lines.index("BLOCKED=1") + 1] == "BLOCKED=0"


def test_the_watchdog_of_another_process_is_not_fed(manager: Manager, start_worker: Start) -> None:
    start_worker("-r", "jobs", NOTIFY_SOCKET=manager.address, WATCHDOG_USEC="100000", WATCHDOG_PID="1")
    wait_until(manager.hears("READY=1"), timeout=30)
    # As long as twenty signs of life would take.
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > 1)
    assert manager.lines("WATCHDOG") == []


def test_a_supervisor_alone_reports_and_says_when_it_reloads(manager: Manager, start_worker: Start) -> None:
    supervisor = start_worker("-r", "jobs", "--processes", "2", NOTIFY_SOCKET=manager.address, WATCHDOG_USEC="3000000")
    wait_until(manager.hears("READY=1"), timeout=60)
    supervisor.send(signal.SIGHUP)
    wait_until(manager.hears("READY=1", times=2), timeout=60)
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait(60) == 0
    phases = [line for line in manager.lines() if re.match("READY|RELOADING|STOPPING", line)]
    assert phases == ["READY=1", "RELOADING=1", "READY=1", "STOPPING=1"]
    assert [line for line in manager.lines("MONOTONIC_USEC=") if int(line.partition("=")[2]) > 0] != []
    assert manager.senders() == {supervisor.pid}


@pytest.mark.parametrize("processes", [[], ["--processes", "1"]], ids=["one process", "supervised"])
def test_handlers_and_what_they_start_do_not_see_the_socket(
    manager: Manager, start_worker: Start, conn: psycopg.Connection, tmp_path: Path, processes: list[str]
) -> None:
    job_id = enqueue(conn, "environment")
    start_worker("-r", "jobs", *processes, NOTIFY_SOCKET=manager.address, WATCHDOG_USEC="9000000")
    wait_until(lambda: state(conn, job_id) == "succeeded", timeout=60)
    assert (tmp_path / "environment").read_text() == ""


def test_an_abstract_address_is_understood_and_what_was_not_sent_is_said_again(tmp_path: Path) -> None:
    address = f"@pgqueue-test-{os.getpid()}"
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
    found = ServiceManager.take(environment)
    assert environment == {}
    assert found is not None
    assert found.watchdog == 30
    # Nothing listens yet.
    found.report({"ready": True})
    with listen(address) as other_end:
        manager = Manager(address, other_end)
        found.report({"ready": True})
        found.report({"ready": True})
        assert manager.lines() == ["READY=1", "STATUS=ready: 0 running, 0 succeeded, 0 failed", "WATCHDOG=1"]


@pytest.mark.parametrize("address", ["", "relative", "vsock:2:1234"])
def test_without_a_socket_that_can_be_used_nothing_is_sent(address: str) -> None:
    assert ServiceManager.take({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1"}) is None
