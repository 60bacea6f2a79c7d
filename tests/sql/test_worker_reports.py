"""What a worker reports about its jobs: timeouts, starts, crashes, progress, results."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, column, enqueue, enqueue_many, job, maintain, pairs, reserve, reserve_one, table, value
from tests.databases import Database


def lapse(conn: psycopg.Connection, clock: Clock, seconds: int = 31) -> None:
    """Let time pass under regular maintenance, until a lease of 30 s is over."""
    for _ in range(0, seconds, 4):
        clock.advance("4 s")
        maintain(conn)
    maintain(conn)


def crash(conn: psycopg.Connection, clock: Clock, worker: str, **options: Any) -> int:
    """Reserve the one job for this worker, report it started, and let the worker die."""
    call(conn, "hello", worker)
    held = reserve_one(conn, worker, **options)
    assert column(conn, "started", [held.id], [held.reservation]) == []
    lapse(conn, clock)
    return int(held.id)


@pytest.fixture
def clock(clock: Clock, conn: psycopg.Connection) -> Clock:
    clock.set("2030-01-01 12:00+00")
    maintain(conn)
    return clock


def test_a_timeout_is_the_jobs_own_else_its_tasks(conn: psycopg.Connection) -> None:
    call(conn, "declare_task", "t", timeout="1 min")
    first, second = enqueue(conn), enqueue(conn, timeout="5 s")
    enqueue_many(conn, 2, "u", timeout="7 s", limit_key="l")
    conn.execute("insert into pgqueue.limits (kind, target, max_executing) values ('limit_key', 'l', 5)")
    timeouts = [row.timeout.total_seconds() for row in reserve(conn, 4)]
    assert timeouts == [60, 5, 7, 7]
    assert (job(conn, first).timeout, job(conn, second).timeout.total_seconds()) == (None, 5)
    conn.execute("update pgqueue.tasks set timeout = '2 min' where name = 't'")
    enqueue(conn)
    enqueue(conn, "v")
    assert [row.timeout and row.timeout.total_seconds() for row in reserve(conn, 2)] == [120, None]


@pytest.mark.parametrize("timeout", ["0", "-1 s", "8 days", "1 month"])
def test_a_timeout_out_of_range_is_refused(conn: psycopg.Connection, timeout: str) -> None:
    for refused in (enqueue, lambda conn, **options: enqueue_many(conn, 2, **options)):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="timeout must be") as error:
            refused(conn, timeout=timeout)
        assert error.value.diag.message_hint
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        call(conn, "declare_task", "t", timeout=timeout)


def test_reserve_tells_whether_the_result_is_to_be_stored(conn: psycopg.Connection) -> None:
    call(conn, "declare_task", "t", store_result=True)
    enqueue(conn)
    enqueue(conn, "u")
    assert [row.store_result for row in reserve(conn, 2)] == [True, False]


def test_a_lapsed_lease_counts_as_a_crash_only_if_the_job_was_started_and_its_worker_is_gone(
    conn: psycopg.Connection, clock: Clock
) -> None:
    gone_started, gone_unstarted, alive = enqueue_many(conn, 3)
    call(conn, "hello", "gone")
    call(conn, "hello", "alive")
    first, second = reserve(conn, 2, "gone")
    third = reserve_one(conn, "alive")
    assert (first.id, second.id, third.id) == (gone_started, gone_unstarted, alive)
    table(conn, "extend", [first.id, second.id], [first.reservation, second.reservation], "30 s", [True, False])
    assert column(conn, "started", [third.id], [third.reservation]) == []
    for _ in range(9):
        clock.advance("4 s")
        call(conn, "beat", "alive")
        maintain(conn)
    found = [job(conn, each) for each in (gone_started, gone_unstarted, alive)]
    assert [(each.state, each.losses, each.crashes) for each in found] == [
        ("waiting", 1, 1),
        ("waiting", 1, 0),
        ("waiting", 1, 0),
    ]
    assert found[0].crashed_on == ["gone"]
    again = {row.id: row for row in reserve(conn, 3)}
    assert [(again[each].losses, again[each].crashes) for each in (gone_started, gone_unstarted)] == [(1, 1), (1, 0)]
    # None of it was counted as an attempt.
    assert {row.attempt for row in again.values()} == {1}


def test_a_start_reported_under_an_earlier_reservation_does_not_count(conn: psycopg.Connection, clock: Clock) -> None:
    job_id = enqueue(conn)
    crash(conn, clock, "a")
    # Taken by another, which dies before it says that the handler runs.
    reserve_one(conn, "b")
    lapse(conn, clock)
    assert (job(conn, job_id).losses, job(conn, job_id).crashed_on) == (2, ["a"])


def test_a_job_whose_worker_died_three_times_is_dead_and_says_on_which(conn: psycopg.Connection, clock: Clock) -> None:
    job_id = enqueue(conn)
    for worker in ("a", "b", "c"):
        assert job(conn, job_id).state == "waiting"
        crash(conn, clock, worker)
    found = job(conn, job_id)
    assert (found.state, found.crashes, found.crashed_on, found.attempts) == ("dead", 3, ["a", "b", "c"], 1)
    [error] = found.errors
    assert error["class"] == "Poison"
    assert "3 times: a, b, c" in error["message"]
    # Retried by hand it counts afresh.
    assert call(conn, "retry", job_id) is True
    assert (job(conn, job_id).state, job(conn, job_id).crashes) == ("waiting", 0)
    crash(conn, clock, "d")
    assert (job(conn, job_id).state, job(conn, job_id).crashed_on) == ("waiting", ["d"])


def test_max_crashes_is_the_tasks(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "declare_task", "t", max_crashes=1)
    conn.execute("insert into pgqueue.tasks (name, max_crashes) values ('u', 2)")
    job_id, other = enqueue(conn), enqueue(conn, "u", delay="1 hour")
    crash(conn, clock, "a")
    assert job(conn, job_id).state == "dead"
    clock.advance("1 hour")
    maintain(conn)
    crash(conn, clock, "a")
    crash(conn, clock, "a")
    assert job(conn, other).state == "dead"
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        call(conn, "declare_task", "t", max_crashes=0)


def test_a_poisoned_job_lets_the_next_of_its_key_go(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "declare_task", "t", max_crashes=1)
    first, second = enqueue(conn, key="k"), enqueue(conn, key="k")
    crash(conn, clock, "a")
    assert job(conn, first).state == "dead"
    assert reserve_one(conn).id == second


def test_of_an_accumulated_call_only_the_payload_that_led_is_poison(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "declare_task", "t", accumulate=True, max_crashes=1)
    jobs = [enqueue(conn, args={"n": n}, key="k", score=n) for n in range(3)]
    call(conn, "hello", "a")
    rows = reserve(conn, 1, "a")
    assert [row.id for row in rows] == jobs
    table(conn, "extend", *pairs(rows), "30 s", [True] * 3)
    lapse(conn, clock)
    assert [job(conn, each).state for each in jobs] == ["dead", "waiting", "waiting"]
    assert [row.id for row in reserve(conn, 1)] == jobs[1:]


def test_a_supervisor_gives_back_at_once_what_its_dead_worker_held(conn: psycopg.Connection) -> None:
    listed, reported, unstarted, fenced, other = enqueue_many(conn, 5)
    held = reserve(conn, 4, "child")
    reserve(conn, 1, "other")
    by_id = {row.id: row for row in held}
    column(conn, "started", [reported], [by_id[reported].reservation])
    wrong = by_id[fenced].reservation - 1
    given_back = column(conn, "crashed", "child", [listed, fenced], [by_id[listed].reservation, wrong])
    assert sorted(given_back) == [listed, reported, unstarted, fenced]
    assert [job(conn, each).crashes for each in given_back] == [1, 1, 0, 0]
    assert {job(conn, each).state for each in given_back} == {"waiting"}
    assert job(conn, other).state == "executing"


def test_a_worker_that_comes_back_under_its_name_counts_what_it_died_of(conn: psycopg.Connection) -> None:
    ran, never_arrived = enqueue_many(conn, 2)
    first, _ = reserve(conn, 2, "w")
    column(conn, "started", [first.id], [first.reservation])
    assert sorted(column(conn, "release_unheld", "w", died=True)) == [ran, never_arrived]
    assert [job(conn, each).crashes for each in (ran, never_arrived)] == [1, 0]
    # Both are reported as started at once the next time.
    assert {row.losses for row in reserve(conn, 2, "w")} == {1}


def test_a_job_whose_reservation_never_arrived_is_given_back_and_counts_no_loss(conn: psycopg.Connection) -> None:
    job_id = enqueue(conn)
    reserve_one(conn, "w")
    assert column(conn, "release_unheld", "w") == [job_id]
    assert (reserve_one(conn, "w").losses, job(conn, job_id).crashes) == (0, 0)


def test_a_cancelled_job_whose_worker_crashed_is_cancelled(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "declare_task", "t", max_crashes=1)
    job_id = enqueue(conn)
    held = reserve_one(conn, "a")
    call(conn, "cancel", job_id)
    column(conn, "crashed", "a", [held.id], [held.reservation])
    assert job(conn, job_id).state == "cancelled"


def test_started_says_which_are_not_held(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 2)
    first, second = reserve(conn, 2)
    call(conn, "complete", first.id, first.reservation)
    lost = column(conn, "started", [second.id, first.id, 99], [second.reservation, first.reservation, 1])
    assert lost == [first.id, 99]


def test_extend_refuses_a_list_of_starts_of_another_length(conn: psycopg.Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="started must match"):
        table(conn, "extend", [1, 2], [1, 2], "30 s", [True])


def test_progress_is_shown_and_fenced(conn: psycopg.Connection) -> None:
    job_id = enqueue(conn)
    held = reserve_one(conn)
    assert call(conn, "progress", job_id, held.reservation, 3, 10, "x" * 2000) is True
    shown = job(conn, job_id).progress
    assert (shown["done"], shown["total"], len(shown["note"])) == (3, 10, 1000)
    assert call(conn, "progress", job_id, held.reservation - 1, 9) is False
    assert call(conn, "progress", job_id, held.reservation, 4.5) is True
    assert {key: job(conn, job_id).progress[key] for key in ("done",)} == {"done": 4.5}
    for wrong in ((None,), ("NaN",), (1, "Infinity")):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="finite"):
            call(conn, "progress", job_id, held.reservation, *wrong)
    call(conn, "complete", job_id, held.reservation)
    assert call(conn, "progress", job_id, held.reservation, 5) is False
    assert job(conn, job_id).progress["done"] == 4.5


def test_progress_waits_for_no_open_transaction(database: Database, conn: psycopg.Connection) -> None:
    job_id = enqueue(conn)
    held = reserve_one(conn)
    with database.connect(autocommit=False) as other:
        assert call(other, "hold", job_id, held.reservation) is True
        assert call(conn, "progress", job_id, held.reservation, 1) is True
        assert job(conn, job_id).progress is None


def test_a_held_job_is_not_taken_while_the_transaction_lives(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    job_id = enqueue(conn)
    held = reserve_one(conn)
    assert call(conn, "hold", job_id, held.reservation - 1) is False
    with database.connect(autocommit=False) as other:
        assert call(other, "hold", job_id, held.reservation) is True
        lapse(conn, clock, 60)
        assert job(conn, job_id).state == "executing"
        assert len(table(conn, "extend", [job_id], [held.reservation])) == 1
        assert call(other, "complete", job_id, held.reservation, Jsonb({"n": 1})) is True
        other.rollback()
        lapse(conn, clock)
        assert job(conn, job_id).state == "waiting"
        assert call(other, "hold", job_id, held.reservation) is False


def test_an_outcome_is_the_live_rows_or_historys(conn: psycopg.Connection) -> None:
    assert table(conn, "outcome", 1) == []
    job_id = enqueue(conn)
    [waiting] = table(conn, "outcome", job_id)
    assert (waiting.state, waiting.result, waiting.attempts, waiting.finished_at) == ("waiting", None, 0, None)
    held = reserve_one(conn)
    call(conn, "complete", job_id, held.reservation, Jsonb([1]))
    [ended] = table(conn, "outcome", job_id)
    assert (ended.state, ended.result, ended.attempts) == ("succeeded", [1], 1)
    assert ended.finished_at is not None
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="job_id"):
        table(conn, "outcome", None)


def test_a_worker_asks_whether_another_of_its_queues_sleeps(conn: psycopg.Connection) -> None:
    assert call(conn, "is_wanted", "w", ["a"]) is False
    call(conn, "hello", "w")
    call(conn, "idle", "w", ["a"])
    call(conn, "hello", "other", ["b"])
    call(conn, "idle", "other", ["b"])
    assert call(conn, "is_wanted", "w", ["a"]) is False
    assert call(conn, "is_wanted", "w", ["a", "b"]) is True
    call(conn, "awake", "other")
    assert call(conn, "is_wanted", "w", ["a", "b"]) is False
    call(conn, "hello", "any")
    call(conn, "idle", "any")
    assert value(conn, "select pgqueue.is_wanted('w', '{a}')") is True


def trouble(**more: Any) -> dict[str, Any]:
    told = {"ago": 3.5, "job_id": 17, "queue": "mail", "task": "send", "attempt": 2, "state": "failed"}
    return {**told, "class": "TimeoutError", "line": "no answer", **more}


def test_a_report_that_is_sent_again_counts_once(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "hello", "w")
    call(conn, "hello", "v")
    report = {"id": 17, "jobs": [{"queue": "mail", "task": "send", "started": 3}], "troubles": [trouble()]}
    for worker in ("w", "w", "v"):
        assert call(conn, "beat", worker, Jsonb(report)) is True
        # Also where a sample has taken the first meanwhile.
        clock.advance("11 s")
        maintain(conn)
    assert call(conn, "beat", "w", Jsonb({**report, "id": 18})) is True
    assert call(conn, "beat", "nobody", Jsonb(report)) is False
    clock.advance("11 s")
    maintain(conn)
    started = "sum((ended -> 'send' ->> 'started')::integer)"
    assert value(conn, f"select {started} from pgqueue.samples where queue = 'mail' and span = 10") == 9
    assert value(conn, "select count(*) from pgqueue.troubles") == 3


def test_troubles_travel_with_a_heartbeat_and_are_read_newest_first(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "hello", "w")
    call(conn, "beat", "w", Jsonb({"jobs": [], "troubles": [trouble(job_id=1), trouble(job_id=2, ago=1)]}))
    clock.advance("10 s")
    call(conn, "beat", "w", Jsonb({"jobs": [], "troubles": [trouble(job_id=3, state="lost")]}))
    call(conn, "beat", "w", Jsonb({"jobs": [], "troubles": []}))
    rows = conn.execute(
        "select job_id, state, extract(epoch from pgqueue._clock() - at)::float8 from pgqueue.troubles"
        " order by n desc, at desc limit 2"
    ).fetchall()
    assert [row[:2] for row in rows] == [(3, "lost"), (2, "failed")]
    assert [round(row[2], 1) for row in rows] == [3.5, 11.0]
    # They are no counts: the next sample has nothing of them.
    assert value(conn, "select count(*) from pgqueue.worker_reports where report ? 'troubles'") == 0
    clock.advance("61 min")
    maintain(conn)
    assert value(conn, "select count(*) from pgqueue.troubles") == 0


@pytest.mark.parametrize(
    "troubles",
    [1, {}, [1], [{}], [trouble()] * 21, [trouble(ago=-1)], [trouble(job_id="x")], [trouble(line="x" * 9000)], None],
)
def test_troubles_of_another_form_are_refused(conn: psycopg.Connection, troubles: Any) -> None:
    call(conn, "hello", "w")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="report is not what beat"):
        call(conn, "beat", "w", Jsonb({"jobs": [], "troubles": troubles}))
