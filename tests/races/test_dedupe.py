"""Two sessions and one dedupe key, each dangerous order forced."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.calls import call, column, enqueue, ids, job, reserve, reserve_one, state, table, value
from tests.databases import Database
from tests.facts import wait_until
from tests.sessions import Session

ENQUEUE = "select job_id, outcome from pgqueue.enqueue_outcome('t', %s, dedupe => 'd', on_conflict => %s, delay => %s)"
BATCH = "select array_agg(outcome order by ord) from pgqueue.enqueue_batch(%s)"


@pytest.fixture
def two(database: Database) -> tuple[Session, Session]:
    return database.session(), database.session()


def patience(conn: psycopg.Connection, interval: str) -> None:
    conn.execute("update pgqueue.settings set dedupe_wait = %s", [interval])


@pytest.fixture(autouse=True)
def waits_end_with_what_they_wait_for(conn: psycopg.Connection) -> None:
    """A test that holds a key until it sees who waits for it does not race the usual 5 s."""
    patience(conn, "1 hour")


def options(mode: str = "skip", delay: str | None = None, **args: int) -> list[Any]:
    return [Jsonb(args), mode, "0" if mode == "debounce" and delay is None else delay]


MODES = ["skip", "replace", "merge", "debounce", "raise"]


# A second enqueue while the first is open


@pytest.mark.parametrize("mode", MODES)
def test_a_second_enqueue_inserts_when_the_first_rolls_back(two: tuple[Session, Session], mode: str) -> None:
    first, second = two
    first.run("begin")
    [(lost, _)] = first.run(ENQUEUE, options())
    waits = second.start(ENQUEUE, options(mode))
    wait_until(lambda: second.waits_behind(first))
    first.run("rollback")
    [(job_id, outcome)] = waits.result(timeout=10)
    assert (job_id > lost, outcome) == (True, "inserted")


@pytest.mark.parametrize(
    ("mode", "outcome"), [("skip", "skipped"), ("replace", "replaced"), ("merge", "merged"), ("debounce", "debounced")]
)
def test_a_second_enqueue_meets_the_job_of_the_first_when_that_commits(
    conn: psycopg.Connection, two: tuple[Session, Session], mode: str, outcome: str
) -> None:
    first, second = two
    first.run("begin")
    [(stands, _)] = first.run(ENQUEUE, options(a=1))
    waits = second.start(ENQUEUE, options(mode, b=2))
    wait_until(lambda: second.waits_behind(first))
    first.run("commit")
    assert waits.result(timeout=10) == [(stands, outcome)]
    args = {"replace": {"b": 2}, "merge": {"a": 1, "b": 2}}.get(mode, {"a": 1})
    assert job(conn, stands).args == args
    assert value(conn, "select count(*) from pgqueue.jobs") == 1


def test_raise_waits_for_the_first_to_commit_and_raises_then(two: tuple[Session, Session]) -> None:
    first, second = two
    first.run("begin")
    first.run(ENQUEUE, options())
    waits = second.start(ENQUEUE, options("raise"))
    wait_until(lambda: second.waits_behind(first))
    first.run("commit")
    with pytest.raises(psycopg.errors.UniqueViolation):
        waits.result(timeout=10)


def test_an_enqueue_waits_no_longer_than_dedupe_wait_and_leaves_lock_timeout_alone(
    conn: psycopg.Connection, two: tuple[Session, Session]
) -> None:
    first, second = two
    patience(conn, "200 ms")
    first.run("begin")
    first.run(ENQUEUE, options())
    second.run("set lock_timeout = '30 s'")
    second.run("begin")
    second.run("savepoint s")
    with pytest.raises(psycopg.errors.LockNotAvailable) as refused:
        second.run(ENQUEUE, options())
    assert "dedupe_wait" in (refused.value.diag.message_hint or "")
    assert "'d'" in (refused.value.diag.message_primary or "")
    second.run("rollback to savepoint s")
    assert second.run("show lock_timeout") == [("30s",)]
    second.run(
        "create function pg_temp.try() returns text language plpgsql as $$"
        " begin perform pgqueue.enqueue('t', dedupe => 'd'); return 'enqueued';"
        " exception when lock_not_available then return current_setting('lock_timeout'); end $$"
    )
    assert second.run("select pg_temp.try()") == [("30s",)]
    first.run("rollback")
    assert second.run("select pg_temp.try()") == [("enqueued",)]


def test_a_shorter_lock_timeout_of_the_caller_holds(conn: psycopg.Connection, two: tuple[Session, Session]) -> None:
    first, second = two
    patience(conn, "1 hour")
    first.run("begin")
    first.run(ENQUEUE, options())
    second.run("set lock_timeout = '100ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        second.run(ENQUEUE, options())


def test_a_plain_enqueue_and_one_of_another_key_do_not_wait(two: tuple[Session, Session]) -> None:
    first, second = two
    first.run("begin")
    first.run(ENQUEUE, options())
    second.run("select pgqueue.enqueue('t')")
    second.run("select pgqueue.enqueue('t', dedupe => 'other')")
    second.run("select pgqueue.enqueue('u', dedupe => 'd')")


# The job that stands ends meanwhile


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_an_enqueue_waits_for_an_open_completion_of_the_existing_job(
    conn: psycopg.Connection, two: tuple[Session, Session], mode: str, end: str
) -> None:
    first, second = two
    stands = enqueue(conn, dedupe="d")
    held = reserve_one(conn)
    first.run("begin")
    assert first.run("select pgqueue.complete(%s, %s)", [stands, held.reservation]) == [(True,)]
    waits = second.start(ENQUEUE, options(mode))
    wait_until(lambda: second.waits_behind(first))
    first.run(end)
    if end == "rollback" and mode == "raise":
        with pytest.raises(psycopg.errors.UniqueViolation):
            waits.result(timeout=10)
    else:
        [(job_id, outcome)] = waits.result(timeout=10)
        assert (job_id == stands, outcome) == ((False, "inserted") if end == "commit" else (True, "skipped"))


def test_a_completion_and_a_replace_that_meet_at_the_job_do_not_deadlock(
    conn: psycopg.Connection, two: tuple[Session, Session]
) -> None:
    """The job is locked by an edit; its cancellation waits for the job, and holds nothing that the edit wants."""
    first, second = two
    stands = enqueue(conn, dedupe="d", delay="1 h")
    first.run("begin")
    assert first.run(ENQUEUE, options("replace", "1 h", a=1)) == [(stands, "replaced")]
    ends = second.start("select pgqueue.cancel(%s)", [stands])
    wait_until(lambda: second.waits_behind(first))
    # Again, and by every mode, while the other waits.
    assert first.run(ENQUEUE, options("merge", b=2)) == [(stands, "merged")]
    assert first.run(ENQUEUE, options("skip")) == [(stands, "skipped")]
    first.run("commit")
    assert ends.result(timeout=10) == [("cancelled",)]
    assert job(conn, stands).args == {"a": 1, "b": 2}
    assert value(conn, "select count(*) from pgqueue.dedupe_keys") == 0


@pytest.mark.parametrize("mode", ["replace", "merge", "debounce"])
def test_an_edit_that_waits_for_the_job_while_it_ends_inserts_another(
    conn: psycopg.Connection, two: tuple[Session, Session], mode: str
) -> None:
    first, second = two
    stands = enqueue(conn, dedupe="d", delay="1 h")
    first.run("begin")
    first.run("select 1 from pgqueue.jobs where id = %s for update", [stands])
    waits = second.start(ENQUEUE, options(mode))
    wait_until(lambda: second.waits_behind(first))
    # It holds the job already; to free the key it needs nothing that the edit holds.
    assert first.run("select pgqueue.cancel(%s)", [stands]) == [("cancelled",)]
    first.run("commit")
    [(job_id, outcome)] = waits.result(timeout=10)
    assert (job_id > stands, outcome) == (True, "inserted")


def test_an_edit_gives_up_after_dedupe_wait_where_the_job_is_locked(
    conn: psycopg.Connection, two: tuple[Session, Session]
) -> None:
    first, second = two
    patience(conn, "200 ms")
    stands = enqueue(conn, dedupe="d")
    first.run("begin")
    first.run("select 1 from pgqueue.jobs where id = %s for update", [stands])
    with pytest.raises(psycopg.errors.LockNotAvailable):
        second.run(ENQUEUE, options("merge"))
    # skip locks nothing.
    assert second.run(ENQUEUE, options("skip")) == [(stands, "skipped")]


# An edit against a claim


def test_a_replace_that_comes_after_an_open_claim_leaves_the_job_as_it_is(
    conn: psycopg.Connection, two: tuple[Session, Session]
) -> None:
    first, second = two
    stands = enqueue(conn, "t", {"a": 1}, dedupe="d")
    first.run("begin")
    assert first.run("select id from pgqueue.reserve('w')") == [(stands,)]
    waits = second.start(ENQUEUE, options("replace", b=2))
    wait_until(lambda: second.waits_behind(first))
    first.run("commit")
    assert waits.result(timeout=10) == [(stands, "skipped")]
    assert (job(conn, stands).args, state(conn, stands)) == ({"a": 1}, "executing")


def test_a_claim_that_comes_after_an_open_replace_passes_the_job_over(
    conn: psycopg.Connection, two: tuple[Session, Session]
) -> None:
    first, second = two
    stands = enqueue(conn, "t", {"a": 1}, dedupe="d")
    other = enqueue(conn)
    first.run("begin")
    assert first.run(ENQUEUE, options("replace", b=2)) == [(stands, "replaced")]
    assert second.run("select id from pgqueue.reserve('w', 5)") == [(other,)]
    first.run("commit")
    [held] = reserve(conn)
    assert (held.id, held.args) == (stands, {"b": 2})


# A key whose time is past


def test_one_of_two_takes_over_a_key_whose_time_is_past(
    conn: psycopg.Connection, two: tuple[Session, Session], clock: Any
) -> None:
    first, second = two
    clock.set("2030-01-01 12:00+00")
    enqueue(conn, dedupe="d", dedupe_for="1 h")
    clock.advance("2 h")
    first.run("begin")
    [(taken, outcome)] = first.run(ENQUEUE, options())
    assert outcome == "inserted"
    waits = second.start(ENQUEUE, options())
    wait_until(lambda: second.waits_behind(first))
    first.run("commit")
    assert waits.result(timeout=10) == [(taken, "skipped")]


def test_the_tidying_of_an_expired_key_and_a_takeover_of_it_do_not_wait_for_each_other(
    conn: psycopg.Connection, two: tuple[Session, Session], clock: Any
) -> None:
    first, second = two
    clock.set("2030-01-01 12:00+00")
    enqueue(conn, dedupe="d", dedupe_for="1 h")
    clock.advance("2 h")
    first.run("begin")
    [(taken, _)] = first.run(ENQUEUE, options())
    second.run("select pgqueue._tidy('tidy_dedupe', pgqueue._clock(), 100)")
    first.run("commit")
    assert second.run(ENQUEUE, options()) == [(taken, "skipped")]


# Retry


def test_a_retry_waits_for_an_open_enqueue_of_its_key_and_comes_back_without_it(
    conn: psycopg.Connection, two: tuple[Session, Session]
) -> None:
    first, second = two
    old = enqueue(conn, dedupe="d")
    call(conn, "cancel", old)
    first.run("begin")
    [(new, _)] = first.run(ENQUEUE, options())
    retried = second.start("select pgqueue.retry(%s)", [old])
    wait_until(lambda: second.waits_behind(first))
    first.run("commit")
    assert retried.result(timeout=10) == [(True,)]
    assert (job(conn, old).dedupe, job(conn, new).dedupe) == (None, "d")
    assert sorted(ids(reserve(conn, 5))) == [old, new]


# Batches


def keyed(*names: str, **each: str) -> list[list[Jsonb]]:
    return [[Jsonb({"task": "t", "dedupe": name, **each}) for name in names]]


def test_two_batches_in_opposite_order_do_not_deadlock(database: Database, conn: psycopg.Connection) -> None:
    """Held at their first keys by a third transaction, both go on in one order when it lets them."""
    holder, first, second = (database.session() for _ in range(3))
    holder.run("begin")
    holder.run("select pgqueue.enqueue('t', dedupe => 'm')")
    one = first.start(BATCH, keyed("z", "m", "a"))
    wait_until(lambda: first.waits_behind(holder))
    other = second.start(BATCH, keyed("a", "m", "z"))
    wait_until(lambda: second.waits_behind(first))
    holder.run("rollback")
    assert one.result(timeout=10) == [(["inserted"] * 3,)]
    assert other.result(timeout=10) == [(["skipped"] * 3,)]
    assert value(conn, "select count(*) from pgqueue.jobs") == 3


def test_two_open_batches_in_opposite_order_wait_and_do_not_deadlock(two: tuple[Session, Session]) -> None:
    first, second = two
    first.run("begin")
    assert first.run(BATCH, keyed("b", "a")) == [(["inserted"] * 2,)]
    waits = second.start(BATCH, keyed("a", "b", "c"))
    wait_until(lambda: second.waits_behind(first))
    assert first.run(BATCH, keyed("c", "b")) == [(["inserted", "skipped"],)]
    first.run("commit")
    assert waits.result(timeout=10) == [(["skipped"] * 3,)]


def test_a_key_that_is_held_too_long_is_one_jobs_error_and_the_batch_waits_once(
    conn: psycopg.Connection, two: tuple[Session, Session]
) -> None:
    first, second = two
    patience(conn, "2 s")
    conn.execute(
        "create function public.says_how_long_it_waits() returns trigger language plpgsql as $$"
        " begin raise notice '% %', new.dedupe, current_setting('lock_timeout'); return new; end $$"
    )
    conn.execute(
        "create trigger says before insert on pgqueue.dedupe_keys"
        " for each row execute function public.says_how_long_it_waits()"
    )
    first.run("begin")
    for key in "bcd":
        first.run("select pgqueue.enqueue('t', dedupe => %s)", [key])
    waits: list[str] = []
    second.conn.add_notice_handler(lambda notice: waits.append(str(notice.message_primary)))
    rows = second.run(
        "select outcome, error ->> 'sqlstate', error ->> 'hint' like '%%dedupe_wait%%' from pgqueue.enqueue_batch(%s)",
        keyed(*"eabcdz"),
    )
    assert [row[0] for row in rows] == ["inserted", "inserted", "error", "error", "error", "inserted"]
    assert rows[2][1:] == ("55P03", True)
    # The wait for b takes all the time that the batch has: the keys after it are only tried.
    assert {each for each in waits if each[0] in "cdez"} == {"c 1ms", "d 1ms", "e 1ms", "z 1ms"}


def test_a_deadlock_is_the_callers_and_no_outcome(conn: psycopg.Connection, two: tuple[Session, Session]) -> None:
    first, second = two
    for session, key in ((first, "a"), (second, "b")):
        session.run("begin")
        session.run("select pgqueue.enqueue('t', dedupe => %s)", [key])
    waits = [first.start(BATCH, keyed("b")), second.start(BATCH, keyed("a"))]
    ends: list[Any] = []
    for each, session in zip(waits, two, strict=True):
        try:
            ends.append(each.result(timeout=20))
        except psycopg.errors.DeadlockDetected:
            ends.append("deadlock")
        session.run("rollback")
    assert ends.count("deadlock") == 1, ends


# Above READ COMMITTED


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("mode", MODES)
def test_an_old_snapshot_meets_a_newer_key_with_a_serialization_failure(
    two: tuple[Session, Session], level: str, mode: str
) -> None:
    first, second = two
    second.run(f"begin isolation level {level}")  # type: ignore[arg-type]
    second.run("select count(*) from pgqueue.jobs")
    first.run(ENQUEUE, options())
    with pytest.raises(psycopg.errors.SerializationFailure):
        second.run(ENQUEUE, options(mode))


def test_an_old_snapshot_that_shows_a_job_that_ended_inserts_and_then_meets_its_own(
    conn: psycopg.Connection, two: tuple[Session, Session]
) -> None:
    _, second = two
    gone = enqueue(conn, dedupe="d")
    second.run("begin isolation level repeatable read")
    second.run("select count(*) from pgqueue.jobs")
    call(conn, "cancel", gone)
    [(own, outcome)] = second.run(ENQUEUE, options())
    assert (own > gone, outcome) == (True, "inserted")
    assert second.run("select count(*) from pgqueue.dedupe_keys") == [(2,)]
    for mode, outcome in (("skip", "skipped"), ("merge", "merged"), ("replace", "replaced")):
        assert second.run(ENQUEUE, options(mode)) == [(own, outcome)]
    second.run("commit")
    assert enqueue(conn, dedupe="d") == own


# Supersede


def in_its_own_transaction(database: Database, held: Any) -> psycopg.Connection:
    """A handler that began its own transaction, as job.transaction() does."""
    handler = database.connect(autocommit=False)
    assert call(handler, "hold", held.id, held.reservation) is True
    return handler


def end(conn: psycopg.Connection, how: str, held: Any) -> None:
    """End the attempt; it is retried, or goes back."""
    pair = (held.id, held.reservation)
    if how in ("fail", "throttled", "snooze"):
        call(conn, how, *pair, **({} if how == "fail" else {"delay": "1 s"}))
    elif how == "exchange":
        call(conn, "exchange", "w", failed=[pair[0]], failed_reservations=[pair[1]])
    elif how == "release":
        column(conn, "release", [pair[0]], [pair[1]])
    else:
        assert column(conn, "release_unheld", "w") == [held.id]


ENDS = ["fail", "exchange", "release", "snooze", "throttled", "died"]


@pytest.mark.parametrize("how", ENDS)
def test_an_enqueue_does_not_wait_for_the_handler_that_it_supersedes(
    database: Database, conn: psycopg.Connection, how: str
) -> None:
    first = enqueue(conn, dedupe="d")
    held = reserve_one(conn)
    handler = in_its_own_transaction(database, held)
    hears = database.connect()
    hears.execute(f"listen {value(conn, 'select pgqueue._channel(%s)', 'w')}".encode())
    conn.execute("set lock_timeout = '5s'")
    second = enqueue(conn, dedupe="d", on_conflict="supersede")
    # It is asked while its row is locked.
    assert [each.payload for each in hears.notifies(timeout=10, stop_after=1)] == ["cancel"]
    [extended] = table(conn, "extend", [first], [held.reservation])
    assert extended.cancel_requested is True
    [why] = table(conn, "explain", first)
    assert why.reason == "cancelling"
    handler.rollback()
    # Nothing has read the note yet.
    end(conn, how, held)
    assert (state(conn, first), state(conn, second)) == ("cancelled", "waiting")


@pytest.mark.parametrize("how", ENDS)
def test_an_attempt_that_ends_before_the_enqueue_commits_is_the_last(
    database: Database, conn: psycopg.Connection, how: str
) -> None:
    first = enqueue(conn, dedupe="d", retry_policy="fixed", retry_delay="1 hour")
    held = reserve_one(conn)
    handler = in_its_own_transaction(database, held)
    producer = database.connect(autocommit=False)
    second = enqueue(producer, dedupe="d", on_conflict="supersede")
    handler.rollback()
    end(conn, how, held)
    # The request is not committed: it may still be rolled back.
    assert state(conn, first) in ("failed", "waiting")
    producer.commit()
    wait_until(lambda: call(conn, "maintain") is not None and state(conn, first) == "cancelled")
    assert state(conn, second) == "waiting"


def test_a_superseded_job_that_is_reserved_again_before_the_enqueue_commits_is_asked(
    database: Database, conn: psycopg.Connection
) -> None:
    first = enqueue(conn, dedupe="d")
    held = reserve_one(conn)
    handler = in_its_own_transaction(database, held)
    producer = database.connect(autocommit=False)
    second = enqueue(producer, dedupe="d", on_conflict="supersede")
    handler.rollback()
    end(conn, "release", held)
    again = reserve_one(conn)
    assert again.id == first
    handler = in_its_own_transaction(database, again)
    producer.commit()
    [extended] = table(conn, "extend", [first], [again.reservation])
    assert extended.cancel_requested is True
    handler.rollback()
    end(conn, "fail", again)
    assert (state(conn, first), ids(reserve(conn, 9))) == ("cancelled", [second])


def test_a_request_that_is_rolled_back_leaves_the_handler_alone(database: Database, conn: psycopg.Connection) -> None:
    first = enqueue(conn, dedupe="d")
    held = reserve_one(conn)
    handler = in_its_own_transaction(database, held)
    producer = database.connect(autocommit=False)
    enqueue(producer, dedupe="d", on_conflict="supersede")
    producer.rollback()
    [extended] = table(conn, "extend", [first], [held.reservation])
    assert extended.cancel_requested is False
    handler.rollback()
    assert call(conn, "fail", first, held.reservation) == "failed"


def test_a_superseded_member_of_a_batch_is_cancelled_and_the_others_come_back(
    database: Database, conn: psycopg.Connection
) -> None:
    call(conn, "configure_task", "t", accumulate=True)
    made = [enqueue(conn, args={"n": n}, key="k", dedupe=f"d{n}") for n in range(3)]
    held = reserve(conn, 1, lease="1 hour")
    assert ids(held) == made
    handler = database.connect(autocommit=False)
    assert [call(handler, "hold", row.id, row.reservation) for row in held] == [True] * 3
    enqueue(conn, key="k", dedupe="d1", on_conflict="supersede")
    handler.rollback()
    assert call(conn, "fail", held[0].id, held[0].reservation) == "failed"
    assert [state(conn, job_id) for job_id in made] == ["failed", "cancelled", "failed"]


def test_a_superseded_job_that_its_handler_completes_meanwhile_has_succeeded(
    database: Database, conn: psycopg.Connection
) -> None:
    first = enqueue(conn, dedupe="d")
    held = reserve_one(conn)
    handler = in_its_own_transaction(database, held)
    second = enqueue(conn, dedupe="d", on_conflict="supersede")
    assert call(handler, "complete", first, held.reservation)
    handler.commit()
    wait_until(lambda: call(conn, "maintain") is not None and value(conn, "select count(*) = 0 from pgqueue.notes"))
    assert (state(conn, first), enqueue(conn, dedupe="d")) == ("succeeded", second)


def test_a_job_ends_beside_an_open_enqueue_that_supersedes_it(database: Database, conn: psycopg.Connection) -> None:
    first = enqueue(conn, dedupe="d")
    held = reserve_one(conn)
    producer = database.connect(autocommit=False)
    # The row of the key alone is locked: that of the job is, too, for it is asked to cancel.
    producer.execute("update pgqueue.dedupe_keys set job_id = job_id where dedupe = 'd'")
    conn.execute("set lock_timeout = '5s'")
    assert call(conn, "complete", first, held.reservation) is True
    second = enqueue(producer, dedupe="d", on_conflict="supersede")
    producer.commit()
    assert (state(conn, first), enqueue(conn, dedupe="d")) == ("succeeded", second)


def test_two_enqueues_that_supersede_the_same_job_take_turns(two: tuple[Session, Session]) -> None:
    first, second = two
    [(stands, _)] = first.run(ENQUEUE, options())
    first.run("begin")
    [(kept, outcome)] = first.run(ENQUEUE, options("supersede"))
    assert (kept > stands, outcome) == (True, "superseded")
    waits = second.start(ENQUEUE, options("supersede"))
    wait_until(lambda: second.waits_behind(first))
    first.run("commit")
    [(last, outcome)] = waits.result(timeout=10)
    assert (last > kept, outcome) == (True, "superseded")
    [(states,)] = first.run("select array_agg(state::text order by id) from pgqueue.all_jobs")
    assert states == ["cancelled", "cancelled", "waiting"]
