"""Jobs as a table, and one job as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pgqueue.cli import output, page
from pgqueue.cli.output import ago
from pgqueue.cli.tables import Table
from pgqueue.db.json import Document

# The value of each column; a column that is empty for all jobs is left out.
_COLUMNS = ("id", "task", "queue", "state", "attempts", "when", "worker", "progress", "error")
_ALWAYS = ("id", "task", "queue", "state", "attempts", "when")


def show_table(jobs: Sequence[Mapping[str, Any]]) -> None:
    """Print jobs, a line each."""
    rows = [dict(zip(_COLUMNS, _cells(job), strict=True)) for job in jobs]
    headings = tuple(name for name in _COLUMNS if name in _ALWAYS or any(row[name] for row in rows))
    cut = frozenset({"task", "queue", "worker", "progress", "error"})
    table = Table(headings, right=frozenset({"id", "attempts"}), cut=cut)
    for row in rows:
        table.add(*(row[name] for name in headings))
    table.show()


def _cells(job: Mapping[str, Any]) -> tuple[object, ...]:
    is_executing = job["state"] == "executing"
    errors = job["errors"] if isinstance(job["errors"], list) and job["errors"] else [{}]
    return (
        job["id"],
        job["task"],
        job["queue"],
        job["state"],
        job["attempts"],
        _when(job),
        job["reserved_by"] if is_executing else None,
        _progress(job["progress"]) if is_executing else None,
        summary(errors[-1])[:200],
    )


def _when(job: Mapping[str, Any]) -> str:
    """Return since when a job is in its state (ended, executing, blocked since its enqueue), or when it is due."""
    if job["state"] == "executing":
        return f"for {ago(job['reserved_at']).removesuffix(' ago')}"
    return ago(job["finished_at"] or job["due_at"] or job["created_at"])


def _progress(progress: Any) -> str:
    if not isinstance(progress, dict):
        return ""
    done, total, note = (progress.get(name) for name in ("done", "total", "note"))
    counted = "" if done is None else f"{done}/{total}" if total is not None else str(done)
    return " ".join(str(part) for part in (counted, note) if part)


def summary(error: object) -> str:
    """Write an error in one line: its class and its message."""
    if not isinstance(error, dict) or not error:
        return ""
    return ": ".join(str(error[name]) for name in ("class", "message") if error.get(name) is not None)


def show_page(job: Document) -> None:
    """Print everything about one job: the fields that are set, then its errors with their tracebacks."""
    page.show(job, [name for name in _in_order(job) if name != "errors"])
    errors = job["errors"]
    if not isinstance(errors, list):
        if errors is not None:
            output.line(f"errors  {errors}")
        return
    for error in errors:
        _show_error(error)


# The most wanted fields first.
_FIRST = ("id", "task", "state", "queue", "key", "args", "attempts", "max_attempts", "priority", "enqueued_by")


def _in_order(job: Document) -> list[str]:
    first = [name for name in _FIRST if name in job]
    return [*first, *(name for name in job if name not in first)]


def _show_error(error: object) -> None:
    if not isinstance(error, dict):
        output.line(f"error: {error}")
        return
    # The times of each claim and retry are in --json, and on the page of the job.
    known = ("class", "message", "traceback", "at", "attempt", "worker", "reserved_at", "retry_at")
    about = [
        f"attempt {error['attempt']}" if "attempt" in error else "",
        output.with_age(error["at"]) if isinstance(error.get("at"), str) else "",
        f"worker {error['worker']}" if error.get("worker") else "",
    ]
    output.line("")
    output.line(f"Error{''.join(f', {part}' for part in about if part)}", "bold")
    traceback = str(error.get("traceback") or "")
    output.lines(traceback)
    # The last line of a traceback repeats it, but not in every language.
    if str(error.get("message", "")) not in traceback or not traceback:
        output.line(summary(error))
    for name in error:
        if name not in known:
            output.lines(f"{name}: {error[name]}")
