"""The log lines that are kept with a job."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pgqueue.db import steps
from pgqueue.job import Job, current_job
from pgqueue.worker.link.connection import Link

# Lines of an attempt that are kept, and characters of a line; lines that wait to be stored, and those of one statement.
_MOST = 1000
_LONGEST = 1024
_WAITING = 20_000
_AT_ONCE = 5000
# Attempts of which it is known how many lines they have, and seconds after which a quiet one is forgotten.
_ATTEMPTS = 10_000
_QUIET = 3600.0


@dataclass(slots=True)
class _Attempt:
    lines: int = 0
    dropped: int = 0
    reported: int = 0
    at: float = field(default_factory=time.monotonic)


class LogLines:
    """Keeps lines of jobs, and stores them about once a second.

    The first thousand lines of an attempt are kept, and then one line with the number of the others; likewise for lines
    that come faster than they can be stored. While the database cannot be reached, lines are lost, but no job.
    """

    def __init__(self, link: Link, loggers: Sequence[str]) -> None:
        self._link = link
        self._loggers = [logging.getLogger(name) for name in loggers]
        self._handler = OfLoggers()
        self._lines: deque[dict[str, object]] = deque()
        self._attempts: dict[tuple[int, int], _Attempt] = {}

    def keep(self, job: Job, level: int, line: str) -> None:
        """Keep a line of this job. Also called from threads."""
        self.keep_of(job.id, job.attempt, logging.getLevelName(level), line)

    def keep_of(self, job_id: int, attempt: int, level: str, line: str) -> None:
        """Keep a line of the attempt of a job."""
        about = self._attempts.setdefault((job_id, attempt), _Attempt())
        about.at = time.monotonic()
        if about.lines >= _MOST or len(self._lines) >= _WAITING:
            about.dropped += 1
            return
        about.lines += 1
        self._add(job_id, attempt, level, line)

    def _add(self, job_id: int, attempt: int, level: str, line: str) -> None:
        # Any text is accepted: a bad one must not make its whole batch fail.
        clean = line[:_LONGEST].encode("utf-8", "replace").decode().replace("\0", "\ufffd")
        at = datetime.now(UTC).isoformat()
        self._lines.append({"job_id": job_id, "attempt": attempt, "at": at, "level": level, "line": clean})

    def tell(self, job_id: int, attempt: int, level: str, lines: Sequence[str]) -> None:
        """Keep lines about a job that are not its own: none of them is left out."""
        for line in lines:
            self._add(job_id, attempt, level, line)

    async def store_forever(self) -> None:
        """Store the lines that were kept, and listen to the chosen loggers."""
        while True:
            for logger in self._loggers:
                # Several workers may run in this process, and one that ends takes its handler away.
                if not any(isinstance(each, OfLoggers) for each in logger.handlers):
                    logger.addHandler(self._handler)
            await asyncio.sleep(1.0)
            if self._attempts:
                await self.store()

    async def close(self) -> None:
        """Store what is left, if that is possible within two seconds."""
        for logger in self._loggers:
            logger.removeHandler(self._handler)
        if self._attempts:
            with suppress(Exception):
                async with asyncio.timeout(2.0):
                    await self.store(is_last=True)

    async def store(self, *, is_last: bool = False) -> None:
        """Store the lines that are there now."""
        self._tell_dropped(0.0 if is_last else 1.0)
        while self._lines:
            some = [self._lines.popleft() for _ in range(min(len(self._lines), _AT_ONCE))]
            try:
                await self._link.perform(steps.write_log(some))
            except asyncio.CancelledError:
                # At the worker's end: they go with the last ones.
                self._lines.extendleft(reversed(some))
                raise

    def _tell_dropped(self, quiet: float) -> None:
        now = time.monotonic()
        for (job_id, attempt), about in list(self._attempts.items()):
            # Once the attempt has written nothing for a second.
            if about.dropped > about.reported and now - about.at >= quiet:
                self._add(job_id, attempt, "WARNING", f"{about.dropped - about.reported} more lines were not kept")
                about.reported = about.dropped
            if now - about.at > _QUIET or len(self._attempts) > _ATTEMPTS:
                self._attempts.pop((job_id, attempt), None)


class OfLoggers(logging.Handler):
    """Keeps the lines that other loggers write while a job runs, as lines of that job."""

    def __init__(self) -> None:
        super().__init__()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record, if a job runs here."""
        try:
            job = current_job()
            job.keep_line(record.levelno, self.format(record))
        except RuntimeError:
            return
        except Exception:
            self.handleError(record)
