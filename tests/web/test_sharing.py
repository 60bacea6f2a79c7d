"""The pages of tenants and events."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import psycopg

from tests.calls import call, enqueue_many, reserve, value
from tests.web.test_blocked_by import words

Ask = Callable[..., httpx.Response]


def test_tenants_are_listed_by_their_jobs_and_one_is_paused_and_resumed(conn: psycopg.Connection, ask: Ask) -> None:
    enqueue_many(conn, 5, limit_key="tenant:lumen")
    reserve(conn, 2)
    enqueue_many(conn, 1, limit_key="tenant:acme")
    call(conn, "set_limit", "limit_key", "tenant:*", max_executing=4)
    page = ask("GET", "/tenants").text
    shown = words(page)
    assert "tenant:lumen 3 2 1 Pause tenant:acme 1 0 1 Pause" in shown
    assert "all 4 due jobs" in shown
    assert "tenant:*" in shown
    ask("POST", "/limit", do="pause", kind="limit_key", target="tenant:acme")
    assert re.search(r"tenant:acme 1 0 1 paused [\d.]+ m?s ago by alice", words(ask("GET", "/tenants").text))
    ask("POST", "/limit", do="resume", kind="limit_key", target="tenant:acme", source="operator")
    assert (
        "by alice"
        not in words(ask("GET", "/tenants").text).partition("Limits by tenant")[0].partition("tenant:acme")[2]
    )


def test_events_are_listed_by_name_or_size_and_one_is_deleted(conn: psycopg.Connection, ask: Ask) -> None:
    for name, payload in (("paid:1", '"x"'), ("paid:2", f'"{"y" * 200}"'), ("sent:1", "1")):
        conn.execute("select pgqueue.emit_event(%s, %s::jsonb)", [name, payload])
    assert "paid:1" in ask("GET", "/events").text
    assert ask("GET", "/events?order=size").text.index("paid:2") < ask("GET", "/events?order=size").text.index("paid:1")
    assert "sent:1" not in ask("GET", "/events?prefix=paid:").text
    assert "Delete event paid:1?" in ask("POST", "/event", name="paid:1").text
    answer = ask("POST", "/event", name="paid:1", confirm="yes")
    assert answer.status_code == 303
    assert value(conn, "select count(*) from pgqueue.events") == 2


def test_a_share_of_a_tenant_is_set_and_taken_back(conn: psycopg.Connection, ask: Ask) -> None:
    enqueue_many(conn, 2, limit_key="tenant:lumen")
    ask("POST", "/limit", do="set_share", target="tenant:lumen", weight="3")
    assert "tenant:lumen 2 0 3 Pause" in words(ask("GET", "/tenants").text)
    ask("POST", "/limit", do="set_share", target="tenant:lumen", weight="")
    assert "tenant:lumen 2 0 1 Pause" in words(ask("GET", "/tenants").text)


def test_a_tenant_whose_name_ends_in_a_star_is_not_paused_with_all_that_begin_so(
    conn: psycopg.Connection, ask: Ask
) -> None:
    enqueue_many(conn, 1, limit_key="a")
    # As one that an earlier release let in.
    conn.execute("update pgqueue.jobs set limit_key = 'a*'")
    forms = [
        ("/tenants", ask("GET", "/tenants").text),
        ("/jobs", ask("GET", "/jobs?q=state:waiting&facets=1").text),
    ]
    for path, text in forms:
        [form] = [each for each in re.findall(r"<form.*?</form>", text) if 'value="a*"' in each and "Pause" in each]
        fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form))
        assert (fields["kind"], fields["target"], fields["do"]) == ("limit_key", "a*", "pause"), path
        assert "a pause of a* holds each limit_key that begins so" in ask("POST", "/limit", **fields).text
    assert value(conn, "select count(*) from pgqueue.pauses") == 0


def test_breakers_are_listed_set_and_removed_and_an_open_one_says_so(conn: psycopg.Connection, ask: Ask) -> None:
    ask("POST", "/limit", do="set_breaker", kind="limit_key", target="tenant:*", failures="25", of="10", pause="1 min")
    assert "limit key tenant:* 25 % of 10 attempts 1 min closed Remove" in words(ask("GET", "/limits").text)
    conn.execute(
        "insert into pgqueue.pauses (kind, target, source, until, at, by)"
        " values ('limit_key', 'tenant:lumen', 'breaker', 'infinity', now(), 'pgqueue')"
    )
    ask("POST", "/limit", do="set_breaker", kind="task", target="send")
    shown = words(ask("GET", "/limits").text)
    assert "tenant:* 25 % of 10 attempts 1 min 1 open" in shown
    assert "task send 50 % of 20 attempts 30 s closed" in shown
    ask("POST", "/limit", do="set_breaker", kind="task", target="send", of="40")
    ask("POST", "/limit", do="set_breaker", kind="task", target="send", pause="1 min")
    assert "task send 50 % of 40 attempts 1 min closed" in words(ask("GET", "/limits").text)
    assert (
        "failures must be between"
        in ask("POST", "/limit", do="set_breaker", kind="task", target="send", failures="0").text
    )
    ask("POST", "/limit", do="remove_breaker", kind="task", target="send")
    assert value(conn, "select count(*) from pgqueue.breakers") == 1
