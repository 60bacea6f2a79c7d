"""What a check found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

# How many violations of one rule are shown; the others are counted.
SHOWN = 10


class Violation(NamedTuple):
    rule: str
    subject: str
    what: str


@dataclass(slots=True)
class Findings:
    """`violations` are at most SHOWN of each rule; `broken` counts all of them, `counts` what was checked."""

    violations: list[Violation] = field(default_factory=list)
    broken: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, found: Iterable[Violation]) -> None:
        for each in found:
            self.broken[each.rule] += 1
            if self.broken[each.rule] <= SHOWN:
                self.violations.append(each)

    def __bool__(self) -> bool:
        """Whether everything held."""
        return not self.broken
