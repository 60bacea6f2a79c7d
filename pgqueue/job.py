"""A job as its handler sees it, and what a producer is told of one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Job:
    """One reserved job. A handler gets it when it has a parameter annotated `Job`.

    `attempt` counts from 1; `reservation` is the fence under which this try runs; times are aware datetimes by the
    database's clock.
    """

    id: int
    task: str
    args: dict[str, Any]
    headers: dict[str, Any] | None
    queue: str
    key: str | None
    priority: int
    attempt: int
    max_attempts: int
    reservation: int
    run_at: datetime
    created_at: datetime
    lease_expires_at: datetime


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
