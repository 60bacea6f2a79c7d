"""Stop of "all that match", while a part of it is under way: that part is taken back, and the number said is right."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import httpx
import psycopg
import pytest

from tests.calls import enqueue_many, value
from tests.databases import Database
from tests.facts import wait_until
from tests.web.conftest import Serve

Ask = Callable[..., httpx.Response]

HERE = {"sec-fetch-site": "same-origin"}


def left(conn: psycopg.Connection) -> int:
    found: int = value(conn, "select count(*) from pgqueue.jobs")
    return found


def acting(conn: psycopg.Connection) -> int:
    """Return how many statements of the pages wait for a lock."""
    found: int = value(
        conn,
        "select count(*) from pg_stat_activity where application_name = 'pgqueue web'"
        " and datname = current_database() and wait_event_type = 'Lock'",
    )
    return found


@pytest.fixture
def no_audit(database: Database) -> Iterator[psycopg.Connection]:
    """Keeps every action waiting, from `lock` until its transaction ends: none is done without its audit."""
    conn = database.connect(autocommit=False)
    yield conn
    conn.close()


def hold(conn: psycopg.Connection) -> None:
    conn.execute("lock table pgqueue.audit in share mode")


def test_a_part_that_is_under_way_is_taken_back_when_the_browser_goes(
    conn: psycopg.Connection, no_audit: psycopg.Connection, serve: Serve
) -> None:
    enqueue_many(conn, 900, queue="mail")
    with httpx.Client(base_url=serve(), verify=False, headers=HERE, timeout=30) as client:
        form = {"action": "cancel", "scope": "all", "q": "queue:mail"}
        preview = client.post("/act", data=form).text
        page = client.post("/act", data={**fields(preview), "cap": "10000"}).text
        assert "500 jobs so far" in page
        assert left(conn) == 400
        hold(no_audit)
        with pytest.raises(httpx.ReadTimeout):
            client.post("/act", data=fields(page), timeout=httpx.Timeout(10, read=1))
        # The lock is still held: what was under way was ended, and did not end by itself.
        wait_until(lambda: acting(conn) == 0)
        no_audit.rollback()
        [stop] = re.findall(r'href="([^"]*)">Stop<', page)
        said = client.get(stop.replace("&amp;", "&")).text
    assert "500 jobs were changed, then it was stopped" in said
    assert left(conn) == 400
    assert value(conn, "select sum(changed) from pgqueue.audit where action like 'cancel%%'") == 500


def fields(page: str) -> dict[str, str]:
    """Return the hidden fields of a page's last form."""
    found = page[page.rindex("<form") :]
    return dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', found))
