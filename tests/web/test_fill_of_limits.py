"""How much of each limit is taken, on the page of limits and on that of its queue."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import psycopg

from tests.calls import call, enqueue_many, maintain, reserve, value

Ask = Callable[..., httpx.Response]


def test_the_fill_of_a_limit_is_shown_as_slots_or_a_bar_and_as_text(conn: psycopg.Connection, ask: Ask) -> None:
    call(conn, "set_limit", "queue", "mail", max_executing=8, rate=40, per="5 min")
    call(conn, "set_limit", "limit_key", "tenant:*", max_executing=4)
    enqueue_many(conn, 3, queue="mail")
    enqueue_many(conn, 2, queue="other", limit_key="tenant:a")
    enqueue_many(conn, 1, queue="other", limit_key="tenant:b")
    reserve(conn, 10)
    maintain(conn)
    for page in ("/limits", "/queue?name=mail"):
        text = ask("GET", page).text
        assert "3 of 8 execute" in text
        assert "3 of 40 started in the last 5 min" in text
        # Eight slots are drawn each by itself, forty starts as a bar.
        slots = text.partition('aria-label="3 of 8 are taken"')[2].partition("</svg>")[0]
        assert (slots.count('class="own"'), slots.count('class="free"')) == (3, 5), page
        assert 'aria-label="8 % is taken"' in text, page
    text = ask("GET", "/limits").text
    assert "2 of 4 execute" in text
    assert "by tenant:a, the fullest; 3 in all" in text


def test_the_limit_of_a_queue_is_set_and_dropped_on_its_page(conn: psycopg.Connection, ask: Ask) -> None:
    enqueue_many(conn, 1, queue="mail")
    maintain(conn)
    assert "Apply the limit" in ask("GET", "/queue?name=mail").text
    assert "Drop the limit" not in ask("GET", "/queue?name=mail").text
    ask("POST", "/limit", kind="queue", target="mail", max_executing="5", rate="", per="", do="set")
    assert value(conn, "select max_executing from pgqueue.limits where kind = 'queue' and target = 'mail'") == 5
    assert "Drop the limit" in ask("GET", "/queue?name=mail").text
