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
    assert run("groups", "cancel", str(group)).out == f"Group {group}: cancelled\n"
    maintain(conn)
    assert state(conn, group) == "cancelled"
    ended = run("groups", "cancel", str(group))
    assert (ended.code, ended.err) == (1, f"Group {group} has ended: there is nothing to cancel\n")
    assert run("groups", "retry", str(group), "--yes").code == 0
    assert [state(conn, each) for each in (group, *members)] == ["blocked", *["waiting"] * 3]
    again = run("groups", "retry", str(group), "--yes")
    assert (again.code, again.err) == (1, f"No member of group {group} is dead or cancelled\n")


def test_a_group_that_is_not_there(run: Run) -> None:
    for command in ("show", "cancel", "retry"):
        answer = run("groups", command, "99")
        assert (answer.code, "There is no group 99" in answer.err) == (1, True)


def test_a_job_shows_its_parents_and_steps(conn: psycopg.Connection, run: Run) -> None:
    parent = enqueue(conn, "fetch")
    child = enqueue(conn, "load", depends_on=[parent])
    held = reserve_one(conn)
    # Python refuses to read a number of 5,000 digits.
    call(conn, "complete_step", held.id, held.reservation, "charge", "1e5000")
    shown = run("jobs", "show", str(child)).out
    assert f"parent {parent} (fetch): executing" in shown
    assert f"waits for 1 of 1 parents: {parent} executing" in shown
    shown = run("jobs", "show", str(parent)).out
    assert "step charge" in shown
    assert f"child {child} (load): blocked" in shown
    found = json.loads(run("jobs", "show", str(child), "--json").out)
    assert [(each["id"], each["state"]) for each in found["parents"]] == [(parent, "executing")]
    assert (found["children"], found["steps"]) == ([], [])
    assert found["waits"] == f"waits for 1 of 1 parents: {parent} executing"
    [found] = json.loads(run("jobs", "show", str(parent), "--json").out)["children"]
    assert (found["id"], found["task"]) == (child, "load")


def test_a_job_says_that_it_has_more_children_than_it_shows(conn: psycopg.Connection, run: Run) -> None:
    parent = enqueue(conn)
    enqueue_many(conn, 1001, depends_on=[parent])
    shown = run("jobs", "show", str(parent)).out
    assert shown.count("\nchild ") == 1000
    assert f"There are more children: select * from pgqueue.children({parent}, 10000)" in shown
    found = json.loads(run("jobs", "show", str(parent), "--json").out)
    assert (len(found["children"]), found["more_children"]) == (1000, True)


def test_a_job_shows_what_it_waits_for(conn: psycopg.Connection, run: Run) -> None:
    enqueue(conn, "order")
    held = reserve_one(conn)
    other = enqueue(conn, "part")
    call(conn, "await_event", held.id, held.reservation, "payment", "paid:17")
    shown = run("jobs", "show", str(held.id)).out
    assert "waits for event paid:17 (step payment), without a timeout" in shown
    call(conn, "emit_event", "paid:17")
    held = reserve_one(conn)
    call(conn, "suspend", held.id, held.reservation, depends_on=[other])
    assert f"waits for 1 job: {other} waiting" in run("jobs", "show", str(held.id)).out
    call(conn, "complete", other, reserve_one(conn).reservation)
    held = reserve_one(conn)
    call(conn, "sleep_step", held.id, held.reservation, "cool down", "1 day")
    assert "sleeps in step cool down until" in run("jobs", "show", str(held.id)).out
