"""The dead by their last error, as the pages of all jobs, of a queue, of a task and of a job show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pgqueue.db import observe
from pgqueue.web.context import Context
from pgqueue.web.render import instant

# Dead jobs that dead_groups() reads, the newest: where there are as many, there may be more.
_READ = 10_000


@dataclass(frozen=True, slots=True)
class Groups:
    """The dead by their last error, as of a time; `is_cut`: there may be more of them, and older ones, than were read.

    Each row has `counted_to` beside its `jobs`, as numbers of queues have it.
    """

    rows: Sequence[Mapping[str, Any]] = ()
    at: str | None = None
    is_cut: bool = False

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.rows)

    def of_task(self, task: str) -> Groups:
        """Return those of one task."""
        return replace(self, rows=[each for each in self.rows if each["task"] == task])


async def read(context: Context, queue: str | None = None) -> Groups:
    """Read the dead of a queue, or of all, by their last error, the latest first: once a minute for all viewers."""
    key = ("dead", queue)
    rows = await context.database.shared(key, 60.0, lambda: observe.dead_groups(queue))
    is_cut = sum(int(each["jobs"]) for each in rows) >= _READ or len(rows) >= observe.MOST_GROUPS
    at = instant(context.now() - context.database.age(key))
    return Groups([{**each, "counted_to": 0 if is_cut else None} for each in rows], at, is_cut)
