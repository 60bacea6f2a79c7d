"""Dedupe: of one task and dedupe key one job stands at a time, and what a second enqueue does with it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import Row, call, column, enqueue, ids, job, maintain, reserve, reserve_one, state, table, value
from tests.databases import Database

MODES = ["skip", "replace", "merge", "debounce"]


def outcome(conn: psycopg.Connection, task: str = "t", args: Any = None, **options: Any) -> tuple[int, str]:
    [row] = table(conn, "enqueue_outcome", task, Jsonb(args or {}), **options)
    return row.job_id, row.outcome


def keys(conn: psycopg.Connection) -> int:
    count: int = value(conn, "select count(*) from pgqueue.dedupe_keys")
    return count


@pytest.fixture
def stopped(clock: Clock) -> Clock:
    clock.set("2030-01-01 12:00+00")
    return clock


# One at a time


def test_a_second_enqueue_of_a_key_returns_the_id_of_the_existing_job(conn: psycopg.Connection) -> None:
    first = enqueue(conn, dedupe="d")
    assert enqueue(conn, dedupe="d") == first
    assert outcome(conn, dedupe="d", args={"other": 1}) == (first, "skipped")
    assert job(conn, first).args == {}
    assert value(conn, "select count(*) from pgqueue.jobs") == 1


def test_a_first_enqueue_of_a_key_is_inserted_with_all_its_options(conn: psycopg.Connection) -> None:
    job_id, what = outcome(
        conn, "t", {"a": 1}, dedupe="d", queue="q", priority=7, key="k", score="1.5", limit_key="l", tags=["x"],
        headers=Jsonb({"h": 1}), max_attempts=3, retention="1 h", expires_in="1 day", delay="1 h", retry_policy="fixed",
        retry_delay="5 s",
    )  # fmt: skip
    assert what == "inserted"
    found = job(conn, job_id)
    assert (found.queue, found.priority, found.key, float(found.score), found.limit_key) == ("q", 7, "k", 1.5, "l")
    assert (found.args, found.headers, found.tags, found.max_attempts) == ({"a": 1}, {"h": 1}, ["x"], 3)
    assert found.run_at - found.created_at == timedelta(hours=1)
    assert found.expires_at - found.run_at == timedelta(days=1)
    assert (found.retry, found.dedupe) == ({"policy": "fixed", "delay": 5.0}, "d")
    assert found.due_at == found.run_at


def test_task_and_queue_fill_in_what_a_deduped_job_leaves_out(conn: psycopg.Connection) -> None:
    call(conn, "declare_task", "t", queue="mail", expires_in="1 h")
    conn.execute("insert into pgqueue.queues (name, priority) values ('mail', 9)")
    found = job(conn, enqueue(conn, dedupe="d"))
    assert (found.queue, found.priority, found.expires_at - found.run_at) == ("mail", 9, timedelta(hours=1))
    assert ids(reserve(conn)) == [found.id]


def test_the_scope_of_a_key_is_its_task(conn: psycopg.Connection) -> None:
    assert len({enqueue(conn, task, dedupe=key) for task in ("a", "b") for key in ("x", "y")}) == 4


def test_without_a_dedupe_key_every_enqueue_inserts(conn: psycopg.Connection) -> None:
    assert {outcome(conn)[1] for _ in range(2)} == {"inserted"}
    assert keys(conn) == 0


@pytest.mark.parametrize("end", ["complete", "dead", "cancel", "delete", "expire"])
def test_whatever_ends_a_job_frees_its_key(conn: psycopg.Connection, stopped: Clock, end: str) -> None:
    first = enqueue(conn, dedupe="d", expires_in="1 h")
    if end == "delete":
        call(conn, "delete", first)
    elif end == "cancel":
        call(conn, "cancel", first)
    elif end == "expire":
        stopped.advance("2 h")
        maintain(conn)
    else:
        held = reserve_one(conn)
        assert outcome(conn, dedupe="d") == (first, "skipped")
        if end == "complete":
            call(conn, "complete", first, held.reservation)
        else:
            call(conn, "fail", first, held.reservation, retry=False)
    assert keys(conn) == 0
    second, what = outcome(conn, dedupe="d")
    assert (second > first, what) == (True, "inserted")


def test_a_key_is_freed_by_completions_of_many_and_without_history(conn: psycopg.Connection) -> None:
    for name in ("a", "b", None):
        enqueue(conn, dedupe=name, retention="0")
    held = reserve(conn, 3)
    column(conn, "complete_many", ids(held), [each.reservation for each in held])
    assert (keys(conn), value(conn, "select count(*) from pgqueue.all_jobs")) == (0, 0)


def test_a_failed_job_keeps_its_key_until_it_is_final(conn: psycopg.Connection) -> None:
    first = enqueue(conn, dedupe="d")
    held = reserve_one(conn)
    assert call(conn, "fail", first, held.reservation) == "failed"
    assert outcome(conn, dedupe="d") == (first, "skipped")


# For a time


def test_dedupe_for_holds_past_completion_and_not_a_moment_longer(conn: psycopg.Connection, stopped: Clock) -> None:
    first = enqueue(conn, dedupe="d", dedupe_for="1 h")
    held = reserve_one(conn)
    call(conn, "complete", first, held.reservation)
    stopped.advance("59 min 59 s")
    for mode in MODES:
        assert outcome(conn, dedupe="d", on_conflict=mode, delay="1 s") == (first, "skipped")
    stopped.advance("1 s")
    second, what = outcome(conn, dedupe="d", dedupe_for="1 h")
    assert what == "inserted"
    assert outcome(conn, dedupe="d") == (second, "skipped")


def test_dedupe_for_ends_while_the_job_still_waits(conn: psycopg.Connection, stopped: Clock) -> None:
    first = enqueue(conn, dedupe="d", dedupe_for="1 h", delay="1 day")
    stopped.advance("1 h")
    second, what = outcome(conn, dedupe="d")
    assert what == "inserted"
    call(conn, "cancel", first)
    assert outcome(conn, dedupe="d") == (second, "skipped")


def test_delete_frees_a_key_within_its_time(conn: psycopg.Connection) -> None:
    first = enqueue(conn, dedupe="d", dedupe_for="1 day")
    held = reserve_one(conn)
    call(conn, "complete", first, held.reservation)
    assert enqueue(conn, dedupe="d") == first
    assert call(conn, "delete", first) is True
    assert outcome(conn, dedupe="d")[1] == "inserted"


def test_maintain_forgets_keys_whose_time_is_past_and_no_others(conn: psycopg.Connection, stopped: Clock) -> None:
    enqueue(conn, dedupe="lives")
    enqueue(conn, dedupe="short", dedupe_for="1 min")
    enqueue(conn, dedupe="long", dedupe_for="1 day")
    stopped.advance("2 min")
    maintain(conn)
    assert [row[0] for row in conn.execute("select dedupe from pgqueue.dedupe_keys order by 1")] == ["lives", "long"]


# on_conflict


def test_replace_gives_a_waiting_job_new_args_headers_run_at_and_priority(
    conn: psycopg.Connection, stopped: Clock
) -> None:
    first = enqueue(
        conn, "t", {"a": 1}, dedupe="d", delay="1 h", priority=1, tags=["kept"], queue="q", headers=Jsonb({"old": 1})
    )
    stopped.advance("1 min")
    done = outcome(
        conn, "t", {"b": 2}, dedupe="d", on_conflict="replace", priority=5, expires_in="1 h", queue="elsewhere"
    )
    assert done == (first, "replaced")
    found = job(conn, first)
    assert (found.args, found.headers, found.priority, found.tags, found.queue) == ({"b": 2}, None, 5, ["kept"], "q")
    assert found.run_at == found.due_at == stopped.now()
    assert found.expires_at == stopped.now() + timedelta(hours=1)
    assert found.created_at == stopped.now() - timedelta(minutes=1)
    assert ids(reserve(conn)) == [first]


def test_replace_puts_a_due_job_off(conn: psycopg.Connection) -> None:
    first = enqueue(conn, dedupe="d")
    assert outcome(conn, dedupe="d", on_conflict="replace", delay="1 h") == (first, "replaced")
    assert reserve(conn) == []


def test_merge_adds_args_and_changes_nothing_else(conn: psycopg.Connection) -> None:
    first = enqueue(conn, "t", {"a": 1, "b": {"x": 1}}, dedupe="d", delay="1 h")
    before = job(conn, first)
    done = outcome(conn, "t", {"b": 2, "c": 3}, dedupe="d", on_conflict="merge", priority=9, delay="2 h")
    assert done == (first, "merged")
    assert job(conn, first) == before._replace(args={"a": 1, "b": 2, "c": 3})


def test_merged_args_must_not_become_too_large(conn: psycopg.Connection) -> None:
    first = enqueue(conn, "t", {"a": "x" * 600_000}, dedupe="d")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="args must be at most"):
        enqueue(conn, "t", {"b": "x" * 600_000}, dedupe="d", on_conflict="merge")
    assert set(job(conn, first).args) == {"a"}


def test_debounce_pushes_run_at_out_up_to_ten_times_the_delay(conn: psycopg.Connection, stopped: Clock) -> None:
    start = stopped.now()
    options: dict[str, Any] = {"dedupe": "d", "on_conflict": "debounce", "delay": "10 s"}
    first, what = outcome(conn, "t", {"n": 0}, **options)
    assert what == "inserted"
    for second in range(5, 200, 5):
        stopped.advance("5 s")
        assert outcome(conn, "t", {"n": second}, **options) == (first, "debounced")
        found = job(conn, first)
        assert found.run_at == found.due_at == start + timedelta(seconds=min(second + 10, 100))
        assert found.args == {"n": 0}
        if second + 5 == 100:
            break
    stopped.advance("5 s")
    assert ids(reserve(conn)) == [first]
    assert outcome(conn, **options) == (first, "skipped")


def test_debounce_max_is_the_ceiling_and_no_call_brings_a_job_nearer(conn: psycopg.Connection, stopped: Clock) -> None:
    start = stopped.now()
    first = enqueue(conn, dedupe="d", delay="1 min", expires_in="1 h")

    def debounced(**options: Any) -> timedelta:
        assert outcome(conn, dedupe="d", on_conflict="debounce", **options) == (first, "debounced")
        found = job(conn, first)
        assert found.expires_at - found.run_at == timedelta(hours=1)
        run_at: datetime = found.run_at
        return run_at - start

    assert debounced(delay="10 s") == timedelta(minutes=1)
    assert debounced(delay="5 min", debounce_max="2 min") == timedelta(minutes=2)
    assert debounced(delay="5 min", debounce_max="30 s") == timedelta(minutes=2)
    assert debounced(run_at=start + timedelta(hours=1), debounce_max="1 day") == timedelta(hours=1)
    assert debounced(run_at=datetime(9999, 1, 1, tzinfo=UTC)) > timedelta(days=365 * 7000)


def test_raise_names_the_existing_job_and_the_next_step(conn: psycopg.Connection) -> None:
    first, what = outcome(conn, dedupe="d", on_conflict="raise")
    assert what == "inserted"
    with pytest.raises(psycopg.errors.UniqueViolation) as refused:
        enqueue(conn, dedupe="d", on_conflict="raise")
    assert str(first) in (refused.value.diag.message_detail or "")
    assert "on_conflict" in (refused.value.diag.message_hint or "")
    assert value(conn, "select count(*) from pgqueue.jobs") == 1


@pytest.mark.parametrize("mode", ["replace", "merge", "debounce"])
@pytest.mark.parametrize("reached", ["executing", "failed", "released", "snoozed"])
def test_a_job_that_was_ever_reserved_is_left_as_it_is(conn: psycopg.Connection, mode: str, reached: str) -> None:
    first = enqueue(conn, "t", {"a": 1}, dedupe="d")
    held = reserve_one(conn)
    if reached == "failed":
        call(conn, "fail", first, held.reservation)
    elif reached == "released":
        column(conn, "release", [first], [held.reservation])
    elif reached == "snoozed":
        call(conn, "snooze", first, held.reservation, "1 h")
    before = job(conn, first)
    assert outcome(conn, "t", {"b": 1}, dedupe="d", on_conflict=mode, delay="1 day") == (first, "skipped")
    assert job(conn, first) == before


def test_a_blocked_job_that_is_deferred_waits_again_and_holds_its_key_no_longer(conn: psycopg.Connection) -> None:
    blocked = enqueue(conn, key="k", dedupe="d")
    behind = enqueue(conn, key="k")
    for each in (blocked, behind):
        conn.execute("update pgqueue.jobs set state = 'blocked' where id = %s", [each])
    assert outcome(conn, dedupe="d", on_conflict="replace", delay="1 h") == (blocked, "replaced")
    assert (state(conn, blocked), state(conn, behind)) == ("waiting", "waiting")
    assert ids(reserve(conn, 5)) == [behind]


def test_a_deferred_job_lets_the_jobs_blocked_behind_it_run(conn: psycopg.Connection) -> None:
    ahead = enqueue(conn, key="k")
    held = reserve_one(conn)
    moved, behind = enqueue(conn, key="k", dedupe="d"), enqueue(conn, key="k")
    assert reserve(conn, 5) == []
    assert (state(conn, moved), state(conn, behind)) == ("blocked", "blocked")
    assert outcome(conn, dedupe="d", on_conflict="debounce", delay="1 h") == (moved, "debounced")
    assert reserve(conn, 5) == []
    call(conn, "complete", ahead, held.reservation)
    assert ids(reserve(conn, 5)) == [behind]
    assert state(conn, moved) == "waiting"


def test_a_blocked_job_that_is_replaced_and_due_keeps_its_position_in_its_key(conn: psycopg.Connection) -> None:
    ahead = enqueue(conn, key="k")
    held = reserve_one(conn)
    replaced, behind = enqueue(conn, key="k", dedupe="d"), enqueue(conn, key="k")
    assert reserve(conn, 5) == []
    assert outcome(conn, "t", {"a": 1}, dedupe="d", on_conflict="replace") == (replaced, "replaced")
    assert reserve(conn, 5) == []
    call(conn, "complete", ahead, held.reservation)
    [second] = reserve(conn, 5)
    assert (second.id, second.args) == (replaced, {"a": 1})
    call(conn, "complete", replaced, second.reservation)
    assert ids(reserve(conn, 5)) == [behind]


def test_a_job_blocked_by_a_limit_that_is_deferred_waits_again(conn: psycopg.Connection) -> None:
    blocked = enqueue(conn, dedupe="d")
    conn.execute("update pgqueue.jobs set state = 'blocked', blocked_on = 'queue:default'")
    assert outcome(conn, dedupe="d", on_conflict="debounce", delay="1 h") == (blocked, "debounced")
    assert value(conn, "select state::text from pgqueue.jobs where blocked_on is null") == "waiting"


def test_replace_moves_a_job_into_a_lane_that_is_visited(conn: psycopg.Connection) -> None:
    first = enqueue(conn, dedupe="d")
    enqueue(conn, dedupe="d", on_conflict="replace", priority=42)
    assert value(conn, "select count(*) from pgqueue.lanes where priority = 42") == 1
    assert ids(reserve(conn)) == [first]


# Coming back


def test_a_job_that_is_retried_takes_its_key_again(conn: psycopg.Connection) -> None:
    first = enqueue(conn, dedupe="d")
    call(conn, "cancel", first)
    assert call(conn, "retry", first) is True
    assert (job(conn, first).dedupe, outcome(conn, dedupe="d")) == ("d", (first, "skipped"))
    call(conn, "cancel", first)
    assert keys(conn) == 0


def test_a_job_that_is_retried_comes_back_without_a_key_that_is_anothers(conn: psycopg.Connection) -> None:
    first = enqueue(conn, dedupe="d")
    call(conn, "cancel", first)
    second = enqueue(conn, dedupe="d")
    assert call(conn, "retry", first) is True
    assert (job(conn, first).dedupe, job(conn, second).dedupe) == (None, "d")
    call(conn, "cancel", first)
    assert enqueue(conn, dedupe="d") == second


@pytest.mark.parametrize("waited", ["30 min", "2 h"])
def test_a_job_retried_within_its_time_keeps_it_and_later_takes_the_key_anew(
    conn: psycopg.Connection, stopped: Clock, waited: str
) -> None:
    first = enqueue(conn, dedupe="d", dedupe_for="1 h")
    call(conn, "cancel", first)
    stopped.advance(waited)
    call(conn, "retry", first)
    assert enqueue(conn, dedupe="d") == first
    assert value(conn, "select until is not null from pgqueue.dedupe_keys") is (waited == "30 min")


# Whatever happens


def test_a_key_left_behind_by_a_job_that_is_nowhere_is_taken_over(conn: psycopg.Connection) -> None:
    first = enqueue(conn, dedupe="d")
    conn.execute("delete from pgqueue.jobs")
    second, what = outcome(conn, dedupe="d")
    assert (second > first, what) == (True, "inserted")


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
@pytest.mark.parametrize("mode", MODES)
def test_dedupe_works_at_every_isolation_level(database: Database, level: str, mode: str) -> None:
    own = database.connect(autocommit=False)
    own.execute(f"set transaction isolation level {level}".encode())
    first = enqueue(own, "t", {"a": 1}, dedupe="d", dedupe_for="1 h", delay="1 s", on_conflict=mode)
    assert enqueue(own, "t", {"b": 1}, dedupe="d", on_conflict=mode, delay="1 s") == first
    call(own, "cancel", first)
    call(own, "delete", first)
    assert enqueue(own, "t", {}, dedupe="d", on_conflict=mode, delay="1 s") > first
    own.commit()


@pytest.mark.parametrize("level", ["session", "local"])
def test_the_callers_lock_timeout_stays(database: Database, level: str) -> None:
    own = database.connect(autocommit=False)
    own.execute(f"set {level} lock_timeout = '7s'".encode())
    for _ in range(2):
        enqueue(own, dedupe="d")
        enqueue(own, dedupe="d", on_conflict="merge")
        assert value(own, "show lock_timeout") == "7s"
    with pytest.raises(psycopg.errors.UniqueViolation), own.transaction():
        enqueue(own, dedupe="d", on_conflict="raise")
    assert value(own, "show lock_timeout") == "7s"


def test_enqueue_many_takes_a_key_for_one_job_or_none(conn: psycopg.Connection) -> None:
    [first] = column(conn, "enqueue_many", "t", [Jsonb({"a": 1})], dedupe="d")
    assert column(conn, "enqueue_many", "t", [Jsonb({"b": 1})], dedupe="d", on_conflict="merge") == [first]
    assert job(conn, first).args == {"a": 1, "b": 1}
    assert column(conn, "enqueue_many", "t", [], dedupe="d") == []


def test_a_deduped_enqueue_wakes_an_idle_worker(database: Database, conn: psycopg.Connection) -> None:
    listener = database.connect()
    call(conn, "hello", "w")
    [idle] = table(conn, "idle", "w")
    listener.execute(f'listen "{idle.channel}"'.encode())
    enqueue(conn, dedupe="d", delay="1 h")
    listener.execute("select 1")
    assert list(listener.notifies(timeout=0)) == []
    enqueue(conn, dedupe="d", on_conflict="replace")
    assert [each.payload for each in listener.notifies(timeout=60, stop_after=1)] == ["wake"]


# Supersede


def test_a_new_job_cancels_the_waiting_one_of_its_key(conn: psycopg.Connection) -> None:
    first = enqueue(conn, dedupe="d", args={"q": "a"})
    child = enqueue(conn, "child", depends_on=[first])
    second, what = outcome(conn, dedupe="d", args={"q": "ab"}, on_conflict="supersede")
    assert (what, second > first) == ("superseded", True)
    assert state(conn, first) == state(conn, child) == "cancelled"
    assert keys(conn) == 1
    assert enqueue(conn, dedupe="d") == second
    assert ids(reserve(conn, 9)) == [second]


@pytest.mark.parametrize("end", ["fail", "release", "snooze", "complete"])
def test_a_new_job_asks_the_executing_one_to_cancel_and_it_is_not_retried(conn: psycopg.Connection, end: str) -> None:
    first = enqueue(conn, dedupe="d")
    held = reserve_one(conn)
    second, what = outcome(conn, dedupe="d", on_conflict="supersede")
    assert what == "superseded"
    # Both may overlap: they have no key.
    assert ids(reserve(conn, 9)) == [second]
    [extended] = table(conn, "extend", [first], [held.reservation], "30 s")
    assert extended.cancel_requested is True
    if end == "release":
        assert column(conn, "release", [first], [held.reservation]) == []
    else:
        assert call(conn, end, first, held.reservation, *(["1 s"] if end == "snooze" else []))
    assert state(conn, first) == ("succeeded" if end == "complete" else "cancelled")
    assert enqueue(conn, dedupe="d") == second


def test_what_supersedes_in_a_row_leaves_the_last(conn: psycopg.Connection) -> None:
    made = [outcome(conn, dedupe="d", on_conflict="supersede", key="k") for _ in range(4)]
    assert [what for _, what in made] == ["inserted", "superseded", "superseded", "superseded"]
    assert ids(reserve(conn, 9)) == [made[-1][0]]


def test_a_superseded_job_lives_where_the_transaction_rolls_back(database: Database, conn: psycopg.Connection) -> None:
    first = enqueue(conn, dedupe="d")
    other = database.connect(autocommit=False)
    outcome(other, dedupe="d", on_conflict="supersede")
    other.rollback()
    assert (state(conn, first), enqueue(conn, dedupe="d")) == ("waiting", first)


def test_a_key_that_outlives_its_job_goes_to_the_new_one(conn: psycopg.Connection, stopped: Clock) -> None:
    first = enqueue(conn, dedupe="d", dedupe_for="1 hour")
    assert call(conn, "complete", first, reserve_one(conn).reservation)
    second, what = outcome(conn, dedupe="d", dedupe_for="1 hour", on_conflict="supersede")
    assert (what, state(conn, second)) == ("superseded", "waiting")
    stopped.advance("59 min")
    assert outcome(conn, dedupe="d") == (second, "skipped")


def test_a_job_that_waits_for_others_supersedes_in_a_batch_and_in_a_load(conn: psycopg.Connection) -> None:
    parent = enqueue(conn, "parent")
    first = enqueue(conn, dedupe="d")
    job_of = {"task": "t", "dedupe": "d", "on_conflict": "supersede", "depends_on": [parent]}
    [row] = table(conn, "enqueue_batch", [Jsonb(job_of)])
    assert (row.outcome, state(conn, first), state(conn, row.job_id)) == ("superseded", "cancelled", "blocked")
    with conn.transaction():
        call(conn, "stage")
        conn.execute(
            "insert into pg_temp.pgqueue_staged (task, dedupe, on_conflict, depends_on)"
            " values ('t', 'd', 'supersede', %s)",
            [[parent]],
        )
        assert {each.outcome: each.jobs for each in table(conn, "enqueue_staged")} == {"superseded": 1}
    assert state(conn, row.job_id) == "cancelled"
    held = {each.task: each for each in reserve(conn, 9)}
    assert list(held) == ["parent"]
    assert call(conn, "complete", parent, held["parent"].reservation)
    assert [each.task for each in reserve(conn, 9)] == ["t"]


@pytest.mark.parametrize("is_executing", [False, True])
@pytest.mark.parametrize("dedupe_for", [None, "1 hour"])
def test_a_child_whose_parent_in_the_call_is_refused_supersedes_nothing(
    conn: psycopg.Connection, is_executing: bool, dedupe_for: str | None
) -> None:
    enqueue(conn, "a", dedupe="p")
    first = enqueue(conn, "t", dedupe="d", dedupe_for=dedupe_for)
    if is_executing:
        reserve(conn, 2)
    refused = {"task": "a", "dedupe": "p", "on_conflict": "raise", "ref": "p"}
    child = {"task": "t", "dedupe": "d", "on_conflict": "supersede", "depends_on": ["p"]}
    key = "select to_jsonb(d) from pgqueue.dedupe_keys d where d.task = 't'"
    before = value(conn, key)
    # Also where several of the call supersede each other.
    for children in ([child], [child, child, child]):
        rows = batch(conn, refused, *children)
        assert [row.outcome for row in rows] == ["error"] * len(rows)
        assert value(conn, key) == before
    found = job(conn, first)
    assert (found.state, found.cancel_requested_at) == ("executing" if is_executing else "waiting", None)
    assert enqueue(conn, dedupe="d") == first


@pytest.mark.parametrize("place", [0, 1, 2])
def test_of_a_call_the_last_job_that_is_not_refused_supersedes(conn: psycopg.Connection, place: int) -> None:
    enqueue(conn, "a", dedupe="p")
    first = enqueue(conn, "t", dedupe="d")
    refused = {"task": "a", "dedupe": "p", "on_conflict": "raise", "ref": "p"}
    child = {"task": "t", "dedupe": "d", "on_conflict": "supersede", "depends_on": ["p"]}
    alone = {"task": "t", "dedupe": "d", "on_conflict": "supersede"}
    jobs = [child, child]
    jobs.insert(place, alone)
    rows = batch(conn, refused, *jobs)
    assert [row.outcome for row in rows[1:]] == ["superseded" if each is alone else "error" for each in jobs]
    last = rows[1 + place].job_id
    assert (state(conn, first), state(conn, last), enqueue(conn, dedupe="d")) == ("cancelled", "waiting", last)
    assert value(conn, "select array_agg(id order by id) from pgqueue.all_jobs where task = 't'") == [first, last]


def batch(conn: psycopg.Connection, *jobs: dict[str, Any]) -> list[Row]:
    return table(conn, "enqueue_batch", [Jsonb(each) for each in jobs])
