"""The model of benchmarks/scale.py: it says what stops first, and the page has its table."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from benchmarks.scale import BATCHES, CORES, PLOT, Cost, limit, read, table

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "scale.md"


def test_the_page_has_the_table_of_the_figures_and_its_plot() -> None:
    assert table(read()) in PAGE.read_text()
    assert PLOT.exists()


def test_more_cores_databases_and_larger_batches_never_give_less() -> None:
    cost = read()
    for cores, more in itertools.pairwise(CORES):
        for batch in BATCHES:
            assert limit(cost, more, 1, batch).jobs >= limit(cost, cores, 1, batch).jobs
    for batch, larger in itertools.pairwise(BATCHES):
        assert limit(cost, 8, 1, larger).jobs >= limit(cost, 8, 1, batch).jobs
    assert limit(cost, 4, 3, 10).jobs == pytest.approx(3 * limit(cost, 4, 1, 10).jobs)


@pytest.mark.parametrize(
    ("cost", "cores", "batch", "first"),
    [
        (Cost(1e-3, 1e-5, 1000), 1, 1, "cores"),
        (Cost(1e-6, 1e-7, 100), 64, 1, "commits"),
        (Cost(1e-6, 1e-7, 100_000), 64, 500, "WAL"),
    ],
)
def test_it_says_what_stops_first(cost: Cost, cores: int, batch: int, first: str) -> None:
    assert limit(cost, cores, 1, batch).by == first
