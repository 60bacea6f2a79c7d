"""The long form: `make chaos`.

PGQUEUE_CHAOS_MINUTES   how long, 30 by default
PGQUEUE_CHAOS_JOBS      how many jobs at least, 1,000,000 by default; less for a shorter time
PGQUEUE_CHAOS_SEED      of all that is random; by default another one each time
PGQUEUE_CHAOS_ONLY      the scenes to run, by the beginnings of their names: "mixed", "alone worker"
"""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos import report
from tests.chaos.scene import Verdict
from tests.chaos.scenes import Plan, scenes


def main() -> int:
    minutes = float(os.environ.get("PGQUEUE_CHAOS_MINUTES", "30"))
    jobs = int(os.environ.get("PGQUEUE_CHAOS_JOBS", str(int(1_000_000 * min(1.0, minutes / 30)))))
    seed = int(os.environ.get("PGQUEUE_CHAOS_SEED", str(secrets.randbelow(1_000_000))))
    only = tuple(os.environ.get("PGQUEUE_CHAOS_ONLY", "").split(",")) if os.environ.get("PGQUEUE_CHAOS_ONLY") else ()
    random.seed(seed)
    # Workers and servers are ended however this is.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    _say(f"seed {seed}, {minutes:g} minutes, at least {jobs:,} jobs")
    directory = Path(tempfile.mkdtemp(prefix="pgqueue-chaos-"))
    began = time.monotonic()
    verdicts: list[Verdict] = []
    try:
        for verdict in scenes(Plan(directory, seed, minutes * 60, jobs, only)):
            verdicts.append(verdict)
            _say(report.line(verdict))
            for violation in verdict.findings.violations:
                _say(f"    {violation.rule}: {violation.subject}: {violation.what}")
    finally:
        if all(verdict.findings for verdict in verdicts):
            shutil.rmtree(directory, ignore_errors=True)
        else:
            _say(f"what was written down is kept in {directory}")
    text = report.whole(verdicts, seed, time.monotonic() - began)
    if only:
        _say(text)
    else:
        (Path(__file__).parent / "REPORT.md").write_text(text)
    committed = sum(verdict.committed for verdict in verdicts)
    if committed < jobs and not only:
        _say(f"only {committed:,} jobs: give it more minutes, or a machine that does nothing else")
        return 1
    return 0 if all(verdict.findings for verdict in verdicts) else 1


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
