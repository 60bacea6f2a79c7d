"""History partitions come and go beside readers and completions."""

from __future__ import annotations

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, maintain, reserve, reserve_one, state, stats, value
from tests.databases import Database
from tests.facts import wait_until
from tests.sql.test_retention import has_all_partitions

pytestmark = [
    pytest.mark.covers("G12", "D3"),
    pytest.mark.partitions,
    pytest.mark.usefixtures("functions_wait_for_a_minute"),
]

NOON = "2030-01-01 12:00+00"


@pytest.fixture
def clock(clock: Clock) -> Clock:
    clock.set(NOON)
    return clock


def test_a_reader_of_all_jobs_stops_neither_completions_nor_attaching_and_puts_off_the_drop(
    database: Database, clock: Clock
) -> None:
    reader, conn = database.connect(autocommit=False), database.connect()
    while not has_all_partitions(conn):
        maintain(conn)
    assert value(reader, "select count(*) from pgqueue.all_jobs") == 0  # and keeps its locks
    conn.execute("set statement_timeout = '5s'")
    attached = value(conn, "select count(*) from pg_inherits")
    clock.advance("40 days")

    job_id = enqueue(conn)
    assert call(conn, "complete", job_id, reserve_one(conn).reservation) is True
    while not has_all_partitions(conn):
        maintain(conn)
    assert value(conn, "select count(*) from pg_inherits") > attached

    def drops() -> tuple[int, int]:
        house = stats(conn).maintenance
        assert house["failures"] == {}
        return house["overdue_partitions"], house["drop_failures"]

    overdue, failures = drops()
    assert (overdue > 13, failures) == (True, 1)
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
    assert list(stats(conn).maintenance["failures"]) == ["partitions"]
    completing.commit()
    assert maintain(conn).ran is True
    assert stats(conn).maintenance["failures"] == {}


def test_a_completion_waits_for_a_drop_no_longer_than_its_transaction(database: Database, clock: Clock) -> None:
    conn = database.connect()
    while not has_all_partitions(conn):
        maintain(conn)
    enqueue(conn)
    held = reserve_one(conn, lease="1 day")
    clock.advance("20 hours 1 min")
    conn.execute(
        "insert into pgqueue.maintenance_steps (at, step, next_at)"
        " select pgqueue._clock(), 'partitions', pgqueue._clock() + interval '5 min'"
    )
    dropper, completer = database.session(), database.session()
    dropper.run("begin")
    dropper.run("select * from pgqueue.maintain()")
    completing = completer.start("select pgqueue.complete(%s, %s)", [held.id, held.reservation])
    wait_until(lambda: completer.waits_behind(dropper))
    dropper.run("commit")
    assert completing.result(10) == [(True,)]


DAY = "pgqueue.history_d_20300102"


def partition_of(conn: psycopg.Connection, job_id: int) -> str:
    name: str = value(conn, "select tableoid::regclass::text from pgqueue.history where id = %s", job_id)
    return name


def complete_one(conn: psycopg.Connection, clock: Clock) -> int:
    """A job that history keeps until the day of that partition."""
    clock.set(NOON)
    job_id = enqueue(conn)
    assert call(conn, "complete", job_id, reserve_one(conn).reservation) is True
    return job_id


@pytest.fixture
def complete(database: Database, clock: Clock) -> psycopg.Connection:
    """A connection to a queue that has all its partitions."""
    conn = database.connect()
    while not has_all_partitions(conn):
        maintain(conn)
    return conn


def problem(conn: psycopg.Connection) -> str:
    failures = stats(conn).maintenance["failures"]
    assert set(failures) <= {"partitions"}
    return str(failures["partitions"]["error"]) if failures else ""


@pytest.mark.parametrize("by", ["maintain", "a completion"])
def test_a_partition_that_was_detached_is_attached_again_with_its_rows(
    complete: psycopg.Connection, clock: Clock, by: str
) -> None:
    before = complete_one(complete, clock)
    assert partition_of(complete, before) == DAY
    complete.execute(f"alter table pgqueue.history_days detach partition {DAY}".encode())
    assert state(complete, before) is None
    if by == "maintain":
        clock.advance("5 min")
        maintain(complete)
        assert state(complete, before) == "succeeded"
    after = complete_one(complete, clock)
    assert [partition_of(complete, job_id) for job_id in (before, after)] == [DAY, DAY]
    assert problem(complete) == ""


@pytest.mark.parametrize("by", ["maintain", "a completion"])
def test_a_partition_that_was_dropped_is_made_anew(complete: psycopg.Connection, clock: Clock, by: str) -> None:
    complete.execute(f"drop table {DAY}".encode())
    if by == "maintain":
        clock.advance("5 min")
        maintain(complete)
        assert has_all_partitions(complete)
    assert partition_of(complete, complete_one(complete, clock)) == DAY


@pytest.mark.parametrize(
    ("instead", "said"),
    [
        ("drop table {0}; create view {0} as select 1 as one", "is no table"),
        ("drop table {0}; create table {0} (id bigint)", "42804"),
        ("alter table {0} drop column tags", "42804"),
        ("insert into {0} select * from {0}; update {0} set kept_until = 'infinity'", "23514"),
    ],
)
def test_what_bears_the_name_of_a_partition_and_cannot_be_one_is_named_and_rows_are_kept_elsewhere(
    complete: psycopg.Connection, clock: Clock, instead: str, said: str
) -> None:
    complete_one(complete, clock)
    complete.execute(f"alter table pgqueue.history_days detach partition {DAY}".encode())
    complete.execute(instead.format(DAY).encode())
    clock.advance("5 min")
    maintain(complete)
    assert f"{DAY} " in problem(complete)
    assert said in problem(complete)
    assert f"kept in {DAY}_2" in problem(complete)
    job_id = complete_one(complete, clock)
    assert partition_of(complete, job_id) == f"{DAY}_2"
    assert state(complete, job_id) == "succeeded"
    # It is forgotten as the others are: by its bounds.
    upper = "select upper <= '2030-01-03 00:00+00' from pgqueue._partitions() where relation = %s::regclass"
    assert value(complete, upper, f"{DAY}_2") is True


def test_a_completion_beside_a_detached_partition_that_is_locked_keeps_its_row_for_longer(
    database: Database, complete: psycopg.Connection, clock: Clock
) -> None:
    complete.execute(f"alter table pgqueue.history_days detach partition {DAY}".encode())
    # As pg_dump holds it.
    reader = database.connect(autocommit=False)
    reader.execute(f"select count(*) from {DAY}".encode())
    job_id = complete_one(complete, clock)
    assert partition_of(complete, job_id) == "pgqueue.history_m_203001"
    clock.advance("5 min")
    maintain(complete)
    assert "55P03" in problem(complete)
    reader.rollback()
    clock.advance("1 s")
    maintain(complete)
    assert problem(complete) == ""
    assert partition_of(complete, complete_one(complete, clock)) == DAY


def test_a_partition_that_is_being_detached_concurrently_stops_no_completion_and_comes_back(
    database: Database, complete: psycopg.Connection, clock: Clock
) -> None:
    before = complete_one(complete, clock)
    reader = database.connect(autocommit=False)
    reader.execute("set transaction isolation level repeatable read")
    assert value(reader, "select count(*) from pgqueue.history") == 1
    detacher = database.session()
    detaching = detacher.start(f"alter table pgqueue.history_days detach partition {DAY} concurrently")  # type: ignore[arg-type]
    wait_until(detacher.is_waiting_on_lock)
    complete.execute("select pg_cancel_backend(%s)", [detacher.pid])
    with pytest.raises(psycopg.errors.QueryCanceled):
        detaching.result(10)
    assert value(complete, "select is_pending from pgqueue._partitions() where relation = %s::regclass", DAY) is True

    meanwhile = complete_one(complete, clock)
    assert partition_of(complete, meanwhile) == "pgqueue.history_m_203001"
    clock.advance("5 min")
    maintain(complete)
    assert f"{DAY} is being detached" in problem(complete)

    reader.rollback()
    clock.advance("1 min")
    maintain(complete)
    assert problem(complete) == ""
    after = complete_one(complete, clock)
    assert [partition_of(complete, job_id) for job_id in (before, after)] == [DAY, DAY]


def test_a_partition_of_other_bounds_leaves_gaps_that_are_filled(complete: psycopg.Connection, clock: Clock) -> None:
    complete.execute(
        f"""
        drop table {DAY};
        create table pgqueue.mine partition of pgqueue.history_days
            for values from ('2030-01-02 06:00+00') to ('2030-01-02 18:00+00');
        """.encode()
    )
    kept = complete_one(complete, clock)
    clock.advance("5 min")
    while not has_all_partitions(complete):
        maintain(complete)
    assert problem(complete) == ""
    clock.set("2030-01-01 20:00+00")
    job_id = enqueue(complete)
    assert call(complete, "complete", job_id, reserve_one(complete).reservation) is True
    assert partition_of(complete, kept) == "pgqueue.mine"
    assert partition_of(complete, job_id) != "pgqueue.mine"
