"""The health endpoint, asked over HTTP."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest

from pgqueue.processes import health
from tests.calls import enqueue
from tests.facts import wait_until, wait_until_async
from tests.worker.conftest import Start
from tests.workers import WorkerProcess, write_module

TASKS = """
    import asyncio, pathlib
    from pgqueue import App

    app = App()
    here = pathlib.Path(__file__).parent

    @app.task
    async def long():
        while not (here / "go").exists():
            await asyncio.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def tasks(tmp_path: Path) -> None:
    write_module(tmp_path, TASKS)


def port_of(worker: WorkerProcess) -> int:
    found = wait_until(lambda: re.search(r"health at http://127\.0\.0\.1:(\d+)/status", worker.log()), timeout=30)
    return int(found[1])


def get(worker: WorkerProcess, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port_of(worker)}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def status(worker: WorkerProcess) -> Any:
    return orjson.loads(get(worker, "/status")[1])


def test_a_worker_tells_what_it_does(conn: psycopg.Connection, start_worker: Start, tmp_path: Path) -> None:
    worker = start_worker("-r", "jobs", "-c", "3", "--name", "w", "--health-port", "0").started()
    assert get(worker, "/live") == (200, "live\n")
    wait_until(lambda: get(worker, "/ready") == (200, "ready\n"))
    enqueue(conn, "long")
    enqueue(conn, "long")
    wait_until(lambda: status(worker)["running"] == 2)
    found = status(worker)
    assert (found["worker"], found["pid"], found["concurrency"], found["free"]) == ("w", worker.pid, 3, 1)
    assert found["memory"] > 10 * 2**20
    assert 0 <= found["last_reserve"] < found["uptime"]
    assert (found["outage"], found["last_error"], found["succeeded"]) == (None, None, 0)
    (tmp_path / "go").touch()
    wait_until(lambda: status(worker)["succeeded"] == 2)
    worker.send(signal.SIGUSR1)
    wait_until(lambda: get(worker, "/ready") == (503, "it is quiet\n"))
    assert get(worker, "/live")[0] == 200


def test_a_worker_without_its_database_lives_and_is_not_ready(start_worker: Start) -> None:
    # Nothing listens on port 1.
    worker = start_worker("-r", "jobs", "--health-port", "0", dsn="postgresql://postgres@127.0.0.1:1/app")
    wait_until(lambda: "trying again" in worker.log(), timeout=20)
    assert get(worker, "/live")[0] == 200
    code, reason = get(worker, "/ready")
    assert code == 503
    assert "refused" in reason
    assert status(worker)["outage"] > 0
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.long
def test_a_supervisor_tells_of_all_its_workers(conn: psycopg.Connection, start_worker: Start, tmp_path: Path) -> None:
    supervisor = start_worker("-r", "jobs", "--processes", "2", "-c", "1", "--name", "s", "--health-port", "0")
    assert get(supervisor, "/live")[0] == 200
    wait_until(lambda: supervisor.log().count(" is ready") == 2, timeout=30)
    enqueue(conn, "long")
    enqueue(conn, "long")
    wait_until(lambda: status(supervisor)["running"] == 2)
    found = status(supervisor)
    assert found["ready_processes"] == 2
    assert {each["worker"] for each in found["workers"]} == {"s:1", "s:2"}
    assert all(each["running"] == 1 and each["memory"] > 0 for each in found["workers"])
    assert get(supervisor, "/ready")[0] == 200
    (tmp_path / "go").touch()
    wait_until(lambda: status(supervisor)["succeeded"] == 2)
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == 0


def test_prometheus_finds_its_metrics(start_worker: Start) -> None:
    pytest.importorskip("prometheus_client")
    worker = start_worker("-r", "jobs", "--name", "w", "--health-port", "0").started()
    code, text = get(worker, "/metrics")
    assert code == 200
    assert re.search(r'^pgqueue_worker_succeeded_total\{worker="w"\} 0\.0$', text, re.MULTILINE)
    assert re.search(r'^pgqueue_worker_concurrency\{worker="w"\} 20\.0$', text, re.MULTILINE)


def test_without_the_extra_the_metrics_say_what_to_install(
    start_worker: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A finder before all others that knows no prometheus_client, as where it is not installed.
    (tmp_path / "without.py").write_text(
        "import sys\nclass Without:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'prometheus_client':\n            raise ModuleNotFoundError(name=name)\n"
        "sys.meta_path.insert(0, Without())\nsys.modules['prometheus_client'] = None\n"
        "import pgqueue\napp = pgqueue.App()\n"
    )
    worker = start_worker("-r", "jobs", "-r", "without", "--health-port", "0").started()
    code, text = get(worker, "/metrics")
    assert (code, text) == (501, "prometheus-client is not installed: pip install 'pgqueue-sql[metrics]'\n")


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", b"HTTP/1.1 404 "),
        (b"POST /ready HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 "),
        (b"HEAD /live HTTP/1.0\r\n\r\n", b"HTTP/1.1 200 "),
        (b"\x16\x03\x01 no HTTP\r\n\r\n", b"HTTP/1.1 405 "),
        (b"x" * 20_000 + b"\r\n\r\n", b""),
    ],
)
def test_a_malformed_request_does_no_harm(request_: bytes, answer: bytes, start_worker: Start) -> None:
    worker = start_worker("-r", "jobs", "--health-port", "0").started()
    with socket.create_connection(("127.0.0.1", port_of(worker)), timeout=60) as client:
        client.sendall(request_)
        try:
            got = client.recv(1000)
        except ConnectionResetError:
            got = b""
    assert got.startswith(answer)
    assert bool(got) is bool(answer)
    assert get(worker, "/live")[0] == 200
    assert "Traceback" not in worker.log()


@pytest.mark.parametrize("size", [60_000, 50_000_000])
async def test_a_client_that_does_not_read_its_answer_is_not_kept(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_PATIENCE", 0.3)
    serving = health.HealthServer(lambda: {"ready": True, "reason": "", "much": "x" * size}, list)
    port = await serving.start("127.0.0.1", 0)
    assert serving._server is not None
    serving._server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    before = asyncio.all_tasks()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", port))
        client.sendall(b"GET /status HTTP/1.1\r\n\r\n")
        await wait_until_async(lambda: asyncio.all_tasks() - before)
        await wait_until_async(lambda: not asyncio.all_tasks() - before)
    serving.close()


def test_a_port_that_is_taken_is_one_line_and_exit_code_2(start_worker: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        worker = start_worker("-r", "jobs", "--health-port", port, "--log-level", "warning")
        assert worker.wait() == 2
        [line] = worker.log().splitlines()
        assert f"cannot listen on 127.0.0.1:{port}" in line
