"""dead_lines() and retry_fates(): what the dead of one group differ in, and what became of those that were retried."""

from __future__ import annotations

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import Row, call, enqueue_many, reserve, table, value


def die(conn: psycopg.Connection, jobs: int, message: str = "no answer from {n}", task: str = "t") -> list[int]:
    enqueue_many(conn, jobs, task)
    rows = reserve(conn, jobs)
    for n, row in enumerate(rows):
        error = {"class": "TimeoutError", "message": message.format(n=n % 3)}
        call(conn, "fail", row.id, row.reservation, Jsonb(error), retry=False)
    return [row.id for row in rows]


def fates(conn: psycopg.Connection) -> list[Row]:
    with conn.cursor(row_factory=namedtuple_row) as cursor:
        # No field of a tuple may be called class.
        return cursor.execute(
            "select f.actor, f.task, f.class as kind, f.fingerprint, f.jobs, f.looked_at, f.waiting, f.executing,"
            " f.dead, f.cancelled, f.is_cut from pgqueue.retry_fates() f"
        ).fetchall()


def test_the_lines_of_a_group_show_what_its_fingerprint_masks(conn: psycopg.Connection) -> None:
    die(conn, 7)
    die(conn, 2, "no answer from {n}", task="other")
    die(conn, 2, "gone {n}")
    rows = table(conn, "dead_lines", "t", "TimeoutError", "no answer from <n>")
    assert {row.line: row.jobs for row in rows} == {"no answer from 0": 3, "no answer from 1": 2, "no answer from 2": 2}
    assert rows[0].last_id == max(row.last_id for row in rows)
    assert table(conn, "dead_lines", "t", None, "no answer from <n>") == []
    assert table(conn, "dead_lines", "t", "TimeoutError", "no answer from <n>", queue="none") == []


def test_a_bulk_retry_is_listed_and_says_how_its_jobs_fare(conn: psycopg.Connection) -> None:
    die(conn, 10)
    conn.execute("select set_config('pgqueue.actor', 'mara', false)")
    assert call(conn, "retry_many", task="t") == 10
    [first] = fates(conn)
    assert (first.actor, first.task, first.kind, first.fingerprint) == (
        "mara",
        "t",
        "TimeoutError",
        "no answer from <n>",
    )
    assert (first.jobs, first.looked_at, first.waiting, first.executing, first.dead) == (10, 10, 10, 0, 0)
    rows = reserve(conn, 6)
    for row in rows[:3]:
        call(conn, "complete", row.id, row.reservation)
    call(conn, "fail", rows[3].id, rows[3].reservation, Jsonb({"class": "E"}), retry=False)
    call(conn, "cancel", value(conn, "select max(id) from pgqueue.jobs where state = 'waiting'"))
    [then] = fates(conn)
    assert (then.waiting, then.executing, then.dead, then.cancelled, then.is_cut) == (3, 2, 1, 1, False)


def test_a_retry_of_several_errors_is_a_row_for_each_and_none_where_none_came_back(conn: psycopg.Connection) -> None:
    die(conn, 3)
    die(conn, 2, "gone")
    call(conn, "retry_many", task="t")
    assert {(row.fingerprint, row.jobs) for row in fates(conn)} == {("no answer from <n>", 3), ("gone", 2)}
    call(conn, "retry_many", task="t")
    assert len(fates(conn)) == 2


def test_jobs_of_others_among_them_count_for_none(conn: psycopg.Connection) -> None:
    ids = die(conn, 6)
    call(conn, "retry_many", job_ids=[ids[0], ids[-1]])
    [found] = fates(conn)
    # Between the two are four that are still dead.
    assert (found.jobs, found.waiting, found.dead) == (2, 2, 0)


def test_of_large_retries_some_jobs_stand_for_all(conn: psycopg.Connection) -> None:
    die(conn, 600, "gone")
    for _ in range(2):
        call(conn, "retry_many", task="t", max_jobs=300)
    rows = fates(conn)
    assert [row.jobs for row in rows] == [300, 300]
    assert 100 <= sum(row.looked_at for row in rows) <= 252
    assert all(row.waiting == row.looked_at for row in rows)


def test_a_retry_is_told_of_for_a_day_and_kept_for_two(conn: psycopg.Connection, clock: Clock) -> None:
    die(conn, 2)
    call(conn, "retry_many", task="t")
    clock.advance("25 h")
    assert fates(conn) == []
    assert value(conn, "select count(*) from pgqueue.retries") == 1
    clock.advance("24 h")
    call(conn, "maintain")
    while value(conn, "select exists (select from pgqueue.retries)"):
        call(conn, "maintain")
