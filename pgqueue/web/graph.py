"""A graph of jobs in layers: the jobs for which a job waits are to its left. Sizes are in pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT = 196, 44
_ACROSS, _DOWN = 246, 54

# Jobs above each other before a layer takes another column.
_COLUMN = 15


@dataclass(frozen=True, slots=True)
class Graph:
    """`nodes`: (job, x, y). `edges`: the four ends of each line. Empty where no job waits for another."""

    width: int
    height: int
    nodes: Sequence[tuple[Mapping[str, Any], int, int]]
    edges: Sequence[tuple[int, int, int, int]]


def lay_out(jobs: Sequence[Mapping[str, Any]]) -> Graph:
    """Lay out jobs with `id` and `depends_on`; what is not among them is left out."""
    known = {each["id"]: each for each in jobs}
    parents = {
        each["id"]: [parent for parent in each["depends_on"] or [] if parent in known and parent < each["id"]]
        for each in jobs
    }
    if not any(parents.values()):
        return Graph(0, 0, (), ())
    # A job depends only on older ones: by id, its parents have their layer before it.
    layers: dict[int, int] = {}
    for each in sorted(known):
        layers[each] = max((layers[parent] + 1 for parent in parents[each]), default=0)
    places: dict[int, tuple[int, int]] = {}
    column = 0
    for layer in range(max(layers.values()) + 1):
        members = [each for each in sorted(known) if layers[each] == layer]
        for number, each in enumerate(members):
            places[each] = (8 + _ACROSS * (column + number // _COLUMN), 8 + _DOWN * (number % _COLUMN))
        column += (len(members) + _COLUMN - 1) // _COLUMN
    edges = [
        (places[parent][0] + WIDTH, places[parent][1] + HEIGHT // 2, places[each][0], places[each][1] + HEIGHT // 2)
        for each in sorted(known)
        for parent in parents[each]
    ]
    return Graph(
        max(x for x, _ in places.values()) + WIDTH + 8,
        max(y for _, y in places.values()) + HEIGHT + 8,
        [(known[each], *places[each]) for each in sorted(known)],
        edges,
    )
