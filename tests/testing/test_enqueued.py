"""enqueued, assert_enqueued, refute_enqueued: what waits, and what a failing test says about it."""

from __future__ import annotations

import re
from datetime import timedelta

import psycopg
import pytest

from pgqueue import App
from pgqueue.errors import InvalidArgument
from pgqueue.testing import approx, assert_enqueued, enqueued, refute_enqueued
from pgqueue.testing.enqueued import interval
from tests.databases import Database

app = App()


@app.task
def mail(to: str, subject: str = "", lines: list[dict[str, int]] | None = None) -> None: ...


@pytest.fixture
def conn(database: Database) -> psycopg.Connection:
    return database.connect(autocommit=False)


def test_a_job_of_this_transaction_is_found_by_part_of_its_arguments(conn: psycopg.Connection) -> None:
    job_id = mail.using(queue="mail", tags=["a", "b"]).enqueue(conn, "a@b.c", lines=[{"id": 1, "n": 2}])
    found = assert_enqueued(conn, mail, args={"lines": [{"id": 1}]}, queue="mail", tags=["b"])
    assert (found.id, found.task, found.state) == (job_id, "mail", "waiting")
    assert enqueued(conn, "mail") == [found]
    refute_enqueued(conn, mail, args={"lines": [{"id": 2}]})


def test_a_name_that_the_function_lacks_is_refused_also_where_no_job_should_fit(conn: psycopg.Connection) -> None:
    with pytest.raises(InvalidArgument, match=r"task mail.* has no argument 'too'"):
        refute_enqueued(conn, mail, args={"too": "a@b.c"})
    with pytest.raises(TypeError, match="args are a mapping"):
        refute_enqueued(conn, mail, args="a@b.c")


def test_a_function_is_asked_about_jobs_of_its_own_task_alone(conn: psycopg.Connection) -> None:
    conn.execute("select pgqueue.enqueue('other', '{}')")
    mail.enqueue(conn, "a@b.c")
    assert_enqueued(conn, mail, args=lambda args: args["to"] == "a@b.c")
    with pytest.raises(AssertionError, match="which the function refuses"):
        assert_enqueued(conn, mail, args=lambda args: args["to"] == "b@b.c")


def test_arguments_may_be_given_in_the_order_of_the_function(conn: psycopg.Connection) -> None:
    mail.enqueue(conn, "a@b.c", subject="Hello")
    assert_enqueued(conn, mail, args=["a@b.c"])
    assert_enqueued(conn, mail, args=("a@b.c", "Hello"))
    refute_enqueued(conn, mail, args=["a@b.c", "Bye"])


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"args": {"to": "x@y.z"}}, "args['to'] is 'a@b.c', not 'x@y.z'"),
        ({"args": {"lines": []}}, "args has no 'lines'"),
        ({"queue": "other"}, "queue is 'default', not 'other'"),
        ({"key": "k"}, "key is None, not 'k'"),
        ({"delay": approx("2 h", "5 s")}, "delay is 1:00:00, not approx('2 h', '5 s')"),
        ({"tags": ["t"]}, "tags are None, without 't'"),
        ({"args": lambda args: False}, "which the function refuses"),
    ],
)
def test_a_failure_lists_what_is_there_and_what_keeps_the_nearest_from_fitting(
    conn: psycopg.Connection, wanted: dict[str, object], says: str
) -> None:
    mail.using(delay="1 h").enqueue(conn, "a@b.c")
    conn.execute("select pgqueue.enqueue('unrelated')")
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(conn, mail, **wanted)
    message = str(caught.value)
    assert "no job fits: mail" in message
    assert "The nearest is job 1:" in message
    assert says in message
    assert "job 2: unrelated {} (queue='default', waiting)" in message


def test_the_nearest_is_the_one_with_the_fewest_differences(conn: psycopg.Connection) -> None:
    mail.enqueue(conn, "a@b.c", "one")
    mail.enqueue(conn, "x@y.z", "two")
    with pytest.raises(AssertionError, match="The nearest is job 2"):
        assert_enqueued(conn, mail, args={"to": "x@y.z", "subject": "three"})


def test_where_nothing_waits_the_message_asks_whether_it_was_committed(conn: psycopg.Connection) -> None:
    with pytest.raises(AssertionError, match="No job waits at all"):
        assert_enqueued(conn, mail)


def test_an_executing_or_finished_job_is_not_enqueued_any_more(conn: psycopg.Connection) -> None:
    mail.enqueue(conn, "a@b.c")
    conn.execute("select pgqueue.reserve('w')")
    refute_enqueued(conn)


def test_a_refuted_job_is_shown(conn: psycopg.Connection) -> None:
    mail.enqueue(conn, "a@b.c")
    with pytest.raises(AssertionError, match=r"1 job fits, and none should: mail\n  job 1: mail"):
        refute_enqueued(conn, mail)


def test_exactly_that_number(conn: psycopg.Connection) -> None:
    mail.enqueue(conn, "a")
    mail.enqueue(conn, "b")
    assert_enqueued(conn, mail, count=2)
    with pytest.raises(AssertionError, match="2 jobs fit, not 1"):
        assert_enqueued(conn, mail, count=1)


def test_a_codec_is_read_where_the_task_is_given(conn: psycopg.Connection) -> None:
    class Rot:
        def encode(self, args: dict[str, object]) -> dict[str, object]:
            return {"secret": [[name, value] for name, value in args.items()]}

        def decode(self, args: dict[str, object]) -> dict[str, object]:
            return dict(args["secret"])  # type: ignore[call-overload,no-any-return]

    coded = App(codec=Rot())

    @coded.task
    def hidden(number: int) -> None: ...

    hidden.enqueue(conn, 7)
    assert_enqueued(conn, hidden, args={"number": 7})
    assert_enqueued(conn, "hidden", args={"secret": [["number", 7]]})


def test_a_field_that_jobs_do_not_have_is_refused_by_name(conn: psycopg.Connection) -> None:
    with pytest.raises(TypeError, match="a job has no 'colour'; it has id, task, args"):
        enqueued(conn, mail, colour="red")


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("arg", "a job has no 'arg': did you mean args?"),
        ("qeue", "a job has no 'qeue': did you mean queue?"),
        ("queue_name", "a job has no 'queue_name': here it is queue"),
        ("eta", "a job has no 'eta': here it is run_at"),
        ("max_retries", "a job has no 'max_retries': here it is max_attempts"),
    ],
)
def test_a_field_of_another_name_is_refused_with_the_name_that_it_has(
    field: str, said: str, conn: psycopg.Connection
) -> None:
    for ask in (enqueued, assert_enqueued, refute_enqueued):
        with pytest.raises(TypeError, match=re.escape(said)):
            ask(conn, mail, **{field: "mail"})


async def test_on_an_async_connection_all_of_them_are_awaited(database: Database) -> None:
    conn = await database.connect_async(autocommit=False)
    await mail.enqueue(conn, "a@b.c")
    assert len(await enqueued(conn, mail)) == 1
    await assert_enqueued(conn, mail, args={"to": "a@b.c"}, delay="0 s")
    with pytest.raises(AssertionError, match="none should"):
        await refute_enqueued(conn, mail)
    await conn.rollback()


def test_intervals_are_read_as_they_are_written_elsewhere() -> None:
    assert interval("1 h 30 min") == timedelta(hours=1.5)
    assert interval("2 weeks") == timedelta(days=14)
    assert interval(5) == timedelta(seconds=5)
    for wrong in ("", "1", "1 parsec", "soon"):
        with pytest.raises(ValueError, match=r"give|no interval|unit|could not convert"):
            interval(wrong)
    assert approx("1 h", "5 s") == timedelta(hours=1, seconds=4)
    assert approx("1 h", "5 s") != timedelta(hours=1, seconds=6)
