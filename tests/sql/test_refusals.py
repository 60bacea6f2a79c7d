"""What bad input gets: an SQLSTATE, and a hint that names the argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.calls import call, enqueue, job, reserve_one
from tests.databases import Database

BAD = "22023"

Case = tuple[str, Sequence[Any], Mapping[str, Any], str, str]

_EMPTY = Jsonb({})


def _of_enqueue() -> list[Case]:
    """Options that enqueue, enqueue_outcome and enqueue_many share: (options, sqlstate, what the hint names)."""
    shared: list[tuple[Mapping[str, Any], str, str]] = [
        ({"queue": ""}, BAD, "queue"),
        ({"queue": "x" * 129}, BAD, "queue"),
        ({"queue": "ä" * 65}, BAD, "queue"),
        ({"priority": 101}, BAD, "priority"),
        ({"priority": -101}, BAD, "priority"),
        ({"priority": 2147483647}, BAD, "priority"),
        ({"run_at": "10000-01-01 00:00+00"}, BAD, "run_at"),
        ({"run_at": "infinity"}, BAD, "run_at"),
        ({"run_at": "-infinity"}, BAD, "run_at"),
        ({"run_at": "0044-03-15 BC"}, BAD, "run_at"),
        ({"run_at": "2030-01-01 00:00+00", "delay": "1 hour"}, BAD, "run_at"),
        ({"run_at": "2030-01-01 00:00+00", "delay": "1 hour"}, BAD, "delay"),
        ({"delay": "8000 years"}, BAD, "delay"),
        ({"delay": "99999 years"}, BAD, "delay"),
        ({"delay": "-9000 years"}, BAD, "delay"),
        ({"expires_in": "0"}, BAD, "expires_in"),
        ({"expires_in": "-1 s"}, BAD, "expires_in"),
        ({"expires_in": "99999 years"}, BAD, "expires_in"),
        ({"max_attempts": 0}, BAD, "max_attempts"),
        ({"max_attempts": 100001}, BAD, "max_attempts"),
        ({"headers": Jsonb([1])}, BAD, "headers"),
        ({"headers": Jsonb({"x": [f"{n:04}" * 10 for n in range(3000)]})}, BAD, "headers"),
        ({"tags": ["x"] * 101}, BAD, "tags"),
        ({"tags": [""]}, BAD, "tags"),
        ({"tags": ["x" * 129]}, BAD, "tags"),
        ({"tags": ["x", None]}, BAD, "tags"),
        ({"retention": "-1 s"}, BAD, "retention"),
        ({"retention": "3 years"}, BAD, "retention"),
        ({"retry_policy": "polynomial"}, BAD, "retry_policy"),
        ({"retry_policy": "list"}, BAD, "retry_policy"),
        ({"retry_policy": "function"}, BAD, "retry_policy"),
        ({"retry_delay": "-1 s"}, BAD, "retry_delay"),
        ({"retry_delay": "2 years"}, BAD, "retry_delay"),
        ({"retry_cap": "-1 s"}, BAD, "retry_cap"),
        ({"retry_cap": "2 years"}, BAD, "retry_cap"),
        ({"retry_queue": ""}, BAD, "retry_queue"),
        ({"retry_queue": "x" * 129}, BAD, "retry_queue"),
        ({"timeout": "0"}, BAD, "timeout"),
        ({"timeout": "8 days"}, BAD, "timeout"),
        ({"key": ""}, BAD, "key"),
        ({"key": "x" * 513}, BAD, "key"),
        ({"key": "ä" * 257}, BAD, "key"),
        ({"key": "k", "retry_queue": "q"}, BAD, "retry_queue"),
        ({"limit_key": ""}, BAD, "limit_key"),
        ({"limit_key": "x" * 513}, BAD, "limit_key"),
        ({"score": "NaN"}, BAD, "score"),
        ({"dedupe": ""}, BAD, "dedupe"),
        ({"dedupe": "x" * 513}, BAD, "dedupe"),
        ({"dedupe": "ä" * 257}, BAD, "dedupe"),
        ({"dedupe_for": "1 min"}, BAD, "dedupe"),
        ({"on_conflict": "skip"}, BAD, "dedupe"),
        ({"debounce_max": "1 min"}, BAD, "dedupe"),
        ({"dedupe": "d", "dedupe_for": "0"}, BAD, "dedupe_for"),
        ({"dedupe": "d", "dedupe_for": "-1 s"}, BAD, "dedupe_for"),
        ({"dedupe": "d", "dedupe_for": "25 months"}, BAD, "dedupe_for"),
        ({"dedupe": "d", "on_conflict": "ignore"}, BAD, "on_conflict"),
        ({"dedupe": "d", "on_conflict": ""}, BAD, "on_conflict"),
        ({"dedupe": "d", "on_conflict": "debounce"}, BAD, "delay"),
        ({"dedupe": "d", "debounce_max": "1 min"}, BAD, "debounce"),
        ({"dedupe": "d", "on_conflict": "skip", "debounce_max": "1 min"}, BAD, "debounce"),
        ({"dedupe": "d", "on_conflict": "debounce", "delay": "1 s", "debounce_max": "0"}, BAD, "debounce_max"),
        ({"dedupe": "d", "on_conflict": "debounce", "delay": "1 s", "debounce_max": "3 years"}, BAD, "debounce_max"),
        ({"depends_on": [1]}, BAD, "depends_on"),
        ({"run_if": "failed"}, BAD, "depends_on"),
    ]
    cases: list[Case] = []
    for options, sqlstate, named in shared:
        cases.append(("enqueue", ["t"], options, sqlstate, named))
        cases.append(("enqueue_outcome", ["t"], options, sqlstate, named))
        cases.append(("enqueue_many", ["t", [_EMPTY, _EMPTY]], options, sqlstate, named))
    return cases


CASES: list[Case] = [
    *_of_enqueue(),
    ("enqueue", [""], {}, BAD, "task"),
    ("enqueue", [None], {}, BAD, "task"),
    ("enqueue", ["x" * 129], {}, BAD, "task"),
    ("enqueue", ["t", Jsonb([])], {}, BAD, "args"),
    ("enqueue", ["t", Jsonb("x")], {}, BAD, "args"),
    ("enqueue", ["t", Jsonb(None)], {}, BAD, "args"),
    ("enqueue", ["t", None], {}, BAD, "args"),
    ("enqueue", ["t", Jsonb({"x": "a" * 1048576})], {}, BAD, "args"),
    ("enqueue_outcome", [""], {"dedupe": "d"}, BAD, "task"),
    ("enqueue_outcome", ["t", Jsonb([])], {"dedupe": "d"}, BAD, "args"),
    ("enqueue_many", ["t", [_EMPTY, _EMPTY]], {"dedupe": "d"}, BAD, "enqueue_batch"),
    ("enqueue_batch", [None], {}, BAD, "jobs"),
    ("enqueue_batch", [[[_EMPTY], [_EMPTY]]], {}, BAD, "jobs"),
    ("enqueue_many", ["", [_EMPTY]], {}, BAD, "task"),
    ("enqueue_many", ["t", None], {}, BAD, "args"),
    ("enqueue_many", ["t", [_EMPTY, Jsonb(1)]], {}, BAD, "args"),
    ("enqueue_many", ["t", [_EMPTY, None]], {}, BAD, "args"),
    ("enqueue_many", ["t", [_EMPTY, Jsonb({"x": "a" * 1048576})]], {}, BAD, "args"),
    ("reserve", [""], {}, BAD, "worker"),
    ("reserve", [None], {}, BAD, "worker"),
    ("reserve", ["x" * 257], {}, BAD, "worker"),
    ("reserve", ["w", 0], {}, BAD, "max_jobs"),
    ("reserve", ["w", -1], {}, BAD, "max_jobs"),
    ("reserve", ["w", None], {}, BAD, "max_jobs"),
    ("reserve", ["w", 100001], {}, BAD, "max_jobs"),
    ("reserve", ["w"], {"lease": "0"}, BAD, "lease"),
    ("reserve", ["w"], {"lease": "-1 s"}, BAD, "lease"),
    ("reserve", ["w"], {"lease": None}, BAD, "lease"),
    ("reserve", ["w"], {"lease": "2 days"}, BAD, "lease"),
    ("reserve", ["w"], {"queues": []}, BAD, "queues"),
    ("reserve", ["w"], {"queues": [""]}, BAD, "queue"),
    ("reserve", ["w"], {"queues": ["a", None]}, BAD, "queue"),
    ("reserve", ["w"], {"queues": ["x" * 129]}, BAD, "queue"),
    ("reserve", ["w"], {"strategy": "fastest"}, BAD, "strategy"),
    ("reserve", ["w"], {"strategy": None}, BAD, "strategy"),
    ("reserve", ["w"], {"strategy": "strict"}, BAD, "queues"),
    ("reserve", ["w"], {"weights": [1]}, BAD, "weights"),
    ("reserve", ["w"], {"queues": ["a", "b"], "weights": [1]}, BAD, "weights"),
    ("reserve", ["w"], {"queues": ["a", "b"], "weights": [1, 0]}, BAD, "weights"),
    ("reserve", ["w"], {"queues": ["a", "b"], "weights": [1, -3]}, BAD, "weights"),
    ("reserve", ["w"], {"queues": ["a", "b"], "weights": [1, None]}, BAD, "weights"),
    ("reserve", ["w"], {"queues": ["a", "b"], "weights": [1, 1_000_001]}, BAD, "weights"),
    ("complete", [None, 1], {}, BAD, "job id"),
    ("complete", [1, None], {}, BAD, "reservation"),
    ("complete_many", [[1, 2], [1]], {}, BAD, "reservation"),
    ("complete_many", [None, [1]], {}, BAD, "reservation"),
    ("complete_many", [[1, None], [1, 2]], {}, BAD, "job id"),
    ("complete_many", [[1, 2], [1, 2], [_EMPTY]], {}, BAD, "results"),
    ("fail", [None, 1], {}, BAD, "job id"),
    ("fail", [1, 1], {"retry_in": "-1 s"}, BAD, "retry_in"),
    ("fail", [1, 1], {"retry_in": "11 years"}, BAD, "retry_in"),
    ("fail_many", [[1, 2], [1]], {}, BAD, "reservation"),
    ("fail_many", [[1, None], [1, 2]], {}, BAD, "job id"),
    ("fail_many", [None, None], {}, BAD, "reservation"),
    ("fail_many", [[1], [1], [_EMPTY, _EMPTY]], {}, BAD, "errors"),
    ("fail_many", [[1], [1]], {"retry_in": ["1 s", "1 s"]}, BAD, "retry_in"),
    ("fail_many", [[1], [1]], {"retry": [True, True]}, BAD, "retry"),
    ("fail_many", [[1], [1]], {"policies": ["fixed", "fixed"]}, BAD, "policies"),
    ("fail_many", [[1], [1]], {"cancel": [True, True]}, BAD, "cancel"),
    ("exchange", [None], {}, BAD, "worker"),
    ("exchange", [""], {}, BAD, "worker"),
    ("exchange", ["w", -1], {}, BAD, "max_jobs"),
    ("exchange", ["w", None], {}, BAD, "max_jobs"),
    ("exchange", ["w", 100001], {}, BAD, "max_jobs"),
    ("exchange", ["w"], {"lease": "0"}, BAD, "lease"),
    ("exchange", ["w"], {"lease": None}, BAD, "lease"),
    ("exchange", ["w", 1], {"queues": []}, BAD, "queues"),
    ("exchange", ["w", 1], {"strategy": "fastest"}, BAD, "strategy"),
    ("exchange", ["w", 1], {"weights": [1]}, BAD, "weights"),
    ("exchange", ["w"], {"completed": [1], "completed_reservations": []}, BAD, "reservation"),
    ("exchange", ["w"], {"completed": None}, BAD, "reservation"),
    ("exchange", ["w"], {"completed": [None], "completed_reservations": [1]}, BAD, "job id"),
    ("exchange", ["w"], {"completed": [1], "completed_reservations": [1], "results": []}, BAD, "results"),
    ("exchange", ["w"], {"failed": [1]}, BAD, "reservation"),
    ("exchange", ["w"], {"failed": [1], "failed_reservations": [1], "errors": []}, BAD, "errors"),
    ("exchange", ["w"], {"failed": [1], "failed_reservations": [1], "cancel": [True, True]}, BAD, "cancel"),
    ("exchange", ["w"], {"extended": [1]}, BAD, "reservation"),
    ("exchange", ["w"], {"extended": [1], "extended_reservations": [1], "started": []}, BAD, "started"),
    ("extend", [[1], [1, 2]], {}, BAD, "reservation"),
    ("extend", [[1], [1]], {"lease": "0"}, BAD, "lease"),
    ("release", [[1], None], {}, BAD, "reservation"),
    ("release", [[1], [1]], {"delay": "-1 s"}, BAD, "delay"),
    ("release", [[1], [1]], {"delay": None}, BAD, "delay"),
    ("release", [[1], [1]], {"delay": "11 years"}, BAD, "delay"),
    ("release_unheld", [""], {}, BAD, "worker"),
    ("held_by", [""], {}, BAD, "worker"),
    ("release_unheld", ["w", [1], []], {}, BAD, "reservation"),
    ("snooze", [1, 1, None], {}, BAD, "delay"),
    ("snooze", [1, 1, "-1 s"], {}, BAD, "delay"),
    ("snooze", [1, None, "1 s"], {}, BAD, "reservation"),
    ("fail", [1, 1], {"policy": "polynomial"}, BAD, "policy"),
    ("fail", [1, 1], {"policy": ""}, BAD, "policy"),
    ("hello", [""], {}, BAD, "worker"),
    ("hello", ["w", []], {}, BAD, "queues"),
    ("beat", [None], {}, BAD, "worker"),
    ("bye", [""], {}, BAD, "worker"),
    ("awake", [""], {}, BAD, "worker"),
    ("idle", [""], {}, BAD, "worker"),
    ("idle", ["w", []], {}, BAD, "queues"),
    ("idle", ["w"], {"for": "0"}, BAD, "for"),
    ("idle", ["w"], {"for": "-1 s"}, BAD, "for"),
    ("idle", ["w"], {"for": "2 hours"}, BAD, "for"),
    ("idle", ["w"], {"for": None}, BAD, "for"),
    ("pause_queue", [""], {}, BAD, "queue"),
    ("resume_queue", [None], {}, BAD, "queue"),
    ("quiet_worker", [""], {}, BAD, "worker"),
    ("resume_worker", [None], {}, BAD, "worker"),
    ("stop_worker", ["w" * 257], {}, BAD, "worker"),
    ("kill_worker", [""], {}, BAD, "worker"),
    ("kill_worker", [], {}, BAD, "job_id"),
    ("kill_worker", ["w", 1], {}, BAD, "job_id"),
    ("worker_command", [""], {}, BAD, "worker"),
    ("configure_schedule", [""], {}, BAD, "name"),
    ("configure_schedule", ["s", "* *"], {}, BAD, "minute"),
    ("configure_schedule", ["s"], {"timezone": "Mars/Utopia"}, BAD, "timezone"),
    ("configure_schedule", ["s"], {"reset": ["every"]}, BAD, "options"),
    ("declare_task", [""], {}, BAD, "task"),
    ("declare_task", ["t"], {"priority": 101}, BAD, "option"),
    ("declare_task", ["t"], {"priority": 100000}, BAD, "option"),
    ("declare_task", ["t"], {"retry_policy": "polynomial"}, BAD, "option"),
    ("declare_task", ["t"], {"retry_policy": "function"}, BAD, "option"),
    ("declare_task", ["t"], {"retry_policy": "list"}, BAD, "option"),
    ("declare_task", ["t"], {"retry_delays": []}, BAD, "option"),
    ("declare_task", ["t"], {"retry_delays": ["1 s", "-1 s"]}, BAD, "option"),
    ("declare_task", ["t"], {"retry_delays": ["1 s", "2 years"]}, BAD, "option"),
    ("declare_task", ["t"], {"retry_delays": ["1 s", None]}, BAD, "option"),
    ("declare_task", ["t"], {"retry_cap": "-1 s"}, BAD, "option"),
    ("declare_task", ["t"], {"retry_queue": ""}, BAD, "option"),
    ("declare_task", ["t"], {"retry_jitter": "NaN"}, BAD, "option"),
    ("set_retry_function", ["", "public.f"], {}, BAD, "task"),
    ("set_retry_function", ["t", ""], {}, BAD, "function"),
    ("set_retry_function", ["t", "a.b.c"], {}, BAD, "function"),
    ("set_retry_function", ["t", "f"], {}, BAD, "function"),
    ("set_retry_function", ["t", "public.f(jsonb, jsonb); drop table x"], {}, BAD, "function"),
    ("set_retry_function", ["t", "public.no_such_function"], {}, BAD, "function"),
    ("grant_access", ["god", "postgres"], {}, BAD, "kind"),
    ("grant_access", ["worker", "nobody of this name"], {}, BAD, "role"),
]


@pytest.fixture(scope="module")
def shared(cloner: Any) -> Any:
    # One database for all: nothing of a case that fails to be refused stays.
    database: Database = cloner.migrated()
    yield database.connect()
    cloner.drop(database)


@pytest.mark.parametrize(
    ("function", "args", "named", "sqlstate", "hint"),
    CASES,
    ids=[f"{case[0]}-{n}-{case[4]}" for n, case in enumerate(CASES)],
)
def test_bad_input_is_refused_with_a_hint_that_names_the_argument(
    shared: psycopg.Connection,
    function: str,
    args: Sequence[Any],
    named: Mapping[str, Any],
    sqlstate: str,
    hint: str,
) -> None:
    with pytest.raises(psycopg.Error) as refused, shared.transaction(force_rollback=True):
        call(shared, function, *args, **named)
    assert refused.value.sqlstate == sqlstate, refused.value
    assert hint in (refused.value.diag.message_hint or "")


@pytest.mark.parametrize("score", ["Infinity", "-Infinity"])
def test_infinite_scores_are_refused_as_they_exist(conn: psycopg.Connection, score: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="score must be finite") as refused:
        call(conn, "enqueue", "t", score=score)
    assert "score" in (refused.value.diag.message_hint or "")


def test_infinite_intervals_are_refused_where_they_exist(conn: psycopg.Connection) -> None:
    if conn.info.server_version < 170000:
        pytest.skip("PostgreSQL has infinite intervals from 17 on")
    job_id = enqueue(conn)
    reserved = reserve_one(conn)
    for function, args, named, argument in [
        ("enqueue", ["t"], {"delay": "infinity"}, "delay"),
        ("enqueue", ["t"], {"delay": "-infinity"}, "delay"),
        ("enqueue", ["t"], {"expires_in": "infinity"}, "expires_in"),
        ("enqueue", ["t"], {"retention": "infinity"}, "retention"),
        ("enqueue", ["t"], {"dedupe": "d", "dedupe_for": "infinity"}, "dedupe_for"),
        ("reserve", ["w"], {"lease": "infinity"}, "lease"),
        ("extend", [[job_id], [reserved.reservation]], {"lease": "infinity"}, "lease"),
        ("release", [[job_id], [reserved.reservation]], {"delay": "infinity"}, "delay"),
        ("snooze", [job_id, reserved.reservation], {"delay": "infinity"}, "delay"),
        ("fail", [job_id, reserved.reservation], {"retry_in": "infinity"}, "retry_in"),
        ("idle", ["w"], {"for": "infinity"}, "for"),
    ]:
        with pytest.raises(psycopg.errors.InvalidParameterValue) as refused:
            call(conn, function, *args, **named)
        assert argument in (refused.value.diag.message_hint or "")
    assert job(conn, job_id).state == "executing"


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("function", ["reserve", "maintain", "exchange"])
def test_reserve_maintain_and_exchange_refuse_an_old_snapshot(
    conn: psycopg.Connection, function: str, level: str
) -> None:
    job_id = enqueue(conn)
    conn.execute(f"set default_transaction_isolation = '{level}'")
    with pytest.raises(psycopg.Error) as refused:
        call(conn, function, *([] if function == "maintain" else ["w"]))
    assert refused.value.sqlstate == "25001"
    assert "read committed" in (refused.value.diag.message_hint or "")
    assert job(conn, job_id).state == "waiting"
