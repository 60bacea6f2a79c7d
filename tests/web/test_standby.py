"""The pages of a standby: all of them are shown, nothing is offered that it could not do, and an action is refused."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue import embedded
from pgqueue.db import observe
from pgqueue.schema.migrate import migrate
from tests.calls import call, enqueue, enqueue_many, maintain, reserve, value
from tests.facts import wait_until
from tests.web.conftest import Serve
from tests.worker.test_failover import Server

pytestmark = [
    pytest.mark.long,
    # It starts servers of its own, from the programs of the extra.
    # The extra has no wheel for some machines.
    pytest.mark.skipif(not embedded.available(), reason="the embedded server is not installed"),
]

Ask = Callable[..., httpx.Response]


@pytest.fixture
def standby() -> Iterator[str]:
    """A standby of a primary with a bit of everything; returns its DSN."""
    directory = Path(tempfile.mkdtemp(prefix="pgqueue-standby-"))
    try:
        primary = Server(directory / "a")
        migrate(primary.dsn)
        with psycopg.connect(primary.dsn, autocommit=True) as conn:
            fill(conn)
            copy = primary.standby(directory / "b")
            wait_until(lambda: value(conn, "select bool_or(state = 'streaming') from pg_stat_replication"))
        yield copy.dsn
    finally:
        for name in ("b", "a"):
            if (directory / name).exists():
                embedded.stop(directory / name)
        shutil.rmtree(directory, ignore_errors=True)


def fill(conn: psycopg.Connection) -> None:
    call(conn, "declare_task", "send_email", queue="mail")
    call(conn, "hello", "w1", ["mail"], Jsonb({"host": "web-1", "pid": 17}))
    enqueue_many(conn, 9, "send_email", queue="mail")
    enqueue_many(conn, 2, "send_email", queue="mail", key="order:17")
    [died, *_] = reserve(conn, 3, "w1")
    call(conn, "fail", died.id, died.reservation, Jsonb({"class": "TimeoutError", "message": "no answer"}), retry=False)
    call(conn, "set_limit", "queue", "mail", max_executing=50)
    call(conn, "schedule", "nightly", "0 3 * * *", "send_email")
    group = call(conn, "open_group", "import")
    enqueue(conn, "load", queue="imports", group_id=group)
    call(conn, "configure_queue", "shared", fair_by="limit_key", max_share=0.5)
    call(conn, "hello", "w2", ["shared"], Jsonb({"concurrency": 2}))
    enqueue_many(conn, 2, "send_email", queue="shared", limit_key="a")
    assert len(reserve(conn, 2, "w2", queues=["shared"])) == 1
    maintain(conn)


def test_a_standby_is_shown_and_takes_no_action(standby: str, serve: Serve, ask: Ask) -> None:
    with psycopg.connect(standby, autocommit=True) as conn:
        assert value(conn, "select pg_is_in_recovery()") is True
        jobs = dict(conn.execute("select state::text, max(id) from pgqueue.all_jobs group by state").fetchall())
        group = value(conn, "select id from pgqueue.groups()")
        # It reads how many slots its tenant has of a worker.
        assert value(conn, "select reason from pgqueue.explain(%s)", jobs["waiting"]) == "limit"
    address = serve(dsn=standby)
    pages = [
        "/",
        "/queues",
        "/queue?name=mail",
        "/jobs",
        "/jobs?q=state:dead",
        "/dead",
        "/tasks",
        "/workers",
        "/groups",
    ]
    pages += ["/task?name=send_email", "/worker?name=w1", "/schedules", "/schedule?name=nightly", "/limits", "/audit"]
    pages += ["/health", f"/group?id={group}", *(f"/jobs/{job}" for job in jobs.values())]
    assert set(jobs) >= {"waiting", "executing", "blocked", "dead"}
    for page in pages:
        answer = ask("GET", page, at=address)
        assert answer.status_code == 200, (page, answer.text[-1000:])
        assert "<strong>read-only</strong>: the server is a standby" in answer.text, page
        forms = re.findall(r'<form[^>]*method="post".*?</form>', answer.text, re.DOTALL)
        assert [form for form in forms if "<button" in form] == [], page
        assert re.findall(r'name="(?:do|action|scope)"', answer.text) == [], page
    assert "a standby" in ask("GET", "/health", at=address).text.split("<dt>Server</dt>")[1].split("</dd>")[0]
    for path in ("/metrics", "/series"):
        assert ask("GET", path, at=address).status_code == 200
    for path, form in [
        ("/queue", {"name": "mail", "do": "pause"}),
        ("/act", {"action": "retry", "id": str(jobs["dead"]), "confirm": "yes"}),
        ("/act", {"action": "delete", "scope": "all", "q": "state:dead"}),
        ("/group", {"id": str(group), "confirm": "yes"}),
        ("/worker", {"name": "w1", "do": "quiet", "confirm": "yes"}),
        ("/schedule", {"name": "nightly", "do": "run", "confirm": "yes"}),
        ("/limit", {"do": "drop", "kind": "queue", "target": "mail", "confirm": "yes"}),
        ("/task", {"name": "send_email", "option": "queue"}),
    ]:
        answer = ask("POST", path, at=address, **form)
        assert answer.status_code == 403, path
        assert "alice may not do this here: the server is a standby" in answer.text


def test_a_server_that_became_a_standby_since_refuses_plainly(
    standby: str, serve: Serve, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = observe.rights()
    before = asked.text.replace(b"pg_is_in_recovery()", b"false")
    monkeypatch.setattr(observe, "rights", lambda: replace(asked, text=before))
    address = serve(dsn=standby)
    assert 'value="pause"' in ask("GET", "/queue?name=mail", at=address).text
    answer = ask("POST", "/queue", at=address, name="mail", do="pause")
    assert answer.status_code == 403
    assert "The server takes no writes" in answer.text
    assert "It is a standby, or read-only." in answer.text
