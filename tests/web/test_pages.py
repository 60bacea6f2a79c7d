"""The pages without a browser: every one answers, shows what there is, and its actions do what they say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import psycopg
import pytest
from psycopg.types.json import Jsonb
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount

from pgqueue.web import actions, app, render
from pgqueue.web.context import Context
from pgqueue.web.cron_words import in_words
from tests.calls import call, enqueue, enqueue_many, maintain, reserve_one, state, value
from tests.databases import Database
from tests.facts import wait_until
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
    "/tenants",
    "/events",
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
        "/task?name=send_email": "Declared", "/workers": "web-1", "/worker?name=w1": "Jobs held",
        "/schedules": "at 03:00", "/limits": "50", "/audit": "set_limit", "/health": "Maintenance",
        "/schedule?name=nightly": "Expression and time zone",
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
        "/schedule?name=no",
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


class Reversing:
    """A codec that shows whether it was asked."""

    def encode(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"hidden": json.dumps(args)[::-1]}

    def decode(self, args: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(args["hidden"][::-1]) if set(args) == {"hidden"} else args
        return found


def test_args_are_decoded_where_the_codec_is_given(conn: psycopg.Connection, serve: Serve, ask: Ask) -> None:
    encoded = enqueue(conn, "t", Reversing().encode({"customer": 812_733_641, "password": "geheim"}))
    plain = enqueue(conn, "t", {"n": 2**70})
    broken = enqueue(conn, "t", {"hidden": "not JSON"})
    address = serve(codec=Reversing())
    text = ask("GET", f"/jobs/{encoded}", at=address).text
    assert "812733641" in text
    # What the codec shows is redacted like all else.
    assert "geheim" not in text
    assert str(2**70) in ask("GET", f"/jobs/{plain}", at=address).text
    assert "not JSON" in ask("GET", f"/jobs/{broken}", at=address).text
    assert "812733641" not in ask("GET", f"/jobs/{encoded}").text
    assert "812733641" not in ask("GET", f"/jobs/{encoded}", at=serve(codec=Reversing(), can={"read"})).text


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
    assert "1200+jobs" in answer.headers["location"]
    assert value(conn, "select count(*) from pgqueue.jobs where queue = 'mail'") == 0
    assert value(conn, "select count(*) from pgqueue.jobs where queue = 'other'") == 5


def test_a_cap_holds(conn: psycopg.Connection, ask: Ask) -> None:
    enqueue_many(conn, 50, queue="mail")
    ask("POST", "/act", action="cancel", scope="all", q="queue:mail", confirm="yes", count="50", cap="7")
    assert value(conn, "select count(*) from pgqueue.jobs") == 43


def test_all_are_retried_oldest_first_and_only_those_that_were_there_before(
    conn: psycopg.Connection, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "CHUNK", 1)

    def die() -> None:
        held = reserve_one(conn)
        call(conn, "fail", held.id, held.reservation, retry=False)

    parent = enqueue(conn)
    child = enqueue(conn, depends_on=[parent])
    die()
    answer = ask("POST", "/act", action="retry", scope="all", q="state:dead,cancelled")
    later = enqueue(conn)
    die()
    while answer.status_code == 200:
        form = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', answer.text))
        answer = ask("POST", "/act", **form)
    # The parent brought its child back, which waits for it.
    assert [state(conn, each) for each in (parent, child, later)] == ["waiting", "blocked", "dead"]


def test_retry_all_like_this(filled: psycopg.Connection, ask: Ask) -> None:
    page = ask("GET", "/dead").text
    [query] = set(re.findall(r'name="q" value="([^"]*)"', page))
    assert "Retry: 9 jobs?" in ask("POST", "/act", action="retry", scope="all", q=query.replace("&#34;", '"')).text
    ask("POST", "/act", action="retry", scope="all", q=query.replace("&#34;", '"'), confirm="yes", count="9")
    assert value(filled, "select count(*) from pgqueue.history where state = 'dead'") == 0


def test_every_job_is_no_filter(filled: psycopg.Connection, ask: Ask) -> None:
    assert ask("POST", "/act", action="cancel", scope="all", q=" ").status_code == 400


def test_queues_limits_and_tasks_can_be_changed(filled: psycopg.Connection, ask: Ask) -> None:
    ask("POST", "/queue", name="mail", do="pause")
    assert value(filled, "select exists (select from pgqueue.pauses where target = 'mail')") is True
    ask("POST", "/queue", name="mail", do="resume")
    ask("POST", "/queue", name="mail", do="configure", weight="7", priority="")
    assert value(filled, "select exists (select from pgqueue.pauses where target = 'mail')") is False
    assert value(filled, "select weight from pgqueue.queues where name = 'mail'") == 7
    ask("POST", "/limit", do="pause", kind="task", target="report", reason="the provider is down", **{"for": "1 hour"})
    assert "the provider is down" in ask("GET", "/limits").text
    ask("POST", "/limit", do="resume", kind="task", target="report", source="operator")
    assert "Nothing is paused." in ask("GET", "/limits").text
    assert "Type the name" in ask("POST", "/queue", name="mail", do="purge").text
    ask("POST", "/queue", name="mail", do="purge", typed="mail")
    assert value(filled, "select count(*) from pgqueue.jobs where queue = 'mail' and state = 'waiting'") == 0
    ask("POST", "/limit", do="set", kind="task", target="report", max_executing="3")
    assert "Drop the limit of queue mail?" in ask("POST", "/limit", do="drop", kind="queue", target="mail").text
    ask("POST", "/limit", do="drop", kind="queue", target="mail", confirm="yes")
    assert filled.execute("select kind, max_executing from pgqueue.limits").fetchall() == [("task", 3)]
    call(filled, "configure_task", "report", max_attempts=3)
    ask("POST", "/task", name="report", option="max_attempts")
    assert value(filled, "select max_attempts from pgqueue.tasks where name = 'report'") is None


def test_a_setting_that_the_operator_did_not_touch_is_left_as_another_has_set_it(
    filled: psycopg.Connection, ask: Ask
) -> None:
    call(filled, "configure_queue", "mail", priority=3, weight=2)
    text = ask("GET", "/queue?name=mail").text
    shown = dict(re.findall(r'<input type="hidden" name="(shown_\w+)" value="([^"]*)">', text))
    assert shown == {"shown_priority": "3", "shown_weight": "2"}
    call(filled, "configure_queue", "mail", priority=9)
    for given in ({"priority": "3", "weight": "7"}, {"priority": "3", "weight": "2"}):
        assert ask("POST", "/queue", name="mail", do="configure", **given, **shown).status_code == 303
        found = filled.execute("select priority, weight from pgqueue.queues where name = 'mail'").fetchone()
        assert found == (9, 7)
    ask("POST", "/queue", name="mail", do="configure", priority="", weight="2", **shown)
    found = filled.execute("select priority, weight from pgqueue.queues where name = 'mail'").fetchone()
    assert found == (None, 7)


@pytest.mark.parametrize("priority", ["--5", "-", "5-", "²", "1e3", "1" * 19])
def test_what_is_no_whole_number_is_400(filled: psycopg.Connection, ask: Ask, priority: str) -> None:
    assert ask("POST", "/queue", name="mail", do="configure", priority=priority).status_code == 400


@pytest.mark.parametrize("do", ["sett", "reset"])
def test_an_unknown_action_changes_nothing(filled: psycopg.Connection, ask: Ask, do: str) -> None:
    call(filled, "configure_task", "report", max_attempts=3)
    assert ask("POST", "/limit", do=do, kind="queue", target="mail").status_code == 400
    assert ask("POST", "/task", do=do, name="report", option="max_attempts").status_code == 400
    assert value(filled, "select max_executing from pgqueue.limits where target = 'mail'") == 50
    assert value(filled, "select max_attempts from pgqueue.tasks where name = 'report'") == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_executing": 5}, "It lets 5 execute; "),
        ({"max_cost": 1500}, "It lets jobs of 1,500 units execute; "),
        (
            {"max_executing": 5, "max_cost": 9, "rate": 2, "per": "1 min"},
            "It lets 5 execute, and jobs of 9 units execute",
        ),
    ],
)
def test_what_a_limit_lets_run_is_said_before_it_is_dropped(
    conn: psycopg.Connection, ask: Ask, options: dict[str, Any], words: str
) -> None:
    call(conn, "set_limit", "queue", "mail", **options)
    assert words in ask("POST", "/limit", do="drop", kind="queue", target="mail").text


@pytest.mark.parametrize(
    ("action", "done", "nothing"),
    [
        ({"do": "drop", "kind": "queue", "confirm": "yes"}, "the limit is removed", "there was no such limit"),
        ({"do": "remove_breaker", "kind": "task"}, "the breaker is removed", "there was no such breaker"),
        ({"do": "resume", "kind": "task"}, "it is resumed", "it was not paused"),
    ],
    ids=["limit", "breaker", "pause"],
)
def test_what_was_not_there_is_not_said_to_be_taken_away(
    conn: psycopg.Connection, ask: Ask, action: dict[str, str], done: str, nothing: str
) -> None:
    call(conn, "set_limit", "queue", "mail", max_executing=5)
    call(conn, "set_breaker", "task", "mail")
    call(conn, "pause", "task", "mail")
    said = [
        parse_qs(urlsplit(ask("POST", "/limit", target="mail", **action).headers["location"]).query)["said"][0]
        for _ in range(2)
    ]
    assert said == [done, nothing]


ACTIONS = [
    ("worker", "w1", "quiet", "Make quiet", "quiet_worker"),
    ("worker", "w1", "stop", "Stop", "stop_worker"),
    ("worker", "w1", "kill", "Kill", "kill_worker"),
    ("schedule", "nightly", "pause", "Pause", "pause_schedule"),
    ("schedule", "nightly", "run", "Run now", "run_schedule_now"),
    ("schedule", "nightly", "remove", "Remove", "unschedule"),
]


@pytest.mark.parametrize(("of", "name", "do", "label", "function"), ACTIONS)
def test_an_action_on_a_worker_or_schedule_asks_first_and_is_audited(
    filled: psycopg.Connection, ask: Ask, of: str, name: str, do: str, label: str, function: str
) -> None:
    last = "select action, actor, via, filter ->> %s from pgqueue.audit order by n desc limit 1"
    before = value(filled, "select count(*) from pgqueue.audit")
    answer = ask("POST", f"/{of}", name=name, do=do)
    assert answer.status_code == 200
    assert f"{label}: {of} {name}?" in answer.text
    assert value(filled, "select count(*) from pgqueue.audit") == before
    form = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', answer.text))
    answer = ask("POST", f"/{of}", **form)
    assert answer.status_code == 303
    assert ask("GET", answer.headers["location"]).status_code == 200
    column = "worker" if of == "worker" else "name"
    assert filled.execute(last.encode(), [column]).fetchone() == (function, "alice", "web", name)
    assert ask("POST", f"/{of}", name=name, do="nonsense", confirm="yes").status_code == 400


def test_what_can_be_asked_of_a_worker_follows_what_was_asked(filled: psycopg.Connection, ask: Ask) -> None:
    def offered() -> list[str]:
        return re.findall(r'name="do" value="(\w+)"', ask("GET", "/worker?name=w1").text)

    assert offered() == ["quiet", "stop", "kill"]
    answer = ask("POST", "/worker", name="w1", do="quiet", confirm="yes")
    assert "asked to be quiet" in ask("GET", answer.headers["location"]).text
    assert offered() == ["resume", "stop", "kill"]
    call(filled, "worker_command", "w1", "quiet")
    assert "it obeys" in ask("GET", "/worker?name=w1").text
    ask("POST", "/worker", name="w1", do="stop", confirm="yes")
    assert offered() == ["kill"]
    again = ask("POST", "/worker", name="w1", do="stop", confirm="yes")
    assert "asked already" in ask("GET", again.headers["location"]).text
    ask("POST", "/worker", name="w1", do="kill", confirm="yes")
    assert offered() == []


def test_a_schedule_is_set_after_a_look_at_what_it_was(filled: psycopg.Connection, ask: Ask) -> None:
    text = ask("GET", "/schedule?name=nightly").text
    # The next three times.
    assert len(re.findall(r"<time[^>]*>[^<]* 03:00:00 UTC", text)) == 3
    preview = ask("POST", "/schedule", name="nightly", do="set", expression="30 4 * * mon-fri", timezone="")
    assert "at 04:30, Monday to Friday" in preview.text
    assert value(filled, "select expression from pgqueue.schedules") is None
    form = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', preview.text))
    assert ask("POST", "/schedule", **form).status_code == 303
    own = "select expression, timezone from pgqueue.schedules"
    assert filled.execute(own.encode()).fetchone() == ("30 4 * * mon-fri", None)
    answer = ask("POST", "/schedule", name="nightly", do="set", expression="", timezone="Mars/Utopia", confirm="yes")
    assert answer.status_code == 400
    assert "time zone" in answer.text
    ask("POST", "/schedule", name="nightly", do="set", expression="", timezone="Europe/Berlin", confirm="yes")
    assert filled.execute(own.encode()).fetchone() == (None, "Europe/Berlin")


@pytest.mark.parametrize("confirm", [{}, {"confirm": "yes"}])
def test_a_schedule_that_is_not_there_cannot_be_set(
    conn: psycopg.Connection, ask: Ask, confirm: dict[str, str]
) -> None:
    answer = ask("POST", "/schedule", name="nosuch", do="set", expression="30 4 * * *", timezone="", **confirm)
    assert answer.status_code == 404
    assert "there is no schedule nosuch" in answer.text
    assert value(conn, "select count(*) from pgqueue.schedules") == 0


def test_a_schedule_that_cannot_run_is_shown_with_its_error(filled: psycopg.Connection, ask: Ask) -> None:
    # By hand, past configure_schedule().
    filled.execute("update pgqueue.schedules set expression = 'nonsense'")
    maintain(filled)
    for page in ("/schedules", "/schedule?name=nightly"):
        answer = ask("GET", page)
        assert answer.status_code == 200
        assert "cron expression" in answer.text


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("0 3 * * *", "at 03:00"), ("*/5 * * * *", "every 5 minutes"), ("@weekly", "at 00:00, Sunday"),
        ("30 2 * * mon-fri", "at 02:30, Monday to Friday"), ("*/10 * * * * *", "every 10 seconds"),
        ("0 */2 * * *", "at minute 0, every 2 hours"),
        ("0 0 1,15 * 5", "at 00:00, on day 1 and 15 of the month or Friday"),
        ("5 4 * jan,feb 0", "at 04:05, Sunday, in January and February"), ("nonsense", ""),
    ],
)  # fmt: skip
def test_an_expression_in_words(expression: str, words: str) -> None:
    assert in_words(expression) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("00:05:00", "5 min"), ("01:00:30", "1 h 30 s"), ("48:00:00", "2 d"), ("3 days", "3 d"), ("00:00:00", "0 s"),
        ("1 day 02:00:00", "1 d 2 h"), ("00:00:00.25", "0.25 s"), ("1 mon", "1 mon"), (None, ""),
    ],
)  # fmt: skip
def test_an_interval_in_words(value: str | None, words: str) -> None:
    assert render.interval(value) == words


def test_instants_in_a_text_are_shown_in_the_zone_of_the_reader() -> None:
    text = "<b> due since 2026-11-22 22:28:25.582104+02, and 2026-13-99 99:00:00+00"
    assert render.with_times(text) == (
        '&lt;b&gt; due since <time datetime="2026-11-22T22:28:25+02:00">2026-11-22 20:28:25 UTC</time>,'
        " and 2026-13-99 99:00:00+00"
    )


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    nbsp = "\N{NO-BREAK SPACE}"
    text = "12 of 12 slots for 40 min, usually 3.7 s or 84 %; 5 sat"
    assert render.unbroken(text) == f"12 of 12 slots for 40{nbsp}min, usually 3.7{nbsp}s or 84{nbsp}%; 5 sat"
    assert render.with_times(text) == render.unbroken(text)


def test_evidence_begins_with_a_capital_unless_with_a_name() -> None:
    assert render.capital("the queue has") == "The queue has"
    assert render.capital("fsync = off: a crash") == "fsync = off: a crash"
    assert render.capital("resize takes 2 of 2") == "resize takes 2 of 2"


def test_health_and_audit_say_intervals_as_the_other_pages_do(conn: psycopg.Connection, ask: Ask) -> None:
    text = ask("GET", "/health").text
    assert "<dt>dedupe wait</dt><dd>5 s</dd>" in text
    assert "<dt>retention dead</dt><dd>90 d</dd>" in text
    assert "kept for 90 d (" in ask("GET", "/audit").text


def test_a_time_says_its_zone_and_is_converted_to_it() -> None:
    value = "2026-11-22T22:28:25+02:00"
    now = datetime(2026, 11, 22, 20, 29, 24, tzinfo=UTC).timestamp()
    shown = "2026-11-22 20:28:25 UTC"
    assert f">{shown}</time>" in render.at(value)
    assert f'title="{shown}">59 s ago' in render.ago(value, now)
    # Never finer than a second.
    for away, words in (
        (-58.9, "1 s ago"),
        (-57.2, "2 s ago"),
        (-49.6, "9 s ago"),
        (-59.4, "in 1 s"),
        (120, "3.0 min ago"),
    ):
        assert f">{words}</time>" in render.ago(value, now + away)
    assert f'title="{shown}">59 s<' in render.lasting(value, now)


def test_the_first_finding_is_on_top_and_the_others_are_a_click_away(conn: psycopg.Connection, ask: Ask) -> None:
    for number in range(5):
        call(conn, "declare_task", "known")
        enqueue(conn, f"unknown_{number}")
    maintain(conn)
    text = ask("GET", "/").text
    assert text.count('class="said"') == 1
    assert re.search(r'<a href="/health">\d more findings</a>', text)


def test_each_command_of_a_finding_has_a_button_that_copies_it(conn: psycopg.Connection, ask: Ask) -> None:
    call(conn, "declare_task", "known")
    enqueue(conn, "unknown")
    maintain(conn)
    text = ask("GET", "/health").text
    [finding] = [each for each in text.split('<div class="note ')[1:] if "unknown task" in each]
    assert re.search(
        r'<span class="or">start a worker that has it, correct its name, or:</span><span class="command"><code>'
        r'pgqueue jobs cancel --task unknown</code><button[^>]* data-copy="pgqueue jobs cancel --task unknown"',
        finding,
    )


def test_the_page_of_a_paused_queue_says_who_paused_it(filled: psycopg.Connection, serve: Serve, ask: Ask) -> None:
    assert "by alice" not in ask("GET", "/queue?name=mail").text
    ask("POST", "/queue", name="reports", do="pause")
    call(filled, "pause_queue", "mail")
    assert f"by {value(filled, 'select session_user::text')}" in ask("GET", "/queue?name=mail").text
    assert "by alice" in ask("GET", "/queue?name=reports").text
    call(filled, "throttle", "queue", "imports", "1 hour", "429")
    assert ": 429</span>" in ask("GET", "/queue?name=imports", at=serve()).text


def test_a_page_that_has_not_changed_is_not_sent_again(filled: psycopg.Connection, ask: Ask) -> None:
    # The first page may do without the number of the dead, where that takes long.
    wait_until(lambda: 'class="badge"' in ask("GET", "/audit").text)
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
        links = re.findall(r'(?:href|src|action|hx-get)="([^"]*)"', text)
        assert f'hx-get="{prefix}' in text
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


def test_a_page_that_lacks_a_value_is_a_problem_with_its_traceback_in_the_log(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def lacking(context: Context) -> Response:
        return context.page("queues.html")

    monkeypatch.setitem(app._PAGES, "/queues", lacking)
    answer = ask("GET", "/queues")
    assert answer.status_code == 500
    assert "This page cannot be shown" in answer.text
    assert "Traceback" in caplog.text


def test_a_page_says_once_what_to_do_about_a_database_without_the_queue(
    serve: Serve, ask: Ask, empty_database: Database
) -> None:
    answer = ask("GET", "/", at=serve(dsn=empty_database.dsn))
    assert answer.status_code == 500
    assert answer.text.count("run: pgqueue migrate") == 1


def test_the_page_of_a_keyed_job_names_its_neighbours(filled: psycopg.Connection, ask: Ask) -> None:
    job = value(filled, "select min(id) from pgqueue.jobs where key = 'order:17'")
    assert "Others of its key" in ask("GET", f"/jobs/{job}").text


def test_health_shows_the_server_and_the_clocks_of_workers(conn: psycopg.Connection, serve: Serve, ask: Ask) -> None:
    assert "agree with the server" in ask("GET", "/health", at=serve()).text
    now = value(conn, "select extract(epoch from clock_timestamp())::float8")
    for worker, ahead in (("right", 0), ("late", -90), ("early", 30)):
        call(conn, "hello", worker, None, Jsonb({"clock": now + ahead}))
    maintain(conn)
    text = " ".join(re.sub(r"<[^>]+>", " ", ask("GET", "/health").text).split())
    # The worst one first.
    assert re.search(r"late was \d+ s behind the server's , early was \d+ s ahead of the server's", text)
    assert "right was" not in text
    assert re.search(r"Notification queue in use 0(\.0)? %", text)
    assert "Oldest snapshot held for" in text
    assert re.search(r"idle workers \d+ jobs \d+", text)


def test_the_numbers_of_a_queue_come_from_samples(conn: psycopg.Connection, ask: Ask) -> None:
    enqueue_many(conn, 3, queue="mail")
    maintain(conn)
    enqueue(conn, queue="mail")
    assert ask("GET", "/series?queue=mail").json()["due"] == [3]
    held = reserve_one(conn)
    call(conn, "fail", held.id, held.reservation, Jsonb({}), retry=False)
