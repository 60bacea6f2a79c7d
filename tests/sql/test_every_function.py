"""Every public function, with whatever its types allow, in any order: the catalog says which there are.

The answer is a result or an error of a documented class that says what to do, and the queue goes on as it was.
PGQUEUE_FUZZ=1000 runs for longer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.types.string import TextLoader

from pgqueue.testing import Clock
from tests.calls import column, maintain, reserve, value
from tests.databases import Database
from tests.sql.test_arguments import BEFORE_THE_CALL, instants, intervals, texts

EXAMPLES = int(os.environ.get("PGQUEUE_FUZZ", "60"))
CALLS = 40

# What was refused, what clashes with what is there or held, what there is not, and what wants another transaction.
REFUSED = {"22023", "55000"}
CLASHES = {"23505", "55P03"}

# Of a server before 17, which knows no infinite intervals; of json that goes too deep for the server's stack.
NEVER_CALLED = BEFORE_THE_CALL | {"54001", "22P04"}

Strategy = st.SearchStrategy[Any]
Signature = tuple[str, list[tuple[str, str]], int]
Arguments = dict[str, tuple[str, Any]]

words = st.sampled_from(
    [
        *("default", "other", "", "t", "u", "gathered", "a", "b", "l:1", "l:*", "w", "v", "s"),
        *("waiting", "failed", "blocked", "executing", "succeeded", "dead", "cancelled"),
        *("queue", "task", "key", "limit_key", "skip", "replace", "merge", "debounce", "raise"),
        *("fixed", "exponential", "sidekiq", "doubling", "list", "function", "weighted", "strict", "lag"),
        *("last", "all", "none", "start", "one", "UTC", "Europe/Berlin", "* * * * *", "0 0 30 2 *", "@daily"),
        *("producer", "worker", "operator", "reader", "postgres", "nobody at all", "pg_catalog.lower"),
        *("x" * 129, "ä" * 65, "'; drop table pgqueue.jobs; --", "%s %I %L {}", "a\x1fb\nc\t\\", "\U0001f9ca"),
    ]
)
deep = st.integers(1, 3000).map(lambda depth: "[" * depth + "]" * depth)
documents = deep | st.sampled_from(
    [
        *("null", "{}", "[]", '"x"', "1e400", "-0", '{"a": {"b": [1, null, "\\u00e4"]}}', '{"class": 1, "message": 2}'),
        *('{"task": "t"}', '{"task": "t", "key": "a", "dedupe": "d"}', '{"task": "t", "depends_on": [1, "x"]}'),
        *('{"task": null}', '{"task": "t", "run_at": "soon", "priority": "high"}', '{"task": "t", "colour": "red"}'),
        *('{"task": "t", "dedupe": "d", "on_conflict": "raise"}', '{"tried": [1], "now": "x"}', '{"after": 3}'),
    ]
)
numbers = st.integers(-2, 40) | st.sampled_from([-(2**31), 2**31 - 1, 100_001, 1000])
scalars: dict[str, Strategy] = {
    "text": words | texts,
    "name": words.map(lambda word: word[:60]) | texts.map(lambda text: text[:15]),
    "integer": numbers,
    "bigint": numbers | st.sampled_from([-(2**63), 2**63 - 1]),
    "boolean": st.booleans(),
    "interval": intervals | st.sampled_from(["infinity", "-infinity", "30 s", "1 day", "7 days"]),
    "timestamp with time zone": instants | st.sampled_from(["now", "tomorrow", "yesterday", "2026-11-22 12:00+00"]),
    "jsonb": documents,
    "numeric": st.sampled_from(["NaN", "Infinity", "-Infinity", "1e1000", "-1e-1000", "0", "3.25"]),
    "double precision": st.sampled_from(["NaN", "Infinity", "-Infinity", "1e308", "5e-324", "0", "-1", "0.5", "3"]),
}

# Of more dimensions, and beginning at any subscript.
ODD_ARRAYS = ["{{1},{2}}", "[0:1]={1,2}", "[5:5]={1}"]

# What else would hardly ever be right by chance, by name.
LIKELY: dict[str, list[Any]] = {
    "expression": ["* * * * *", "0 0 30 2 *", "*/7 3-9 * * MON", "@daily", "0 12 * * 8"],
    "every": ["1 s", "10 min", "1 day"],
    "kind": ["queue", "task", "key", "limit_key", "producer", "reader"],
    "role": ["pg_monitor"],
    "target": ["default", "t", "a", "l:*"],
    "max_executing": [0, 1, 2],
    "results": [["{}"], ["3", "null"]],
    "worker": ["w", "v"],
    "job_id": [1, 2, 3, 4, 5, 6],
    "reservation": [1, 2, 3],
    "job_ids": [[1], [2, 3], [1, 4, 5]],
    "reservations": [[1], [2, 3], [1, 2, 3]],
    "task": ["t", "u", "gathered"],
    "strategy": ["weighted", "strict"],
    "everything": [True],
    "state": ["waiting", "failed", "dead"],
    "delay": ["0", "1 hour"],
}

# And what is right of a type, where the name says nothing.
PLAIN: dict[str, Any] = {"text": "a", "integer": 1, "bigint": 1, "boolean": True, "interval": "1 s", "jsonb": "{}"}


def strategy_of(name: str, type_name: str) -> Strategy:
    """What is likely for the name, or anything of the type."""
    if name == "args":
        good: list[Any] = ["{}", '{"a": 1}'] if type_name == "jsonb" else [["{}"], ["{}", '{"a": 1}']]
        return st.sampled_from(good) | anything_of(type_name)
    if name in LIKELY:
        return st.sampled_from(LIKELY[name]) | anything_of(type_name)
    return anything_of(type_name)


def anything_of(type_name: str) -> Strategy:
    """Null, or a value of the type; arrays hold nulls too, and sometimes more than one dimension."""
    if not type_name.endswith("[]"):
        return st.none() | scalars[type_name]
    one = st.none() | scalars[type_name[:-2]]
    flat = st.lists(one, max_size=4)
    odd = st.sampled_from(ODD_ARRAYS)
    return st.none() | flat | (odd if type_name[:-2] in ("bigint", "integer", "text") else flat)


def functions(conn: psycopg.Connection) -> list[Signature]:
    """Name, arguments with their types, and how many of these have no default."""
    return conn.execute(
        """
        select p.proname::text,
            array(
                select array[p.proargnames[a.n], format_type(a.type, null)]
                from unnest(p.proargtypes::oid[]) with ordinality a (type, n)
                order by a.n
            ),
            p.pronargs - p.pronargdefaults
        from pg_proc p
        where p.pronamespace = 'pgqueue'::regnamespace and p.proname !~ '^_'
        order by p.proname
        """
    ).fetchall()


@st.composite
def calls(draw: st.DrawFn, known: list[Signature]) -> tuple[str, Arguments]:
    name, arguments, needed = draw(st.sampled_from(known))
    given_ones = {}
    for n, (argument, type_name) in enumerate(arguments):
        # Few at a time: of twenty wild ones the first is refused, and the others are not read.
        if n < needed or draw(st.integers(0, 3)) == 0:
            given_ones[argument] = (type_name, draw(strategy_of(argument, type_name)))
    return name, given_ones


def perform(conn: psycopg.Connection, name: str, arguments: Arguments) -> None:
    """Call it; an error must be of a documented class."""
    query = sql.SQL("select * from pgqueue.{}({})").format(
        sql.Identifier(name),
        sql.SQL(", ").join(
            sql.SQL("{} => %s::{}").format(sql.Identifier(argument), sql.SQL(type_name))
            for argument, (type_name, _) in arguments.items()
        ),
    )
    try:
        conn.execute(query, [given_value for _, given_value in arguments.values()]).fetchall()
    except psycopg.Error as error:
        state = error.sqlstate
        assert state in REFUSED | CLASHES | NEVER_CALLED, f"{name}({arguments}): {state} {error}"  # noqa: PT017
        if state in REFUSED:
            assert error.diag.message_hint, f"{name}({arguments}): {error}"  # noqa: PT017
            assert "pgqueue" in (error.diag.context or ""), f"{name}({arguments}): {error}"  # noqa: PT017


def test_each_argument_has_a_type_that_this_test_knows(conn: psycopg.Connection) -> None:
    types = {type_name.removesuffix("[]") for _, arguments, _ in functions(conn) for _, type_name in arguments}
    assert types <= set(scalars)


def test_an_array_of_any_shape_is_read_or_refused(conn: psycopg.Connection) -> None:
    conn.adapters.register_loader("jsonb", TextLoader)
    some_jobs(conn, 3)
    for name, arguments, needed in functions(conn):
        likely = {
            argument: (type_name, LIKELY.get(argument, [PLAIN.get(type_name)])[0])
            for argument, type_name in arguments[:needed]
        }
        for argument, type_name in arguments:
            if type_name in ("bigint[]", "integer[]", "text[]"):
                for odd in ODD_ARRAYS:
                    perform(conn, name, {**likely, argument: (type_name, odd)})


@pytest.mark.long
@pytest.mark.timeout(600)
def test_whatever_is_called_the_answer_is_a_result_or_a_refusal(database: Database) -> None:
    conn, clock = database.connect(), Clock(database.connect())
    # Python reads no document that is as deep as those that are drawn here.
    conn.adapters.register_loader("jsonb", TextLoader)
    known = functions(conn)

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize="PGQUEUE_FUZZ" not in os.environ,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, *([Phase.shrink] if "PGQUEUE_FUZZ" in os.environ else [])),
    )
    @given(script=st.lists(calls(known), min_size=CALLS, max_size=CALLS), jobs=st.integers(0, 6))
    def look(script: list[tuple[str, Arguments]], jobs: int) -> None:
        empty(conn, clock)
        some_jobs(conn, jobs)
        for name, arguments in script:
            perform(conn, name, arguments)
        keep_on(conn, clock)

    look()


def empty(conn: psycopg.Connection, clock: Clock) -> None:
    tables = column_of(
        conn,
        "select c.oid::regclass::text from pg_class c where c.relnamespace = 'pgqueue'::regnamespace"
        " and c.relkind in ('r', 'p') and not c.relispartition and c.relname not in ('alembic_version', 'settings')",
    )
    # Not truncated: that makes files anew, some fifty of them.
    conn.execute("; ".join(f"delete from {each}" for each in tables).encode())
    conn.execute("alter table pgqueue.jobs alter column id restart")
    clock.back_to_real()
    column(conn, "maintain")


def column_of(conn: psycopg.Connection, query: str) -> list[Any]:
    return [row[0] for row in conn.execute(query.encode()).fetchall()]


def some_jobs(conn: psycopg.Connection, count: int) -> None:
    """Jobs of all kinds, with the first ids: waiting, executing, failed, dead, blocked by a key."""
    conn.execute("select pgqueue.declare_task('gathered', accumulate => true, batch_size => 3)")
    for n in range(count):
        conn.execute("select pgqueue.enqueue('t', key => 'a', tags => array['x'])")
        conn.execute("select pgqueue.enqueue('gathered', key => 'b')")
        conn.execute("select pgqueue.enqueue('u', queue => 'other', dedupe => %s, limit_key => 'l:1')", [f"d{n}"])
    rows = reserve(conn, max(count, 1))
    for row, ending in zip(rows, ENDINGS, strict=False):
        ending(conn, row.id, row.reservation)


ENDINGS: list[Callable[[psycopg.Connection, int, int], object]] = [
    lambda conn, *held: None,
    lambda conn, *held: conn.execute("select pgqueue.fail(%s, %s)", held),
    lambda conn, *held: conn.execute("select pgqueue.fail(%s, %s, retry => false)", held),
    lambda conn, *held: conn.execute("select pgqueue.complete(%s, %s)", held),
]


def keep_on(conn: psycopg.Connection, clock: Clock) -> None:
    """Whatever was called, what can run runs, and nothing is stuck."""
    assert value(conn, "select coalesce(max(unblocked), 0) from pgqueue.maintenance_runs") == 0
    conn.execute("delete from pgqueue.limits")
    conn.execute("delete from pgqueue.pauses")
    conn.execute("select pgqueue.close_group(id) from pgqueue.jobs where blocked_on = '@open'")
    for _ in range(3):
        clock.advance("8 days")
        maintain(conn)
    for _ in range(1000):
        rows = reserve(conn, 50, lease="1 day")
        column(conn, "complete_many", [row.id for row in rows], [row.reservation for row in rows])
        if not rows:
            break
    assert (
        conn.execute(
            """
        select j.id, j.state::text, j.queue, j.key, j.ready_at, j.lease_expires_at
        from pgqueue.jobs j
        where not (j.state in ('waiting', 'failed') and j.ready_at > pgqueue._clock())
            and not (j.state = 'executing' and j.lease_expires_at > pgqueue._clock())
            and not (
                j.state = 'blocked'
                and exists (
                    select from pgqueue.jobs a
                    where a.queue = j.queue and a.key = j.key and a.id <> j.id and a.reservation > 0
                )
            )
        """
        ).fetchall()
        == []
    )
    assert value(conn, "select pgqueue.stats() #>> '{maintenance,failures}'") == "{}"
