"""History partitions come and go beside readers and completions."""

from __future__ import annotations

import pytest

from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, maintain, reserve, reserve_one, state, stats, value
from tests.databases import Database
from tests.facts import wait_until

pytestmark = pytest.mark.covers("G12", "D3")

NOON = "2030-01-01 12:00+00"


@pytest.fixture
def clock(clock: Clock) -> Clock:
    clock.set(NOON)
    return clock


def test_a_reader_of_all_jobs_stops_neither_completions_nor_attaching_and_puts_off_the_drop(
    database: Database, clock: Clock
) -> None:
    reader, conn = database.connect(autocommit=False), database.connect()
    while value(conn, "select partitions_at from pgqueue.housekeeping order by n desc limit 1") is None:
        maintain(conn)
    assert value(reader, "select count(*) from pgqueue.all_jobs") == 0  # and keeps its locks
    conn.execute("set statement_timeout = '5s'")
    attached = value(conn, "select count(*) from pg_inherits")
    clock.advance("40 days")

    job_id = enqueue(conn)
    assert call(conn, "complete", job_id, reserve_one(conn).reservation) is True
    while value(conn, "select partitions_at < pgqueue._clock() from pgqueue.housekeeping order by n desc limit 1"):
        maintain(conn)
    assert value(conn, "select count(*) from pg_inherits") > attached

    def drops() -> tuple[int, int]:
        house = stats(conn).housekeeping
        assert house["failures"] == {}
        return house["overdue_partitions"], house["drop_failures"]

    overdue, failures = drops()
    assert (overdue > 30, failures) == (True, 1)
    # It backs off: 2, 4, 8 ... 32 minutes.
    for minutes, tried in ((1, 1), (1.1, 2), (3.8, 2), (0.3, 3), (8.1, 4), (16.1, 5), (32.1, 6), (31, 6), (1.1, 7)):
        clock.advance(f"{minutes} min")
        maintain(conn)
        assert drops() == (overdue, tried)
        again = enqueue(conn)
        assert call(conn, "complete", again, reserve_one(conn).reservation) is True

    reader.rollback()
    clock.advance("33 min")
    maintain(conn)
    assert drops() == (overdue - 1, 0)
    clock.advance("61 s")
    maintain(conn)
    assert drops() == (overdue - 2, 0)
    assert state(conn, job_id) == "succeeded"


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_two_completions_that_miss_one_partition_both_succeed(database: Database, clock: Clock, level: str) -> None:
    conn = database.connect()
    enqueue_many(conn, 2)
    held = reserve(conn, 2)
    first, second = database.session(), database.session()
    first.run("begin")
    assert first.run("select pgqueue.complete(%s, %s)", [held[0].id, held[0].reservation]) == [(True,)]
    second.run("select set_config('default_transaction_isolation', %s, false)", [level])
    completing = second.start("select pgqueue.complete(%s, %s)", [held[1].id, held[1].reservation])
    wait_until(lambda: second.waits_behind(first))
    first.run("commit")
    assert completing.result(10) == [(True,)]
    assert [state(conn, row.id) for row in held] == ["succeeded", "succeeded"]


def test_the_one_that_waited_attaches_the_partition_where_the_first_rolls_back(
    database: Database, clock: Clock
) -> None:
    conn = database.connect()
    enqueue_many(conn, 2)
    held = reserve(conn, 2)
    first, second = database.session(), database.session()
    first.run("begin")
    first.run("select pgqueue.complete(%s, %s)", [held[0].id, held[0].reservation])
    completing = second.start("select pgqueue.complete(%s, %s)", [held[1].id, held[1].reservation])
    wait_until(lambda: second.waits_behind(first))
    first.run("rollback")
    assert completing.result(10) == [(True,)]
    assert [state(conn, row.id) for row in held] == ["executing", "succeeded"]


def test_maintain_that_misses_partitions_beside_a_completion_gives_up_soon_and_comes_again(
    database: Database, clock: Clock
) -> None:
    conn = database.connect()
    enqueue(conn)
    held = reserve_one(conn)
    completing = database.connect(autocommit=False)
    call(completing, "complete", held.id, held.reservation)
    assert maintain(conn).ran is True
    assert list(stats(conn).housekeeping["failures"]) == ["partitions"]
    completing.commit()
    assert maintain(conn).ran is True
    assert stats(conn).housekeeping["failures"] == {}


def test_a_completion_waits_for_a_drop_no_longer_than_its_transaction(database: Database, clock: Clock) -> None:
    conn = database.connect()
    while value(conn, "select partitions_at from pgqueue.housekeeping order by n desc limit 1") is None:
        maintain(conn)
    enqueue(conn)
    held = reserve_one(conn, lease="1 day")
    clock.advance("20 hours 1 min")
    conn.execute("insert into pgqueue.housekeeping (at, partitions_at) values (pgqueue._clock(), pgqueue._clock())")
    dropper, completer = database.session(), database.session()
    dropper.run("begin")
    dropper.run("select * from pgqueue.maintain()")
    completing = completer.start("select pgqueue.complete(%s, %s)", [held.id, held.reservation])
    wait_until(lambda: completer.waits_behind(dropper))
    dropper.run("commit")
    assert completing.result(10) == [(True,)]
