"""Whatever the arguments, the answer is a result or a documented refusal; never an internal error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from tests.calls import call, column, ids, reserve, table
from tests.databases import Cloner

# Misuse of an argument, and values that never reach the function: a text that is no interval, a number that is no
# integer.
DOCUMENTED = {"22023"}
BEFORE_THE_CALL = {"22007", "22008", "22015", "22P02", "22003", "22P05"}

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=140)
names = st.none() | texts | st.sampled_from(["default", "x" * 128, "ä" * 64, "", " ", "'; drop table pgqueue.jobs; --"])
numbers = st.none() | st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 102)
intervals = st.none() | st.sampled_from(
    ["0", "1 us", "-1 us", "1 s", "2 hours", "1 month", "-3 years", "9999 years", "-99999 years", "170000000 years"]
)
instants = st.none() | st.sampled_from(
    ["2001-01-01", "2030-06-01 12:00+00", "9999-12-31", "10000-01-01", "infinity", "-infinity", "4713-01-01 BC"]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(width=16, allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts, json_values, max_size=3)

options = st.fixed_dictionaries(
    {},
    optional={
        "queue": names,
        "priority": numbers,
        "run_at": instants,
        "delay": intervals,
        "expires_in": intervals,
        "max_attempts": numbers,
        "headers": (objects | json_values).map(Jsonb),
        "tags": st.none() | st.lists(names, max_size=3),
        "retention": intervals,
        "retry_policy": names | st.sampled_from(["fixed", "exponential", "sidekiq", "doubling", "list"]),
        "retry_delay": intervals,
        "retry_cap": intervals,
        "retry_queue": names,
        "key": st.none() | names,
        "limit_key": st.none() | names,
        "dedupe": st.none() | names,
        "dedupe_for": intervals,
        "on_conflict": st.sampled_from([None, "skip", "replace", "merge", "debounce", "supersede", "ignore", ""]),
        "debounce_max": intervals,
    },
)


@pytest.fixture(scope="module")
def shared(cloner: Cloner) -> Iterator[psycopg.Connection]:
    database = cloner.migrated()
    yield database.connect()
    cloner.drop(database)


def outcome(conn: psycopg.Connection, function: str, *args: Any, **named: Any) -> list[Any] | None:
    """The first column, or None where it was refused as documented, with a hint."""
    try:
        with conn.transaction():
            return column(conn, function, *args, **named)
    except psycopg.Error as error:
        assert error.sqlstate in DOCUMENTED | BEFORE_THE_CALL, error  # noqa: PT017
        if error.sqlstate in DOCUMENTED:
            assert error.diag.message_hint  # noqa: PT017
        return None


relaxed = settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.long
@relaxed
@given(task=names, args=st.none() | (objects | json_values).map(Jsonb), given_options=options)
def test_enqueue_answers_with_an_id_or_a_refusal(
    shared: psycopg.Connection, task: str | None, args: Any, given_options: dict[str, Any]
) -> None:
    found = outcome(shared, "enqueue", task, args, **given_options)
    if found is None:
        return
    [job_id] = found
    stored = shared.execute(
        "select task, args, queue, priority, state::text from pgqueue.jobs where id = %s", [job_id]
    ).fetchone()
    assert stored is not None
    assert stored[:2] == (task, args.obj)
    assert stored[2] == (given_options.get("queue") or "default")
    assert stored[3] == (given_options.get("priority") or 0)
    assert stored[4] == "waiting"
    shared.execute("truncate pgqueue.jobs, pgqueue.dedupe_keys")


@pytest.mark.long
@relaxed
@given(
    worker=names,
    max_jobs=numbers,
    queues=st.none() | st.lists(names, max_size=3),
    weights=st.none() | st.lists(numbers, max_size=3),
    lease=intervals,
    strategy=names | st.sampled_from(["weighted", "strict", "lag", "round_robin"]),
    jobs=st.integers(0, 4),
)
def test_reserve_answers_with_jobs_or_a_refusal(
    shared: psycopg.Connection,
    worker: str | None,
    max_jobs: int | None,
    queues: list[str | None] | None,
    weights: list[int | None] | None,
    lease: str | None,
    strategy: str | None,
    jobs: int,
) -> None:
    waiting = column(shared, "enqueue_many", "t", [Jsonb({})] * jobs)
    found = outcome(shared, "reserve", worker, max_jobs, queues, weights, lease, strategy)
    if found is None:
        assert ids(reserve(shared, 100, "after a refusal")) == waiting
    else:
        assert max_jobs is not None
        expected = waiting[:max_jobs] if queues is None or "default" in queues else []
        assert found == expected
    shared.execute("delete from pgqueue.jobs")


@pytest.mark.long
@relaxed
@given(
    error=st.none() | json_values.map(Jsonb),
    retry_in=intervals,
    retry=st.none() | st.booleans(),
    policy=names | st.sampled_from(["fixed", "exponential", "sidekiq", "doubling", "list", "function"]),
    cancel=st.none() | st.booleans(),
)
def test_fail_answers_with_a_state_or_a_refusal(
    shared: psycopg.Connection,
    error: Any,
    retry_in: str | None,
    retry: bool | None,
    policy: str | None,
    cancel: bool | None,
) -> None:
    job_id = call(shared, "enqueue", "t")
    [held] = table(shared, "reserve", "w")
    found = outcome(shared, "fail", job_id, held.reservation, error, retry_in, retry, policy, cancel)
    if found is not None:
        assert found == ["cancelled" if cancel else "dead" if retry is False else "failed"]
    shared.execute("delete from pgqueue.jobs")
