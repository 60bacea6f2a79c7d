"""Figures on pages: those that were saved, and no others."""

from __future__ import annotations

from pathlib import Path

import orjson

from benchmarks.harness import Report
from benchmarks.rivals.__main__ import save
from docs.tools import failover, rivals
from tests.docs.pages import read

COMPARISON = "docs/explanation/comparison.md"
# Each as in benchmarks/rivals.json.
MEASURES = ("jobs_per_s", "drain_cpu_us", "start_p50_ms", "start_p99_ms", "life_cpu_ms", "life_transactions")


def test_the_page_has_the_figures_of_others_that_were_saved() -> None:
    assert rivals.page(read(COMPARISON)) == read(COMPARISON), "run: make figures"


def test_the_page_for_those_who_decide_has_three_of_them() -> None:
    assert rivals.why(read("docs/why.md")) == read("docs/why.md"), "run: make figures"


def test_the_section_says_what_was_saved_and_where_ours_is_behind(tmp_path: Path) -> None:
    def measured(*values: float) -> dict[str, object]:
        found = dict(zip(MEASURES, values, strict=False))
        return {"version": "1.2", "settings": "as it is", "drained": 20_000, "jobs_per_s_all": [values[0]], **found}

    report = Report(
        "rivals: no-op jobs, one worker process, each figure the median of 3 rounds in turns",
        (),
        (),
        {
            "pgqueue": measured(30_000, 40, 2.5, 5, 3, 2.5),
            "fast": measured(60_000, 20, 0.5, 6, 4, 3.5),
            "polls": measured(5, 1000),
            "absent": {"version": "1.3", "settings": "as it is", "drained": 20, "not_run": "npm is not installed"},
        },
    )
    saved = tmp_path / "rivals.json"
    save(report.as_json("rivals", "18.6"), saved)
    before = read(COMPARISON)
    page = rivals.page(before, saved)
    # Only the section is another, and it stays so.
    assert rivals.page(page, saved) == page
    title = "## Figures: ours and others', on one machine"
    (head, _, tail), (new_head, _, rest) = before.partition(title), page.partition(title)
    section, separator, new_tail = rest.partition("\n## ")
    assert new_head == head
    assert separator + new_tail == "".join(tail.partition("\n## ")[1:])
    for line in (
        "| pgqueue | **30,000 (30,000)** | **40** | - | **2.5** | 5.0 | 3.0 | 2.5 |",
        "| fast | 60,000 (60,000) | 20 | - | 0.5 | 6.0 | 4.0 | 3.5 |",
        "| polls | 5 (5) | 1000 | - | - | - | - | - |",
        "| absent | not run: npm is not installed | - | - | - | - | - | - |",
        "| pgqueue-no-history | not measured in this run | - | - | - | - | - | - |",
        "- drain, jobs/s: 0.50 times that of fast.",
        "- server CPU of a drained job, µs: 2.00 times that of fast.",
        "- start of a handler, p50, ms: 5.00 times that of fast.",
        "- polls, 1.2, a drain of 20,000 jobs: as it is.",
    ):
        assert f"{line}\n" in section
    assert section.count(" times that of ") == 3
    assert orjson.loads(saved.read_bytes())["day"] in section
    assert "Each figure the median of 3 rounds in turns." in section


def test_the_page_on_failovers_has_the_figures_that_were_measured() -> None:
    page = "docs/operate/failover.md"
    assert failover.page(read(page)) == read(page), "run: make figures"
