"""Groups: jobs that are awaited together."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import (
    call,
    column,
    enqueue,
    enqueue_many,
    ids,
    job,
    maintain,
    reserve,
    reserve_one,
    state,
    table,
    value,
)
from tests.databases import Database
from tests.facts import flush_statistics
from tests.races.test_dependencies import settle
from tests.sql.plans import blocks
from tests.sql.test_dependencies import finish


def group_of(conn: psycopg.Connection, members: int = 0, name: str = "import") -> tuple[int, list[int]]:
    group: int = call(conn, "open_group", name)
    return group, enqueue_many(conn, members, group_id=group) if members else []


def test_a_group_ends_when_it_is_closed_and_its_members_have_ended(conn: psycopg.Connection) -> None:
    group, members = group_of(conn, 3)
    report = enqueue(conn, "report", depends_on=[group])
    for member in members:
        finish(conn, member)
    maintain(conn)
    assert (state(conn, group), state(conn, report)) == ("blocked", "blocked")
    assert call(conn, "close_group", group)
    assert not call(conn, "close_group", group)
    assert (state(conn, group), state(conn, report)) == ("succeeded", "waiting")
    assert job(conn, group).result == {"succeeded": 3, "dead": 0, "cancelled": 0}
    assert value(conn, "select count(*) from pgqueue.notes") == 0


def test_the_end_of_the_last_member_ends_a_closed_group(conn: psycopg.Connection) -> None:
    group, members = group_of(conn, 3)
    report = enqueue(conn, "report", depends_on=[group])
    call(conn, "close_group", group)
    for member in members:
        assert state(conn, group) == "blocked"
        finish(conn, member)
    assert reserve_one(conn).id == report


def test_many_members_leave_few_notes(conn: psycopg.Connection) -> None:
    group, _ = group_of(conn, 300)
    call(conn, "close_group", group)
    maintain(conn)
    before = value(conn, "select last_value from pgqueue.notes_n_seq")
    for _ in range(30):
        rows = reserve(conn, 10)
        column(conn, "complete_many", [row.id for row in rows], [row.reservation for row in rows])
    assert value(conn, "select last_value from pgqueue.notes_n_seq") == before + 1
    maintain(conn)
    assert state(conn, group) == "succeeded"


def test_the_end_of_a_member_walks_no_members_that_have_ended(database: Database, conn: psycopg.Connection) -> None:
    """Beside a session with an old snapshot, which keeps the entries of all of them in the index."""
    entries = "select idx_tup_read from pg_stat_user_indexes where indexrelname = 'jobs_group'"

    def read_by_one_end() -> int:
        flush_statistics(conn)
        before: int = value(conn, entries)
        [row] = reserve(conn)
        call(conn, "complete", row.id, row.reservation)
        flush_statistics(conn)
        after: int = value(conn, entries)
        return after - before

    group, _ = group_of(conn, 3_000)
    call(conn, "close_group", group)
    old = database.session()
    old.run("begin isolation level repeatable read")
    old.run("select count(*) from pgqueue.jobs")
    first = read_by_one_end()
    rows = reserve(conn, 2_500)
    column(conn, "complete_many", [row.id for row in rows], [row.reservation for row in rows])
    assert read_by_one_end() <= first + 2


def test_an_empty_group_ends_when_it_is_closed(conn: psycopg.Connection) -> None:
    group, _ = group_of(conn)
    outer = call(conn, "open_group", "outer")
    inner = call(conn, "open_group", "inner", group_id=outer)
    assert call(conn, "close_group", group)
    assert job(conn, group).result == {"succeeded": 0, "dead": 0, "cancelled": 0}
    call(conn, "close_group", outer)
    maintain(conn)
    assert state(conn, outer) == "blocked"
    call(conn, "close_group", inner)
    maintain(conn)
    assert (state(conn, inner), state(conn, outer)) == ("succeeded", "succeeded")


@pytest.mark.parametrize(("how", "ends"), [("dead", "dead"), ("cancelled", "cancelled")])
def test_a_group_ends_as_its_members_do(conn: psycopg.Connection, how: str, ends: str) -> None:
    group, members = group_of(conn, 2)
    call(conn, "close_group", group)
    then = enqueue(conn, "then", depends_on=[group])
    always = enqueue(conn, "always", depends_on=[group], run_if="finished")
    alarm = enqueue(conn, "alarm", depends_on=[group], run_if="failed")
    finish(conn, members[0], how)
    finish(conn, members[1])
    maintain(conn)
    assert state(conn, group) == ends
    assert [state(conn, each) for each in (then, always, alarm)] == ["cancelled", "waiting", "waiting"]
    assert job(conn, group).errors[-1]["class"] == "MemberFailed"


def test_only_a_member_adds_members_after_the_group_was_closed(conn: psycopg.Connection) -> None:
    group, [first] = group_of(conn, 1)
    call(conn, "close_group", group)
    held = reserve_one(conn)
    added = enqueue(conn, group_id=first)
    assert job(conn, added).group_id == group
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="is closed"):
        enqueue(conn, group_id=group)
    call(conn, "complete", held.id, held.reservation)
    maintain(conn)
    assert state(conn, group) == "blocked"
    finish(conn, added)
    maintain(conn)
    assert state(conn, group) == "succeeded"


@pytest.mark.parametrize("dies", [True, False])
def test_a_member_that_adds_members_and_dies(conn: psycopg.Connection, dies: bool) -> None:
    group, [first] = group_of(conn, 1)
    call(conn, "close_group", group)
    held = reserve_one(conn)
    added = enqueue(conn, group_id=first)
    assert call(conn, "fail", held.id, held.reservation, retry=not dies, retry_in="0") == ("dead" if dies else "failed")
    finish(conn, added)
    maintain(conn)
    if not dies:
        assert state(conn, group) == "blocked"
        finish(conn, first)
        maintain(conn)
    assert state(conn, group) == ("dead" if dies else "succeeded")


def test_group_id_must_name_a_group_or_a_member(conn: psycopg.Connection) -> None:
    for wrong in (999, enqueue(conn)):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="is no group"):
            enqueue(conn, group_id=wrong)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="is no group"):
        call(conn, "close_group", enqueue(conn))


def test_a_retried_member_brings_the_group_and_its_callbacks_back(conn: psycopg.Connection) -> None:
    group, members = group_of(conn, 2)
    call(conn, "close_group", group)
    then = enqueue(conn, "then", depends_on=[group])
    finish(conn, members[0], "dead")
    finish(conn, members[1])
    maintain(conn)
    assert (state(conn, group), state(conn, then)) == ("dead", "cancelled")
    assert call(conn, "retry", members[0])
    assert (state(conn, group), state(conn, then)) == ("blocked", "blocked")
    finish(conn, members[0])
    maintain(conn)
    assert (state(conn, group), state(conn, then)) == ("succeeded", "waiting")
    assert job(conn, group).result == {"succeeded": 2, "dead": 0, "cancelled": 0}


def test_a_group_itself_is_not_retried(conn: psycopg.Connection) -> None:
    group, [member] = group_of(conn, 1)
    call(conn, "close_group", group)
    finish(conn, member, "dead")
    maintain(conn)
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="is a group"):
        call(conn, "retry", group)
    [row] = table(conn, "retry_many", group_id=group)
    assert (row.changed, state(conn, group), state(conn, member)) == (1, "blocked", "waiting")


def test_cancelling_a_group_cancels_its_members(conn: psycopg.Connection) -> None:
    group, members = group_of(conn, 4)
    inner = call(conn, "open_group", "inner", group_id=group)
    deep = enqueue(conn, group_id=inner)
    held = reserve_one(conn)
    assert call(conn, "cancel", group) == "requested"
    assert value(conn, "select action from pgqueue.audit where (filter ->> 'job_id')::bigint = %s", group) == "cancel"
    maintain(conn)
    assert [state(conn, each) for each in members] == ["executing", "cancelled", "cancelled", "cancelled"]
    assert (state(conn, deep), state(conn, group)) == ("cancelled", "blocked")
    assert call(conn, "fail", held.id, held.reservation) == "cancelled"
    maintain(conn)
    maintain(conn)
    assert (state(conn, inner), state(conn, group)) == ("cancelled", "cancelled")


def test_bulk_calls_find_the_members_of_a_group(conn: psycopg.Connection) -> None:
    group, members = group_of(conn, 5)
    enqueue_many(conn, 3)
    held = reserve_one(conn)
    assert held.id == members[0]
    finish(conn, members[1], "dead")
    [row] = table(conn, "cancel_many", group_id=group, max_jobs=2)
    assert (row.changed, row.left_over) == (2, 2)
    [row] = table(conn, "cancel_many", group_id=group, after=Jsonb(row.next_after))
    assert (row.changed, row.next_after) == (2, None)
    [row] = table(conn, "delete_many", group_id=group, state="cancelled")
    assert row.changed == 3
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="group_id"):
        table(conn, "cancel_many", group_id=group, job_ids=[1])


def test_progress_and_members(conn: psycopg.Connection) -> None:
    group, members = group_of(conn, 5)
    finish(conn, members[0])
    finish(conn, members[1], "dead")
    reserve_one(conn)
    [row] = table(conn, "group_progress", group)
    assert (row.name, row.state, row.is_open, row.total) == ("import", "blocked", True, 5)
    assert (row.succeeded, row.dead, row.executing, row.waiting) == (1, 1, 1, 2)
    assert ids(table(conn, "members", group)) == members
    assert ids(table(conn, "members", group, max=2, after=members[0])) == members[1:3]
    [dead] = table(conn, "members", group, state="dead")
    assert (dead.id, dead.error["class"]) == (members[1], "E")
    assert table(conn, "group_progress", 999) == []
    # Nothing is after the last id that there is.
    assert table(conn, "members", group, after=2**63 - 1) == []
    assert table(conn, "members", None) == []


def test_the_first_members_of_a_large_group_are_read_without_the_others(conn: psycopg.Connection) -> None:
    read = []
    for members in (100, 3000):
        group, ids_of_members = group_of(conn, members)
        conn.execute("vacuum analyze pgqueue.jobs")
        assert ids(table(conn, "members", group, max=10)) == ids_of_members[:10]
        read.append(blocks(conn, f"pgqueue.members({group}, max => 10)"))
    assert read[1] < 1.5 * read[0]


def test_explain_counts_the_members_that_are_left(conn: psycopg.Connection) -> None:
    group, members = group_of(conn, 3)
    [row] = table(conn, "explain", group)
    assert (row.reason, row.detail) == ("group", f"group {group} is open; members that have not ended: 3")
    call(conn, "close_group", group)
    finish(conn, members[0])
    reserve_one(conn)
    [row] = table(conn, "explain", group)
    assert row.detail == f"group {group} waits for 2 members, the oldest {members[1]} (executing)"
    assert row.behind == members[1]


def test_a_group_waits_for_what_it_depends_on(conn: psycopg.Connection) -> None:
    parents = enqueue_many(conn, 2)
    one = call(conn, "open_group", "one", depends_on=[parents[0]])
    other = call(conn, "open_group", "other", depends_on=[parents[1]])
    member = enqueue(conn, group_id=other, delay="1 hour")
    for group in (one, other):
        call(conn, "close_group", group)
    maintain(conn)
    assert state(conn, one) == "blocked"
    finish(conn, parents[0])
    maintain(conn)
    assert state(conn, one) == "succeeded"
    finish(conn, parents[1], "dead")
    maintain(conn)
    maintain(conn)
    assert (state(conn, member), state(conn, other)) == ("cancelled", "cancelled")
    assert job(conn, other).errors[-1]["class"] == "ParentFailed"


def test_a_group_that_was_cancelled_for_a_parent_comes_back_with_it(conn: psycopg.Connection, clock: Clock) -> None:
    parent = enqueue(conn)
    group = call(conn, "open_group", "g", depends_on=[parent])
    inner = call(conn, "open_group", "inner", group_id=group)
    members = [enqueue(conn, group_id=group, delay="1 hour"), enqueue(conn, group_id=inner, delay="1 hour")]
    call(conn, "cancel", members[0])
    members.append(enqueue(conn, group_id=group, delay="1 hour"))
    for each in (inner, group):
        call(conn, "close_group", each)
    then = enqueue(conn, "then", depends_on=[group])
    finish(conn, parent, "dead")
    settle(conn, clock)
    assert [state(conn, each) for each in (inner, group, then, *members)] == ["cancelled"] * 6
    assert call(conn, "retry", parent)
    settle(conn, clock)
    # The one that an operator cancelled stays so.
    assert [state(conn, each) for each in members] == ["cancelled", "waiting", "waiting"]
    assert [state(conn, each) for each in (inner, group, then)] == ["blocked"] * 3
    finish(conn, parent)
    settle(conn, clock)
    assert state(conn, group) == "blocked"
    clock.advance("1 hour")
    for row in reserve(conn, 5):
        assert row.task == "t"
        call(conn, "complete", row.id, row.reservation)
    settle(conn, clock)
    assert job(conn, group).result == {"succeeded": 2, "dead": 0, "cancelled": 1}


def test_a_member_that_died_stays_dead_when_its_group_comes_back(conn: psycopg.Connection, clock: Clock) -> None:
    parent = enqueue(conn, delay="1 min")
    group = call(conn, "open_group", "g", depends_on=[parent])
    member, other = enqueue(conn, group_id=group), enqueue(conn, group_id=group, delay="1 hour")
    call(conn, "close_group", group)
    held = reserve_one(conn)
    # The name of the error that members have which are cancelled with their group.
    call(conn, "fail", held.id, held.reservation, Jsonb({"class": "GroupCancelled"}), retry=False)
    clock.advance("2 min")
    finish(conn, parent, "dead")
    settle(conn, clock)
    assert [state(conn, each) for each in (member, other, group)] == ["dead", "cancelled", "cancelled"]
    call(conn, "retry", parent)
    settle(conn, clock)
    assert [state(conn, each) for each in (member, other, group)] == ["dead", "waiting", "blocked"]


def test_an_empty_group_that_comes_back_ends_with_its_parent(conn: psycopg.Connection, clock: Clock) -> None:
    parent = enqueue(conn)
    group = call(conn, "open_group", "g", depends_on=[parent])
    call(conn, "close_group", group)
    finish(conn, parent, "dead")
    settle(conn, clock)
    assert state(conn, group) == "cancelled"
    assert call(conn, "retry", parent)
    settle(conn, clock)
    assert state(conn, group) == "blocked"
    finish(conn, parent)
    settle(conn, clock)
    assert state(conn, group) == "succeeded"
    assert reserve(conn, 5) == []


def test_a_thousand_members_come_back_in_slices(conn: psycopg.Connection, clock: Clock) -> None:
    parent = enqueue(conn)
    group = call(conn, "open_group", "g", depends_on=[parent])
    enqueue_many(conn, 2_500, group_id=group, delay="1 hour")
    call(conn, "close_group", group)
    finish(conn, parent, "dead")
    settle(conn, clock)
    assert state(conn, group) == "cancelled"
    assert call(conn, "retry", parent)
    settle(conn, clock)
    [progress] = table(conn, "group_progress", group)
    assert (progress.state, progress.waiting, progress.cancelled) == ("blocked", 2_500, 0)


def test_a_deleted_member_is_not_waited_for(conn: psycopg.Connection) -> None:
    group, members = group_of(conn, 2)
    call(conn, "close_group", group)
    call(conn, "delete", members[0])
    finish(conn, members[1])
    maintain(conn)
    assert state(conn, group) == "succeeded"


def test_groups_are_no_queue_of_the_statistics(conn: psycopg.Connection) -> None:
    group_of(conn, 1)
    stats = call(conn, "stats")
    assert [queue["queue"] for queue in stats["queues"]] == ["default"]
    assert stats["total"]["blocked"] == 0


def test_a_bulk_retry_leaves_groups_to_their_members(conn: psycopg.Connection) -> None:
    group, [member] = group_of(conn, 1)
    call(conn, "close_group", group)
    finish(conn, member, "dead")
    maintain(conn)
    [row] = table(conn, "retry_many", job_ids=[group])
    assert (row.changed, state(conn, group)) == (0, "dead")
    [row] = table(conn, "retry_many", everything=True)
    assert (row.changed, state(conn, group)) == (1, "blocked")
    finish(conn, member)
    maintain(conn)
    assert state(conn, group) == "succeeded"


@pytest.mark.parametrize("how", ["dead", "cancelled"])
def test_a_group_knows_members_that_failed_whatever_their_retention(conn: psycopg.Connection, how: str) -> None:
    conn.execute(
        "update pgqueue.settings set retention_dead = '0', retention_cancelled = '0', retention_succeeded = '0'"
    )
    group, members = group_of(conn, 2)
    call(conn, "close_group", group)
    then = enqueue(conn, depends_on=[group], retention="1 day")
    finish(conn, members[0], how)
    finish(conn, members[1])
    maintain(conn)
    assert (state(conn, group), state(conn, then)) == (how, "cancelled")
    assert job(conn, members[1]) is None


def test_a_member_adds_none_to_a_cancelled_group(conn: psycopg.Connection) -> None:
    group, [member] = group_of(conn, 1)
    held = reserve_one(conn)
    call(conn, "cancel", group)
    for joined in (group, member):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="is cancelled"):
            enqueue(conn, group_id=joined)
    call(conn, "complete", held.id, held.reservation)
    maintain(conn)
    assert state(conn, group) == "cancelled"


def test_the_newest_groups_are_listed_beside_many_that_are_open(conn: psycopg.Connection) -> None:
    fill = (
        "insert into pgqueue.jobs (run_at, ready_at, created_at, state, priority, queue, task, args, blocked_on)"
        " select j.run_at, j.ready_at, j.created_at, j.state, j.priority, j.queue, j.task, j.args, j.blocked_on"
        " from pgqueue.jobs j cross join generate_series(1, 10001) where j.id = %s"
    )
    conn.execute(fill, [call(conn, "open_group", "many")])
    newest = call(conn, "open_group", "newest")
    conn.execute("analyze pgqueue.jobs")
    assert [row.id for row in table(conn, "groups", max=1)] == [newest]


def test_explain_counts_the_members_of_a_large_group_up_to_a_bound(conn: psycopg.Connection) -> None:
    group = call(conn, "open_group", "import")
    member = enqueue(conn, group_id=group)
    conn.execute(
        "insert into pgqueue.jobs (run_at, ready_at, created_at, state, priority, queue, task, args, group_id)"
        " select j.run_at, j.ready_at, j.created_at, j.state, j.priority, j.queue, j.task, j.args, j.group_id"
        " from pgqueue.jobs j cross join generate_series(1, 10001) where j.id = %s",
        [member],
    )
    [row] = table(conn, "explain", group)
    assert row.detail == f"group {group} is open; members that have not ended: at least 10000"
