"""The page of a task: how it performs over time, what runs, and its options with where each comes from."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import httpx
import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.calls import call, enqueue_many, maintain, reserve, value
from tests.web.conftest import Serve
from tests.web.test_blocked_by import words

Ask = Callable[..., httpx.Response]


def option(page: str, name: str) -> str:
    [row] = re.findall(rf'<tr><th scope="row" data-label="Option">{name}</th>(.*?)</tr>', page, re.DOTALL)
    return words(row)


def test_each_option_says_what_holds_and_where_it_comes_from(conn: psycopg.Connection, ask: Ask) -> None:
    call(conn, "declare_task", "send", queue="mail", max_attempts=5, timeout="1 min")
    call(conn, "configure_task", "send", max_attempts=3)
    page = ask("GET", "/task?name=send").text
    assert option(page, "max attempts") == "3 an operator 5 Reset"
    assert option(page, "queue") == "mail the code"
    assert option(page, "max crashes") == "3 the default"
    # What is at its default folds.
    before, _, folded = page.partition('<details class="fold form" id="defaults">')
    assert ">max attempts</th>" in before
    assert ">queue</th>" in before
    assert before.count('data-label="Option"') == 3
    assert folded.partition("</details>")[0].count('data-label="Option"') == 16
    assert "16 options at the default" in folded


@pytest.mark.parametrize(
    ("name", "text", "stored"),
    [
        ("max_attempts", "7", 7),
        ("timeout", "30 s", timedelta(seconds=30)),
        ("retry_jitter", "0.5", 0.5),
        ("store_result", "yes", True),
        ("queue", "slow", "slow"),
        ("retry_delays", "1 s, 1 min", [timedelta(seconds=1), timedelta(minutes=1)]),
    ],
)
def test_an_option_is_set_and_reset(conn: psycopg.Connection, ask: Ask, name: str, text: str, stored: object) -> None:
    call(conn, "declare_task", "send")
    answer = ask("POST", "/task", do="set", name="send", option=name, value=text)
    assert answer.status_code == 303, answer.text
    assert value(conn, f"select {name} from pgqueue.tasks") == stored
    assert (
        value(conn, "select actor || ' ' || action from pgqueue.audit order by n desc limit 1")
        == "alice configure_task"
    )
    ask("POST", "/task", name="send", option=name)
    assert value(conn, f"select {name} from pgqueue.tasks") is None


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("max_attempts", "many", "is not a whole number"),
        ("store_result", "perhaps", "is not yes or no"),
        ("max_attempts", " ", "an option and its value are needed"),
        ("retry_function", "public.f", "an option and its value are needed"),
        ("timeout", "soon", "timeout"),
    ],
)
def test_a_wrong_option_is_refused_with_words(
    conn: psycopg.Connection, ask: Ask, name: str, text: str, said: str
) -> None:
    call(conn, "declare_task", "send")
    answer = ask("POST", "/task", do="set", name="send", option=name, value=text)
    assert answer.status_code in (400, 500)
    assert said in answer.text


def test_it_shows_what_runs_and_what_its_jobs_died_of(conn: psycopg.Connection, ask: Ask) -> None:
    enqueue_many(conn, 3, "send", queue="mail")
    enqueue_many(conn, 1, "other", queue="mail")
    dead, *_ = reserve(conn, 4, "w1")
    error = Jsonb({"class": "ConnectError", "message": "no answer from 17"})
    call(conn, "fail", dead.id, dead.reservation, error, retry=False)
    page = ask("GET", "/task?name=send").text
    shown = words(page)
    assert "ConnectError : no answer from ‹n›" in shown or "ConnectError: no answer from ‹n›" in shown
    running = page.partition("Running, the oldest first")[2].partition("</section>")[0]
    assert running.count('class="r"') == 2
    assert 'href="/worker?name=w1"' in running


def test_its_plots_are_of_its_own_jobs(conn: psycopg.Connection, ask: Ask) -> None:
    call(conn, "hello", "w")
    times = {"sum": 20, "max": 9, "buckets": [0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0]}
    jobs = [
        {"queue": "mail", "task": "send", "started": 30, "succeeded": 20, "failed": 10, "run": times},
        {"queue": "mail", "task": "other", "started": 70, "succeeded": 70},
    ]
    call(conn, "beat", "w", Jsonb({"jobs": jobs}))
    maintain(conn)
    found = ask("GET", "/series?task=send").json()
    # On a busy machine, maintenance may have taken another sample since.
    assert (found["succeeded"][0], found["failed"][0]) == (2, 1)
    assert 4 < found["run p95"][0] < 16
    assert found["p95"][0] is None
    assert set(ask("GET", "/series?task=none").json()["succeeded"]) == {0}
    page = ask("GET", "/task?name=send").text
    assert page.count('data-src="/series?task=send"') == 3


def test_it_is_paused_and_resumed(conn: psycopg.Connection, ask: Ask, serve: Serve) -> None:
    call(conn, "declare_task", "send")
    ask("POST", "/limit", do="pause", kind="task", target="send", reason="down")
    page = ask("GET", "/task?name=send").text
    assert "by alice: down" in page
    assert 'name="do" value="resume"' in page
    ask("POST", "/limit", do="resume", kind="task", target="send", source="operator")
    assert value(conn, "select count(*) from pgqueue.pauses where until > pgqueue._clock()") == 0
    assert 'value="pause"' not in ask("GET", "/task?name=send", at=serve(can={"read"})).text
