"""The SQL of the queue gets smaller before it gets more."""

from __future__ import annotations

from tests.catalog import size


def test_the_sql_stays_within_its_budget() -> None:
    found = size.whole()
    assert found.lines <= size.BUDGET.lines, size.report()
    assert found.functions <= size.BUDGET.functions, size.report()


def test_the_budget_climbs_only_for_what_is_planned() -> None:
    assert size.BUDGET.lines <= size.most().lines
    assert size.BUDGET.functions <= size.most().functions
