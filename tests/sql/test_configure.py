"""Options that an operator sets, for tasks and queues that there may not be yet."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.calls import call, enqueue, job, reserve_one, value

# What each function sets, as it is given and as it stands afterwards.
TASK: dict[str, Any] = {
    "queue": "mail",
    "priority": 5,
    "max_attempts": 3,
    "retry_policy": "list",
    "retry_delay": timedelta(seconds=2),
    "retry_jitter": 0.5,
    "expires_in": timedelta(hours=1),
    "retention_succeeded": timedelta(days=2),
    "retention_cancelled": timedelta(days=3),
    "retention_dead": timedelta(days=4),
    "retry_cap": timedelta(minutes=1),
    "retry_delays": [timedelta(seconds=1), timedelta(seconds=9)],
    "retry_queue": "slow",
    "accumulate": False,
    "batch_size": 7,
    "timeout": timedelta(minutes=2),
    "max_crashes": 2,
    "store_result": True,
}
QUEUE: dict[str, Any] = {
    "priority": 5,
    "weight": 3,
    "retention_succeeded": timedelta(days=2),
    "retention_cancelled": timedelta(days=3),
    "retention_dead": timedelta(days=4),
    "retry_budget": 10,
    "fair_by": "limit_key",
    "max_share": 0.75,
}
BOTH = pytest.mark.parametrize(
    ("function", "table", "options"), [("configure_task", "tasks", TASK), ("configure_queue", "queues", QUEUE)]
)


def row(conn: psycopg.Connection, table: str, name: str = "x") -> dict[str, Any]:
    with conn.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(f"select * from pgqueue.{table} where name = %s".encode(), [name]).fetchone()
    assert found is not None
    return found


@BOTH
def test_every_option_is_set_one_by_one_and_the_others_keep_their_values(
    conn: psycopg.Connection, function: str, table: str, options: dict[str, Any]
) -> None:
    later = {"retry_policy"}  # the list of delays comes first
    for name in [*(each for each in options if each not in later), *(each for each in options if each in later)]:
        assert call(conn, function, "x", **{name: options[name]}) is True
        assert call(conn, function, "x", **{name: options[name]}) is False
    assert {name: row(conn, table)[name] for name in options} == options
    # All that an operator may set in a row.
    others = {name for name in row(conn, table) if not name.startswith("declared_")} - set(options)
    assert others <= {"name", "retry_function"}


@BOTH
def test_reset_takes_an_option_back_and_leaves_the_others(
    conn: psycopg.Connection, function: str, table: str, options: dict[str, Any]
) -> None:
    call(conn, function, "x", **options)
    for name in options:
        if name == "retry_delays":
            continue  # retry_policy list needs them
        assert call(conn, function, "x", reset=[name]) is True
        assert row(conn, table)[name] is None
        call(conn, function, "x", **{name: options[name]})
    assert call(conn, function, "x", reset=list(options)) is True
    assert {row(conn, table)[name] for name in options} == {None}
    assert call(conn, function, "x", reset=list(options)) is False


def test_an_operators_option_holds_before_and_after_the_code_declares_the_task(conn: psycopg.Connection) -> None:
    call(conn, "configure_task", "t", max_attempts=3)
    enqueue(conn)
    assert reserve_one(conn).max_attempts == 3
    call(conn, "declare_task", "t", max_attempts=9, queue="mail")
    assert job(conn, enqueue(conn)).queue == "mail"
    assert reserve_one(conn).max_attempts == 3
    call(conn, "configure_task", "t", reset=["max_attempts"])
    enqueue(conn)
    assert reserve_one(conn).max_attempts == 9


def test_configuring_a_queue_leaves_its_pause_alone(conn: psycopg.Connection) -> None:
    call(conn, "pause_queue", "q")
    call(conn, "configure_queue", "q", priority=7)
    assert value(conn, "select true from pgqueue.pauses where target = 'q'") is True
    assert job(conn, enqueue(conn, queue="q")).priority == 7


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (
            "configure_task",
            {"max_attempts": 0},
            "out of range max_attempts must be from 1 to 100000. Give the option max_att",
        ),
        ("configure_task", {"priority": 1000}, "out of range priority must be from -100 to 100."),
        ("configure_task", {"priority": 100_000}, "out of range"),
        (
            "configure_task",
            {"retry_policy": "foo"},
            "retry_policy must be fixed, exponential, sidekiq, doubling, or list",
        ),
        ("configure_task", {"retry_policy": "list"}, "list together with retry_delays."),
        ("configure_task", {"retry_jitter": 3}, "retry_jitter must be from 0 to 1."),
        ("declare_task", {"docs": "wiki"}, "docs must be an address"),
        ("configure_task", {"retry_policy": "function"}, "set_retry_function"),
        ("configure_task", {"reset": ["max_atempts"]}, "max_atempts"),
        ("configure_task", {"reset": ["retry_function"]}, "retry_function"),
        ("configure_queue", {"weight": -3}, "out of range weight must be from 1 to 1000000."),
        ("configure_task", {"store_result": False, "reset": ["store_result"]}, "given It has 'store_result'."),
        ("configure_queue", {"weight": 3, "reset": ["priority", "weight"]}, "option that is given It has 'weight'."),
        ("configure_queue", {"reset": [None]}, "null"),
        ("configure_queue", {"reset": ["name"]}, "name"),
    ],
)
def test_wrong_options_are_refused_and_change_nothing(
    conn: psycopg.Connection, function: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue) as refused:
        call(conn, function, "x", **options)
    diag = refused.value.diag
    assert said in f"{diag.message_primary} {diag.message_detail} {diag.message_hint}"
    assert value(conn, "select count(*) from pgqueue.tasks") + value(conn, "select count(*) from pgqueue.queues") == 0


def test_each_option_that_a_constraint_may_refuse_has_its_bounds_in_words(conn: psycopg.Connection) -> None:
    # The name is checked before, and a function is named by set_retry_function.
    without = conn.execute(
        "select a.attname from pg_constraint k"
        " cross join unnest(k.conkey) c (attnum) join pg_attribute a on a.attrelid = k.conrelid and a.attnum = c.attnum"
        " where k.contype = 'c' and k.conrelid in ('pgqueue.tasks'::regclass, 'pgqueue.queues'::regclass)"
        " and a.attname not in ('name', 'retry_function')"
        " and pgqueue._bounds_of(replace(a.attname, 'declared_', '')) is null"
    ).fetchall()
    assert without == []
