"""The short form: some seconds of faults, mixed, and then everything must hold. The long one: `make chaos`."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgqueue import embedded
from tests.chaos import report
from tests.chaos.faults import (
    backends_terminated,
    server_crashes,
    statements_cancelled,
    worker_killed,
    worker_stopped,
    writer_held,
)
from tests.chaos.scene import Scene
from tests.chaos.scenes import run, running

pytestmark = pytest.mark.skipif(not embedded.available(), reason="the embedded server is not installed")

SEED = int(os.environ.get("PGQUEUE_CHAOS_SEED", str(secrets.randbelow(1_000_000))))
CLIENTS = [worker_killed, worker_stopped, backends_terminated, statements_cancelled]
SERVERS = [server_crashes, writer_held]


@pytest.fixture
def directory() -> Iterator[Path]:
    # Not pytest's: a socket's path must be short.
    made = Path(tempfile.mkdtemp(prefix="pgqueue-chaos-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.long
@pytest.mark.covers("D3", "G9", "L1", "L13")
@pytest.mark.timeout(300)
def test_everything_holds_while_workers_are_killed_and_the_server_crashes(directory: Path) -> None:
    with running(directory / "s") as server:
        scene = Scene("short", server.database("short"), directory / "r", SEED, server=server, fleet="small", pace=150)
        verdict = run(scene, [CLIENTS, SERVERS], 6)
    # Shown when the test fails.
    sys.stdout.write(f"PGQUEUE_CHAOS_SEED={SEED}: {report.line(verdict)}\n{dict(verdict.injected)}\n")
    assert verdict.findings.violations == []
    assert verdict.committed > 100
    assert sum(verdict.injected.values()) >= 2
