"""`pgqueue groups`, and what `pgqueue jobs show` says of jobs that wait."""

from __future__ import annotations

import json

import psycopg

from tests.calls import call, enqueue, enqueue_many, maintain, reserve_one, state
from tests.cli.conftest import Run


def test_a_group_from_open_to_retried(conn: psycopg.Connection, run: Run) -> None:
    group = call(conn, "open_group", "import")
    members = enqueue_many(conn, 3, group_id=group)
    assert "import" in run("groups", "list").out
    call(conn, "close_group", group)
    held = reserve_one(conn)
    call(conn, "fail", held.id, held.reservation, retry=False)
    shown = run("groups", "show", str(group))
    assert f"group {group} waits for 2 members, the oldest {members[1]} (waiting)" in shown.out
    assert "2 waiting, 1 dead" in shown.out
    [only] = json.loads(run("groups", "show", str(group), "--state", "dead", "--json").out)["members"]
    assert only["id"] == members[0]
    assert f"Group {group}: requested" in run("groups", "cancel", str(group)).out or state(conn, group) == "cancelled"
    maintain(conn)
    assert state(conn, group) == "cancelled"
    assert run("groups", "retry", str(group), "--yes").code == 0
    assert [state(conn, each) for each in (group, *members)] == ["blocked", *["waiting"] * 3]


def test_a_group_that_is_not_there(run: Run) -> None:
    for command in ("show", "cancel"):
        answer = run("groups", command, "99")
        assert (answer.code, "There is no group 99" in answer.err) == (1, True)


def test_a_job_shows_its_parents_and_steps(conn: psycopg.Connection, run: Run) -> None:
    parent = enqueue(conn, "fetch")
    child = enqueue(conn, "load", depends_on=[parent])
    held = reserve_one(conn)
    call(conn, "complete_step", held.id, held.reservation, "charge")
    shown = run("jobs", "show", str(child)).out
    assert f"parent {parent} (fetch): executing" in shown
    assert f"waits for 1 of 1 parents: {parent} executing" in shown
    assert "step charge" in run("jobs", "show", str(parent)).out
