"""The pages without a browser: every one answers, shows what there is, and its actions do what they say."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import psycopg
import pytest
from psycopg.types.json import Jsonb
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.calls import call, enqueue, enqueue_many, maintain, reserve_one, value
from tests.web.conftest import Serve

Ask = Callable[..., httpx.Response]

PAGES = [
    "/",
    "/queues",
    "/jobs",
    "/groups",
    "/dead",
    "/tasks",
    "/workers",
    "/schedules",
    "/limits",
    "/audit",
    "/health",
]


@pytest.mark.parametrize("page", PAGES)
def test_every_page_answers_beside_an_empty_queue(page: str, ask: Ask) -> None:
    assert ask("GET", page).status_code == 200


def test_every_page_shows_what_there_is(filled: psycopg.Connection, ask: Ask) -> None:
    job = value(filled, "select max(id) from pgqueue.history where state = 'dead'")
    for page, shown in {
        "/": "TimeoutError", "/queues": "reports", "/queue?name=mail": "Purge", "/jobs": "send_email",
        "/dead": "no answer", f"/jobs/{job}": "Traceback: here", "/tasks": "send_email",
        "/task?name=send_email": "Declared", "/workers": "web-1", "/worker?name=w1": "Running jobs",
        "/schedules": "nightly", "/limits": "50", "/audit": "set_limit", "/health": "Maintenance",
        "/metrics": 'pgqueue_queue_jobs{queue="mail",state="dead"} 9.0', "/series": '"succeeded"',
    }.items():  # fmt: skip
        answer = ask("GET", page)
        assert answer.status_code == 200, page
        assert shown in answer.text, page


@pytest.mark.parametrize(
    "page",
    [
        "/jobs/999",
        "/jobs/x",
        "/group?id=999",
        "/group",
        "/queue?name=no",
        "/task?name=no",
        "/worker?name=no",
        "/nothing",
    ],
)
def test_an_unknown_address_is_404(page: str, ask: Ask) -> None:
    assert ask("GET", page).status_code == 404


def test_a_filter_that_cannot_be_read_is_400_with_the_words_that_there_are(ask: Ask) -> None:
    answer = ask("GET", "/jobs?q=colour:red")
    assert answer.status_code == 400
    assert "queue:" in answer.text


def test_a_job_of_big_numbers_and_secrets(filled: psycopg.Connection, ask: Ask) -> None:
    job = value(filled, "select id from pgqueue.jobs where queue = 'reports' and key is null")
    text = ask("GET", f"/jobs/{job}").text
    assert str(2**60 + 1) in text
    assert "geheim" not in text


def test_args_are_shown_to_users_with_that_right(filled: psycopg.Connection, serve: Serve, ask: Ask) -> None:
    job = value(filled, "select id from pgqueue.jobs where queue = 'reports' and key is null")
    address = serve(can={"read", "act"})
    text = ask("GET", f"/jobs/{job}", at=address).text
    assert str(2**60 + 1) not in text
    assert "Hidden" in text


@pytest.mark.parametrize(
    ("action", "state", "then"),
    [
        ("run", "failed", "waiting"),
        ("retry", "dead", "waiting"),
        ("cancel", "waiting", "cancelled"),
        ("kill", "waiting", "dead"),
    ],
)
def test_an_action_on_one_job(filled: psycopg.Connection, ask: Ask, action: str, state: str, then: str) -> None:
    job = value(filled, "select min(id) from pgqueue.all_jobs where state = %s", state)
    ask("POST", "/act", action=action, id=job, confirm="yes")
    assert value(filled, "select state::text from pgqueue.all_jobs where id = %s", job) in (
        then,
        state if then == "waiting" else then,
    )
    assert value(filled, "select actor || ' ' || via from pgqueue.audit order by n desc limit 1") == "alice web"


def test_delete_and_kill_ask_first(filled: psycopg.Connection, ask: Ask) -> None:
    job = value(filled, "select min(id) from pgqueue.jobs where state = 'waiting'")
    answer = ask("POST", "/act", action="delete", id=job)
    assert answer.status_code == 200
    assert "Delete: 1 job?" in answer.text
    assert value(filled, "select count(*) from pgqueue.jobs where id = %s", job) == 1
    assert ask("POST", "/act", action="delete", id=job, confirm="yes").status_code == 303
    assert value(filled, "select count(*) from pgqueue.jobs where id = %s", job) == 0


def test_all_that_match_are_shown_first_then_changed_chunk_by_chunk(conn: psycopg.Connection, ask: Ask) -> None:
    enqueue_many(conn, 1200, queue="mail")
    enqueue_many(conn, 5, queue="other")
    preview = ask("POST", "/act", action="cancel", scope="all", q="queue:mail state:waiting")
    assert "Cancel: 1,200 jobs?" in preview.text
    form = {
        "action": "cancel",
        "scope": "all",
        "q": "queue:mail state:waiting",
        "confirm": "yes",
        "count": "1200",
        "cap": "10000",
    }
    assert ask("POST", "/act", **form).status_code == 400
    answer = ask("POST", "/act", **form, typed="1200")
    chunks = 1
    while answer.status_code == 200:
        form = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', answer.text))
        answer = ask("POST", "/act", **form)
        chunks += 1
    assert chunks == 3
    assert "1200+of+1200" in answer.headers["location"]
    assert value(conn, "select count(*) from pgqueue.jobs where queue = 'mail'") == 0
    assert value(conn, "select count(*) from pgqueue.jobs where queue = 'other'") == 5


def test_a_cap_holds(conn: psycopg.Connection, ask: Ask) -> None:
    enqueue_many(conn, 50, queue="mail")
    ask("POST", "/act", action="cancel", scope="all", q="queue:mail", confirm="yes", count="50", cap="7")
    assert value(conn, "select count(*) from pgqueue.jobs") == 43


def test_retry_all_like_this(filled: psycopg.Connection, ask: Ask) -> None:
    page = ask("GET", "/dead").text
    [query] = set(re.findall(r'name="q" value="([^"]*)"', page))
    assert "Retry: 9 jobs?" in ask("POST", "/act", action="retry", scope="all", q=query.replace("&#34;", '"')).text
    ask("POST", "/act", action="retry", scope="all", q=query.replace("&#34;", '"'), confirm="yes", count="9")
    assert value(filled, "select count(*) from pgqueue.history where state = 'dead'") == 0


def test_every_job_is_no_filter(filled: psycopg.Connection, ask: Ask) -> None:
    assert ask("POST", "/act", action="cancel", scope="all", q=" ").status_code == 400


def test_queues_schedules_limits_and_tasks_can_be_changed(filled: psycopg.Connection, ask: Ask) -> None:
    ask("POST", "/queue", name="mail", do="pause")
    assert value(filled, "select paused_at is not null from pgqueue.queues where name = 'mail'") is True
    ask("POST", "/queue", name="mail", do="resume")
    ask("POST", "/queue", name="mail", do="configure", weight="7", priority="")
    assert filled.execute("select paused_at, weight from pgqueue.queues where name = 'mail'").fetchone() == (None, 7)
    assert "Type the name" in ask("POST", "/queue", name="mail", do="purge").text
    ask("POST", "/queue", name="mail", do="purge", typed="mail")
    assert value(filled, "select count(*) from pgqueue.jobs where queue = 'mail' and state = 'waiting'") == 0
    ask("POST", "/schedule", name="nightly", do="pause")
    assert value(filled, "select paused_at is not null from pgqueue.schedules") is True
    ask("POST", "/schedule", name="nightly", do="run")
    assert value(filled, "select count(*) from pgqueue.schedule_runs where outcome = 'manual'") == 1
    ask("POST", "/limit", do="set", kind="task", target="report", max_executing="3")
    ask("POST", "/limit", do="drop", kind="queue", target="mail")
    assert filled.execute("select kind, max_executing from pgqueue.limits").fetchall() == [("task", 3)]
    call(filled, "configure_task", "report", max_attempts=3)
    ask("POST", "/task", name="report", option="max_attempts")
    assert value(filled, "select max_attempts from pgqueue.tasks where name = 'report'") is None


def test_a_page_that_has_not_changed_is_not_sent_again(filled: psycopg.Connection, ask: Ask) -> None:
    tag = ask("GET", "/audit").headers["etag"]
    assert ask("GET", "/audit", headers={"if-none-match": tag}).status_code == 304
    call(filled, "pause_queue", "mail")
    assert ask("GET", "/audit", headers={"if-none-match": tag}).status_code == 200


def test_all_links_stay_below_a_prefix(filled: psycopg.Connection, serve: Serve, ask: Ask) -> None:
    address = serve(wrap=lambda app: Starlette(routes=[Mount("/jobs/admin", app)]))
    for path, headers, prefix in [
        ("/jobs/admin/", {}, "/jobs/admin/"),
        ("/jobs/admin/queues", {"x-forwarded-prefix": "/proxy"}, "/proxy/jobs/admin/"),
    ]:
        text = ask("GET", path, headers=headers, at=address).text
        links = re.findall(r'(?:href|src|action)="([^"]*)"', text)
        assert [link for link in links if not link.startswith((prefix, "#"))] == []
    answer = ask("POST", "/jobs/admin/queue", at=address, name="mail", do="pause")
    assert answer.headers["location"].startswith("/jobs/admin/queue?")
    static = next(link for link in links if link.endswith("app.css")).removeprefix("/proxy")
    assert ask("GET", static, at=address).headers["cache-control"].endswith("immutable")


def test_a_page_says_that_the_database_is_away(serve: Serve, ask: Ask) -> None:
    address = serve(dsn="postgresql://127.0.0.1:1/nothing")
    answer = ask("GET", "/", at=address)
    assert answer.status_code == 503
    assert "cannot be reached" in answer.text


def test_the_page_of_a_keyed_job_names_its_neighbours(filled: psycopg.Connection, ask: Ask) -> None:
    job = value(filled, "select min(id) from pgqueue.jobs where key = 'order:17'")
    assert "Others of its key" in ask("GET", f"/jobs/{job}").text


def test_the_numbers_of_a_queue_come_from_samples(conn: psycopg.Connection, ask: Ask) -> None:
    enqueue_many(conn, 3, queue="mail")
    maintain(conn)
    enqueue(conn, queue="mail")
    assert ask("GET", "/series?queue=mail").json()["due"] == [3]
    held = reserve_one(conn)
    call(conn, "fail", held.id, held.reservation, Jsonb({}), retry=False)
