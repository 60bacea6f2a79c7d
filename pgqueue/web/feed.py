"""What just ended: troubles one by one, successes in sums."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pgqueue.web.render import stamp
from pgqueue.web.series import counts

# Lines of a feed.
_MOST = 12


@dataclass(frozen=True, slots=True)
class Line:
    """A trouble, or a sum: jobs that succeeded in N queues within `seconds` until `at`, an epoch."""

    at: float
    trouble: Mapping[str, Any] | None = None
    succeeded: int = 0
    queues: frozenset[str] = frozenset()
    seconds: float = 0.0


def feed(troubles: Iterable[Mapping[str, Any]], samples: Iterable[Sequence[Any]]) -> list[Line]:
    """Return the lines of a feed, the newest first: `troubles` of observe, and the samples of a short time.

    Between two troubles, what succeeded is one line.
    """
    lines = [Line(stamp(each["at"]), each) for each in troubles]
    sums: dict[float, Line] = {}
    for queue, at, span, _, _, ended in samples:
        succeeded = counts(ended).get("succeeded", 0)
        if not succeeded:
            continue
        known = sums.get(at, Line(at, seconds=span))
        if queue:
            # What is of no queue is of all, and counted already.
            sums[at] = Line(at, None, known.succeeded + int(succeeded), known.queues | {queue}, span)
    found: list[Line] = []
    for each in sorted([*lines, *sums.values()], key=lambda line: (-line.at, line.trouble is None)):
        last = found[-1] if found else None
        if each.trouble is None and last is not None and last.trouble is None:
            seconds = last.seconds + each.seconds
            found[-1] = Line(last.at, None, last.succeeded + each.succeeded, last.queues | each.queues, seconds)
        elif len(found) == _MOST:
            break
        else:
            found.append(each)
    return found
