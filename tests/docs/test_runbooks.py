"""Each alert has a runbook of its name, and its rule links it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest
import yaml

from pgqueue import metrics
from pgqueue.verdict import CAUSES
from tests.calls import call, enqueue
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


def severity_of(alert: str) -> str:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    return next(str(rule["labels"]["severity"]) for rule in rules if rule["alert"] == alert)


def fire(series: dict[str, str], at: str, firing: list[dict[str, str]], tmp_path: Path) -> str:
    """Have promtool say what is wrong where not just these alerts fire; `series` have a value a minute."""
    test = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": 'ALERTS{alertstate="firing"}',
                        "eval_time": at,
                        "exp_samples": [{"labels": _labels(each), "value": 1} for each in firing],
                    }
                ],
            }
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump(test))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def _labels(labels: dict[str, str]) -> str:
    every = {**labels, "alertstate": "firing", "severity": severity_of(labels["alertname"])}
    return "ALERTS{" + ", ".join(f'{name}="{value}"' for name, value in every.items()) + "}"


NEEDS_PROMTOOL = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus"
)


@NEEDS_PROMTOOL
def test_each_cause_of_lateness_has_an_alert_of_its_name_that_fires_for_its_queue_alone(tmp_path: Path) -> None:
    late = {"on_time": 0, **dict.fromkeys(CAUSES, 4000)}
    series = {
        f'pgqueue_queue_late_seconds{{queue="of_{cause}", cause="{cause}"}}': f"{late_for}+0x20"
        for cause, late_for in late.items()
    }
    firing = [{"alertname": alert_of(cause), "queue": f"of_{cause}"} for cause in CAUSES]
    assert fire(series, "15m", firing, tmp_path) == ""


MEMORY, LIMIT = 'pgqueue_worker_memory{worker="w"}', 'pgqueue_worker_memory_limit{worker="w"}'


@NEEDS_PROMTOOL
@pytest.mark.parametrize(
    ("memory", "limit", "at", "fires"),
    [
        # 51 MiB to 16.7 GiB in four minutes, by a process that is as old as that.
        ("5e7 3e9 8e9 1.3e10 1.8e10", "6.4e10+0x60", "2m", True),
        ("5e7 3e9 8e9 1.3e10 1.8e10", "6.4e10+0x60", "4m", True),
        # A process that has run for long.
        ("2e8+0x30 1.2e9", "6.4e10+0x60", "31m", True),
        ("2e8+0x30 4.7e8", "5e8+0x60", "31m", True),
        # It had grown before it was scraped first.
        ("4.8e8 4.8e8", "5e8+0x60", "1m", True),
        # What stays as it is, what grows slowly, and what is small.
        ("3e9+0x60", "6.4e10+0x60", "60m", False),
        ("4.7e8+0x60", "5e8+0x60", "60m", False),
        ("1e9+3e7x60", "6.4e10+0x60", "60m", False),
        ("5e7 9e8", "6.4e10+0x60", "1m", False),
    ],
)
def test_memory_that_grows_fast_speaks_however_young_the_process_is(
    memory: str, limit: str, at: str, fires: bool, tmp_path: Path
) -> None:
    firing = [{"alertname": "PgqueueMemory", "worker": "w"}] if fires else []
    assert fire({MEMORY: memory, LIMIT: limit}, at, firing, tmp_path) == ""


@NEEDS_PROMTOOL
def test_memory_speaks_once_and_also_where_no_worker_is_scraped(tmp_path: Path) -> None:
    grows = "5e7 3e9 8e9 1.3e10 1.8e10"
    heartbeat = 'pgqueue_heartbeat_memory_bytes{worker="w"}'
    firing = [{"alertname": "PgqueueMemory", "worker": "w"}]
    assert fire({heartbeat: grows}, "4m", firing, tmp_path) == ""
    both = {f'{heartbeat[:-1]}, job="pages"}}': grows, f'{MEMORY[:-1]}, job="workers"}}': grows}
    assert fire(both, "4m", [{**firing[0], "job": "workers"}], tmp_path) == ""


@NEEDS_PROMTOOL
@pytest.mark.parametrize(
    ("stuck", "lag", "fires"), [("60x60", "0x60", True), ("60x60", "400x60", False), ("0x60", "0x60", False)]
)
def test_a_job_that_is_stuck_speaks_where_its_queue_is_not_late(
    stuck: str, lag: str, fires: bool, tmp_path: Path
) -> None:
    series = {
        'pgqueue_queue_stuck_seconds{queue="mail"}': f"0+{stuck}",
        'pgqueue_queue_lag_seconds{queue="mail"}': f"{lag.partition('x')[0]}+0x60",
    }
    late = {"alertname": "PgqueueLag", "queue": "mail"}
    firing = [{"alertname": "PgqueueStuck", "queue": "mail"}] if fires else [late] if lag[0] != "0" else []
    assert fire(series, "14m", [each for each in firing if each == late], tmp_path) == ""
    assert fire(series, "20m", firing, tmp_path) == ""


@NEEDS_PROMTOOL
@pytest.mark.parametrize(
    ("succeeded", "failed", "dead", "fires"),
    [(94, 3, 3, True), (0, 0, 1, True), (96, 4, 0, False), (100, 0, 0, False), (0, 0, 0, False)],
)
@pytest.mark.parametrize("counter", ["pgqueue_jobs_total", "pgqueue_queue_attempts_total"])
def test_one_failure_in_twenty_speaks(
    counter: str, succeeded: int, failed: int, dead: int, fires: bool, tmp_path: Path
) -> None:
    ends = {"succeeded": succeeded, "failed": failed, "dead": dead}
    series = {
        # Two workers, or databases, have half each.
        f'{counter}{{queue="mail", task="send", outcome="{outcome}", instance="{worker}"}}': f"0+{each / 2}x60"
        for outcome, each in ends.items()
        for worker in "ab"
    }
    firing = [{"alertname": "PgqueueFailing", "queue": "mail", "task": "send"}] if fires else []
    assert fire(series, "20m", firing, tmp_path) == ""


def test_the_causes_of_alerts_are_those_of_why_late(conn: psycopg.Connection) -> None:
    [comment] = conn.execute("select obj_description('pgqueue.why_late(text)'::regprocedure)").fetchone() or [""]
    named = re.search(r"cause: (.*?)\. subject:", comment)
    assert named is not None
    assert {each.split()[0] for each in re.sub(r"\([^)]*\)", "", named[1]).split(", ")} == {"on_time", *CAUSES}


@pytest.mark.parametrize("place", rules())
def test_a_rule_asks_for_metrics_and_labels_that_exist(place: str, conn: psycopg.Connection) -> None:
    enqueue(conn, "t")
    call(conn, "hello", "w")
    call(conn, "beat", "w", memory=2**20)
    conn.execute("select pgqueue.schedule('s', '@daily', 't'), pgqueue.maintain()")
    labels = {name: set(given) for name, given in conn.execute("select name, labels from pgqueue.metrics()")}
    # The pages add samples up.
    times = metrics.QueueTimes()
    times.add([(1, "mail", {"t": {"dead": 1}})])
    for sample in (each for family in metrics.of_times({"": times}) for each in family.samples):
        labels[sample.name] = set(sample.labels)
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
