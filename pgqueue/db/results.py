"""Outcomes of enqueues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The outcome of an enqueue.

    `outcome` is "inserted", or what was done with the job `job_id` that has its dedupe key: "skipped",
    "replaced", "merged", "debounced" or "superseded".
    """

    job_id: int
    outcome: str


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The outcome of one job of a batch: as `Enqueued`; or "error", with `error` and no `job_id`.

    `error` has sqlstate, message, detail and hint.
    """

    job_id: int | None
    outcome: str
    error: dict[str, Any] | None
