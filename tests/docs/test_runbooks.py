"""Each alert has a runbook of its name, and its rule links it."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tests.docs.pages import ROOT, read

ALERTS = ROOT / "grafana" / "alerts.yaml"


def alerts() -> list[str]:
    return re.findall(r"alert: (\w+)", ALERTS.read_text())


def test_each_alert_has_a_section_with_a_command_and_its_rule_names_the_section() -> None:
    sections = dict(
        re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", read("docs/operate/runbooks.md"), re.MULTILINE | re.DOTALL)
    )
    assert len(alerts()) >= 6
    for alert in alerts():
        assert "```s" in sections[alert], alert
        assert f"runbook: docs/operate/runbooks.md#{alert.lower()}" in ALERTS.read_text()


def test_no_section_is_named_after_an_alert_that_is_gone() -> None:
    named = re.findall(r"^## (Pgqueue\w+)$", read("docs/operate/runbooks.md"), re.MULTILINE)
    assert sorted(named) == sorted(alerts())


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus")
def test_promtool_reads_the_rules() -> None:
    done = subprocess.run(["promtool", "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
