"""How the pages write the evidence of a late queue."""

from __future__ import annotations

import pytest

from pgqueue.web.render import brief, capital, quantity, seconds


@pytest.mark.parametrize(
    ("evidence", "shown"),
    [
        (
            "the oldest of about 39,704 jobs is due since 2026-11-26 07:49:32.5+00, and executing jobs take 2 of 2",
            "Executing jobs take 2 of 2",
        ),
        (
            "the queue has 4 jobs due since 2026-11-26 07:58:08+00, and no living worker claims from it; w serves it",
            "No living worker claims from it; w serves it",
        ),
        ("its workers serve first: queue a", "Its workers serve first: queue a"),
        ("review_case takes 12 of 12 slots of worker w", "review_case takes 12 of 12 slots of worker w"),
    ],
)
def test_a_row_says_the_cause_and_leaves_the_names_of_tasks_as_they_are(evidence: str, shown: str) -> None:
    assert capital(brief(evidence)) == shown


def test_what_a_client_reports_of_its_progress_is_written_with_thousands_apart_where_it_is_a_number() -> None:
    assert [quantity(each) for each in (1840, 5200.0, 0.5, "half")] == ["1,840", "5,200", "0.50", "half"]


def test_a_time_is_never_a_thousand_milliseconds() -> None:
    assert [seconds(each) for each in (0.9994, 0.9996, 1.0)] == ["999 ms", "1.0 s", "1.0 s"]
