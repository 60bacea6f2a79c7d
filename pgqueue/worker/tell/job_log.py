"""The log of a worker's jobs: a line when one ends, or a line a second for each task when many do.

One job a line: `send_email[17] succeeded in 0.213 s`. Failures carry the traceback, and the time of the next attempt.
Above MOST ends a second each task gets a summary a second instead, with the ids of what failed, so that the log does
not slow the worker down.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime

from pgqueue import logs
from pgqueue.db import operate
from pgqueue.worker.hold.held import Held
from pgqueue.worker.link.connection import Link

log = logging.getLogger("pgqueue.jobs")

# Ends that have their own line, in a second.
MOST = 50

_WINDOW = 1.0

# Ids of failed jobs in a line.
_IDS = 500

# Seconds to wait for the database's answer on failed jobs.
_PATIENCE = 2.0


class JobLog:
    """Logs the ends of jobs. Over `link` it asks the database when failed ones run again."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._ends = 0
        self._is_summing = False
        self._succeeded: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._failed: defaultdict[str, list[int]] = defaultdict(list)
        self._last_error: dict[str, str] = {}
        self._timer: asyncio.TimerHandle | None = None
        # Failed attempts whose lines wait for the database's answer, by the job's id.
        self._failures: dict[int, tuple[Held, str]] = {}
        self._asking: asyncio.Task[None] | None = None

    def started(self, held: Held) -> None:
        """The handler of this job starts. Asked for at debug alone: it costs a line for each job."""
        _write(logging.DEBUG, held, f"starts {_attempt(held)}", {})

    def succeeded(self, batch: Sequence[Held]) -> None:
        """These jobs succeeded."""
        self._catch_up(batch)
        if not batch or not log.isEnabledFor(logging.INFO):
            return
        if self._has_a_line_each(len(batch)):
            for held in batch:
                _write(logging.INFO, held, f"succeeded in {_seconds(held)}", {"state": "succeeded"})
            return
        names = [held.row.task for held in batch]
        self._succeeded.update(names)
        for name, held in zip(names, batch, strict=True):
            self._seconds[name] += held.attempt.seconds or 0.0

    def failed(self, held: Held, state: str) -> None:
        """This attempt failed, and the job is now failed (it runs again), dead or cancelled."""
        self._catch_up([held])
        _keep_on()
        level = logging.INFO if held.attempt.ending.signalled else logging.ERROR if state == "dead" else logging.WARNING
        if not log.isEnabledFor(level):
            return
        if not self._has_a_line_each(1):
            self._failed[held.row.task].append(held.row.id)
            self._last_error[held.row.task] = _error_of(held)
        elif state == "cancelled":
            _write_failure(held, state, None, [])
        else:
            self._failures[held.row.id] = held, state
            if self._asking is None:
                self._asking = asyncio.create_task(self._log_failures(), name="pgqueue-job-log")

    def snoozed(self, held: Held, delay: object) -> None:
        """This job runs again after `delay`, and the attempt does not count."""
        self._catch_up([held])
        if log.isEnabledFor(logging.INFO) and self._has_a_line_each(1):
            _write(logging.INFO, held, f"is snoozed for {delay} after {_seconds(held)}", {"state": "snoozed"})

    def suspended(self, held: Held) -> None:
        """This job waits for a time, an event or other jobs, and the attempt does not count."""
        self._catch_up([held])
        if log.isEnabledFor(logging.INFO) and self._has_a_line_each(1):
            _write(logging.INFO, held, f"is suspended after {_seconds(held)}", {"state": "snoozed"})

    def cancelled(self, held: Held) -> None:
        """This job was cancelled on request, before or after its handler began."""
        self._catch_up([held])

    async def close(self) -> None:
        """Write the pending lines."""
        if self._asking is not None:
            with suppress(asyncio.CancelledError):
                await self._asking
        # Code of a handler may have cancelled what asked for them.
        self._catch_up([held for held, _ in self._failures.values()])
        if self._timer is not None:
            self._timer.cancel()
            self._end_window()

    def _has_a_line_each(self, number: int) -> bool:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WINDOW, self._end_window)
        self._ends += number
        self._is_summing |= self._ends > MOST
        return not self._is_summing

    def _end_window(self) -> None:
        _keep_on()
        for task in sorted(self._succeeded.keys() | self._failed.keys()):
            done, failed = self._succeeded[task], self._failed[task]
            counts = {"task": task, "succeeded": done, "failed": len(failed)}
            parts = [f"{done} succeeded in {1000 * self._seconds[task] / done:.1f} ms each"] if done else []
            if failed:
                parts.append(f"{len(failed)} failed, the last one: {self._last_error[task]}")
            level = logging.WARNING if failed else logging.INFO
            log.log(level, "%s: %s", task, "; ".join(parts), extra=counts)
            # Each failure can be found by its id.
            for start in range(0, len(failed), _IDS):
                ids = sorted(failed[start : start + _IDS])
                extra = {"task": task, "failed_ids": ids}
                log.warning("%s: failed: %s", task, ", ".join(map(str, ids)), extra=extra)
        for tally in (self._succeeded, self._seconds, self._failed, self._last_error):
            tally.clear()
        # A quiet second ends it; until then each second is summed from its start.
        self._is_summing = self._is_summing and self._ends > MOST
        self._ends = 0
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_WINDOW, self._end_window) if self._is_summing else None

    async def _log_failures(self) -> None:
        """Write the lines of failed attempts, once the database has answered for their jobs."""
        try:
            while self._failures:
                batch = dict(self._failures)
                found: dict[int, tuple[datetime | None, list[str]]] = {}
                with suppress(Exception):
                    async with asyncio.timeout(_PATIENCE):
                        found = await self._link.perform(operate.next_attempts(list(batch)))
                for job_id, each in batch.items():
                    if self._failures.get(job_id) is each:
                        del self._failures[job_id]
                        _write_failure(*each, *found.get(job_id, (None, [])))
        finally:
            self._asking = None

    def _catch_up(self, batch: Sequence[Held]) -> None:
        """Write the lines of earlier attempts of these jobs, which ended before the database answered."""
        if self._failures:
            for held in batch:
                if held.row.id in self._failures:
                    _write_failure(*self._failures.pop(held.row.id), None, [])


def _keep_on() -> None:
    # A handler may have configured logging.
    if log.disabled or log.manager.disable:
        logs.switch_on()


def _write_failure(held: Held, state: str, at: datetime | None, overrides: Sequence[str]) -> None:
    """Write the line of a failed attempt: when the job runs again, and which options an operator has set."""
    level = logging.INFO if held.attempt.ending.signalled else logging.ERROR if state == "dead" else logging.WARNING
    parts = [f"{'failed' if state == 'failed' else f'is {state} after'} {_attempt(held)} in {_seconds(held)}"]
    fields: dict[str, object] = {"state": state}
    if at is not None:
        parts.append(f"runs again at {at.astimezone():%H:%M:%S %Z}")
        fields["runs_again_at"] = at.isoformat(timespec="milliseconds")
    if overrides:
        parts.append(f"set by an operator: {', '.join(overrides)}")
        fields["set_by_operator"] = list(overrides)
    _write(level, held, f"{'; '.join(parts)}: {_error_of(held)}", fields)


def _write(level: int, held: Held, what: str, fields: Mapping[str, object]) -> None:
    extra = {**held.row.log_fields(), **fields}
    if held.attempt.seconds is not None:
        extra["seconds"] = round(held.attempt.seconds, 6)
    message = f"{held.row.task}[{held.row.id}] {what}"
    record = log.makeRecord(log.name, level, __file__, 0, message, (), None, extra=extra)
    # As formatters of logging show an exception: below the message, or in its own field.
    record.exc_text = str((held.attempt.ending.error or {}).get("traceback") or "").rstrip() or None
    log.handle(record)


def _seconds(held: Held) -> str:
    return f"{held.attempt.seconds or 0.0:.3f} s"


def _attempt(held: Held) -> str:
    return f"attempt {held.row.attempt} of {held.row.max_attempts}"


def _error_of(held: Held) -> str:
    error = held.attempt.ending.error or {}
    message = " ".join(str(error.get("message", "")).split())[:300]
    return f"{error.get('class')}: {message}" if message else str(error.get("class"))
