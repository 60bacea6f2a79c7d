"""The units of systemd: read by systemd where it is, with options that the program has."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pgqueue.config import WorkerConfig

UNITS = Path(__file__).parents[2] / "packaging" / "systemd"
PROGRAM = "/opt/app/venv/bin/pgqueue"


def unit(name: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((UNITS / name).read_text())
    return parser["Service"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("name", ["pgqueue@.service", "pgqueue-web.service"])
def test_systemd_reads_the_unit(name: str, tmp_path: Path) -> None:
    # Verified where the program is: it must exist.
    text = (UNITS / name).read_text().replace(PROGRAM, str(Path(sys.executable).parent / "pgqueue"))
    copy = tmp_path / name.replace("@", "@shop")
    copy.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if "pgqueue" in line and "Failed to prepare" not in line]
    assert ours == []


@pytest.mark.parametrize(("name", "command"), [("pgqueue@.service", "worker"), ("pgqueue-web.service", "web")])
def test_the_unit_starts_a_command_that_exists(name: str, command: str) -> None:
    program, started, *options = unit(name)["ExecStart"].split()
    assert (program, started) == (PROGRAM, command)
    shown = subprocess.run(
        [sys.executable, "-m", "pgqueue", command, "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert [each for each in options if each.startswith("--") and each not in shown] == []


def test_the_worker_is_watched_and_has_the_time_that_it_needs_to_stop() -> None:
    found = unit("pgqueue@.service")
    assert (found["Type"], found["NotifyAccess"], found["KillMode"]) == ("notify", "main", "mixed")
    assert int(found["WatchdogSec"]) >= 10
    assert int(found["TimeoutStopSec"]) == WorkerConfig().shutdown_timeout + 15
    assert re.fullmatch(r".*kill -HUP \$MAINPID", found["ExecReload"])
