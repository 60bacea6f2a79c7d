"""The chart: linted and rendered by Helm, where helm-python-sdk is installed, and read as Kubernetes reads it."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

helm = pytest.importorskip("helm_python.chart", reason="Helm is not installed: pip install helm-python-sdk")

CHART = Path(__file__).parents[2] / "packaging" / "helm" / "pgqueue"

EVERYTHING = {
    "workers": [
        {"name": "mail", "require": "shop.tasks", "queues": ["mail", "it's,8"], "concurrency": "4:64", "processes": 2},
        {"name": "all", "require": "shop.tasks", "resources": {"limits": {"memory": "500Mi"}}},
    ],
    "web": {"enabled": True, "authSecret": "login", "readOnly": True},
    "keda": {"enabled": True},
    "monitoring": {"enabled": True},
    "serviceAccountName": "jobs",
    "migrate": {"dsnSecret": {"name": "owner", "key": "url"}},
}


def rendered(values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    files = helm.Chart.load(str(CHART)).render(values or {}, name="shop", namespace="default")
    return [found for text in files.values() for found in yaml.safe_load_all(text) if found]


def of_kind(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in found if each["kind"] == kind]


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_helm_has_nothing_to_say_of_the_chart(values: dict[str, Any]) -> None:
    report = helm.lint(str(CHART), values, strict=True)
    assert [each for each in report["messages"] if each["severity"] > 1] == []
    assert report["errors"] == []


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_every_object_fits_the_schema_of_kubernetes(values: dict[str, Any]) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    for each in rendered(values):
        if each["apiVersion"].split("/")[0] not in ("keda.sh", "monitoring.coreos.com"):
            kubernetes.validate(each, "1.30", strict=True)


def test_a_worker_is_asked_to_stop_and_given_its_time() -> None:
    [deployment] = of_kind(rendered({"shutdownTimeout": 100}), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 115
    [container] = pod["containers"]
    assert "lifecycle" not in container
    at = container["args"].index("--shutdown-timeout")
    assert container["args"][at + 1] == "100"


def test_the_options_of_the_containers_exist() -> None:
    for deployment in of_kind(rendered(EVERYTHING), "Deployment"):
        [container] = deployment["spec"]["template"]["spec"]["containers"]
        command, *options = container["args"]
        shown = subprocess.run(
            [sys.executable, "-m", "pgqueue", command, "--help"], capture_output=True, text=True, check=True
        ).stdout
        assert [each for each in options if each.startswith("--") and each not in shown] == []


def test_each_worker_is_scaled_by_a_query_that_runs(conn: psycopg.Connection) -> None:
    found = of_kind(rendered(EVERYTHING), "ScaledObject")
    assert [each["metadata"]["name"] for each in found] == ["shop-worker-mail", "shop-worker-all"]
    triggers = [each["spec"]["triggers"][0]["metadata"] for each in found]
    assert [each["query"] for each in triggers] == [
        "select pgqueue.wanted(array['mail', 'it''s'])",
        "select pgqueue.wanted()",
    ]
    # Two processes of at most 64 slots; one of 20.
    assert [each["targetQueryValue"] for each in triggers] == ["128", "20"]
    for each in triggers:
        assert conn.execute(each["query"].encode()).fetchone() == (0,)
    for deployment in of_kind(rendered(EVERYTHING), "Deployment"):
        is_worker = deployment["metadata"]["name"].startswith("shop-worker")
        # A number of replicas would undo what the scaler set, at each upgrade.
        assert ("replicas" in deployment["spec"]) is not is_worker


def test_a_worker_has_the_replicas_that_are_asked_for() -> None:
    workers = [{"name": f"n{number}", "require": "shop.tasks", "replicas": number} for number in (0, 3)]
    workers.append({"name": "default", "require": "shop.tasks"})
    found = of_kind(rendered({"workers": workers}), "Deployment")
    assert [each["spec"]["replicas"] for each in found] == [0, 3, 1]


def test_prometheus_is_let_in_to_the_pages_by_address_and_with_their_password() -> None:
    values = {**EVERYTHING, "web": {"enabled": True, "authSecret": "login", "allowedHosts": ["jobs.example.com"]}}
    [monitor] = of_kind(rendered(values), "PodMonitor")
    assert monitor["spec"]["podMetricsEndpoints"][1]["basicAuth"] == {
        "username": {"name": "login", "key": "user"},
        "password": {"name": "login", "key": "password"},
    }
    [web] = [each for each in of_kind(rendered(values), "Deployment") if each["metadata"]["name"] == "shop-web"]
    [container] = web["spec"]["template"]["spec"]["containers"]
    args = container["args"]
    hosts = [value for option, value in pairwise(args) if option == "--allowed-host"]
    assert hosts == ["jobs.example.com", "$(POD_IP)"]
    environment = {each["name"]: each["valueFrom"] for each in container["env"]}
    assert environment["POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}


def test_the_migration_runs_before_the_workers_as_another_role() -> None:
    [job] = of_kind(rendered(EVERYTHING), "Job")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    [variable] = job["spec"]["template"]["spec"]["containers"][0]["env"]
    assert variable["valueFrom"]["secretKeyRef"] == {"name": "owner", "key": "url"}


def test_the_rules_and_the_board_are_those_of_grafana() -> None:
    [rule] = of_kind(rendered(EVERYTHING), "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((CHART.parents[2] / "grafana" / "alerts.yaml").read_text())
    [board] = of_kind(rendered(EVERYTHING), "ConfigMap")
    assert yaml.safe_load(board["data"]["pgqueue.json"])["title"] == "pgqueue"
