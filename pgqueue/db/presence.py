"""Statements of a worker about itself: take a name, register, send heartbeats, ask for commands, deregister."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from pgqueue.db.call import Call, array, read_column, read_first, read_maybe_one, read_nothing
from pgqueue.db.json import to_json


def claim_name(
    worker: str, info: Mapping[str, object], instead_of: str | None
) -> Call[tuple[dict[str, Any], timedelta] | None]:
    """Take a name; reads None, or the process that has it: its info, and for how long it has been silent."""
    return Call(
        b"select held_by, silent_for from pgqueue.claim_name(%s::text, %s::text::jsonb, %s::text)",
        (worker, to_json(info, "info"), instead_of),
        read_maybe_one,
    )


def release_former(worker: str) -> Call[list[int]]:
    """Give back the jobs of a dead process of this name, as lost; reads their ids."""
    return Call(b"select pgqueue.release_unheld(%s::text, died => true)", (worker,), read_column)


def hello(worker: str, queues: Sequence[str] | None, info: Mapping[str, object]) -> Call[str]:
    """Register the worker; reads its channel."""
    return Call(
        b"select pgqueue.hello(%s::text, %s::text[], %s::jsonb)",
        (worker, array(queues), to_json(info, "info")),
        read_first,
    )


def beat(
    worker: str,
    counted: Sequence[Mapping[str, object]] = (),
    memory: int | None = None,
    troubles: Sequence[Mapping[str, object]] = (),
    report_id: int | None = None,
) -> Call[bool]:
    """Send a heartbeat, with what has started and ended since the last one; reads whether the worker is registered.

    `memory` is what the process holds, in bytes. `troubles`: the last attempts that failed, 20 at most.
    `report_id`: a report with the id of another one is that report, sent again, and counts once.
    """
    report = {
        "jobs": list(counted),
        **({"troubles": list(troubles)} if troubles else {}),
        **({} if report_id is None else {"id": report_id}),
    }
    params = (worker, to_json(report, "report") if counted or troubles else None, memory)
    return Call(b"select pgqueue.beat(%s::text, %s::text::jsonb, %s::bigint)", params, read_first)


def worker_command(worker: str, obeys: str, instance: str) -> Call[str]:
    """Ask for the command of an operator: "run", "quiet" or "stop". `obeys`: the command that the worker follows now.

    Reads "taken" when another process than `instance` has its name.
    """
    return Call(b"select pgqueue.worker_command(%s::text, %s::text, %s::text)", (worker, obeys, instance), read_first)


def paused_of(job_ids: Sequence[int]) -> Call[list[int]]:
    """Read which of these jobs are paused or throttled, or under a limit that was set since they were claimed."""
    return Call(b"select p.id from pgqueue.paused_of(%s::bigint[]) p (id)", (list(job_ids),), read_column)


def bye(worker: str) -> Call[None]:
    """Deregister the worker."""
    return Call(b"select pgqueue.bye(%s::text)", (worker,), read_nothing)
