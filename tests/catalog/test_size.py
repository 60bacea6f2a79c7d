"""The SQL of the queue gets smaller before it gets more."""

from __future__ import annotations

from tests.catalog import size


def test_the_sql_stays_within_its_budget() -> None:
    found = size.whole()
    assert found.lines <= size.BUDGET.lines, size.report()
    assert found.functions <= size.BUDGET.functions, size.report()
