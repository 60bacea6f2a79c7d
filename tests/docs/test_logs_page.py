"""The page on logs: what it says of structlog, Sentry and a log of one's own is what a worker does."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from types import ModuleType
from typing import Any

import psycopg
import pytest

from pgqueue.logs import _Plain, subject
from tests.calls import enqueue
from tests.databases import Database
from tests.docs.pages import blocks
from tests.facts import wait_until_async
from tests.workers import done, working

PAGE = "docs/how-to/logs.md"


def text_of(file: str) -> str:
    [text] = [block.text for block in blocks(PAGE) if block.file == file]
    return text


def module(file: str) -> Any:
    made = ModuleType(Path(file).stem)
    exec(compile(text_of(file), file, "exec"), vars(made))
    return made


async def test_structlog_names_the_job_of_each_line(database: Database, conn: psycopg.Connection) -> None:
    structlog = pytest.importorskip("structlog")
    lines = io.StringIO()
    try:
        page = module("with_structlog.py")
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(lines), cache_logger_on_first_use=False)
        ids = {task: enqueue(conn, task, {"order": 5}) for task in ("pay", "pay_async")}
        async with working(page.app, database.dsn):
            assert await done(conn, *ids.values()) == ["succeeded", "succeeded"]
        page.log.info("elsewhere")
    finally:
        structlog.reset_defaults()
    *paid, elsewhere = [json.loads(line) for line in lines.getvalue().splitlines()]
    found = {line["task"]: line for line in paid}
    for task, job_id in ids.items():
        line = found[task]
        assert (line["event"], line["job_id"], line["queue"], line["attempt"]) == ("paid", job_id, "default", 1)
        assert (line["cents"], line["level"]) == (990, "info")
    # What one job has bound is not the next one's.
    assert found["pay"]["order"] == 5
    assert "order" not in found["pay_async"]
    assert "job_id" not in elsewhere


async def test_sentry_gets_one_event_for_each_failed_attempt_with_its_job(
    database: Database, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentry_sdk = pytest.importorskip("sentry_sdk")
    monkeypatch.delenv("SENTRY_DSN", raising=False)
    events: list[dict[str, Any]] = []

    class Kept(sentry_sdk.transport.Transport):  # type: ignore[misc,name-defined,unused-ignore]
        def capture_envelope(self, envelope: Any) -> None:
            events.extend(filter(None, [envelope.get_event()]))

    page = module("with_sentry.py")
    try:
        sentry_sdk.init(dsn="https://key@sentry.invalid/1", transport=Kept, auto_session_tracking=False)
        ids = {task: enqueue(conn, task, {"order": 5}, max_attempts=1) for task in ("charge", "ask_bank")}
        snoozed = enqueue(conn, "wait_for_bank", {"order": 5})
        async with working(page.app, database.dsn):
            assert await done(conn, *ids.values()) == ["dead", "dead"]
            await wait_for_snooze(conn, snoozed)
        sentry_sdk.flush()
    finally:
        sentry_sdk.init()
    assert len(events) == 2
    found = {event["transaction"]: event for event in events}
    for task, job_id in ids.items():
        tags = {name: str(value) for name, value in found[task]["tags"].items()}
        assert tags == {"job_id": str(job_id), "task": task, "queue": "default", "attempt": "1"}
        [error] = found[task]["exception"]["values"]
        assert error["type"] == "LookupError"
        assert error["stacktrace"]["frames"][-1]["function"] == task


async def wait_for_snooze(conn: psycopg.Connection, job_id: int) -> None:
    reserved = "select (reservation >> 20) = 1 and state = 'waiting' from pgqueue.jobs where id = %s"
    await wait_until_async(lambda: (conn.execute(reserved, [job_id]).fetchone() or [False])[0])


def test_the_lines_of_the_page_have_the_form_of_the_console() -> None:
    [shown] = [block.text for block in blocks(PAGE) if block.language == "text"]

    class Known:
        def log_fields(self) -> dict[str, object]:
            return {"job_id": 17, "queue": "mail", "task": "send_receipt", "attempt": 1}

    made = logging.LogRecord("shop.mail", logging.INFO, __file__, 1, "%d attachments", (3,), None)
    token = subject.set(Known())
    try:
        line = _Plain("%(levelname)s %(name)s: %(message)s").format(made)
    finally:
        subject.reset(token)
    assert shown.splitlines()[0].endswith(line)
