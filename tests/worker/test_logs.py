"""Log lines, as JSON and for a console."""

from __future__ import annotations

import logging
import re
import signal
import sys
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest

from pgqueue.logs import JobFilter, JsonLines, _Plain, how_many, job_fields, subject
from tests.calls import enqueue, state
from tests.docs.pages import blocks
from tests.facts import wait_until
from tests.worker.conftest import Start
from tests.workers import write_module

TASKS = """
    import logging
    from pgqueue import App

    app = App()

    @app.task
    async def says():
        logging.getLogger("mine").warning("from the %s", "loop", extra={"customer": 17})

    @app.task
    def says_in_a_thread():
        logging.getLogger("mine").warning("from a thread")

    @app.task
    def binary():
        log = logging.getLogger("mine")
        log.warning("%s", bytes(range(256)))
        log.warning("\\udcff\\x00\\x1b[31m")
        log.warning(b"\\xff\\xfe")
        log.warning("%d", "no number")
        log.warning("last", extra={"blob": b"\\xff", "big": 2**80, "odd": "\\udcff"})

    @app.task(max_attempts=1)
    async def fails():
        raise RuntimeError("no\\nway")
"""


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def record(message: object, *args: object, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("a.logger", logging.WARNING, __file__, 1, message, args, None)
    vars(made).update(extra)
    return made


def as_json(made: logging.LogRecord) -> Any:
    text = JsonLines("w").format(made)
    assert "\n" not in text
    return orjson.loads(text)


@pytest.mark.parametrize(
    ("number", "noun", "says"),
    [
        (0, "job", "0 jobs"),
        (1, "job", "1 job"),
        (2, "job", "2 jobs"),
        (1, "bus", "1 bus"),
        (2, "process", "2 processes"),
    ],
)
def test_a_number_is_written_with_its_noun(number: int, noun: str, says: str) -> None:
    assert how_many(number, noun) == says


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_handlers_lines_reach_the_log_whatever_is_in_them(
    style: str, conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    write_module(tmp_path, TASKS)
    worker = start_worker("-r", "jobs", "--name", "w", "--log-format", style).started()
    job_id = enqueue(conn, "binary")
    wait_until(lambda: state(conn, job_id) == "succeeded")
    wait_until(lambda: "last" in worker.log())
    assert "Logging error" not in worker.log()
    assert "\x1b" not in worker.log()
    assert "\x00" not in worker.log()
    assert "its arguments cannot be shown: TypeError" in worker.log()


def test_each_line_of_json_names_its_job(conn: psycopg.Connection, start_worker: Start, tmp_path: Path) -> None:
    write_module(tmp_path, TASKS)
    worker = start_worker("-r", "jobs", "--name", "w", "--log-format", "json").started()
    jobs = {task: enqueue(conn, task) for task in ("says", "says_in_a_thread", "fails")}
    wait_until(lambda: all(state(conn, job_id) in ("succeeded", "dead") for job_id in jobs.values()))
    wait_until(lambda: "is dead" in worker.log() and worker.log().count("succeeded in") == 2)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    lines = [orjson.loads(line) for line in worker.log().splitlines()]
    assert all({"time", "level", "logger", "message", "worker"} <= set(line) for line in lines)
    assert {line["worker"] for line in lines} == {"w"}
    for task, job_id in jobs.items():
        of_task = [line for line in lines if line.get("task") == task]
        assert of_task
        for line in of_task:
            assert (line["job_id"], line["queue"], line["attempt"]) == (job_id, "default", 1)
    [says] = [line for line in lines if line["message"] == "from the loop"]
    assert (says["task"], says["customer"]) == ("says", 17)
    [ended] = [line for line in lines if line["message"].startswith(f"says[{jobs['says']}] succeeded in ")]
    assert (ended["level"], ended["state"]) == ("info", "succeeded")
    assert ended["seconds"] > 0
    [dead] = [line for line in lines if "is dead" in line["message"]]
    assert dead["level"] == "error"
    assert dead["message"].startswith(f"fails[{jobs['fails']}] is dead after attempt 1 of 1 in ")
    assert dead["message"].endswith(" s: RuntimeError: no way")
    assert 'raise RuntimeError("no\\nway")' in dead["error"]


def test_each_line_of_the_console_names_its_job_once(
    conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    write_module(tmp_path, TASKS)
    worker = start_worker("-r", "jobs", "--name", "w").started()
    jobs = {task: enqueue(conn, task) for task in ("says", "says_in_a_thread", "fails")}
    wait_until(lambda: "is dead" in worker.log() and worker.log().count("succeeded in") == 2)
    lines = worker.log().splitlines()
    for line in (f"says[{jobs['says']}] from the loop", f"says_in_a_thread[{jobs['says_in_a_thread']}] from a thread"):
        assert [each for each in lines if each.endswith(f" WARNING mine: {line}")]
    assert all(len(re.findall(r"\w\[\d+\]", each)) <= 1 for each in lines)
    assert not [each for each in lines if each.endswith(": from a thread")]


def test_a_filter_names_the_job_for_a_format_of_ones_own() -> None:
    class Known:
        def log_fields(self) -> dict[str, object]:
            return {"job_id": 17, "queue": "mail", "task": "send_email", "attempt": 2}

    formatter = logging.Formatter("%(job)s %(message)s")

    def line(made: logging.LogRecord) -> str:
        assert JobFilter().filter(made)
        return formatter.format(made)

    assert line(record("out of jobs")) == "- out of jobs"
    assert job_fields() == {}
    token = subject.set(Known())
    try:
        assert line(record("half of %d", 10)) == "send_email[17] half of 10"
        assert job_fields() == Known().log_fields()
    finally:
        subject.reset(token)


def test_the_log_of_ones_own_on_the_page_names_the_job_of_each_line(
    conn: psycopg.Connection, start_worker: Start, tmp_path: Path
) -> None:
    [text] = [block.text for block in blocks("docs/how-to/logs.md") if block.file == "own_log.py"]
    (tmp_path / "own_log.py").write_text(text)
    write_module(
        tmp_path,
        """
        import logging

        import own_log
        from pgqueue import App

        own_log.set_up()
        app = App()

        @app.task
        def says():
            logging.getLogger("mine").warning("three attachments")
        """,
    )
    worker = start_worker("-r", "jobs", "--name", "w").started()
    job_id = enqueue(conn, "says")
    wait_until(lambda: state(conn, job_id) == "succeeded")
    wait_until(lambda: "succeeded in" in worker.log())
    lines = worker.log().splitlines()
    assert [line for line in lines if line.endswith(f" WARNING says[{job_id}] mine: three attachments")]
    assert [line for line in lines if " - pgqueue.worker: worker w on " in line]


def test_an_error_is_a_field_of_its_line() -> None:
    try:
        raise ValueError("a\nb")
    except ValueError:
        made = logging.LogRecord("x", logging.ERROR, __file__, 1, "it broke", (), sys.exc_info())
    found = as_json(made)
    assert found["message"] == "it broke"
    assert "ValueError: a\nb" in found["error"]


@pytest.mark.parametrize(
    ("message", "args"),
    [
        ("%s", (b"\xff\x00",)),
        ("%s %s", ("one",)),
        ("%d", ("x",)),
        (b"\xff", ()),
        ("\udcff", ()),
        ("%r", (Unshowable(),)),
        (Unshowable(), ()),
    ],
)
def test_nothing_that_is_logged_breaks_the_log(message: object, args: tuple[object, ...]) -> None:
    made = record(message, *args, blob=b"\xff", odd={1: Unshowable()}, big=2**90)
    assert as_json(made)["level"] == "warning"
    _Plain("%(levelname)s %(message)s").format(made).encode()
