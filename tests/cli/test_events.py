"""`pgqueue events`, and what doctor reports about events that fill the disk."""

from __future__ import annotations

import json
import os

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import Row, call, enqueue, maintain, reserve_one, table, value
from tests.cli.conftest import Run
from tests.cli.interrupted import interrupted
from tests.databases import Database


def pair(held: Row) -> tuple[int, int]:
    return held.id, held.reservation


def names(conn: psycopg.Connection, **options: object) -> list[str]:
    return [row.name for row in table(conn, "events", **options)]


def test_events_are_listed_by_name_and_by_size_and_deleted(conn: psycopg.Connection, run: Run) -> None:
    for name, payload in (("paid:1", "x" * 100), ("paid:2", "x" * 900), ("shipped", "x")):
        call(conn, "emit_event", name, Jsonb(payload), "2 years")
    assert names(conn) == ["paid:1", "paid:2", "shipped"]
    assert names(conn, after="paid:1", max=1) == ["paid:2"]
    assert names(conn, prefix="paid:") == ["paid:1", "paid:2"]
    listed = json.loads(run("events", "list", "--by-size", "--json").out)
    assert [each["name"] for each in listed] == ["paid:2", "paid:1", "shipped"]
    assert listed[0]["bytes"] > 900
    assert "paid:1" in run("events", "list", "-n", "1").out
    assert run("events", "delete", "paid:1").out == "1 event deleted\n"
    assert run("events", "delete", "paid:1").code == 1
    assert run("events", "delete", "--prefix", "paid:", "--yes").out == "1 event deleted\n"
    assert "no event to delete was named" in run("events", "delete").err
    assert "--prefix is empty, and would match every event" in run("events", "delete", "--prefix", "", "--yes").err
    assert "names and --prefix were both given" in run("events", "delete", "shipped", "--prefix", "p", "--yes").err
    assert names(conn) == ["shipped"]
    audited = conn.execute(
        "select filter, changed from pgqueue.audit where action = 'delete_events' order by n"
    ).fetchall()
    assert audited[0] == ({"names": ["paid:1"]}, 1)
    assert call(conn, "emit_event", "paid:1", Jsonb("again")) is True


def test_an_empty_prefix_deletes_no_event(conn: psycopg.Connection, run: Run) -> None:
    for name in ("paid:17", "shipped"):
        call(conn, "emit_event", name)
    for given in ({"prefix": ""}, {"names": ["paid:17"], "prefix": ""}, {"names": ["paid:17"], "prefix": "paid:"}, {}):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="either names or prefix"):
            call(conn, "delete_events", **given)
    for words in (["paid:17", "--prefix", ""], ["--prefix", ""], ["paid:17", "--prefix", "paid:"]):
        assert run("events", "delete", *words, "--yes").code == 2
    assert names(conn) == ["paid:17", "shipped"]


def test_more_events_than_one_call_deletes_are_deleted_by_name(conn: psycopg.Connection, run: Run) -> None:
    conn.execute("select pgqueue.emit_event('e' || n, 'null') from generate_series(1, 1500) n")
    assert run("events", "delete", *(f"e{n}" for n in range(1, 1501))).out == "1500 events deleted\n"
    assert names(conn) == []


def test_an_interrupted_deletion_of_events_says_how_many_were_deleted(
    database: Database, conn: psycopg.Connection
) -> None:
    conn.execute("select pgqueue.emit_event('e' || n, 'null') from generate_series(1, 1500) n")
    # The second thousand takes five minutes.
    conn.execute(
        """
        create function public.stall() returns trigger language plpgsql as $$ begin
            if (select count(*) from pgqueue.events) = 500 then perform pg_sleep(300); end if; return old;
        end $$;
        create trigger stall before delete on pgqueue.events for each row execute function public.stall()
        """
    )
    code, out, err = interrupted(conn, database.dsn, "events", "delete", "--prefix", "e", "--yes")
    assert (code, out) == (130, "")
    assert "1000 events deleted before this ended" in err
    assert value(conn, "select count(*) from pgqueue.events") == 500


def test_an_event_that_has_not_reached_its_waiter_is_not_deleted(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue(conn)
    held = reserve_one(conn)
    table(conn, "await_event", held.id, held.reservation, "paid", "paid")
    with psycopg.connect(conn.info.dsn) as other:
        other.execute("select from pgqueue.jobs where id = %s for update", (held.id,))
        call(conn, "emit_event", "paid", Jsonb(1))
        assert call(conn, "delete_events", ["paid"]) == 0
    clock.advance("1 s")
    maintain(conn)
    assert call(conn, "delete_events", ["paid"]) == 1
    [answer] = table(conn, "await_event", *pair(reserve_one(conn)), "paid", "paid")
    assert (answer.arrived, answer.payload) == (True, 1)


def test_doctor_finds_events_that_fill_the_disk_by_their_number(conn: psycopg.Connection) -> None:
    conn.execute(
        "insert into pgqueue.events (name, emitted_at, kept_until)"
        " select repeat('n', 400) || n, now(), now() + '7 days' from generate_series(1, 50000) n"
    )
    [found] = [row for row in table(conn, "doctor") if row.topic == "events"]
    assert found.subject == "50,000 events"
    assert "shorter keep_for" in found.remedy


def test_doctor_names_the_largest_events_with_their_end(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    for number in range(40):
        call(conn, "emit_event", f"e{number}", Jsonb(os.urandom(500_000).hex()), "2 years")
    call(conn, "emit_event", "largest", Jsonb(os.urandom(510_000).hex()), "1 year")
    [found] = [row for row in table(conn, "doctor") if row.topic == "events"]
    assert (found.severity, found.subject) == ("warning", "41 events")
    assert "largest (" in found.evidence.split("the largest are ")[1]
    assert "kept until 2031-01-01" in found.evidence
    assert "delete_events(array['largest'])" in found.remedy
    assert call(conn, "delete_events", prefix="e") == 40
    assert [row for row in table(conn, "doctor") if row.topic == "events"] == []
    assert value(conn, "select count(*) from pgqueue.events") == 1
