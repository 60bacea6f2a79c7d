"""groups(), children(), and explain() of a job that waits for an event or sleeps: what pages show of workflows."""

from __future__ import annotations

import psycopg

from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, job, maintain, reserve_one, table
from tests.sql.plans import blocks
from tests.sql.test_dependencies import finish


def test_groups_are_listed_with_the_states_of_their_members(conn: psycopg.Connection) -> None:
    first = call(conn, "open_group", "import")
    members = enqueue_many(conn, 5, group_id=first)
    empty = call(conn, "open_group")
    finish(conn, members[0])
    call(conn, "cancel", members[1])
    held = reserve_one(conn)
    [newest, oldest] = table(conn, "groups")
    assert (newest.id, newest.name, newest.state, newest.is_open, newest.total) == (empty, None, "blocked", True, 0)
    assert (oldest.id, oldest.name, oldest.total, oldest.counted_to) == (first, "import", 5, None)
    assert (oldest.waiting, oldest.executing, oldest.succeeded, oldest.cancelled) == (2, 1, 1, 1)
    call(conn, "complete", held.id, held.reservation)
    for member in members[3:]:
        finish(conn, member)
    call(conn, "close_group", first)
    call(conn, "close_group", empty)
    [ended] = table(conn, "groups", before=empty)
    assert (ended.state, ended.is_open, ended.total, ended.succeeded, ended.cancelled) == ("cancelled", False, 5, 4, 1)
    [only] = table(conn, "groups", empty)
    assert (only.id, only.state, only.total) == (empty, "succeeded", 0)
    assert table(conn, "groups", 10**9) == []


def test_groups_are_listed_page_by_page(conn: psycopg.Connection) -> None:
    made = []
    for number in range(7):
        made.append(call(conn, "open_group", f"g{number}"))
        for member in enqueue_many(conn, 2, group_id=made[-1]):
            if number % 2:
                call(conn, "cancel", member)
        if number % 2:
            call(conn, "close_group", made[-1])
    found, before = [], None
    while page := [row.id for row in table(conn, "groups", before=before, max=3)]:
        found += page
        before = page[-1]
    assert found == sorted(made, reverse=True)


def test_counting_members_stops_at_a_bound_and_says_so(conn: psycopg.Connection) -> None:
    group = call(conn, "open_group", "import")
    enqueue_many(conn, 30, group_id=group)
    [row] = table(conn, "groups", group, count_to=10)
    assert (row.waiting, row.counted_to) == (10, 10)
    alone = blocks(conn, "pgqueue.groups(count_to => 10)")
    enqueue_many(conn, 10_000, group_id=group)
    enqueue_many(conn, 10_000)
    conn.execute("analyze pgqueue.jobs")
    assert blocks(conn, "pgqueue.groups(count_to => 10)") < alone + 100


def test_children_wait_or_did_not_run(conn: psycopg.Connection) -> None:
    parent = enqueue(conn, "export")
    waits = enqueue(conn, "report", depends_on=[parent])
    alarm = enqueue(conn, "alarm", depends_on=[parent], run_if="failed")
    assert [tuple(row) for row in table(conn, "children", parent)] == [
        (waits, "report", "blocked", "succeeded", None),
        (alarm, "alarm", "blocked", "failed", None),
    ]
    assert len(table(conn, "children", parent, max=1)) == 1
    finish(conn, parent, "dead")
    maintain(conn)
    [row] = [row for row in table(conn, "children", parent) if row.id == waits]
    assert (row.state, row.parent_ended) == ("cancelled", "dead")
    assert table(conn, "children", waits) == []


def test_explain_names_the_event_that_a_job_waits_for(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue(conn, "order")
    held = reserve_one(conn)
    assert table(conn, "await_event", held.id, held.reservation, "packed", "packed:17", "2 days")[0].arrived is None
    [why] = table(conn, "explain", held.id)
    assert why.reason == "event"
    assert "packed:17 (step packed), until 20" in why.detail
    assert why.until is not None
    call(conn, "emit_event", "packed:17")
    maintain(conn)
    [why] = table(conn, "explain", held.id)
    assert why.reason != "event"


def test_explain_names_the_step_in_which_a_job_sleeps(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set("2030-01-01 12:00+00")
    enqueue(conn, "order")
    held = reserve_one(conn)
    # Results that only look like the deadline of a sleep.
    call(conn, "complete_step", held.id, held.reservation, "scalar", "5")
    call(conn, "complete_step", held.id, held.reservation, "longer", '{"until": "2031-01-01 12:00+00"}')
    assert call(conn, "sleep_step", held.id, held.reservation, "cool down", "2 days") is False
    [why] = table(conn, "explain", held.id)
    assert (why.state, why.reason, why.until) == ("waiting", "sleep", job(conn, held.id).due_at)
    assert "sleeps in step cool down until 2030-01-03 12:00:00" in why.detail
    clock.advance("2 days")
    held = reserve_one(conn)
    assert call(conn, "sleep_step", held.id, held.reservation, "cool down", "2 days") is True
    # It waits for something else now.
    assert call(conn, "snooze", held.id, held.reservation, "5 s")
    [why] = table(conn, "explain", held.id)
    assert (why.reason, "it was deferred" in why.detail) == ("not_due", True)


def test_explain_goes_on_where_the_result_of_a_step_is_no_time(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue(conn, "order")
    held = reserve_one(conn)
    call(conn, "complete_step", held.id, held.reservation, "charge", '{"until": "the end"}')
    assert call(conn, "sleep_step", held.id, held.reservation, "cool down", "2 days") is False
    [why] = table(conn, "explain", held.id)
    assert (why.reason, why.until) == ("not_due", job(conn, held.id).due_at)


def test_a_group_that_is_cancelled_leaves_a_row_in_the_audit(conn: psycopg.Connection) -> None:
    group = call(conn, "open_group", "import")
    enqueue_many(conn, 2, group_id=group)
    call(conn, "cancel", group)
    rows = conn.execute("select action, filter from pgqueue.audit").fetchall()
    assert ("cancel", {"job_id": group}) in rows
