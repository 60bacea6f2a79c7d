"""How long history keeps a finished job, and how it forgets."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import call, enqueue, job, maintain, reserve_one, state, stats, value

pytestmark = pytest.mark.partitions

NOON = "2030-01-01 12:00+00"


def finish(conn: psycopg.Connection, end: str, **options: Any) -> int:
    job_id = enqueue(conn, **options)
    if end == "cancelled":
        call(conn, "cancel", job_id)
        return job_id
    held = reserve_one(conn)
    if end == "dead":
        call(conn, "fail", job_id, held.reservation, retry=False)
    else:
        call(conn, "complete", job_id, held.reservation)
    return job_id


def has_all_partitions(conn: psycopg.Connection) -> bool:
    """Whether maintenance has found nothing to attach at the present time."""
    return value(conn, "select not exists (select from pgqueue._partition_gaps(14, 26))") is True


def kept_for(conn: psycopg.Connection, end: str, **options: Any) -> timedelta | None:
    found = job(conn, finish(conn, end, **options))
    if found is None:
        return None
    assert found.state == end
    delay: timedelta = found.kept_until - found.finished_at
    return delay


@pytest.mark.covers("G12")
@pytest.mark.parametrize(("end", "days"), [("succeeded", 1), ("cancelled", 7), ("dead", 90)])
def test_retention_comes_from_the_job_then_the_task_then_the_queue_then_settings(
    conn: psycopg.Connection, end: str, days: int
) -> None:
    column = f"retention_{end}"
    assert kept_for(conn, end) == timedelta(days=days)
    conn.execute(f"update pgqueue.settings set {column} = '2 hours'".encode())
    assert kept_for(conn, end) == timedelta(hours=2)
    conn.execute(f"insert into pgqueue.queues (name, {column}) values ('default', '3 hours')".encode())
    assert kept_for(conn, end) == timedelta(hours=3)
    call(conn, "declare_task", "t", **{column: "4 hours"})
    assert kept_for(conn, end) == timedelta(hours=4)
    conn.execute(f"update pgqueue.tasks set {column} = '5 hours'".encode())
    assert kept_for(conn, end) == timedelta(hours=5)
    assert kept_for(conn, end, retention="6 hours") == timedelta(hours=6)
    assert kept_for(conn, end, retention="0") is None
    conn.execute(f"update pgqueue.tasks set {column} = '0'".encode())
    assert kept_for(conn, end) is None
    assert value(conn, "select count(*) from pgqueue.jobs") == 0


@pytest.mark.covers("G12")
@pytest.mark.parametrize(
    ("retention", "partition"),
    [
        ("1 us", "history_d_20300101"),
        ("1 day", "history_d_20300102"),
        ("8 days", "history_d_20300109"),
        ("8 days 1 us", "history_m_203001"),
        ("31 days", "history_m_203002"),
        ("2 years", "history_m_203201"),
    ],
)
def test_a_row_lies_in_the_partition_of_the_day_or_month_in_which_it_expires(
    conn: psycopg.Connection, clock: Clock, retention: str, partition: str
) -> None:
    clock.set(NOON)
    job_id = finish(conn, "succeeded", retention=retention)
    assert (
        value(conn, "select tableoid::regclass::text from pgqueue.history where id = %s", job_id)
        == f"pgqueue.{partition}"
    )


def test_partitions_are_cut_at_midnight_utc_whatever_the_time_zone(conn: psycopg.Connection, clock: Clock) -> None:
    conn.execute("set timezone = 'Pacific/Auckland'")
    clock.set("2030-01-01 23:59:59+00")
    before = finish(conn, "succeeded", retention="0.9 s")
    after = finish(conn, "succeeded", retention="1 s")
    rows = conn.execute(
        "select tableoid::regclass::text from pgqueue.history where id = any (%s) order by id",
        [[before, after]],
    ).fetchall()
    assert rows == [("pgqueue.history_d_20300101",), ("pgqueue.history_d_20300102",)]


@pytest.mark.long
@pytest.mark.covers("G12")
def test_after_sixty_days_without_maintain_completions_go_on_and_nothing_kept_is_lost(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set(NOON)
    while not has_all_partitions(conn):
        maintain(conn)
        clock.advance("1 s")
    for n in range(8):
        finish(conn, "succeeded", retention=f"{n + 1} days")
    kept = finish(conn, "dead")
    waiting = enqueue(conn, priority=-1, delay="30 days")

    clock.advance("60 days")
    # The day on which these rows expire has no partition yet; the completion attaches it.
    late = [finish(conn, end) for end in ("cancelled", "dead")]
    assert call(conn, "complete", waiting, 1) is False
    assert [state(conn, job_id) for job_id in (kept, *late)] == ["dead", "cancelled", "dead"]

    overdue = stats(conn).maintenance["overdue_partitions"]
    assert overdue > 14
    for gone in range(1, overdue + 1):
        # Often enough for leases, and yet at most one drop a minute.
        maintain(conn)
        maintain(conn)
        assert stats(conn).maintenance["overdue_partitions"] == overdue - gone
        clock.advance("30 s")
        maintain(conn)
        assert stats(conn).maintenance["overdue_partitions"] == overdue - gone
        clock.advance("30 s 1 us")
    assert [state(conn, job_id) for job_id in (kept, *late)] == ["dead", "cancelled", "dead"]
    assert reserve_one(conn).id == waiting
    assert stats(conn).maintenance["failures"] == {}
    assert value(conn, "select count(*) from pgqueue.history where kept_until < pgqueue._clock()") == 0


def test_partitions_are_attached_ahead_of_time(conn: psycopg.Connection, clock: Clock) -> None:
    def last(letter: str) -> str:
        latest: str = value(
            conn,
            "select max(relname)::text from pg_class where relname like %s and relkind = 'r'",
            f"history\\_{letter}\\_%",
        )
        return latest

    clock.set(NOON)
    # The migration made them for the present; of 2030 there are none.
    while not has_all_partitions(conn):
        maintain(conn)
        clock.advance("1 s")
    today: datetime = clock.now()
    assert last("d") == (today + timedelta(days=14)).strftime("history_d_%Y%m%d")
    assert last("m") == "history_m_203203"
