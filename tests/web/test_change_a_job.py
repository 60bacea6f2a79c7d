"""The form on the page of a job: what it changes, and of which jobs."""

from __future__ import annotations

import html
import re
from collections.abc import Callable

import httpx
import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.calls import call, enqueue, job, reserve_one, value
from tests.web.conftest import Serve

Ask = Callable[..., httpx.Response]


def form(page: str) -> dict[str, str]:
    """Return the fields of the form with what stands in them; {} without it."""
    found = page.partition('id="change"')[2].partition("</details>")[0]
    fields = {name: html.unescape(text) for name, text in re.findall(r'name="(\w+)"[^>]*?value="([^"]*)"', found)}
    for name, text in re.findall(r'<textarea name="(\w+)"[^>]*>(.*?)</textarea>', found, re.DOTALL):
        fields[name] = html.unescape(text)
    fields.pop("no_limit_key", None)
    return fields


def test_only_what_is_given_is_changed(conn: psycopg.Connection, ask: Ask) -> None:
    job_id = enqueue(conn, "t", {"order": 17}, limit_key="tenant:a", priority=2)
    fields = form(ask("GET", f"/jobs/{job_id}").text)
    assert fields["args"] == '{\n  "order": 17\n}'
    answer = ask("POST", "/act", **{**fields, "queue": "slow"})
    assert answer.status_code == 303
    found = job(conn, job_id)
    assert (found.queue, found.priority, found.limit_key, found.args) == ("slow", 2, "tenant:a", {"order": 17})
    [audit] = conn.execute("select action, filter from pgqueue.audit").fetchall()
    assert audit[0] == "update_job"
    assert "args" not in str(audit[1])
    ask("POST", "/act", **{**fields, "args": '{"order": 18}', "priority": "-3", "no_limit_key": "yes"})
    found = job(conn, job_id)
    assert (found.queue, found.priority, found.limit_key, found.args) == ("slow", -3, None, {"order": 18})


def test_a_browser_sends_the_lines_of_args_with_carriage_returns(conn: psycopg.Connection, ask: Ask) -> None:
    job_id = enqueue(conn, "t", {"order": 17})
    fields = form(ask("GET", f"/jobs/{job_id}").text)
    sent = {**fields, "args": fields["args"].replace("\n", "\r\n"), "shown": fields["shown"].replace("\n", "\r\n")}
    ask("POST", "/act", **{**sent, "priority": "1"})
    audit = str(value(conn, "select filter from pgqueue.audit order by n desc limit 1"))
    assert ("priority" in audit, "args" in audit) == (True, False)


def test_a_form_that_changes_nothing_asks_what_to_change(conn: psycopg.Connection, ask: Ask) -> None:
    job_id = enqueue(conn)
    answer = ask("POST", "/act", **form(ask("GET", f"/jobs/{job_id}").text))
    assert "Change: 1 job?" in answer.text


def test_a_dead_job_gets_other_args_alone_and_one_that_executes_none(conn: psycopg.Connection, ask: Ask) -> None:
    dead = enqueue(conn, "t", {"order": 17})
    held = reserve_one(conn)
    call(conn, "fail", held.id, held.reservation, Jsonb({"class": "E"}), retry=False)
    fields = form(ask("GET", f"/jobs/{dead}").text)
    assert "queue" not in fields
    ask("POST", "/act", **{**fields, "args": '{"order": 18}'})
    assert job(conn, dead).args == {"order": 18}
    executing = enqueue(conn)
    reserve_one(conn)
    assert form(ask("GET", f"/jobs/{executing}").text) == {}


@pytest.mark.parametrize("way", ["sleep", "event", "failed"])
def test_a_job_that_goes_on_with_its_steps_is_not_offered_to_be_changed(
    conn: psycopg.Connection, ask: Ask, way: str
) -> None:
    job_id = enqueue(conn, "t", {"order": 17})
    held = reserve_one(conn)
    if way == "event":
        call(conn, "await_event", held.id, held.reservation, "packed", "packed:17", "2 days")
    else:
        assert call(conn, "complete_step", held.id, held.reservation, "charge", Jsonb(1))
    if way == "sleep":
        assert call(conn, "sleep_step", held.id, held.reservation, "cool down", "1 day") is False
    elif way == "failed":
        call(conn, "fail", held.id, held.reservation, Jsonb({"class": "E"}))
    found = job(conn, job_id)
    assert (found.state, found.attempts) == (("failed", 1) if way == "failed" else ("waiting", 0))
    assert form(ask("GET", f"/jobs/{job_id}").text) == {}
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        call(conn, "update_job", job_id, args=Jsonb({"order": 18}))


def test_a_dead_job_with_steps_gets_other_args(conn: psycopg.Connection, ask: Ask) -> None:
    job_id = enqueue(conn, "t", {"order": 17})
    held = reserve_one(conn)
    assert call(conn, "complete_step", held.id, held.reservation, "charge", Jsonb(1))
    call(conn, "fail", held.id, held.reservation, Jsonb({"class": "E"}), retry=False)
    ask("POST", "/act", **{**form(ask("GET", f"/jobs/{job_id}").text), "args": '{"order": 18}'})
    assert job(conn, job_id).args == {"order": 18}


def test_a_change_that_comes_too_late_is_refused_with_what_can_be_done(conn: psycopg.Connection, ask: Ask) -> None:
    job_id = enqueue(conn)
    fields = form(ask("GET", f"/jobs/{job_id}").text)
    reserve_one(conn)
    answer = ask("POST", "/act", **{**fields, "priority": "1"})
    assert answer.status_code == 409
    page = html.unescape(answer.text)
    assert f"job {job_id} cannot be changed so: Worker w executes it" in page
    assert "Jobs that were never started can be changed" in page


@pytest.mark.parametrize("args", ["[1]", "{", "17", "x"])
def test_args_that_are_no_object_are_refused(conn: psycopg.Connection, ask: Ask, args: str) -> None:
    job_id = enqueue(conn)
    answer = ask("POST", "/act", action="update", id=str(job_id), args=args, confirm="yes")
    assert answer.status_code == 400
    assert "args is not a JSON object" in answer.text


def test_args_that_are_hidden_are_not_shown_to_be_changed(conn: psycopg.Connection, ask: Ask, serve: Serve) -> None:
    job_id = enqueue(conn, "t", {"password": "geheim"})
    page = ask("GET", f"/jobs/{job_id}").text
    assert "geheim" not in page
    assert "args" not in form(page)
    plain = enqueue(conn, "t", {"order": 17})
    at = serve(can={"read", "act"})
    assert "args" not in form(ask("GET", f"/jobs/{plain}", at=at).text)
    answer = ask("POST", "/act", action="update", id=str(plain), args='{"order": 18}', confirm="yes", at=at)
    assert answer.status_code == 403
