"""What became of jobs to be enqueued."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What became of a job to be enqueued.

    `outcome` is "inserted", or what was done with the job `job_id` that stands for its dedupe key: "skipped",
    "replaced", "merged" or "debounced".
    """

    job_id: int
    outcome: str


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What became of one job of a batch: as `Enqueued`; or "error", with `error` and no `job_id`.

    `error` has sqlstate, message, detail and hint.
    """

    job_id: int | None
    outcome: str
    error: dict[str, Any] | None
