"""Jobs that wait for each other in a circle, of which each session made a part that no other could see."""

from __future__ import annotations

from itertools import permutations
from typing import LiteralString

import psycopg
import pytest

from pgqueue.testing import Clock
from tests.calls import Row, call, enqueue, job, reserve, reserve_one, state, table, value
from tests.databases import Database
from tests.races.test_dependencies import left, opened, settle
from tests.sessions import Session

SUSPEND: LiteralString = "select pgqueue.suspend(%s, %s, depends_on => %s::bigint[])"
MEMBER: LiteralString = "select pgqueue.enqueue('member', group_id => %s, depends_on => %s::bigint[])"


def begin(conn: psycopg.Connection, task: str = "t", **options: object) -> Row:
    job_id = enqueue(conn, task, **options)
    held = reserve_one(conn)
    assert held.id == job_id
    return held


def wait_for(session: Session, held: Row, *parents: int) -> None:
    assert session.run(SUSPEND, [held.id, held.reservation, list(parents)]) == [("suspended",)]


def is_refused(conn: psycopg.Connection, job_id: int, parent: int) -> None:
    """The job alone has come back; it asks again to wait, as handlers do, and gets the error of the direct check."""
    [again] = reserve(conn, 10)
    assert (again.id, again.attempt) == (job_id, 1)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="would make a circle"):
        call(conn, "suspend", again.id, again.reservation, depends_on=[parent])
    call(conn, "fail", again.id, again.reservation, retry=False)


def last_class(conn: psycopg.Connection, job_id: int) -> str:
    found: str = value(conn, "select errors -> -1 ->> 'class' from pgqueue.history where id = %s", job_id)
    return found


@pytest.mark.parametrize("order", list(permutations(range(2))))
def test_two_suspended_jobs_that_wait_for_each_other(
    database: Database, conn: psycopg.Connection, clock: Clock, order: tuple[int, ...]
) -> None:
    held = [begin(conn), begin(conn)]
    sessions = [opened(database), opened(database)]
    wait_for(sessions[0], held[0], held[1].id)
    wait_for(sessions[1], held[1], held[0].id)
    for n in order:
        sessions[n].run("commit")
        settle(conn, clock)
    # Whichever was later: the one with the highest id, for all readers take the same.
    assert state(conn, held[0].id) == "blocked"
    is_refused(conn, held[1].id, held[0].id)
    settle(conn, clock)
    assert (state(conn, held[0].id), left(conn)) == ("waiting", 0)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_three_suspended_jobs_in_a_circle(
    database: Database, conn: psycopg.Connection, clock: Clock, order: tuple[int, ...]
) -> None:
    held = [begin(conn) for _ in range(3)]
    sessions = [opened(database) for _ in held]
    for n in range(3):
        wait_for(sessions[n], held[n], held[(n + 1) % 3].id)
    for n in order:
        sessions[n].run("commit")
        settle(conn, clock)
    is_refused(conn, held[2].id, held[0].id)
    assert state(conn, held[0].id) == "blocked"
    again = reserve_one(conn)
    assert again.id == held[1].id
    call(conn, "complete", again.id, again.reservation)
    settle(conn, clock)
    assert (state(conn, held[0].id), left(conn)) == ("waiting", 0)


def test_two_circles_that_share_a_job(database: Database, conn: psycopg.Connection, clock: Clock) -> None:
    held = [begin(conn) for _ in range(3)]
    sessions = [opened(database) for _ in held]
    wait_for(sessions[0], held[0], held[1].id, held[2].id)
    for n in (1, 2):
        wait_for(sessions[n], held[n], held[0].id)
    for session in sessions:
        session.run("commit")
    settle(conn, clock)
    back = reserve(conn, 10)
    assert {each.id for each in back} == {held[1].id, held[2].id}
    for each in back:
        call(conn, "complete", each.id, each.reservation)
    settle(conn, clock)
    assert (state(conn, held[0].id), left(conn)) == ("waiting", 0)


@pytest.mark.parametrize("order", list(permutations(range(2))))
def test_a_member_waits_for_a_job_that_waits_for_its_group(
    database: Database, conn: psycopg.Connection, clock: Clock, order: tuple[int, ...]
) -> None:
    outer = call(conn, "open_group")
    group = call(conn, "open_group", group_id=outer)
    held = [begin(conn, group_id=group), begin(conn)]
    for each in (group, outer):
        call(conn, "close_group", each)
    sessions = [opened(database), opened(database)]
    wait_for(sessions[0], held[0], held[1].id)
    wait_for(sessions[1], held[1], outer)
    for n in order:
        sessions[n].run("commit")
        settle(conn, clock)
    is_refused(conn, held[1].id, outer)
    settle(conn, clock)
    [member] = reserve(conn, 10)
    call(conn, "complete", member.id, member.reservation)
    settle(conn, clock)
    assert (state(conn, outer), left(conn)) == ("succeeded", 0)


@pytest.mark.parametrize("order", list(permutations(range(2))))
def test_a_member_is_added_that_depends_on_a_job_that_waits_for_its_group(
    database: Database, conn: psycopg.Connection, clock: Clock, order: tuple[int, ...]
) -> None:
    held = begin(conn)
    group = call(conn, "open_group")
    sessions = [opened(database), opened(database)]
    wait_for(sessions[0], held, group)
    [(member,)] = sessions[1].run(MEMBER, [group, [held.id]])
    for n in order:
        sessions[n].run("commit")
        settle(conn, clock)
    assert state(conn, member) == "blocked"
    is_refused(conn, held.id, group)
    settle(conn, clock)
    call(conn, "close_group", group)
    settle(conn, clock)
    # run_if => succeeded, of a job that failed.
    assert (state(conn, member), state(conn, group), left(conn)) == ("cancelled", "cancelled", 0)


@pytest.mark.parametrize("order", list(permutations(range(2))))
@pytest.mark.parametrize("nested", [False, True])
def test_members_of_two_groups_that_each_depend_on_the_other_group(
    database: Database, conn: psycopg.Connection, clock: Clock, order: tuple[int, ...], nested: bool
) -> None:
    groups = [call(conn, "open_group"), call(conn, "open_group")]
    sessions = [opened(database), opened(database)]
    add: LiteralString = MEMBER
    if nested:
        add = "select pgqueue.open_group(group_id => %s, depends_on => %s::bigint[])"
    [(one,)] = sessions[0].run(add, [groups[0], [groups[1]]])
    [(other,)] = sessions[1].run(add, [groups[1], [groups[0]]])
    for n in order:
        sessions[n].run("commit")
        settle(conn, clock)
    for each in [*groups, one, other]:
        if each in groups or nested:
            call(conn, "close_group", each)
    for _ in range(3):
        settle(conn, clock)
    assert {state(conn, each) for each in [*groups, one, other]} == {"cancelled"}
    errors = value(
        conn, "select jsonb_agg(e.value ->> 'class') from pgqueue.history h, jsonb_array_elements(h.errors) e"
    )
    assert errors.count("Circle") == 1
    if not nested:
        # The reason is over when the job comes back, as that of any cancel is.
        broken = value(conn, "select id from pgqueue.history where errors -> -1 ->> 'class' = 'Circle'")
        assert call(conn, "retry", broken)
        assert job(conn, broken).errors is None
        call(conn, "cancel", broken)
        settle(conn, clock)


def test_a_job_in_a_circle_that_another_session_has_locked(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    held = [begin(conn), begin(conn)]
    sessions = [opened(database), opened(database)]
    wait_for(sessions[0], held[0], held[1].id)
    wait_for(sessions[1], held[1], held[0].id)
    for session in sessions:
        session.run("commit")
    holder = opened(database)
    holder.run("select from pgqueue.jobs where id = %s for update", [held[1].id])
    settle(conn, clock)
    assert reserve(conn, 10) == []
    # It has a way out of its own.
    holder.run("select pgqueue.cancel(%s)", [held[1].id])
    holder.run("commit")
    settle(conn, clock)
    assert (state(conn, held[0].id), left(conn)) == ("waiting", 0)


def test_two_readers_take_the_same_job_out_of_a_circle(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    held = [begin(conn), begin(conn)]
    sessions = [opened(database), opened(database)]
    wait_for(sessions[0], held[0], held[1].id)
    wait_for(sessions[1], held[1], held[0].id)
    for session in sessions:
        session.run("commit")
    readers = [opened(database), opened(database)]
    for reader in readers:
        # One note each.
        assert reader.run("select pgqueue._read_notes(1)") == [(True,)]
    for reader in readers:
        reader.run("commit")
    settle(conn, clock)
    assert state(conn, held[0].id) == "blocked"
    is_refused(conn, held[1].id, held[0].id)
    settle(conn, clock)
    assert (state(conn, held[0].id), left(conn)) == ("waiting", 0)


def test_a_chain_in_a_group_is_no_circle_and_is_not_walked_for_each_of_its_jobs(
    conn: psycopg.Connection, clock: Clock
) -> None:
    group = call(conn, "open_group")
    last = begin(conn, group_id=group).id
    for _ in range(60):
        last = enqueue(conn, "link", group_id=group, depends_on=[last])
    call(conn, "close_group", group)
    enqueue(conn, "then", depends_on=[group])
    counted = "select coalesce(pg_stat_get_xact_function_calls('pgqueue._circle'::regproc), 0)"
    # Of all transactions of the session whose counts it has not sent yet.
    before = value(conn, counted)
    with conn.transaction():
        conn.execute("set local track_functions = 'pl'")
        conn.execute("select pgqueue._read_notes(1000)")
        walks = value(conn, counted) - before
    # One for the group of the last link, for which no job waits yet, and one for that of all the others.
    assert walks == 2
    settle(conn, clock)
    assert value(conn, "select count(*) from pgqueue.history") == 0


@pytest.mark.parametrize("order", list(permutations(range(2))))
def test_two_suspended_jobs_that_each_wait_behind_the_key_of_the_other(
    database: Database, conn: psycopg.Connection, clock: Clock, order: tuple[int, ...]
) -> None:
    held = [begin(conn, key="a"), begin(conn, key="b")]
    behind = [enqueue(conn, key="a"), enqueue(conn, key="b")]
    sessions = [opened(database), opened(database)]
    wait_for(sessions[0], held[0], behind[1])
    wait_for(sessions[1], held[1], behind[0])
    for n in order:
        sessions[n].run("commit")
        settle(conn, clock)
    is_refused(conn, held[1].id, behind[0])
    settle(conn, clock)
    # Its key is free, and so are they, one after the other.
    for job_id in (behind[1], held[0].id, behind[0]):
        [again] = reserve(conn, 10)
        assert again.id == job_id
        call(conn, "complete", again.id, again.reservation)
        settle(conn, clock)
    assert left(conn) == 0


def test_a_member_that_comes_into_the_key_of_a_job_that_waits_for_its_group(
    conn: psycopg.Connection, clock: Clock
) -> None:
    held = begin(conn, key="k")
    group = call(conn, "open_group")
    call(conn, "suspend", held.id, held.reservation, depends_on=[group])
    settle(conn, clock)
    member = enqueue(conn, group_id=group, key="k")
    call(conn, "close_group", group)
    assert reserve(conn, 10) == []
    for _ in range(3):
        clock.advance("1 min")
        settle(conn, clock)
    is_refused(conn, held.id, group)
    again = reserve_one(conn)
    assert again.id == member
    call(conn, "complete", again.id, again.reservation)
    settle(conn, clock)
    assert (state(conn, group), left(conn)) == ("succeeded", 0)


def crowd(conn: psycopg.Connection, group: int, number: int = 1200) -> int:
    """A parent that runs, and more blocked members of a group than a walk reads."""
    parent = enqueue(conn, "parent", queue="elsewhere")
    query = b"""
        select count(*)
        from pgqueue.enqueue_many(
            'member', array(select '{}'::jsonb from generate_series(1, %s)), group_id => %s,
            depends_on => array[%s::bigint]
        )
    """
    conn.execute(query, (number, group, parent))
    return parent


def two_groups(conn: psycopg.Connection) -> tuple[int, int]:
    return call(conn, "open_group", "one"), call(conn, "open_group", "two")


def circles(conn: psycopg.Connection) -> list[str]:
    return [row.subject for row in table(conn, "doctor") if row.topic == "circle"]


def test_a_circle_through_more_members_than_a_walk_reads_is_refused(conn: psycopg.Connection, clock: Clock) -> None:
    one, two = two_groups(conn)
    crowd(conn, one)
    enqueue(conn, "member", group_id=one, depends_on=[two])
    settle(conn, clock)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="would make a circle"):
        enqueue(conn, "member", group_id=two, depends_on=[one])
    # What waits for a large group and is no circle is not refused.
    enqueue(conn, "callback", depends_on=[one], run_if="finished")
    other = call(conn, "open_group", "other")
    enqueue(conn, "member", group_id=other, depends_on=[one])


def test_a_circle_through_many_members_that_two_sessions_make_at_once_is_broken(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    groups = two_groups(conn)
    for group in groups:
        crowd(conn, group)
    sessions = [opened(database), opened(database)]
    [[first]] = sessions[0].run(MEMBER, [groups[0], [groups[1]]])
    [[second]] = sessions[1].run(MEMBER, [groups[1], [groups[0]]])
    for session in sessions:
        session.run("commit")
    settle(conn, clock)
    assert sorted([state(conn, first), state(conn, second)]) == ["blocked", "cancelled"]
    assert "Circle" in {last_class(conn, each) for each in (first, second) if state(conn, each) == "cancelled"}


def test_a_circle_that_no_enqueue_can_see_is_named_by_doctor_and_broken_by_maintenance(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2030-01-01 12:00+00")
    one, two = two_groups(conn)
    crowd(conn, one)
    # More callbacks than a walk in the other direction reads.
    conn.execute(
        "select count(*) from pgqueue.enqueue_many("
        "'callback', array(select '{}'::jsonb from generate_series(1, 10500)), depends_on => array[%s::bigint])",
        (two,),
    )
    members = [enqueue(conn, "member", group_id=mine, depends_on=[other]) for mine, other in ((one, two), (two, one))]
    clock.advance("1 min")
    assert circles(conn) == [f"group {one}", f"group {two}"]
    for _ in range(60):
        if not circles(conn):
            break
        settle(conn, clock)
        clock.advance("1 min")
    assert circles(conn) == []
    assert sorted(state(conn, each) for each in members) == ["blocked", "cancelled"]
    [cancelled] = [each for each in members if state(conn, each) == "cancelled"]
    assert last_class(conn, cancelled) == "Circle"
