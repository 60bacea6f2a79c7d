"""stage and enqueue_staged: large loads by COPY, with every option applied."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, enqueue, ids, job, reserve, table, value
from tests.databases import Database


def copy(conn: psycopg.Connection, *rows: dict[str, Any]) -> None:
    columns = sorted({name for row in rows for name in row})
    statement = sql.SQL("copy pgqueue_staged ({}) from stdin").format(sql.SQL(", ").join(map(sql.Identifier, columns)))
    with conn.cursor().copy(statement) as out:
        for row in rows:
            out.write_row([row.get(name) for name in columns])


def load(conn: psycopg.Connection, *rows: dict[str, Any]) -> dict[str, int]:
    with conn.transaction():
        call(conn, "stage")
        copy(conn, *rows)
        return {row.outcome: row.jobs for row in table(conn, "enqueue_staged")}


def loaded(conn: psycopg.Connection) -> list[Any]:
    return [job(conn, job_id) for (job_id,) in conn.execute("select id from pgqueue.jobs order by id")]


def test_plain_rows_become_jobs_in_their_order_by_one_statement(conn: psycopg.Connection) -> None:
    rows = ({"task": f"t{n % 3}", "args": Jsonb({"n": n}), "queue": f"q{n % 2}"} for n in range(500))
    assert load(conn, *rows) == {"inserted": 500}
    found = loaded(conn)
    assert [each.args["n"] for each in found] == list(range(500))
    assert (found[7].task, found[7].queue, found[7].priority, found[7].state) == ("t1", "q1", 0, "waiting")
    assert value(conn, "select count(distinct (xmin::text, cmin::text)) from pgqueue.jobs") == 1
    assert len(reserve(conn, 1000)) == 500


def test_each_row_has_every_option_of_its_own(conn: psycopg.Connection) -> None:
    assert load(
        conn,
        {"task": "a"},
        {
            "task": "b", "args": Jsonb({"x": [1, None]}), "queue": "q", "priority": -7, "delay": "1 h",
            "expires_in": "1 day", "max_attempts": 3, "key": "k", "score": 1.5, "headers": Jsonb({"h": 1}),
            "limit_key": "l",
        },
        {
            "task": "c", "run_at": "2040-01-01 12:00+03", "tags": ["x", "y"], "retention": "1 h", "timeout": "1 min",
            "retry_policy": "fixed", "retry_delay": "5 s", "retry_cap": "1 min", "retry_queue": "r",
        },
        {"task": "d", "dedupe": "d", "dedupe_for": "1 h", "on_conflict": "skip", "args": Jsonb({"d": 1})},
    ) == {"inserted": 4}  # fmt: skip
    a, b, c, d = loaded(conn)
    assert (a.queue, a.args, a.priority, a.run_at) == ("default", {}, 0, a.created_at)
    assert (b.args, b.queue, b.priority, b.key, float(b.score)) == ({"x": [1, None]}, "q", -7, "k", 1.5)
    assert (b.run_at - b.created_at, b.expires_at - b.run_at) == (timedelta(hours=1), timedelta(days=1))
    assert (b.max_attempts, b.headers, b.limit_key) == (3, {"h": 1}, "l")
    assert c.run_at.isoformat()[:16] == "2040-01-01T09:00"
    assert c.retry == {"policy": "fixed", "delay": 5, "cap": 60, "queue": "r"}
    assert (c.tags, c.timeout) == (["x", "y"], timedelta(minutes=1))
    assert value(conn, "select retention from pgqueue.jobs where id = %s", c.id) == timedelta(hours=1)
    assert (d.dedupe, d.args) == ("d", {"d": 1})


def test_what_a_row_leaves_out_its_task_and_queue_say(conn: psycopg.Connection) -> None:
    conn.execute("insert into pgqueue.tasks (name, queue, expires_in) values ('t', 'q', '1 h')")
    conn.execute("insert into pgqueue.queues (name, priority) values ('q', 5), ('r', 6)")
    assert load(conn, {"task": "t"}, {"task": "t", "queue": "r", "priority": 7}, {"task": "u", "tags": ["x"]})
    t, r, u = loaded(conn)
    assert (t.queue, t.priority, t.expires_at - t.run_at) == ("q", 5, timedelta(hours=1))
    assert (r.queue, r.priority, u.queue, u.priority) == ("r", 7, "default", 0)
    assert {(row.queue, row.priority) for row in reserve(conn, 9)} == {("q", 5), ("r", 7), ("default", 0)}


def test_a_delay_counts_from_enqueue_staged_and_a_time_in_the_past_means_now(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2030-01-01 12:00+00")
    load(conn, {"task": "later", "delay": "1 h"}, {"task": "past", "run_at": "2001-01-01 00:00+00"})
    later, past = loaded(conn)
    assert (later.due_at, past.due_at) == (clock.now() + timedelta(hours=1), clock.now())
    assert ids(reserve(conn, 9)) == [past.id]
    clock.advance("1 h")
    assert ids(reserve(conn, 9)) == [later.id]


def test_jobs_of_a_key_run_in_the_order_of_their_rows_whatever_else_the_rows_have(conn: psycopg.Connection) -> None:
    big = Jsonb({"x": "y" * 5000})
    load(
        conn,
        {"task": "t", "key": "k", "args": big},
        {"task": "t", "key": "k"},
        {"task": "t", "key": "k", "dedupe": "d"},
        {"task": "t", "key": "k", "tags": ["x"]},
        {"task": "t", "key": "k"},
    )
    order = [each.id for each in loaded(conn)]
    ran = []
    for _ in order:
        [row] = reserve(conn, 9)
        ran.append(row.id)
        assert call(conn, "complete", row.id, row.reservation)
    assert ran == order


def test_dedupe_holds_among_the_rows_and_against_existing_jobs(conn: psycopg.Connection) -> None:
    stands = enqueue(conn, "t", {"a": 1}, dedupe="stands")
    assert load(
        conn,
        {"task": "t", "dedupe": "stands"},
        {"task": "t", "dedupe": "stands", "args": Jsonb({"b": 2}), "on_conflict": "merge"},
        {"task": "t", "dedupe": "new"},
        {"task": "t", "dedupe": "new", "args": Jsonb({"c": 3}), "on_conflict": "replace"},
        {"task": "u", "dedupe": "new"},
        {"task": "t"},
    ) == {"inserted": 3, "merged": 1, "replaced": 1, "skipped": 1}
    assert job(conn, stands).args == {"a": 1, "b": 2}
    assert [(each.task, each.dedupe, each.args) for each in loaded(conn)[1:]] == [
        ("t", "new", {"c": 3}),
        ("u", "new", {}),
        ("t", None, {}),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"task": ""}, "task must be 1 to 128 bytes long"),
        ({"task": None}, "task must be 1 to 128 bytes long"),
        ({"task": "t", "args": Jsonb([1])}, "args must be a JSON object"),
        ({"task": "t", "args": "null"}, "args must be a JSON object"),
        ({"task": "t", "priority": 101}, "priority must be between"),
        ({"task": "t", "queue": ""}, "queue must be"),
        ({"task": "t", "key": "k" * 513}, "key must be"),
        ({"task": "t", "limit_key": ""}, "limit_key must be"),
        ({"task": "t", "limit_key": "acme*"}, "limit_key must be"),
        ({"task": "t", "delay": "1 h", "run_at": "2040-01-01 00:00+00"}, "run_at and delay were both given"),
        ({"task": "t", "delay": "99999 years"}, "delay must be a finite interval"),
        ({"task": "t", "run_at": "infinity"}, "run_at must be finite"),
        ({"task": "t", "expires_in": "0"}, "expires_in must be above zero"),
        ({"task": "t", "max_attempts": 0}, "max_attempts must be between"),
        ({"task": "t", "score": "NaN"}, "score must be finite"),
        ({"task": "t", "headers": Jsonb([])}, "headers must be a JSON object"),
        ({"task": "t", "timeout": "0"}, "timeout must be"),
        ({"task": "t", "on_conflict": "skip"}, "on_conflict was given without dedupe"),
        ({"task": "gathers"}, "task 'gathers' accumulates payloads by key"),
    ],
)
def test_a_wrong_row_is_named_and_nothing_is_enqueued(
    conn: psycopg.Connection, row: dict[str, Any], message: str
) -> None:
    conn.execute("insert into pgqueue.tasks (name, accumulate) values ('gathers', true)")
    with pytest.raises(psycopg.errors.InvalidParameterValue) as raised:
        load(conn, {"task": "t"}, {"task": "t", "tags": ["x"]}, row, {"task": "t"})
    assert (raised.value.diag.message_primary or "").startswith(f"row 3 of the load: {message}")
    assert raised.value.diag.message_hint
    assert loaded(conn) == []


def test_an_unknown_parent_is_refused_and_a_duplicate_that_is_to_raise_raises(conn: psycopg.Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="row 1 of the load: depends_on names job 1"):
        load(conn, {"task": "t", "depends_on": [1]})
    with pytest.raises(psycopg.errors.UniqueViolation, match="row 2 of the load: task 't' has a job of dedupe key 'd'"):
        load(conn, {"task": "t", "dedupe": "d"}, {"task": "t", "dedupe": "d", "on_conflict": "raise"})
    assert loaded(conn) == []


def test_two_loads_of_one_transaction_do_not_mix(conn: psycopg.Connection) -> None:
    with conn.transaction():
        assert load(conn, {"task": "a"}) == {"inserted": 1}
        assert load(conn, {"task": "b"}, {"task": "c"}) == {"inserted": 2}
    assert [each.task for each in loaded(conn)] == ["a", "b", "c"]


def test_rows_of_a_transaction_that_did_not_enqueue_them_are_gone(conn: psycopg.Connection) -> None:
    with conn.transaction():
        call(conn, "stage")
        copy(conn, {"task": "left"})
    assert load(conn, {"task": "sent"}) == {"inserted": 1}
    assert [each.task for each in loaded(conn)] == ["sent"]


def test_a_load_that_is_rolled_back_leaves_nothing(conn: psycopg.Connection) -> None:
    with conn.transaction():
        load(conn, {"task": "t"}, {"task": "t", "dedupe": "d"})
        raise psycopg.Rollback
    assert loaded(conn) == []
    with conn.transaction():
        with conn.transaction():
            call(conn, "stage")
            copy(conn, {"task": "lost"})
            raise psycopg.Rollback
        assert load(conn, {"task": "t", "dedupe": "d"}) == {"inserted": 1}
    assert [each.task for each in loaded(conn)] == ["t"]


def test_enqueue_staged_of_nothing_says_how_it_is_done(conn: psycopg.Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="nothing is staged in this transaction") as raised:
        call(conn, "enqueue_staged")
    assert "in one transaction" in (raised.value.diag.message_hint or "")
    # Each statement in a transaction of its own: the rows are gone when the last comes.
    call(conn, "stage")
    copy(conn, {"task": "t"})
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="nothing is staged in this transaction"):
        call(conn, "enqueue_staged")


# Rights


@pytest.fixture
def producer(conn: psycopg.Connection, database: Database) -> str:
    role = f"producer_{conn.info.dbname}"
    conn.execute(sql.SQL("create role {}").format(sql.Identifier(role)))
    call(conn, "grant_access", "producer", role)
    return role


def as_role(conn: psycopg.Connection, role: str) -> None:
    conn.execute(sql.SQL("set role {}").format(sql.Identifier(role)))


def test_a_producer_loads_and_reads_nothing(conn: psycopg.Connection, database: Database, producer: str) -> None:
    own = database.connect()
    as_role(own, producer)
    assert load(own, {"task": "t"}, {"task": "t", "dedupe": "d"}) == {"inserted": 2}
    for statement in ("select * from pg_temp.pgqueue_staged", "delete from pg_temp.pgqueue_staged",
                      "copy pgqueue_staged (id) from stdin"):  # fmt: skip
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            own.execute(statement)
    assert len(loaded(conn)) == 2


def test_the_table_of_another_role_of_the_session_serves(database: Database, producer: str) -> None:
    own = database.connect()
    load(own, {"task": "first"})
    as_role(own, producer)
    assert load(own, {"task": "second"}) == {"inserted": 1}


@pytest.mark.parametrize(
    "made",
    [
        "create temp table pgqueue_staged (task text)",
        "create temp view pgqueue_staged as select 't'::text as task",
    ],
)
def test_a_table_of_another_role_is_refused(database: Database, producer: str, made: str) -> None:
    own = database.connect()
    as_role(own, producer)
    own.execute(made)
    for function in ("stage", "enqueue_staged"):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="not the table that stage"):
            call(own, function)


# Plans and waking


def test_an_idle_worker_of_the_lanes_queue_is_woken_once(conn: psycopg.Connection, database: Database) -> None:
    [idle] = table(conn, "idle", "w", ["q"], "1 hour")
    listener = database.connect()
    listener.execute(sql.SQL("listen {}").format(sql.Identifier(idle.channel)))
    load(conn, *({"task": "t", "queue": "q", "priority": n} for n in range(3)))
    assert [each.payload.split()[0] for each in listener.notifies(timeout=60, stop_after=1)] == ["wake"]
    assert list(listener.notifies(timeout=0)) == []


def test_a_load_beside_rows_of_an_earlier_one_is_refused(conn: psycopg.Connection) -> None:
    conn.execute("begin")
    conn.execute("select pgqueue.stage()")
    conn.execute("insert into pgqueue_staged (task) values ('given up')")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="earlier load"):
        conn.execute("select pgqueue.stage()")
    conn.execute("rollback")
    with conn.transaction():
        for task in ("a", "b"):
            conn.execute("select pgqueue.stage()")
            conn.execute("insert into pgqueue_staged (task) values (%s)", [task])
            assert conn.execute("select * from pgqueue.enqueue_staged()").fetchall() == [("inserted", 1)]
    assert value(conn, "select array_agg(task order by id) from pgqueue.jobs") == ["a", "b"]
