"""What an operator does to many jobs at once: run now, kill, cancel, delete, retry, purge; by filter, in chunks."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import Row, call, enqueue, enqueue_many, ids, job, maintain, reserve, state, table, value

NOON = "2030-01-01 12:00+00"


def bulk(conn: psycopg.Connection, function: str, *args: Any, **filters: Any) -> Row:
    [row] = table(conn, function, *args, **filters)
    return row


def in_chunks(conn: psycopg.Connection, function: str, *args: Any, **filters: Any) -> list[Row]:
    """Call until nothing is left, as a client does."""
    rows, after = [], None
    while True:
        rows.append(bulk(conn, function, *args, **filters, after=None if after is None else Jsonb(after)))
        after = rows[-1].next_after
        if after is None:
            return rows
        assert len(rows) < 100


def fail(conn: psycopg.Connection, count: int, *, dead: bool = False, **options: Any) -> list[int]:
    job_ids = enqueue_many(conn, count, **options)
    for held in reserve(conn, count, queues=[options.get("queue", "default")]):
        assert call(conn, "fail", held.id, held.reservation, retry=not dead, retry_in="1 day")
    return job_ids


def block(conn: psycopg.Connection, job_ids: list[int], on: str | None = None, key: str | None = "k") -> None:
    """As a claim would that found the key, or the limit, taken."""
    conn.execute(
        "update pgqueue.jobs set state = 'blocked', key = %s, blocked_on = %s where id = any (%s)", [key, on, job_ids]
    )


def states(conn: psycopg.Connection, job_ids: list[int]) -> list[str | None]:
    return [state(conn, job_id) for job_id in job_ids]


@pytest.mark.covers("L9")
def test_all_failed_jobs_run_now(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    failed = fail(conn, 5)
    scheduled = enqueue(conn, delay="1 hour")
    done = bulk(conn, "run_now_many", state="failed")
    assert (done.changed, done.passed_over, done.left_over, done.is_exact, done.next_after) == (5, 0, 0, True, None)
    assert ids(reserve(conn, 10)) == failed
    assert job(conn, scheduled).due_at > clock.now()


def test_a_scheduled_job_that_runs_now_says_so_in_run_at(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    due, *later = [enqueue(conn, "t"), *enqueue_many(conn, 3, delay="1 hour")]
    assert bulk(conn, "run_now_many", queue="default").changed == 3
    assert {job(conn, job_id).run_at for job_id in later} == {clock.now()}
    # What comes back is read first.
    assert ids(reserve(conn, 10)) == [*later, due]


@pytest.mark.covers("L9")
def test_all_failed_jobs_are_killed_and_come_back_with_a_fresh_count(conn: psycopg.Connection) -> None:
    failed = fail(conn, 3)
    waiting = enqueue(conn)
    assert bulk(conn, "kill_many", state="failed").changed == 3
    assert states(conn, [*failed, waiting]) == ["dead"] * 3 + ["waiting"]
    assert job(conn, failed[0]).errors[-1]["class"] == "Killed"
    assert bulk(conn, "retry_many", queue="default").changed == 3
    assert [job(conn, job_id).attempts for job_id in failed] == [0] * 3
    assert ids(reserve(conn, 10)) == [*failed, waiting]


@pytest.mark.covers("L9")
def test_the_morgue_is_emptied_by_state_queue_and_time(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    old, other = fail(conn, 3, dead=True), fail(conn, 2, dead=True, queue="b")
    clock.advance("1 hour")
    new = fail(conn, 2, dead=True)
    half = "2030-01-01 12:30+00"
    assert bulk(conn, "delete_many", state="dead", queue="default", finished_before=half).changed == 3
    assert states(conn, old + new + other) == [None] * 3 + ["dead"] * 4
    assert bulk(conn, "delete_many", state="dead", finished_after=half).changed == 2
    assert bulk(conn, "delete_many", state="dead").changed == 2


def test_cancelled_jobs_come_back_only_when_they_are_asked_for(conn: psycopg.Connection) -> None:
    cancelled, dead = enqueue_many(conn, 2), None
    assert bulk(conn, "cancel_many", queue="default").changed == 2
    [dead] = fail(conn, 1, dead=True)
    assert bulk(conn, "retry_many", queue="default").changed == 1
    assert states(conn, [*cancelled, dead]) == ["cancelled", "cancelled", "waiting"]
    assert bulk(conn, "retry_many", job_ids=cancelled[:1]).changed == 1
    assert bulk(conn, "retry_many", state="cancelled").changed == 1


def test_cancel_asks_executing_members(conn: psycopg.Connection) -> None:
    waiting, executing = enqueue(conn, priority=1), enqueue(conn, priority=2)
    [held] = reserve(conn, 1)
    assert held.id == executing
    assert bulk(conn, "cancel_many", queue="default").changed == 2
    assert states(conn, [waiting, executing]) == ["cancelled", "executing"]
    assert job(conn, executing).cancel_requested_at is not None
    assert bulk(conn, "cancel_many", queue="default").changed == 0
    assert call(conn, "fail", held.id, held.reservation) == "cancelled"


@pytest.mark.parametrize("function", ["kill_many", "delete_many", "run_now_many"])
def test_nothing_else_touches_what_executes(conn: psycopg.Connection, function: str) -> None:
    enqueue_many(conn, 3)
    held = reserve(conn, 3)
    assert bulk(conn, function, job_ids=ids(held)).changed == 0
    assert states(conn, ids(held)) == ["executing"] * 3


FILTERS: list[tuple[dict[str, Any], set[str]]] = [
    ({"queue": "a"}, {"a", "a old", "a u", "a held", "a limited"}),
    ({"queue": "b"}, {"b"}),
    ({"task": "u"}, {"a u"}),
    ({"queue": "a", "task": "t"}, {"a", "a old", "a held", "a limited"}),
    ({"queue": "a", "key": "k"}, {"a held"}),
    ({"queue": "b", "key": "k"}, set()),
    ({"state": "blocked"}, {"a held", "a limited"}),
    ({"queue": "a", "state": "blocked"}, {"a held", "a limited"}),
    ({"queue": "a", "state": "waiting"}, {"a", "a old", "a u"}),
    ({"created_before": NOON}, {"a old"}),
    ({"created_after": NOON}, {"a", "a u", "a held", "a limited", "b"}),
    ({"queue": "a", "created_before": NOON}, {"a old"}),
    ({"everything": True}, {"a", "a old", "a u", "a held", "a limited", "b"}),
]


@pytest.mark.parametrize(("filters", "expected"), FILTERS)
def test_a_filter_finds_what_it_says(
    conn: psycopg.Connection, clock: Clock, filters: dict[str, Any], expected: set[str]
) -> None:
    clock.set("2030-01-01 11:00+00")
    maintain(conn)  # Attaches the partitions of history, once.
    named = {"a old": enqueue(conn, queue="a")}
    clock.set(NOON)
    named |= {
        "a": enqueue(conn, queue="a", delay="1 h"),
        "a u": enqueue(conn, "u", queue="a", priority=7),
        "a held": enqueue(conn, queue="a"),
        "a limited": enqueue(conn, queue="a"),
        "b": enqueue(conn, queue="b"),
    }
    block(conn, [named["a held"]])
    block(conn, [named["a limited"]], "task:t", key=None)
    consent = {} if "state" in filters else {"everything": True}
    for function, more in (("cancel_many", {"max_jobs": 1}), ("kill_many", {}), ("delete_many", consent)):
        with conn.transaction(force_rollback=True):
            rows = in_chunks(conn, function, **(filters | more))
            gone = {name for name, job_id in named.items() if state(conn, job_id) not in ("waiting", "blocked")}
        assert sum(row.changed for row in rows) == len(expected)
        assert gone == expected, function


@pytest.mark.parametrize("function", ["cancel_many", "delete_many"])
def test_each_call_changes_at_most_max_jobs_and_returns_how_many_are_left(
    conn: psycopg.Connection, function: str
) -> None:
    enqueue_many(conn, 25)
    rows = in_chunks(conn, function, queue="default", state="waiting", max_jobs=10)
    assert [(row.changed, row.left_over, row.is_exact) for row in rows] == [(10, 15, True), (10, 5, True), (5, 0, True)]
    assert value(conn, "select count(*) from pgqueue.jobs") == 0


def test_without_the_place_to_go_on_from_it_begins_anew_and_is_right_as_well(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 25)
    assert [bulk(conn, "cancel_many", queue="default", max_jobs=10).changed for _ in range(4)] == [10, 10, 5, 0]


def test_remaining_jobs_are_counted_up_to_ten_thousand(conn: psycopg.Connection) -> None:
    conn.execute(
        "insert into pgqueue.jobs (queue, task, args, priority, run_at, ready_at, created_at)"
        " select 'default', 't', '{}', 0, now(), now(), now() from generate_series(1, 12000)"
    )
    first = bulk(conn, "delete_many", state="waiting", max_jobs=1)
    assert (first.changed, first.left_over, first.is_exact) == (1, 10000, False)


def test_a_call_reads_a_bounded_number_of_rows(conn: psycopg.Connection) -> None:
    conn.execute(
        "insert into pgqueue.jobs (queue, task, args, priority, run_at, ready_at, created_at)"
        " select 'default', case when n = 120000 then 'rare' else 't' end, '{}', 0, now(), now(), now()"
        " from generate_series(1, 120000) n"
    )
    for filters in ({"task": "rare"}, {"task": "rare", "queue": "default"}):
        rows = in_chunks(conn, "kill_many", **filters)
        assert [(row.changed, row.is_exact) for row in rows] == [(0, False), (1, True)]
        bulk(conn, "retry_many", **filters)


def test_the_lanes_of_a_queue_are_gone_through_to_the_end(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    for priority in (-5, 0, 5):
        enqueue_many(conn, 4, priority=priority)
        enqueue_many(conn, 4, priority=priority, delay="1 h")
    enqueue_many(conn, 4, queue="other", delay="1 h")
    rows = in_chunks(conn, "run_now_many", queue="default", max_jobs=5)
    assert [row.changed for row in rows] == [5, 5, 2]
    assert len(reserve(conn, 100)) == 24


def test_a_queue_is_purged_of_what_waits(conn: psycopg.Connection) -> None:
    kept = fail(conn, 1, dead=True)
    enqueue(conn)
    [executing] = reserve(conn)
    fail_ids = fail(conn, 2)
    blocked = enqueue_many(conn, 2)
    block(conn, blocked)
    gone = [*fail_ids, *blocked, enqueue(conn), enqueue(conn, delay="1 h")]
    other = enqueue(conn, queue="other")
    rows = in_chunks(conn, "purge_queue", "default", max_jobs=2)
    assert sum(row.changed for row in rows) == 6
    assert states(conn, gone) == [None] * 6
    assert states(conn, [*kept, executing.id, other]) == ["dead", "executing", "waiting"]


def test_a_queue_of_one_hot_key_is_purged_to_the_end(conn: psycopg.Connection) -> None:
    _first, *blocked = enqueue_many(conn, 12)
    conn.execute("update pgqueue.jobs set key = 'k'")
    block(conn, blocked)
    # Each chunk releases the next one of the key, which then no longer stands among the blocked.
    rows = in_chunks(conn, "purge_queue", "default", max_jobs=2)
    assert sum(row.changed for row in rows) == 12
    assert value(conn, "select count(*) from pgqueue.jobs") == 0


@pytest.mark.covers("L1")
@pytest.mark.parametrize("how", ["delete", "delete_many"])
def test_deleting_what_was_ahead_releases_the_next_of_the_key(conn: psycopg.Connection, how: str) -> None:
    first, second, third = enqueue_many(conn, 3)
    conn.execute("update pgqueue.jobs set key = 'k'")
    block(conn, [second, third])
    if how == "delete":
        assert call(conn, "delete", first) is True
    else:
        assert bulk(conn, "delete_many", job_ids=[first]).changed == 1
    assert states(conn, [first, second, third]) == [None, "waiting", "blocked"]


@pytest.mark.parametrize("how", ["delete", "delete_many"])
def test_deleting_a_job_frees_its_dedupe_key(conn: psycopg.Connection, how: str) -> None:
    job_id, other = enqueue_many(conn, 2)
    conn.execute("update pgqueue.jobs set dedupe = 'd'")
    conn.execute(
        "insert into pgqueue.dedupe_keys values ('t', 'd', %s, null), ('u', 'd', %s, null)", [job_id, other + 1]
    )
    call(conn, "delete", other)
    assert value(conn, "select count(*) from pgqueue.dedupe_keys") == 2
    if how == "delete":
        call(conn, "delete", job_id)
    else:
        bulk(conn, "delete_many", job_ids=[job_id])
    assert conn.execute("select task from pgqueue.dedupe_keys").fetchall() == [("u",)]


def test_deleting_a_row_of_history_frees_its_dedupe_key(conn: psycopg.Connection) -> None:
    for how in ("delete", "delete_many"):
        job_id = enqueue(conn)
        conn.execute("update pgqueue.jobs set dedupe = 'd'")
        conn.execute("insert into pgqueue.dedupe_keys values ('t', 'd', %s, now() + '1 h')", [job_id])
        [held] = reserve(conn)
        assert call(conn, "complete", held.id, held.reservation) is True
        call(conn, how, job_id) if how == "delete" else bulk(conn, how, job_ids=[job_id])
        assert value(conn, "select count(*) from pgqueue.dedupe_keys") == 0


def test_a_cancelled_job_of_the_future_that_is_retried_has_its_run_at_now(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set(NOON)
    one, many = enqueue(conn, delay="1 h"), enqueue(conn, delay="1 h")
    bulk(conn, "cancel_many", job_ids=[one, many])
    assert call(conn, "retry", one) is True
    assert bulk(conn, "retry_many", job_ids=[many]).changed == 1
    assert {job(conn, job_id).run_at for job_id in (one, many)} == {clock.now()}


def test_a_wake_is_sent_once_for_each_queue_that_jobs_came_back_to(conn: psycopg.Connection) -> None:
    fail(conn, 20, dead=True)
    call(conn, "hello", "idle worker")
    channel = call(conn, "idle", "idle worker")
    heard: list[str] = []
    conn.add_notify_handler(lambda notify: heard.append(notify.payload))
    conn.execute(f'listen "{channel}"'.encode())
    assert bulk(conn, "retry_many", queue="default").changed == 20
    conn.execute("select 1")
    assert heard == ["wake"]


BAD: list[tuple[str, list[Any], dict[str, Any], str]] = [
    *[(f, [], {}, "filter") for f in ("run_now_many", "kill_many", "cancel_many", "retry_many")],
    ("delete_many", [], {}, "queue"),
    ("delete_many", [], {"queue": "q"}, "state"),
    ("cancel_many", [], {"queue": ""}, "queue"),
    ("cancel_many", [], {"task": "x" * 129}, "task"),
    ("cancel_many", [], {"key": "k"}, "queue"),
    ("cancel_many", [], {"queue": "q", "key": ""}, "key"),
    ("cancel_many", [], {"queue": "q", "key": "x" * 513}, "key"),
    ("cancel_many", [], {"state": "dead"}, "state"),
    ("cancel_many", [], {"state": "no such"}, "state"),
    ("kill_many", [], {"state": "executing"}, "state"),
    ("delete_many", [], {"state": "executing"}, "state"),
    ("retry_many", [], {"state": "failed"}, "state"),
    ("run_now_many", [], {"state": "blocked"}, "state"),
    ("cancel_many", [], {"job_ids": [1, None]}, "job_ids"),
    ("cancel_many", [], {"job_ids": list(range(10001))}, "job_ids"),
    ("cancel_many", [], {"queue": "q", "max_jobs": 0}, "max_jobs"),
    ("cancel_many", [], {"queue": "q", "max_jobs": 10001}, "max_jobs"),
    ("cancel_many", [], {"queue": "q", "max_jobs": None}, "max_jobs"),
    ("cancel_many", [], {"queue": "q", "after": Jsonb({})}, "after"),
    ("cancel_many", [], {"queue": "q", "after": Jsonb(1)}, "after"),
    ("cancel_many", [], {"queue": "q", "after": Jsonb([])}, "after"),
    ("cancel_many", [], {"queue": "q", "after": Jsonb({"way": "all", "place": {}})}, "after"),
    ("cancel_many", [], {"queue": "q", "after": Jsonb({"way": "ready", "place": {"id": "x"}})}, "after"),
    ("retry_many", [], {"queue": "q", "after": Jsonb({"way": "ready", "place": {"id": 1}})}, "after"),
    ("retry_many", [], {"queue": "q", "after": Jsonb({"way": "dead", "ended": {"state": "x"}})}, "after"),
    ("cancel_many", [], {"created_after": "-infinity", "created_before": "infinity"}, "filter"),
    ("purge_queue", [""], {}, "queue"),
    ("purge_queue", [None], {}, "queue"),
    ("purge_queue", ["q", 0], {}, "max_jobs"),
]


def test_a_mistake_is_refused_with_a_hint(conn: psycopg.Connection) -> None:
    for function, args, filters, named in BAD:
        with pytest.raises(psycopg.errors.InvalidParameterValue) as refused:
            table(conn, function, *args, **filters)
        hint = refused.value.diag.message_hint or ""
        assert hint, (function, filters)
        assert named in hint or named in (refused.value.diag.message_primary or ""), (function, filters, hint)


FILTERS = {"queue", "task", "key", "state", "job_ids", "group_id"} | {
    f"{what}_{side}" for what in ("created", "finished") for side in ("after", "before")
}


def test_a_filter_that_is_null_acts_on_no_job(conn: psycopg.Connection) -> None:
    job_ids = enqueue_many(conn, 3, queue="mail")
    # As a script does whose query has found nothing.
    none_found = "(select array_agg(id) from pgqueue.all_jobs where task = 'no such task')"
    for function in ("cancel_many", "delete_many", "kill_many", "retry_many", "run_now_many"):
        names = value(conn, "select proargnames from pg_proc where proname = %s", function)
        filters = sorted(FILTERS & set(names))
        assert len(filters) >= 7
        for name in filters:
            given = none_found if name == "job_ids" else "null"
            others = {"queue": "mail", "state": "dead" if function == "retry_many" else "waiting"}
            more = ", ".join(f"{other} => '{text}'" for other, text in others.items() if other != name)
            with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"{name} is null") as refused:
                conn.execute(f"select pgqueue.{function}({name} => {given}, {more})".encode())
            assert refused.value.diag.message_hint == f"Give {name} a value, or leave it out."
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        conn.execute("select pgqueue.delete_events(names => null)")
    assert call(conn, "cancel_many", queue="mail", job_ids=[]) == 0
    assert states(conn, job_ids) == ["waiting"] * 3
    # What other programs call nothing or all is a name or an id like any other.
    for nothing in ({"key": "*"}, {"task": "*"}, {"job_ids": [-1]}, {"group_id": -1}, {"created_after": "infinity"}):
        assert call(conn, "cancel_many", queue="mail", **nothing) == 0
    assert call(conn, "cancel_many", queue="*") == 0
    assert call(conn, "cancel_many", queue="mail", created_after="-infinity", created_before="infinity") == 3


def test_a_key_that_is_a_star_is_one_key(conn: psycopg.Connection) -> None:
    star, *others = [enqueue(conn, queue="mail", key=key) for key in ("*", "a", "b")]
    assert call(conn, "cancel_many", queue="mail", key="*") == 1
    assert states(conn, [star, *others]) == ["cancelled", "waiting", "waiting"]


def test_above_read_committed_it_is_refused(conn: psycopg.Connection) -> None:
    conn.execute("begin isolation level repeatable read")
    with pytest.raises(psycopg.Error) as refused:
        bulk(conn, "cancel_many", queue="q")
    assert refused.value.sqlstate == "25001"
