"""Each alert has a runbook of its name, and its rule links it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest
import yaml

from pgqueue.verdict import CAUSES
from tests.calls import enqueue
from tests.docs.pages import ROOT, blocks, read

ALERTS = ROOT / "grafana" / "alerts.yaml"


def alerts() -> list[str]:
    return re.findall(r"alert: (\w+)", ALERTS.read_text())


def test_each_alert_has_a_section_with_a_command_and_its_rule_names_the_section() -> None:
    sections = dict(
        re.findall(r"^### (\w+)\n(.*?)(?=^#{2,3} |\Z)", read("docs/operate/monitoring.md"), re.MULTILINE | re.DOTALL)
    )
    assert len(alerts()) >= 6
    for alert in alerts():
        assert "```s" in sections[alert], alert
        assert f"runbook: docs/operate/monitoring.md#{alert.lower()}" in ALERTS.read_text()


def test_no_section_is_named_after_an_alert_that_is_gone() -> None:
    named = re.findall(r"^### (Pgqueue\w+)$", read("docs/operate/monitoring.md"), re.MULTILINE)
    assert sorted(named) == sorted(alerts())


def rules() -> dict[str, str]:
    """The files of rules: ours, and those of the pages, by their place."""
    of_pages = {block.place: block.text for block in blocks("docs/operate/monitoring.md") if block.language == "yaml"}
    return {"grafana/alerts.yaml": ALERTS.read_text(), **of_pages}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus")
@pytest.mark.parametrize("place", rules())
def test_promtool_reads_the_rules(place: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(rules()[place])
    done = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def alert_of(cause: str) -> str:
    return "Pgqueue" + "".join(word.capitalize() for word in cause.split("_"))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus")
def test_each_cause_of_lateness_has_an_alert_of_its_name_that_fires_for_its_queue_alone(tmp_path: Path) -> None:
    rule_of = {rule["alert"]: rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]}
    late = {cause: rule_of[alert_of(cause)]["labels"]["severity"] for cause in CAUSES}
    series = [("on_time", 0), *((cause, 4000) for cause in CAUSES)]
    test = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {
                        "series": f'pgqueue_queue_late_seconds{{queue="of_{cause}", cause="{cause}"}}',
                        "values": f"{late_for}+0x20",
                    }
                    for cause, late_for in series
                ],
                "promql_expr_test": [
                    {
                        "expr": 'ALERTS{alertstate="firing"}',
                        "eval_time": "15m",
                        "exp_samples": [
                            {
                                "labels": f'ALERTS{{alertname="{alert_of(cause)}", alertstate="firing",'
                                f' queue="of_{cause}", severity="{severity}"}}',
                                "value": 1,
                            }
                            for cause, severity in late.items()
                        ],
                    }
                ],
            }
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump(test))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_causes_of_alerts_are_those_of_why_late(conn: psycopg.Connection) -> None:
    [comment] = conn.execute("select obj_description('pgqueue.why_late(text)'::regprocedure)").fetchone() or [""]
    named = re.search(r"cause: (.*?)\. subject:", comment)
    assert named is not None
    assert {each.split()[0] for each in re.sub(r"\([^)]*\)", "", named[1]).split(", ")} == {"on_time", *CAUSES}


@pytest.mark.parametrize("place", rules())
def test_a_rule_asks_for_metrics_and_labels_that_exist(place: str, conn: psycopg.Connection) -> None:
    enqueue(conn, "t")
    conn.execute("select pgqueue.schedule('s', '@daily', 't'), pgqueue.maintain()")
    labels = {name: set(given) for name, given in conn.execute("select name, labels from pgqueue.metrics()")}
    reference = read("docs/reference/metrics.md")
    for name, given in re.findall(
        r"^\| `(pgqueue_\w+)` \| ([\w, ]+) \| (?:gauge|counter|histogram) \|", reference, re.M
    ):
        labels[name] = set(given.split(", "))
    asked = re.findall(r"\b(pgqueue_\w+)(?:\{(.*?)\})?", rules()[place])
    assert asked
    for name, matchers in asked:
        name = name.removesuffix("_bucket")
        assert name in labels, name
        assert set(re.findall(r"(\w+)=", matchers)) <= labels[name], (name, matchers)
