"""Schedules in SQL alone, with the clock moved by hand."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, column, job, maintain, pairs, reserve, stats, value

START = "2030-01-07 00:00:30+00"  # A Monday.


@pytest.fixture(autouse=True)
def _start(conn: psycopg.Connection, clock: Clock) -> None:
    conn.execute("set timezone = 'UTC'")
    clock.set(START)


def schedule(conn: psycopg.Connection, name: str = "s", expression: str | None = "* * * * *", **options: Any) -> Any:
    options.setdefault("task", "t")
    return str(call(conn, "schedule", name, expression, **options))


def history(conn: psycopg.Connection, columns: str = "outcome, at::text") -> list[tuple[Any, ...]]:
    return conn.execute(f"select {columns} from pgqueue.schedule_history order by n".encode()).fetchall()


def run_at(conn: psycopg.Connection) -> list[str]:
    """When the jobs enqueued so far were due, in the order of their ids."""
    return [row[0] for row in conn.execute("select run_at::text from pgqueue.jobs order by id")]


def complete_all(conn: psycopg.Connection) -> None:
    jobs, reservations = pairs(reserve(conn, 100))
    assert column(conn, "complete_many", jobs, reservations) == []


def tick(conn: psycopg.Connection, clock: Clock, to: str) -> None:
    clock.set(to)
    maintain(conn)
    assert stats(conn).maintenance["failures"] == {}


def test_a_job_is_enqueued_at_its_time_with_its_options(conn: psycopg.Connection, clock: Clock) -> None:
    next_at = schedule(
        conn,
        "nightly",
        "30 2 * * *",
        task="report",
        args=Jsonb({"a": 1}),
        timezone="Europe/Berlin",
        queue="reports",
        priority=7,
        max_attempts=3,
        expires_in="1 hour",
        headers=Jsonb({"h": 1}),
        tags=["x"],
        retention="30 days",
    )
    assert next_at == "2030-01-07 01:30:00+00:00"
    tick(conn, clock, "2030-01-07 01:29:59+00")
    assert run_at(conn) == []
    tick(conn, clock, "2030-01-07 01:30:00.4+00")
    [claimed] = reserve(conn, 10, queues=["reports"])
    assert (claimed.task, claimed.args, claimed.priority, claimed.max_attempts) == ("report", {"a": 1}, 7, 3)
    assert claimed.headers["h"] == 1
    assert claimed.headers["schedule"] == "nightly"
    assert claimed.headers["scheduled_at"] == "2030-01-07T01:30:00+00:00"
    row = job(conn, claimed.id)
    assert str(row.run_at) == "2030-01-07 01:30:00+00:00"
    assert row.tags == ["x"]
    assert str(row.expires_at) == "2030-01-07 02:30:00.400000+00:00"
    assert history(conn, "outcome, at::text, job_id, job_state::text")[-1] == (
        "enqueued",
        "2030-01-07 01:30:00+00",
        claimed.id,
        "executing",
    )
    assert value(conn, "select next_at::text from pgqueue.effective_schedules") == "2030-01-08 01:30:00+00"


def test_what_a_task_and_a_queue_say_holds_for_scheduled_jobs(conn: psycopg.Connection, clock: Clock) -> None:
    conn.execute("insert into pgqueue.tasks (name, queue, expires_in) values ('t', 'mail', '1 min')")
    conn.execute("insert into pgqueue.queues (name, priority) values ('mail', 9)")
    schedule(conn)
    tick(conn, clock, "2030-01-07 00:01+00")
    assert conn.execute("select queue, priority, expires_at::text from pgqueue.jobs").fetchall() == [
        ("mail", 9, "2030-01-07 00:02:00+00")
    ]


def test_a_week_of_a_schedule_takes_no_time(conn: psycopg.Connection, clock: Clock) -> None:
    schedule(conn, "six-hourly", "0 */6 * * *")
    schedule(conn, "weekdays", "0 9 * * mon-fri", timezone="America/New_York")
    for hour in range(7 * 24 + 1):
        clock.set(f"{value(conn, 'select %s::timestamptz + %s * interval $$1 h$$', '2030-01-07 00:00:01+00', hour)}")
        maintain(conn)
    counts = dict(conn.execute("select headers ->> 'schedule', count(*) from pgqueue.jobs group by 1").fetchall())
    assert counts == {"six-hourly": 28, "weekdays": 5}
    assert value(conn, "select count(distinct run_at) from pgqueue.jobs where headers ->> 'schedule' = 'weekdays'") == 5


def test_every_counts_from_its_declaration_and_does_not_drift(conn: psycopg.Connection, clock: Clock) -> None:
    assert schedule(conn, expression=None, every="90 s") == "2030-01-07 00:02:00+00:00"
    for at in ("00:02:00.9", "00:03:31.7", "00:05:03.2"):
        tick(conn, clock, f"2030-01-07 {at}+00")
    # Said again, as by each worker that starts, it does not begin anew.
    assert schedule(conn, expression=None, every="90 s") == "2030-01-07 00:06:30+00:00"
    assert run_at(conn) == [f"2030-01-07 00:0{at}+00" for at in ("2:00", "3:30", "5:00")]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"catch_up": "skip"}, []),
        ({"catch_up": "last"}, ["00:05"]),
        ({"catch_up": "all"}, ["00:01", "00:02", "00:03", "00:04", "00:05"]),
        ({"catch_up": "all", "catch_up_cap": 2}, ["00:04", "00:05"]),
        ({}, ["00:05"]),
    ],
)
def test_missed_runs(conn: psycopg.Connection, clock: Clock, options: dict[str, Any], expected: list[str]) -> None:
    schedule(conn, **options)
    tick(conn, clock, "2030-01-07 00:05:30+00")
    assert run_at(conn) == [f"2030-01-07 {at}:00+00" for at in expected]
    passed = history(conn, "passed_from::text")
    assert (("2030-01-07 00:01:00+00",) in passed) == (len(expected) < 5)
    # And on it goes.
    tick(conn, clock, "2030-01-07 00:06:00+00")
    assert run_at(conn) == [f"2030-01-07 {at}:00+00" for at in [*expected, "00:06"]]


@pytest.mark.parametrize("catch_up", ["skip", "last", "all"])
def test_a_run_found_within_ten_seconds_was_not_missed(conn: psycopg.Connection, clock: Clock, catch_up: str) -> None:
    schedule(conn, expression="*/2 * * * * *", catch_up=catch_up)
    tick(conn, clock, "2030-01-07 00:00:37+00")
    assert run_at(conn) == [f"2030-01-07 00:00:{at}+00" for at in (32, 34, 36)]


def test_a_year_of_missed_seconds_is_no_work(conn: psycopg.Connection, clock: Clock) -> None:
    schedule(conn, "cron", "* * * * * *")
    schedule(conn, "every", None, every="1 s")
    schedule(conn, "bursts", "* * 3 5 6 *", catch_up="all", catch_up_cap=3)
    tick(conn, clock, "2030-12-31 12:00:00+00")
    counts = conn.execute("select headers ->> 'schedule', count(*) from pgqueue.jobs group by 1 order by 1").fetchall()
    assert counts == [("bursts", 3), ("cron", 11), ("every", 11)]
    bursts = "select array_agg(run_at::text order by id) from pgqueue.jobs where headers ->> 'schedule' = 'bursts'"
    assert value(conn, bursts) == [f"2030-06-05 03:59:{second}+00" for second in (57, 58, 59)]


def test_overlap_skip_leaves_a_run_out_while_the_last_one_lives(conn: psycopg.Connection, clock: Clock) -> None:
    schedule(conn, overlap="skip")
    for minute in (1, 2, 3):
        tick(conn, clock, f"2030-01-07 00:0{minute}:00+00")
    assert [row[0] for row in history(conn)] == ["planned", "enqueued", "overlap", "overlap"]
    complete_all(conn)
    tick(conn, clock, "2030-01-07 00:04:00+00")
    assert run_at(conn) == ["2030-01-07 00:04:00+00"]
    # One that was started by hand lives as well.
    complete_all(conn)
    call(conn, "run_schedule_now", "s")
    tick(conn, clock, "2030-01-07 00:05:00+00")
    assert history(conn)[-1] == ("overlap", "2030-01-07 00:05:00+00")


def test_overlap_skip_does_so_for_as_long_as_the_job_lives(conn: psycopg.Connection, clock: Clock) -> None:
    schedule(conn, expression="0 0 * * *", overlap="skip")
    for day in range(8, 20):
        tick(conn, clock, f"2030-01-{day:02}")
    assert run_at(conn) == ["2030-01-08 00:00:00+00"]
    complete_all(conn)
    tick(conn, clock, "2030-01-20")
    assert run_at(conn) == ["2030-01-20 00:00:00+00"]


def test_overlap_skip_sees_the_scheduled_job_behind_one_that_was_started_by_hand(
    conn: psycopg.Connection, clock: Clock
) -> None:
    schedule(conn, overlap="skip")
    tick(conn, clock, "2030-01-07 00:01:00+00")
    assert len(reserve(conn, 1, lease="1 day")) == 1
    call(conn, "run_schedule_now", "s")
    complete_all(conn)
    tick(conn, clock, "2030-01-07 00:02:00+00")
    assert history(conn)[-1] == ("overlap", "2030-01-07 00:02:00+00")


def test_overlap_start_starts(conn: psycopg.Connection, clock: Clock) -> None:
    schedule(conn)
    for minute in (1, 2):
        tick(conn, clock, f"2030-01-07 00:0{minute}:00+00")
    assert len(run_at(conn)) == 2


def test_jitter_puts_jobs_off(conn: psycopg.Connection, clock: Clock) -> None:
    for n in range(20):
        schedule(conn, f"s{n}", jitter="30 s")
    tick(conn, clock, "2030-01-07 00:01:00+00")
    [(low, high, distinct)] = conn.execute(
        "select min(run_at), max(run_at), count(distinct run_at) from pgqueue.jobs"
    ).fetchall()
    assert str(low) > "2030-01-07 00:01:00"
    assert str(high) < "2030-01-07 00:01:30.000001"
    assert distinct == 20
    assert len(reserve(conn, 100)) < 20


def test_a_paused_schedule_runs_nothing_and_resumes_from_now(conn: psycopg.Connection, clock: Clock) -> None:
    schedule(conn, catch_up="all")
    assert call(conn, "pause_schedule", "s") is True
    assert call(conn, "pause_schedule", "s") is False
    tick(conn, clock, "2030-01-07 00:05:30+00")
    assert run_at(conn) == []
    assert stats(conn).schedules == {"count": 1, "paused": 1, "lag": 0, "failures": {}}
    # A worker that starts declares it again; the pause stands.
    schedule(conn, catch_up="all")
    tick(conn, clock, "2030-01-07 00:06:30+00")
    assert run_at(conn) == []
    assert call(conn, "resume_schedule", "s") is True
    assert call(conn, "resume_schedule", "s") is False
    tick(conn, clock, "2030-01-07 00:07:00+00")
    assert run_at(conn) == ["2030-01-07 00:07:00+00"]


def test_run_now_changes_no_time(conn: psycopg.Connection, clock: Clock) -> None:
    schedule(conn, args=Jsonb({"a": 1}))
    call(conn, "pause_schedule", "s")
    job_id = call(conn, "run_schedule_now", "s")
    assert job(conn, job_id).args == {"a": 1}
    call(conn, "resume_schedule", "s")
    tick(conn, clock, "2030-01-07 00:01:00+00")
    assert len(run_at(conn)) == 2
    assert call(conn, "run_schedule_now", "nobody") is None


def test_unschedule_removes_it_and_leaves_its_jobs(conn: psycopg.Connection, clock: Clock) -> None:
    schedule(conn)
    tick(conn, clock, "2030-01-07 00:01:00+00")
    assert call(conn, "unschedule", "s") is True
    assert call(conn, "unschedule", "s") is False
    tick(conn, clock, "2030-01-07 00:02:00+00")
    assert len(run_at(conn)) == 1
    # Declared again, it goes on, and what ran does not run again.
    clock.set("2030-01-07 00:00:45+00")
    schedule(conn)
    tick(conn, clock, "2030-01-07 00:01:01+00")
    assert len(run_at(conn)) == 1


def test_a_changed_declaration_counts_from_now(conn: psycopg.Connection, clock: Clock) -> None:
    schedule(conn, expression="0 1 * * *")
    assert schedule(conn, expression="5 0 * * *", task="other") == "2030-01-07 00:05:00+00:00"
    tick(conn, clock, "2030-01-07 00:05:00+00")
    assert value(conn, "select task from pgqueue.jobs") == "other"
    tick(conn, clock, "2030-01-07 01:00:00+00")
    assert len(run_at(conn)) == 1


def test_declaring_the_same_again_writes_nothing(conn: psycopg.Connection) -> None:
    schedule(conn)
    before = value(conn, "select xmin::text from pgqueue.schedules")
    schedule(conn)
    assert value(conn, "select xmin::text from pgqueue.schedules") == before
    assert len(history(conn)) == 1


def test_an_operators_expression_wins_at_once_and_survives_a_deploy(conn: psycopg.Connection, clock: Clock) -> None:
    schedule(conn, expression="0 12 * * *")
    conn.execute("update pgqueue.schedules set expression = '*/2 * * * *', timezone = 'Europe/Berlin'")
    schedule(conn, expression="0 13 * * *")
    tick(conn, clock, "2030-01-07 00:01:00+00")
    tick(conn, clock, "2030-01-07 00:02:00+00")
    assert run_at(conn) == ["2030-01-07 00:02:00+00"]
    conn.execute("update pgqueue.schedules set expression = null, timezone = null")
    tick(conn, clock, "2030-01-07 00:02:01+00")
    assert value(conn, "select next_at::text from pgqueue.effective_schedules") == "2030-01-07 13:00:00+00"


def test_a_broken_schedule_stops_no_other_and_shows_in_stats(conn: psycopg.Connection, clock: Clock) -> None:
    for name in ("a", "broken", "z"):
        schedule(conn, name)
    conn.execute("update pgqueue.schedules set expression = '99 * * * *' where name = 'broken'")
    tick(conn, clock, "2030-01-07 00:01:00+00")
    assert value(conn, "select string_agg(headers ->> 'schedule', ' ' order by id) from pgqueue.jobs") == "a z"
    assert "minute" in stats(conn).schedules["failures"]["broken"]
    # Let be for a minute, so that the others go in one statement again.
    tick(conn, clock, "2030-01-07 00:01:30+00")
    assert [row[0] for row in history(conn)].count("error") == 1
    tick(conn, clock, "2030-01-07 00:02:00+00")
    assert [row[0] for row in history(conn)].count("error") == 2
    conn.execute("update pgqueue.schedules set expression = '*/1 * * * *' where name = 'broken'")
    tick(conn, clock, "2030-01-07 00:02:01+00")
    assert stats(conn).schedules["failures"] == {}
    tick(conn, clock, "2030-01-07 00:03:00+00")
    # And the run that was due by the old rule when maintenance first saw the update.
    assert value(conn, "select count(*) from pgqueue.jobs where headers ->> 'schedule' = 'broken'") == 2
    # A zone that is gone from the system's data.
    conn.execute("update pgqueue.schedules set timezone = 'Mars/Phobos' where name = 'a'")
    tick(conn, clock, "2030-01-07 00:04:00+00")
    assert list(stats(conn).schedules["failures"]) == ["a"]
    assert value(conn, "select count(*) from pgqueue.jobs where headers ->> 'schedule' = 'z'") == 4


def test_broken_ones_among_many_keep_no_other_from_its_time(conn: psycopg.Connection, clock: Clock) -> None:
    for n in range(100):
        schedule(conn, f"s{n:02}")
    conn.execute("update pgqueue.schedules set timezone = 'Mars/Phobos' where name in ('s00', 's37', 's99')")
    tick(conn, clock, "2030-01-07 00:01:00+00")
    assert sorted(stats(conn).schedules["failures"]) == ["s00", "s37", "s99"]
    assert len(run_at(conn)) == 97


def test_after_an_error_the_missed_run_is_made_up_for(conn: psycopg.Connection, clock: Clock) -> None:
    schedule(conn)
    conn.execute("alter table pgqueue.jobs add constraint broken check (task <> 't')")
    tick(conn, clock, "2030-01-07 00:01:00+00")
    assert list(stats(conn).schedules["failures"]) == ["s"]
    conn.execute("alter table pgqueue.jobs drop constraint broken")
    tick(conn, clock, "2030-01-07 00:01:59+00")
    assert run_at(conn) == []
    tick(conn, clock, "2030-01-07 00:02:00+00")
    assert "2030-01-07 00:02:00+00" in run_at(conn)


def test_a_clock_that_steps_back_runs_no_instant_twice(conn: psycopg.Connection, clock: Clock) -> None:
    schedule(conn)
    for minute in range(1, 6):
        tick(conn, clock, f"2030-01-07 00:0{minute}:00+00")
    for minute in range(2, 8):
        tick(conn, clock, f"2030-01-07 00:0{minute}:01+00")
    assert run_at(conn) == [f"2030-01-07 00:0{minute}:00+00" for minute in range(1, 8)]


def test_a_clock_that_was_a_year_ahead_for_a_moment_stops_no_schedule(conn: psycopg.Connection, clock: Clock) -> None:
    schedule(conn, catch_up="skip")
    tick(conn, clock, "2031-01-07 00:01:00+00")
    assert len(run_at(conn)) == 1
    clock.set("2030-01-07 00:02:30+00")
    # Not that of the plan from ahead, until maintenance has made another.
    assert value(conn, "select next_at is null from pgqueue.effective_schedules")
    tick(conn, clock, "2030-01-07 00:02:30+00")
    tick(conn, clock, "2030-01-07 00:03:00+00")
    assert run_at(conn) == ["2031-01-07 00:01:00+00", "2030-01-07 00:03:00+00"]


def test_all_that_is_due_goes_in_the_order_of_its_time(conn: psycopg.Connection, clock: Clock) -> None:
    schedule(conn, "late", "2 0 * * *")
    schedule(conn, "early", "1 0 * * *")
    tick(conn, clock, "2030-01-07 00:02:05+00")
    assert run_at(conn) == ["2030-01-07 00:01:00+00", "2030-01-07 00:02:00+00"]


def test_a_run_takes_a_bounded_number(conn: psycopg.Connection, clock: Clock) -> None:
    for n in range(5):
        schedule(conn, f"s{n}", catch_up="all")
    clock.set("2030-01-07 00:10:00+00")
    # Of ten jobs each: those of the first, and of the second that begins below the limit.
    assert call(conn, "_run_schedules", 15) == 20
    assert call(conn, "_run_schedules", 15) == 20
    assert call(conn, "_run_schedules", 15) == 10
    assert call(conn, "_run_schedules", 15) == 0


def test_runs_are_forgotten_after_a_week_save_where_a_schedule_stands(conn: psycopg.Connection, clock: Clock) -> None:
    schedule(conn, "yearly", "0 0 1 1 *")
    schedule(conn, "gone")
    schedule(conn)
    tick(conn, clock, "2030-01-07 00:01:00+00")
    call(conn, "unschedule", "gone")
    call(conn, "pause_schedule", "s")
    complete_all(conn)
    tick(conn, clock, "2030-01-15 00:00:00+00")
    assert history(conn, "schedule, outcome") == [("yearly", "planned"), ("s", "enqueued")]


def test_a_sleeping_worker_is_woken(conn: psycopg.Connection, clock: Clock) -> None:
    schedule(conn)
    conn.execute(f"listen {call(conn, '_channel', 'idle')}".encode())
    clock.set("2030-01-07 00:00:58+00")
    call(conn, "idle", "idle")
    clock.set("2030-01-07 00:01:00+00")
    maintain(conn)
    assert [note.payload.split()[0] for note in conn.notifies(timeout=60, stop_after=1)] == ["wake"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": None}, "task must be"),
        ({"expression": None}, "either expression or every"),
        ({"every": "1 min"}, "either expression or every"),
        ({"expression": None, "every": "0"}, "every must be"),
        ({"expression": None, "every": "1 month"}, "every must be"),
        ({"expression": "0 0 31 2 *"}, "must have a next time"),
        ({"expression": "60 * * * *"}, "minute of a cron expression must be 0 to 59"),
        ({"timezone": "Mars/Phobos"}, "timezone must be"),
        ({"timezone": "UTC+2"}, "timezone must be"),
        ({"timezone": "IST"}, "timezone must be"),
        ({"timezone": "cet"}, "timezone must be"),
        ({"timezone": "Z"}, "timezone must be"),
        ({"timezone": None}, "timezone must be"),
        ({"timezone": ""}, "timezone must be"),
        ({"catch_up": "some"}, "catch_up must be"),
        ({"catch_up_cap": 0}, "catch_up_cap must be"),
        ({"overlap": "queue"}, "overlap must be"),
        ({"jitter": "-1 s"}, "jitter must be"),
        ({"jitter": "2 days"}, "jitter must be"),
        ({"queue": ""}, "queue must be"),
        ({"priority": 101}, "priority must be"),
        ({"args": Jsonb([1])}, "args must be"),
        ({"headers": Jsonb([1])}, "headers must be"),
        ({"name": ""}, "name must be"),
        ({"name": "x" * 129}, "name must be"),
    ],
)
def test_misuse_is_refused_when_it_is_defined(conn: psycopg.Connection, options: dict[str, Any], message: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=message) as refused:
        schedule(conn, **options)
    assert refused.value.diag.message_hint
    assert value(conn, "select count(*) from pgqueue.schedules") == 0


def test_zones_with_digits_that_exist_are_taken(conn: psycopg.Connection) -> None:
    assert schedule(conn, expression="0 12 * * *", timezone="Etc/GMT-2") == "2030-01-07 10:00:00+00:00"


def test_the_session_does_not_matter(conn: psycopg.Connection, clock: Clock) -> None:
    schedule(conn, expression=None, every="36 hours")
    conn.execute("set timezone = 'Asia/Kolkata'; set datestyle = 'german'; set intervalstyle = 'sql_standard'")
    conn.execute("select pgqueue.schedule('s', task => 't', every => '36 hours')::text")
    conn.execute("select from pgqueue.maintain()")
    assert len(history(conn)) == 1


def test_an_operator_sets_another_expression_and_zone(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "schedule", "s", "0 3 * * *", "t")
    next_at = "select next_at at time zone 'UTC' from pgqueue.effective_schedules"
    assert call(conn, "configure_schedule", "s", "30 4 * * *") is True
    assert call(conn, "configure_schedule", "s", "30 4 * * *") is False
    assert str(value(conn, next_at)).endswith("04:30:00")
    assert call(conn, "configure_schedule", "s", timezone="Etc/GMT+1") is True
    assert str(value(conn, next_at)).endswith("05:30:00")
    # A deploy leaves it as it is.
    call(conn, "schedule", "s", "0 2 * * *", "t")
    assert str(value(conn, next_at)).endswith("05:30:00")
    assert call(conn, "configure_schedule", "s", reset=["expression", "timezone"]) is True
    assert str(value(conn, next_at)).endswith("02:00:00")
    assert call(conn, "configure_schedule", "nobody", "30 4 * * *") is False
    assert value(conn, "select filter from pgqueue.audit where action = 'configure_schedule' order by n limit 1") == {
        "name": "s", "before": {}, "after": {"expression": "30 4 * * *"},
    }  # fmt: skip


def test_an_expression_that_never_comes_is_refused_and_nothing_is_set(conn: psycopg.Connection) -> None:
    call(conn, "schedule", "s", every="5 min", task="t")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="next time"):
        call(conn, "configure_schedule", "s", "0 0 30 2 *")
    assert value(conn, "select expression is null from pgqueue.schedules") is True
    assert call(conn, "configure_schedule", "s", "0 0 1 * *") is True
    assert value(conn, "select every is null from pgqueue.effective_schedules") is True


def test_an_abbreviation_is_refused_with_the_zones_that_it_may_mean_whatever_the_session_takes_it_for(
    conn: psycopg.Connection,
) -> None:
    for taken_for in ("Default", "India"):
        conn.execute(f"set timezone_abbreviations = '{taken_for}'".encode())
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="name of a time zone") as refused:
            schedule(conn, expression="0 12 * * *", timezone="IST")
        assert "Asia/Kolkata" in (refused.value.diag.message_hint or "")
        for name in ("UTC", "gmt", "Japan", "asia/kolkata", "Etc/GMT-2"):
            assert schedule(conn, expression="0 12 * * *", timezone=name)
            conn.execute("update pgqueue.schedules set timezone = %s", [name])
        with pytest.raises(psycopg.errors.CheckViolation, match="timezone"):
            conn.execute("update pgqueue.schedules set timezone = 'IST'")
