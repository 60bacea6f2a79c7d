"""The SQL of the queue gets smaller before it gets more."""

from __future__ import annotations

import re

from tests.catalog import size
from tests.catalog.test_layout import functions


def test_the_sql_stays_within_its_budget() -> None:
    found = size.whole()
    assert found.lines <= size.BUDGET.lines, size.report()
    assert found.functions <= size.BUDGET.functions, size.report()


def test_the_budget_climbs_only_for_what_is_planned() -> None:
    assert size.BUDGET.lines <= size.most().lines
    assert size.BUDGET.functions <= size.most().functions


def test_a_claim_and_its_limits_stay_within_their_budget() -> None:
    assert size.claim_lines() <= size.CLAIM_LINES, size.report()
    # As the whole, it follows what is left.
    assert size.claim_lines() > size.CLAIM_LINES - 150, "lower the budget to what is left"


def test_there_is_one_way_through_a_claim() -> None:
    known = {each.name: each.text for each in functions()}
    takes = {name for name, text in known.items() if re.search(r"^ +state = 'executing'", text, re.MULTILINE)}
    assert takes == {"_take_jobs"}, "one function makes jobs executing"
    found = {
        step: {name for name, text in known.items() if name != step and re.search(rf"pgqueue\.{step}\(", text)}
        for step in size.WAYS
    }
    assert found == size.WAYS
