"""How large the SQL and the wiring of the worker are, beside their budgets: python -m tests.catalog.size

The size of a schema is a reason not to adopt it. A commit that makes it smaller lowers the budget to what is left,
rounded up to the next 50; one that needs more raises it, and says what for.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from typing import NamedTuple

from pgqueue.schema import bundled
from tests.worker import test_budgets


class Size(NamedTuple):
    lines: int
    functions: int


# What sql/functions may have now, and what it has come down to.
BUDGET = Size(lines=19_300, functions=445)
TARGET = Size(lines=17_400, functions=410)

# What features to come may add to that. A commit that needs more than what is left of them says here what it is for.
PLANNED = {
    "the first hour: options that a newcomer looks for": Size(lines=200, functions=6),
    "sharing: tenants in one queue, pauses, throttles, costs, thousands of queues": Size(lines=900, functions=25),
    "an incident: causes, true numbers, memory, killed workers, the pages of operators": Size(lines=800, functions=20),
}

# claim/ and limits/ by themselves. They had 4,569 lines when one way through a claim was planned, for which 4,400 were
# to be enough. Since then they hold what tenants of one queue share: some 1,450 lines of turns, costs, breakers, pauses
# and `max_share`. The rest has some 3,800.
CLAIM_LINES = 5_250

# The steps of a claim, and who takes them: there is one way through a claim if one function takes each. Queues that are
# drawn by weight are found in turns; a hand-off and the payloads of a batch are taken as any job is.
WAYS = {
    "_find_due": {"reserve", "_find_turns"},
    "_find_turns": {"reserve"},
    "_decide_starts": {"reserve"},
    "_take_jobs": {"reserve", "_take_keyed", "_take_batch", "_hand_off"},
    "_take_keyed": {"reserve"},
    "_take_batch": {"_take_keyed"},
    "reserve": {"exchange"},
}

_FUNCTION = re.compile(r"^create or replace function ", re.MULTILINE)


def by_folder() -> dict[str, Size]:
    lines: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    for file in bundled.directory("sql").glob("functions/**/*.sql"):
        text = file.read_text()
        lines[file.parent.name] += text.count("\n")
        functions[file.parent.name] += len(_FUNCTION.findall(text))
    return {folder: Size(lines[folder], functions[folder]) for folder in sorted(lines)}


def whole() -> Size:
    each = by_folder().values()
    return Size(sum(size.lines for size in each), sum(size.functions for size in each))


def claim_lines() -> int:
    """Return the lines of claim/ and limits/, comments and blank lines too."""
    folders = by_folder()
    return folders["claim"].lines + folders["limits"].lines


def most() -> Size:
    """Return what the budget may climb to, with all that is planned."""
    each = [TARGET, *PLANNED.values()]
    return Size(sum(size.lines for size in each), sum(size.functions for size in each))


def report() -> str:
    rows = {**by_folder(), "": whole(), "budget": BUDGET, "target": TARGET, "with planned": most()}
    body = (f"{name:<13}{size.lines:>7,}{size.functions:>11,}" for name, size in rows.items())
    claim = f"claim and limits: {claim_lines():,} lines, budget {CLAIM_LINES:,}"
    worker = (
        f"worker: {len(test_budgets.callables())} functions in constructors, budget {test_budgets.MOST_CALLABLES}",
        f"a claimed job: budget {test_budgets.MOST_CALLS} calls from one module into another;"
        " pytest tests/worker/test_budgets.py counts them",
    )
    return "\n".join([f"{'sql/functions':<13}{'lines':>7}{'functions':>11}", *body, claim, *worker, ""])


if __name__ == "__main__":
    sys.stdout.write(report())
