"""depth: how many jobs could start now."""

from __future__ import annotations

import psycopg
import pytest

from tests.calls import call, enqueue, enqueue_many, reserve_one


def test_depth_counts_what_could_start_now(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 3, queue="mail")
    enqueue(conn, queue="mail", delay="1 hour")
    enqueue(conn, queue="other")
    assert (call(conn, "depth", "mail"), call(conn, "depth"), call(conn, "depth", "nowhere")) == (3, 4, 0)
    held = reserve_one(conn, queues=["mail"])
    assert call(conn, "depth", "mail") == 2
    call(conn, "release", [held.id], [held.reservation])
    assert call(conn, "depth", "mail") == 3


def test_depth_stops_counting_at_its_bound(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 50)
    assert call(conn, "depth", "default", 20) == 20


@pytest.mark.parametrize(("arguments", "message"), [(("q", 0), "at_most"), (("",), "queue must be")])
def test_wrong_arguments_are_refused(arguments: tuple[object, ...], message: str, conn: psycopg.Connection) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=message):
        call(conn, "depth", *arguments)
