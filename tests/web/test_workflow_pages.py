"""The pages of groups, what the page of a job says of others, the command that copies a job, and filters on args."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from html import unescape
from typing import Any

import httpx
import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.calls import call, enqueue, enqueue_many, job, maintain, reserve_one, state, value
from tests.web.conftest import Serve

Ask = Callable[..., httpx.Response]


def command_of(text: str) -> str:
    found = re.search(r'<pre tabindex="0" aria-label="Command">(.*?)</pre>', text, re.DOTALL)
    assert found
    return unescape(found[1])


def test_groups_are_listed_with_their_progress(filled: psycopg.Connection, ask: Ask) -> None:
    text = ask("GET", "/groups").text
    assert "import" in text
    assert 'aria-label="3 waiting, 1 blocked"' in text


def test_a_group_shows_members_graph_and_why_it_waits(filled: psycopg.Connection, ask: Ask) -> None:
    group = value(filled, "select id from pgqueue.groups()")
    text = ask("GET", f"/group?id={group}").text
    assert f"<p>Group {group} is open" in text
    graph = text.partition('<svg class="graph"')[2].partition("</svg>")[0]
    assert graph.count("<rect class=") >= 4
    assert graph.count("<path d=") == 2
    # Its state in a word and a shape, not by the colour alone.
    assert re.search(
        r'<tspan class="small"[^>]*>blocked \d+</tspan></text><use class="is-blocked" href="#s-blocked"', graph
    )
    assert "Cancel the group" in text
    assert "What waits for it" in text
    assert "runs if this one has finished" in text


def test_older_groups_are_on_the_next_page(conn: psycopg.Connection, ask: Ask) -> None:
    for number in range(60):
        enqueue_many(conn, 1, group_id=call(conn, "open_group", f"g{number}"))
    first = ask("GET", "/groups").text
    assert ">g10<" in first.replace("\n", "")
    [older] = re.findall(r'rel="next" href="([^"]*)"', first)
    assert ">g9<" in ask("GET", older).text


def test_a_group_is_cancelled_after_a_question(filled: psycopg.Connection, ask: Ask) -> None:
    group = value(filled, "select id from pgqueue.groups()")
    assert f"Cancel group {group}" in ask("POST", "/group", id=group, do="cancel").text
    assert value(filled, "select count(*) from pgqueue.jobs where group_id = %s", group) == 4
    assert ask("POST", "/group", id=group, do="cancel", confirm="yes").status_code == 303
    maintain(filled)
    assert state(filled, group) == "cancelled"
    rows = filled.execute("select actor from pgqueue.audit where action = 'cancel'").fetchall()
    assert ("alice",) in rows


def test_dead_members_of_a_group_are_retried_together(conn: psycopg.Connection, ask: Ask) -> None:
    group = call(conn, "open_group", "import")
    enqueue_many(conn, 3, group_id=group)
    enqueue(conn, "other")
    for _ in range(2):
        held = reserve_one(conn)
        call(conn, "fail", held.id, held.reservation, Jsonb({"class": "E"}), retry=False)
    text = ask("GET", f"/group?id={group}").text
    [query] = re.findall(r'name="q" value="([^"]*)"', text)
    assert "Retry: 2 jobs?" in ask("POST", "/act", action="retry", scope="all", q=query).text
    ask("POST", "/act", action="retry", scope="all", q=query, confirm="yes", count="2")
    assert value(conn, "select count(*) from pgqueue.jobs where group_id = %s", group) == 3


def test_a_job_names_its_parents_children_steps_and_group(conn: psycopg.Connection, ask: Ask) -> None:
    group = call(conn, "open_group", "import")
    parent = enqueue(conn, "export", group_id=group)
    child = enqueue(conn, "report", depends_on=[parent], run_if="finished")
    held = reserve_one(conn)
    assert call(conn, "complete_step", held.id, held.reservation, "charge the card", Jsonb({"paid": 1}))
    text = ask("GET", f"/jobs/{parent}").text
    assert f"/jobs/{child}" in text
    assert "charge the card" in text
    assert f"/group?id={group}" in text
    text = ask("GET", f"/jobs/{child}").text
    assert "It waits for" in text
    assert f"/jobs/{parent}" in text
    assert f"Waits for 1 of 1 parents: {parent} executing" in text


def test_a_job_says_which_event_it_waits_for(conn: psycopg.Connection, ask: Ask) -> None:
    enqueue(conn, "order")
    held = reserve_one(conn)
    call(conn, "await_event", held.id, held.reservation, "packed", "packed:17", "2 days")
    assert "Waits for event packed:17 (step packed)" in ask("GET", f"/jobs/{held.id}").text


OPTIONS: dict[str, Any] = {"queue": "mail", "key": "a key", "priority": 3, "tags": ["vip", "it's"], "max_attempts": 4}


def test_the_command_of_a_job_enqueues_one_like_it(conn: psycopg.Connection, ask: Ask, run: Callable[..., Any]) -> None:
    args = {"to": "o'neill@example.com", "n": 2**60 + 1, "tags": ["$HOME", "`x`"]}
    first = enqueue(conn, "send_email", args, timeout="5 min", **OPTIONS)
    command = command_of(ask("GET", f"/jobs/{first}").text)
    program, *rest = shlex.split(command)
    assert program == "pgqueue"
    done = run(*rest)
    assert done.code == 0, done.err
    again = value(conn, "select max(id) from pgqueue.jobs")
    assert again > first
    names = ("task", "args", "queue", "key", "priority", "tags", "max_attempts", "timeout")
    one, other = job(conn, first), job(conn, again)
    assert [getattr(one, name) for name in names] == [getattr(other, name) for name in names]


@pytest.mark.parametrize(
    ("args", "can"),
    [
        ({"user": {"password": "geheim"}}, {"read", "args", "act"}),
        ({"name": "geheim"}, {"read", "act"}),
        ({"text": "geheim" * 1000}, {"read", "args", "act"}),
    ],
    ids=["a hidden field", "no right to see args", "long args"],
)
def test_a_command_that_may_not_show_the_args_copies_them_within_the_database(
    conn: psycopg.Connection, serve: Serve, ask: Ask, args: dict[str, Any], can: set[str]
) -> None:
    first = enqueue(conn, "send_email", args, **OPTIONS)
    text = ask("GET", f"/jobs/{first}", at=serve(can=can)).text
    command = command_of(text)
    assert "geheim" not in command
    if "text" not in args:
        assert "geheim" not in text
    again = value(conn, command.removesuffix(";"))
    one, other = job(conn, first), job(conn, again)
    assert (one.args, one.queue, one.key, one.tags) == (other.args, other.queue, other.key, other.tags)


def test_a_filter_tells_nothing_of_args_that_are_hidden(filled: psycopg.Connection, serve: Serve, ask: Ask) -> None:
    without = serve(can={"read", "act"})
    assert ask("GET", "/jobs?q=args.n:1", at=without).status_code == 403
    assert ask("POST", "/act", at=without, action="cancel", scope="all", q="args.n:1").status_code == 403
    for line in ("args.password:geheim", 'args.user:{"password":"geheim"}', 'args.list:[{"api_key":1}]'):
        assert ask("GET", "/jobs?" + str(httpx.QueryParams({"q": line}))).status_code == 400
        assert ask("POST", "/act", action="cancel", scope="all", q=line).status_code == 400
    assert ask("GET", "/jobs?q=args.n:1").status_code == 200


def test_a_page_shows_relatives_whose_error_is_of_another_shape(filled: psycopg.Connection, ask: Ask) -> None:
    group = call(filled, "open_group", "odd")
    for error in (None, Jsonb({}), Jsonb("a text"), Jsonb(["a", "list"])):
        parent = enqueue(filled, "odd", queue="odd")
        child = enqueue(filled, "after", queue="odd", depends_on=[parent, group])
        taken = reserve_one(filled, "w1", queues=["odd"])
        call(filled, "fail", taken.id, taken.reservation, error, retry=True)
        for page in (f"/jobs/{child}", f"/jobs/{parent}", f"/group?id={group}"):
            answer = ask("GET", page)
            assert answer.status_code == 200, (page, error)
        assert "error" in ask("GET", f"/jobs/{child}").text.partition('class="flow"')[2]
