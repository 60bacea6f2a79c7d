"""A schedule that is edited or paused while a run of it is due: what passed under the old rule is owed."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import call, maintain, stats, value

NIGHT = "30 2 * * MON-FRI"
BEFORE, DURING = "2030-01-08 02:00+00", "2030-01-08 02:45+00"


@pytest.fixture(autouse=True)
def _start(conn: psycopg.Connection, clock: Clock) -> None:
    conn.execute("set timezone = 'UTC'")
    clock.set(BEFORE)


def declare(conn: psycopg.Connection, expression: str | None = NIGHT, task: str = "t", **options: Any) -> Any:
    return str(call(conn, "schedule", "s", expression, task, **options))


def runs(conn: psycopg.Connection) -> list[str]:
    found = conn.execute("select to_char(run_at, 'DD HH24:MI') from pgqueue.jobs order by run_at")
    return [row[0] for row in found]


def tick(conn: psycopg.Connection, clock: Clock, to: str | None = None) -> None:
    if to is not None:
        clock.set(to)
    maintain(conn)
    assert stats(conn).maintenance["failures"] == {}


@pytest.mark.parametrize(
    ("expression", "timezone", "then"),
    [
        (NIGHT, "UTC", "09 02:30"),
        ("30 2 * * mon-fri", "UTC", "09 02:30"),
        ("30  2 * * 1-5", "UTC", "09 02:30"),
        (NIGHT, "Etc/UTC", "09 02:30"),
        ("30 2,14 * * MON-FRI", "UTC", "08 14:30"),
        (NIGHT, "Europe/Berlin", "09 01:30"),
    ],
)
def test_a_run_that_fell_due_before_a_deploy_edits_its_schedule_is_not_lost(
    conn: psycopg.Connection, clock: Clock, expression: str, timezone: str, then: str
) -> None:
    declare(conn)
    clock.set(DURING)
    declare(conn, expression, timezone=timezone)
    tick(conn, clock)
    assert runs(conn) == ["08 02:30"]
    assert value(conn, "select to_char(next_at, 'DD HH24:MI') from pgqueue.effective_schedules") == then


def test_no_instant_of_the_new_rule_before_the_edit_is_owed(conn: psycopg.Connection, clock: Clock) -> None:
    declare(conn, "0 1 * * *")
    clock.set(DURING)
    declare(conn, "15 2 * * *")
    tick(conn, clock)
    assert runs(conn) == []


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [("skip", []), ("last", ["08 02:40"]), ("all", ["08 02:10", "08 02:20", "08 02:30", "08 02:40"])],
)
def test_the_old_rules_catch_up_decides_what_is_owed(
    conn: psycopg.Connection, clock: Clock, catch_up: str, expected: list[str]
) -> None:
    declare(conn, "*/10 * * * *", catch_up=catch_up)
    clock.set(DURING)
    declare(conn, "0 4 * * *", catch_up="last" if catch_up == "skip" else "skip")
    tick(conn, clock)
    assert runs(conn) == expected


def test_what_is_owed_runs_as_the_task_that_the_new_code_knows(conn: psycopg.Connection, clock: Clock) -> None:
    declare(conn)
    clock.set(DURING)
    declare(conn, "30 3 * * *", task="renamed", queue="moved")
    assert conn.execute("select task, queue from pgqueue.jobs").fetchall() == [("renamed", "moved")]


def test_two_versions_that_take_turns_with_every_run_it_all_the_same(conn: psycopg.Connection, clock: Clock) -> None:
    declare(conn, None, every="1 h")
    for turn in range(12):
        clock.advance("30 min")
        declare(conn, None, every="2 h" if turn % 2 else "1 h")
        tick(conn, clock)
    assert runs(conn) == [f"08 {hour:02}:00" for hour in range(3, 9)]


def test_another_every_keeps_its_anchor(conn: psycopg.Connection, clock: Clock) -> None:
    declare(conn, None, every="1 h")
    clock.set("2030-01-08 02:10+00")
    assert declare(conn, None, every="90 min") == "2030-01-08 03:30:00+00:00"


def test_an_operators_edit_settles_what_is_due(conn: psycopg.Connection, clock: Clock) -> None:
    declare(conn)
    clock.set(DURING)
    assert call(conn, "configure_schedule", "s", "0 4 * * *") is True
    assert runs(conn) == ["08 02:30"]
    tick(conn, clock, "2030-01-08 04:00+00")
    clock.set("2030-01-09 04:05+00")
    assert call(conn, "configure_schedule", "s", reset=["expression"]) is True
    tick(conn, clock)
    assert runs(conn) == ["08 02:30", "08 04:00", "09 04:00"]


def test_an_update_by_hand_leaves_what_was_due_to_maintenance(conn: psycopg.Connection, clock: Clock) -> None:
    declare(conn)
    clock.set(DURING)
    conn.execute("update pgqueue.schedules set expression = '40 2,5 * * *'")
    tick(conn, clock)
    assert runs(conn) == ["08 02:30"]
    tick(conn, clock, "2030-01-08 05:40+00")
    assert runs(conn) == ["08 02:30", "08 05:40"]


@pytest.mark.parametrize("is_edited", [False, True])
def test_a_run_that_was_due_before_a_pause_runs_after_it(
    conn: psycopg.Connection, clock: Clock, is_edited: bool
) -> None:
    declare(conn, "30 2,3 * * *")
    clock.set(DURING)
    call(conn, "pause_schedule", "s")
    tick(conn, clock, "2030-01-08 05:00+00")
    if is_edited:
        assert declare(conn, "0 4,6 * * *") == "2030-01-08 06:00:00+00:00"
    tick(conn, clock)
    assert runs(conn) == []
    call(conn, "resume_schedule", "s")
    tick(conn, clock)
    assert runs(conn) == ["08 02:30"]
    tick(conn, clock, "2030-01-08 06:00+00")
    assert runs(conn) == ["08 02:30", *(["08 06:00"] if is_edited else [])]


def test_what_cannot_run_at_the_edit_stays_due(conn: psycopg.Connection, clock: Clock) -> None:
    declare(conn)
    clock.set(DURING)
    conn.execute("alter table pgqueue.jobs add constraint broken check (task <> 't')")
    assert declare(conn, "0 4 * * *") == "2030-01-08 04:00:00+00:00"
    conn.execute("alter table pgqueue.jobs drop constraint broken")
    tick(conn, clock)
    assert runs(conn) == ["08 02:30"]
    tick(conn, clock, "2030-01-08 04:00+00")
    assert runs(conn) == ["08 02:30", "08 04:00"]


def test_a_clock_that_jumped_ahead_and_back_over_an_instant_does_not_lose_it(
    conn: psycopg.Connection, clock: Clock
) -> None:
    declare(conn, "30 2 * * *", catch_up="skip")
    tick(conn, clock, "2030-01-08 02:29+00")
    tick(conn, clock, "2030-01-10 12:00+00")
    tick(conn, clock, "2030-01-08 02:30:05+00")
    assert runs(conn) == ["08 02:30"]


@pytest.mark.parametrize("expression", ["0 4 * * *", NIGHT])
@pytest.mark.parametrize("is_paused", [False, True])
@pytest.mark.parametrize("catch_up", ["last", "all"])
def test_a_schedule_that_is_declared_anew_after_its_removal_owes_nothing(
    conn: psycopg.Connection, clock: Clock, expression: str, is_paused: bool, catch_up: str
) -> None:
    declare(conn, catch_up=catch_up)
    if is_paused:
        call(conn, "pause_schedule", "s")
    call(conn, "unschedule", "s")
    clock.set(DURING)
    due = declare(conn, expression, catch_up=catch_up)
    tick(conn, clock)
    assert runs(conn) == []
    tick(conn, clock, due)
    assert len(runs(conn)) == 1
