"""The report of a run, as a page."""

from __future__ import annotations

import os
import platform
import subprocess
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import psycopg

import pgqueue
from pgqueue import embedded
from tests.chaos import faults, operators
from tests.chaos.scene import Verdict

CHECKED = """\
- every committed job ended, once, with one row in history, and history kept it; none is left, blocked or executing
- none that was rolled back was ever there, and none ran
- a reservation is given out once, to one holder at a time, and grows; only the holder's ends a job
- who succeeded under a reservation had a handler that had finished under that one
- a job's own transaction left its effect exactly once, under the reservation that ended it
- no two jobs of a key were held at a time, no effects of a key overlapped, and none was claimed before one with an
  earlier place that was committed and due when the claim read the table
- limits of jobs at a time and of starts in a time held
- no claim that began two seconds after a pause or a throttle was committed started a job of it
- no job was taken from a handler whose lease held, by its row or by what `extend` had reported, and no two handlers of
  one job ran at a time unless the lease of the first had ended
- no advisory lock outlived its transaction
- no child began before its parents had ended as `run_if` says, none was cancelled without a reason, no job waits
- a group ended once, when all its members had, and counts them
- a completed step did not run again, and every attempt got the same of it; a step that is completed in a transaction
  with its effect left both or neither
- an event reached everybody who waited for it, with the payload of the first emission; who gave up did so in time
- the net under heads found nothing, nor that under keys, save where the queue's clock was set back
- workers that were not killed did not end
"""


def line(verdict: Verdict) -> str:
    """One line for the terminal."""
    drained = "not empty in the end" if verdict.drained_in is None else f"empty after {verdict.drained_in:.0f} s"
    state = "clean" if verdict.findings else f"BROKEN {dict(verdict.findings.broken)}"
    faults_ = sum(verdict.injected.values())
    return (
        f"{verdict.name}: {verdict.committed:,} jobs in {verdict.seconds:.0f} s, {faults_} faults,"
        f" {drained}: {state}" + "".join(f"; skipped {name}: {why}" for name, why in verdict.skipped.items())
    )


def whole(verdicts: Sequence[Verdict], seed: int, seconds: float) -> str:
    """The page."""
    counts: Counter[str] = Counter()
    injected: Counter[str] = Counter()
    for verdict in verdicts:
        counts.update(verdict.findings.counts)
        injected.update(verdict.injected)
    committed = counts["promised: committed"]
    clean = all(verdict.findings for verdict in verdicts)
    rows = "\n".join(
        f"| {v.name} | {v.committed:,} | {v.seconds:.0f} | {sum(v.injected.values())} | "
        f"{'never' if v.drained_in is None else f'{v.drained_in:.0f}'} | "
        f"{'clean' if v.findings else ', '.join(f'{rule}: {n}' for rule, n in v.findings.broken.items())} |"
        for v in verdicts
    )
    broken = "\n".join(
        f"- {v.name}: {each.rule}: {each.subject}: {each.what}" for v in verdicts for each in v.findings.violations
    )
    kinds = len(faults.CLIENT_FAULTS) + len(faults.SERVER_FAULTS) + len(operators.OPERATOR_FAULTS)
    skipped = {name: why for v in verdicts for name, why in v.skipped.items()}
    return f"""\
# Chaos: {"clean" if clean else "BROKEN"}

Written by `make chaos`. With `PGQUEUE_CHAOS_SEED={seed}` the same is chosen again; its times are the machine's.

- {committed:,} committed jobs in {seconds / 60:.1f} minutes, checks included; {sum(injected.values())} faults
- seed {seed}
- {_machine()}
- pgqueue {pgqueue.__version__}, Python {platform.python_version()}, psycopg {version("psycopg")}, \
libpq {psycopg.pq.version()}, {_server()}

## Scenes

| scene | committed jobs | seconds | faults | seconds to empty | found |
|---|---|---|---|---|---|
{rows}
{f"{chr(10)}## Violations{chr(10)}{chr(10)}{broken}{chr(10)}" if broken else ""}
## Faults

| fault | injected |
|---|---|
{_table(injected)}
{"".join(f"{chr(10)}Skipped: {name}: {why}.{chr(10)}" for name, why in skipped.items())}
In each scene the clock of one worker is an hour ahead, and that of another an hour behind (`time.time` and
`time.time_ns` of the process). Producers and consumers in SQL work at READ COMMITTED, REPEATABLE READ and
SERIALIZABLE, a supervised worker as a role whose default is SERIALIZABLE. {kinds} kinds of faults are injected alone,
then mixed; failovers and the full disk on servers of their own.

## What was checked

{CHECKED}
## Counts

| what | how many |
|---|---|
{_table(counts)}
"""


def _table(counts: Counter[str]) -> str:
    return "\n".join(f"| {name.replace('_', ' ')} | {count:,} |" for name, count in sorted(counts.items()))


def _machine() -> str:
    memory = "?"
    for each in Path("/proc/meminfo").read_text().splitlines():
        if each.startswith("MemTotal"):
            memory = f"{int(each.split()[1]) / 1024 / 1024:.0f} GB"
    return f"{os.cpu_count()} cores, {memory}, {platform.system()} {platform.release()}"


def _server() -> str:
    shown = subprocess.run([embedded.binaries() / "postgres", "--version"], capture_output=True, text=True, check=True)
    return shown.stdout.strip()
