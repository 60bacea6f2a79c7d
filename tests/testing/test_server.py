"""Which server a test run gets. A Docker engine is a real unix socket that answers what Docker answers to a ping."""

from __future__ import annotations

import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

pytest.importorskip("testcontainers")

TEST = """
def test_it(pgqueue_connection):
    assert pgqueue_connection.execute("select count(*) from pgqueue.jobs").fetchone() == (0,)
    print("data in", pgqueue_connection.execute("show data_directory").fetchone()[0])
"""


class Engine(socketserver.ThreadingUnixStreamServer):
    """What every Docker engine answers at the door. It runs no containers: a request for one gets an error."""

    daemon_threads = True

    def __init__(self, path: Path, ping: int = 200) -> None:
        self.asked: list[str] = []
        self.ping = ping
        super().__init__(str(path), Answer)


class Answer(BaseHTTPRequestHandler):
    server: Engine

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: object) -> None: ...

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        self.server.asked.append(f"{self.command} {path}")
        if path == "/version":
            self._send(200, json.dumps({"ApiVersion": "1.44", "Version": "25.0"}), "application/json")
        elif path.endswith("/_ping"):
            self._send(self.server.ping, "OK" if self.server.ping == 200 else "starting", "text/plain")
        else:
            self._send(500, json.dumps({"message": "no disk"}), "application/json")

    def _send(self, status: int, text: str, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


@contextmanager
def engine(path: Path, ping: int = 200) -> Iterator[Engine]:
    with Engine(path, ping) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def environment(socket: Path) -> dict[str, str]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST_", "PGQUEUE_", "DOCKER"))}
    return {**clean, "DOCKER_HOST": f"unix://{socket}"}


def refusal(socket: Path, **more: str) -> str:
    """Ask in a process of its own, which has this environment from its start."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "from pgqueue.testing import server; print(server._docker_refuses())"],
        env=environment(socket) | more,
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
    )
    return done.stdout.strip()


def test_an_engine_that_answers_a_ping_is_chosen(tmp_path: Path) -> None:
    socket = tmp_path / "docker.sock"
    with engine(socket) as server:
        assert refusal(socket) == "None"
    assert any(path.endswith("/_ping") for path in server.asked), server.asked


def test_one_that_answers_with_an_error_is_not(tmp_path: Path) -> None:
    socket = tmp_path / "docker.sock"
    with engine(socket, ping=503):
        assert refusal(socket) == "no Docker engine answers"


def test_an_unserved_queue_is_not(tmp_path: Path) -> None:
    socket = tmp_path / "docker.sock"
    assert refusal(socket) == "no Docker engine answers"
    # Left behind by an engine that has ended.
    with engine(socket):
        pass
    assert socket.exists()
    assert refusal(socket) == "no Docker engine answers"


def test_binaries_that_are_to_be_tested_win_over_an_engine(tmp_path: Path) -> None:
    socket = tmp_path / "docker.sock"
    with engine(socket) as server:
        assert refusal(socket, PGQUEUE_EMBEDDED_BINARIES="/usr/bin") == "PGQUEUE_EMBEDDED_BINARIES"
    assert server.asked == []


@pytest.mark.long
@pytest.mark.parametrize("answers", [True, False], ids=["an engine that cannot run it", "no engine"])
def test_the_plugin_tries_the_container_first_and_falls_back_to_the_embedded_server(
    tmp_path: Path, answers: bool
) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    socket = tmp_path / "docker.sock"
    with engine(socket) as server:
        given = environment(socket if answers else tmp_path / "none.sock")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider"],
            cwd=tmp_path,
            env=given,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert "/embedded/" in done.stdout
    assert any("postgres:17-alpine" in path for path in server.asked) is answers, server.asked
    # It is said why there is none, once.
    assert ("no container to test on" in done.stdout) is answers
    assert answers is False or "no disk" in done.stdout
