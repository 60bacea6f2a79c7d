"""why_late(): the first cause that holds, with its evidence and the command that mends it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import Row, call, enqueue, enqueue_many, maintain, reserve, table, value
from tests.databases import Database
from tests.facts import wait_until

NOON = "2030-01-01 12:00+00"


@pytest.fixture(autouse=True)
def noon(clock: Clock) -> None:
    clock.set(NOON)


def why(conn: psycopg.Connection, queue: str = "default") -> Row:
    [row] = table(conn, "why_late", queue)
    return row


def hello(conn: psycopg.Connection, worker: str = "w", queues: list[str] | None = None, **info: Any) -> None:
    call(conn, "hello", worker, queues, Jsonb({"concurrency": 2, **info}))


def beat(conn: psycopg.Connection, *jobs: dict[str, Any], worker: str = "w") -> None:
    call(conn, "beat", worker, Jsonb({"jobs": list(jobs)}))


def doctor(conn: psycopg.Connection, topic: str) -> list[Row]:
    return [row for row in table(conn, "doctor") if row.topic == topic]


def start(conn: psycopg.Connection, jobs: int, worker: str = "w") -> None:
    """A worker reserves jobs with a long lease, and says that their handlers run."""
    held = table(conn, "reserve", worker, jobs, lease="5 hours")
    assert len(held) == jobs
    call(conn, "started", [each.id for each in held], [each.reservation for each in held])


def test_a_queue_in_which_nothing_waits_is_on_time(conn: psycopg.Connection) -> None:
    assert (why(conn).cause, why(conn).lag, why(conn).stuck_for) == ("on_time", 0, 0)
    assert table(conn, "why_late") == []


def test_a_paused_queue_says_since_when_and_its_remedy_resumes_it(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue_many(conn, 3)
    call(conn, "pause_queue", "default")
    clock.advance("1 hour")
    found = why(conn)
    assert (found.severity, found.cause, found.stuck_for) == ("info", "paused", 0)
    assert "3 jobs" in found.evidence
    conn.execute(found.remedy.encode())
    assert why(conn).cause == "no_worker"


@pytest.mark.parametrize(("kind", "target", "paused"), [("task", "t", "t"), ("limit_key", "tenant:a", "tenant:*")])
def test_jobs_of_a_task_or_tenant_that_an_operator_paused_are_not_stuck_and_are_listed(
    conn: psycopg.Connection, clock: Clock, kind: str, target: str, paused: str
) -> None:
    hello(conn)
    call(conn, "pause", kind, paused)
    for key in (None, "k"):
        enqueue(conn, limit_key="tenant:a", key=key)
    reserve(conn, 5)
    clock.advance("2 hours")
    hello(conn)
    assert [(each.cause, each.stuck_for) for each in table(conn, "why_late")] == [("paused", 0)]
    maintain(conn)
    assert [(each.cause, each.stuck_for) for each in table(conn, "why_late")] == [("paused", 0)]
    for recent in (True, False):
        assert value(conn, "select pgqueue.stats(recent => %s) -> 'total' -> 'stuck_for'", recent) == 0
    metrics = "select labels ->> 'cause', value from pgqueue.metrics() where name = %s"
    assert conn.execute(metrics, ["pgqueue_queue_stuck_seconds"]).fetchall() == [(None, 0)]
    # The alert of a pause that was forgotten stands on it.
    assert conn.execute(metrics, ["pgqueue_queue_late_seconds"]).fetchall() == [("paused", 7200)]
    # What is throttled is nobody's intention.
    call(conn, "resume", kind, paused, "operator")
    call(conn, "throttle", kind, target, "1 day")
    reserve(conn, 5)
    clock.advance("10 min")
    hello(conn)
    assert (why(conn).cause, why(conn).stuck_for >= 600) == ("throttled", True)


def test_jobs_at_a_limit_beside_a_paused_task_are_listed_no_earlier(conn: psycopg.Connection, clock: Clock) -> None:
    hello(conn)
    call(conn, "pause", "task", "other")
    call(conn, "set_limit", "limit_key", "tenant:*", max_executing=1)
    enqueue_many(conn, 5, limit_key="tenant:a")
    start(conn, 1)
    reserve(conn, 5)
    for minutes, listed in ((4, []), (2, ["limit"])):
        clock.advance(timedelta(minutes=minutes))
        hello(conn)
        maintain(conn)
        assert [each.cause for each in table(conn, "why_late")] == listed


@pytest.mark.parametrize("rule", ["limit", "pause"])
def test_a_queue_is_stuck_behind_the_blocked_jobs_of_other_queues_as_well(
    conn: psycopg.Connection, clock: Clock, rule: str
) -> None:
    hello(conn)
    if rule == "limit":
        call(conn, "set_limit", "task", "t", max_executing=1)
    else:
        call(conn, "pause", "task", "t")
    enqueue_many(conn, 300, queue="a")
    enqueue_many(conn, 30, queue="b")
    for _ in range(5):
        reserve(conn, 100)
    clock.advance("1 hour")
    hello(conn)
    for _ in range(2):
        # First they are counted, then a sample tells of them.
        found = why(conn, "b")
        assert (found.cause, found.stuck_for) == {"limit": ("limit", 3600), "pause": ("paused", 0)}[rule]
        assert {row.queue_name for row in table(conn, "why_late")} == {"a", "b"}
        late = (
            "select value from pgqueue.metrics() where name = 'pgqueue_queue_late_seconds' and labels ->> 'queue' = 'b'"
        )
        assert value(conn, late) == 3600
        maintain(conn)
        hello(conn)


def test_a_sample_says_that_a_queue_is_stuck_behind_more_jobs_than_are_read(
    conn: psycopg.Connection, clock: Clock
) -> None:
    hello(conn)
    call(conn, "set_limit", "task", "t", max_executing=1)
    enqueue(conn, queue="a", priority=1)
    enqueue_many(conn, 3, queue="b")
    reserve(conn, 10)
    conn.execute(
        "insert into pgqueue.jobs (run_at, ready_at, created_at, state, priority, queue, task, args, blocked_on)"
        " select j.run_at, j.ready_at, j.created_at, 'blocked', 1, 'a', j.task, j.args, j.blocked_on"
        " from (select x.* from pgqueue.jobs x where x.queue = 'b' limit 1) j cross join generate_series(1, 10001)"
    )
    clock.advance("1 hour")
    maintain(conn)
    hello(conn)
    found = why(conn, "b")
    assert (found.cause, found.subject, found.stuck_for) == ("limit", "b", 3600)
    assert "3 jobs blocked" in found.evidence


def test_large_numbers_are_written_with_commas(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 1500)
    call(conn, "pause_queue", "default")
    assert why(conn).evidence.startswith("the queue has 1,500 jobs due, and is paused since")


def test_a_limit_is_named_with_how_many_wait_for_it(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "set_limit", "limit_key", "tenant:*", max_executing=1)
    enqueue_many(conn, 5, limit_key="tenant:a")
    start(conn, 1)
    reserve(conn, 5)
    clock.advance("10 min")
    hello(conn)
    found = why(conn)
    assert (found.severity, found.cause, found.subject, found.lag) == ("warning", "limit", "limit_key:tenant:a", 0)
    assert (
        "1 of 1 jobs execute under the limit limit_key:tenant:a (set for tenant:*); it holds back 4 jobs"
        in found.evidence
    )
    assert found.stuck_for == 600
    assert found.remedy.endswith("pgqueue limits set limit_key 'tenant:*' --max-executing 2")


@pytest.mark.parametrize(
    ("parts", "flags"),
    [
        ({"max_executing": 1, "rate": 9, "per": "1 h", "burst": 4}, "--max-executing 2"),
        ({"max_executing": 50, "rate": 1, "per": "1 h"}, "--rate 2 --per 01:00:00"),
        ({"max_executing": 50, "max_cost": 1}, "--max-cost 2"),
    ],
)
def test_the_command_that_raises_a_limit_of_a_prefix_changes_that_row(
    conn: psycopg.Connection, clock: Clock, parts: dict[str, Any], flags: str
) -> None:
    call(conn, "set_limit", "limit_key", "tenant:*", **parts)
    enqueue_many(conn, 5, limit_key="tenant:a", cost=1)
    start(conn, 1)
    reserve(conn, 5)
    clock.advance("10 min")
    hello(conn)
    remedy = why(conn).remedy
    assert remedy.endswith(f"pgqueue limits set limit_key 'tenant:*' {flags}")
    # Followed, it lets the next job start, and leaves the other parts as they are.
    options = dict(zip((flag[2:].replace("-", "_") for flag in flags.split()[::2]), flags.split()[1::2], strict=True))
    before = value(conn, "select to_jsonb(l) from pgqueue.limits l")
    call(conn, "set_limit", "limit_key", "tenant:*", **options)
    after = value(conn, "select to_jsonb(l) from pgqueue.limits l")
    assert {part for part in after if after[part] != before[part]} - {"set_at"} == {next(iter(options))}


def test_the_command_that_raises_a_limit_names_its_part_alone(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "set_limit", "limit_key", "tenant:*", max_executing=9, rate=90, per="1 min")
    call(conn, "set_limit", "limit_key", "tenant:a", max_cost=1)
    enqueue_many(conn, 5, limit_key="tenant:a", cost=1)
    start(conn, 1)
    reserve(conn, 5)
    clock.advance("10 min")
    hello(conn)
    assert why(conn).remedy.endswith("pgqueue limits set limit_key tenant:a --max-cost 2")


def test_a_rate_is_raised_by_its_rate(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "set_limit", "task", "call api", max_executing=50, rate=2, per="1 hour")
    enqueue_many(conn, 5, "call api")
    hello(conn)
    start(conn, 2)
    reserve(conn, 5)
    clock.advance("10 min")
    hello(conn)
    found = why(conn)
    assert (found.cause, found.subject) == ("limit", "task:call api")
    assert found.remedy.endswith("pgqueue limits set task 'call api' --rate 4 --per 01:00:00")


def test_a_pause_that_was_left_for_a_day_is_a_trouble(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "pause_queue", "default")
    enqueue(conn)
    clock.advance("23 hours")
    assert (why(conn).severity, why(conn).cause) == ("info", "paused")
    clock.advance("2 hours")
    assert (why(conn).severity, why(conn).cause) == ("warning", "paused")
    # One finding, and not one of the queue and one of the pause.
    assert [row.severity for row in doctor(conn, "paused")] == ["warning"]


def test_a_limit_of_the_queue_holds_back_jobs_that_are_due(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "set_limit", "queue", "default", max_executing=1)
    enqueue_many(conn, 5)
    start(conn, 1)
    clock.advance("1 min")
    hello(conn)
    assert (why(conn).cause, why(conn).subject) == ("limit", "queue:default")
    assert "it holds back 4 jobs" in why(conn).evidence


def test_the_job_that_blocks_a_key_is_named_though_nothing_is_due(conn: psycopg.Connection, clock: Clock) -> None:
    first, *_ = enqueue_many(conn, 37, key="order:1")
    enqueue_many(conn, 2, key="order:2")
    start(conn, 1)
    while reserve(conn, 40):
        pass
    clock.advance("20 min")
    maintain(conn)
    hello(conn)
    found = why(conn)
    assert (found.cause, found.subject, found.lag, found.stuck_for) == ("key", "order:1", 0, 1200)
    assert (
        f"the queue has 37 jobs blocked, most behind key order:1: job {first} of key order:1 executes" in found.evidence
    )
    assert f"pgqueue jobs cancel {first}" in found.remedy
    # The number that alerts stand on.
    [queue] = value(conn, "select pgqueue.stats(recent => true) -> 'queues'")
    assert (queue["lag"], queue["stuck_for"]) == (0, 1200)
    metric = "select value from pgqueue.metrics() where name = 'pgqueue_queue_stuck_seconds'"
    assert value(conn, metric) == 1200
    assert [each.queue_name for each in table(conn, "why_late")] == ["default"]


def test_a_stuck_queue_is_listed_also_while_no_worker_takes_samples(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue_many(conn, 3, key="order:1")
    start(conn, 1)
    while reserve(conn, 40):
        pass
    clock.advance("20 min")
    assert value(conn, "select count(*) from pgqueue.samples") == 0
    assert [(each.queue_name, each.cause) for each in table(conn, "why_late")] == [("default", "key")]


def test_a_queue_without_a_living_worker_and_one_whose_worker_is_quiet(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue(conn, queue="mail")
    assert (why(conn, "mail").severity, why(conn, "mail").cause) == ("info", "no_worker")
    assert table(conn, "why_late") == []
    clock.advance("1 min")
    assert (why(conn, "mail").severity, why(conn, "mail").cause) == ("critical", "no_worker")
    assert why(conn, "mail").remedy == "pgqueue worker -r MODULE --queue mail"
    hello(conn, "w", ["mail"])
    call(conn, "quiet_worker", "w")
    found = why(conn, "mail")
    assert "worker w serves it, and an operator made it quiet" in found.evidence
    conn.execute(found.remedy.encode())
    assert why(conn, "mail").cause != "no_worker"


def test_an_unknown_task_and_the_name_that_is_nearest(conn: psycopg.Connection, clock: Clock) -> None:
    hello(conn)
    call(conn, "declare_task", "send_email")
    enqueue(conn, "sned_email")
    clock.advance("20 min")
    hello(conn)
    maintain(conn)
    found = why(conn)
    assert (found.cause, found.subject, found.stuck_for) == ("unknown_task", "sned_email", 1200)
    assert "did you mean send_email?" in found.evidence
    assert value(conn, "select pgqueue.stats(recent => true) -> 'total' -> 'stuck_for'") == 1200


def test_slots_that_are_taken_by_what_does_not_end(conn: psycopg.Connection, clock: Clock) -> None:
    hello(conn)
    for _ in range(3):
        run = {"sum": 160, "max": 16, "buckets": [0, 0, 0, 0, 0, 0, 0, 20, 0, 0, 0, 0]}
        beat(conn, {"queue": "default", "task": "review", "started": 20, "succeeded": 20, "run": run})
        clock.advance("10 min")
        maintain(conn)
    first, *_ = enqueue_many(conn, 10, "review")
    enqueue(conn, "other")
    enqueue(conn, "pay", queue="payouts")
    start(conn, 2)
    clock.advance("70 s")
    hello(conn)
    # Not ten times the p95, which is 14.9 s.
    assert why(conn).cause != "slots"
    clock.advance("40 min")
    hello(conn)
    for queue in ("default", "payouts"):
        found = why(conn, queue)
        assert (found.severity, found.cause, found.subject) == ("critical", "slots", "review")
        assert found.evidence == (
            "review takes 2 of 2 slots of worker w, the oldest for 41 min, and it usually takes at most 15 s"
        )
        assert found.remedy == f"pgqueue jobs stack {first}; pgqueue jobs cancel --task review --state executing"
    [finding] = doctor(conn, "slots")
    assert "late by it: default (41 min), payouts (41 min)" in finding.evidence
    assert doctor(conn, "lag") == []
    waits = value(conn, "select id from pgqueue.jobs where task = 'other'")
    assert "review takes 2 of 2 slots of worker w" in table(conn, "explain", waits)[0].detail


def test_slots_count_as_taken_too_long_by_what_the_task_did_within_its_first_ten_minutes(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2030-01-01 12:01+00")
    hello(conn)
    run = {"sum": 10, "max": 0.9, "buckets": [0, 0, 0, 0, 0, 20, 0, 0, 0, 0, 0, 0]}
    beat(conn, {"queue": "default", "task": "review", "started": 20, "succeeded": 20, "run": run})
    maintain(conn)
    enqueue_many(conn, 5, "review")
    start(conn, 2)
    clock.advance("2 min")
    hello(conn)
    assert why(conn).evidence.endswith("the oldest for 2 min, and it usually takes at most 0.9 s")


def test_handlers_that_do_not_end_when_cancelled_are_killed_by_their_process(
    conn: psycopg.Connection, clock: Clock
) -> None:
    hello(conn)
    first, second, *_ = enqueue_many(conn, 5, "review")
    start(conn, 2)
    clock.advance("20 min")
    hello(conn)
    call(conn, "cancel", first)
    clock.advance("20 s")
    hello(conn)
    # Not all of them were asked.
    assert why(conn).remedy.endswith("pgqueue jobs cancel --task review --state executing")
    call(conn, "cancel", second)
    assert "they were asked to cancel" not in why(conn).evidence
    clock.advance("20 s")
    hello(conn)
    found = why(conn)
    assert found.cause == "slots"
    assert found.evidence.endswith("; they were asked to cancel, and do not end")
    assert found.remedy == f"pgqueue jobs stack {first}; pgqueue workers kill --job {first}"


def test_a_job_that_blocks_its_key_and_does_not_end_when_cancelled(conn: psycopg.Connection, clock: Clock) -> None:
    first, *_ = enqueue_many(conn, 5, key="order:1")
    start(conn, 1)
    while reserve(conn, 5):
        pass
    clock.advance("20 min")
    hello(conn)
    assert why(conn).remedy.endswith(f"pgqueue jobs cancel {first}")
    call(conn, "cancel", first)
    clock.advance("20 s")
    assert why(conn).remedy.endswith(f"pgqueue workers kill --job {first}")


def test_a_worker_that_serves_other_queues_first(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue_many(conn, 20, queue="webhooks")
    clock.advance("1 s")
    enqueue(conn, queue="mail")
    clock.advance("1 min")
    hello(conn)
    found = why(conn, "mail")
    assert (found.cause, found.evidence) == ("starved", "its workers serve first: queue webhooks, priority 0 (20 due)")
    conn.execute(found.remedy.partition("; or")[0].encode())
    assert why(conn, "mail").cause != "starved"


def test_the_command_that_starts_a_worker_for_a_queue_with_a_comma_gives_its_weight(
    conn: psycopg.Connection, clock: Clock
) -> None:
    enqueue(conn, queue="a,b")
    clock.advance("1 min")
    assert why(conn, "a,b").remedy == "pgqueue worker -r MODULE --queue 'a,b,1'"


@pytest.mark.parametrize("kind", ["tenant", "task"])
def test_a_flood_says_of_whom_how_many_and_since_when(conn: psycopg.Connection, clock: Clock, kind: str) -> None:
    hello(conn)
    usual = [{"queue": "default", "task": task, "started": n} for task, n in (("t", 95), ("import", 5))]
    beat(conn, *usual)
    maintain(conn)
    clock.advance("10 min")
    maintain(conn)
    enqueue_many(conn, 4, limit_key="tenant:b" if kind == "tenant" else None)
    for _ in range(2):
        enqueue_many(conn, 20, "import" if kind == "task" else "t", limit_key="tenant:a" if kind == "tenant" else None)
    clock.advance("1 min")
    hello(conn)
    found = why(conn)
    assert (found.cause, found.subject) == ("flood", "import" if kind == "task" else "tenant:a")
    assert found.evidence.startswith(
        f"about 40 (91 %) of the 44 jobs that are due are of {kind} {found.subject}, enqueued since"
    )
    assert ("of the starts within a day it had" in found.evidence) == (kind == "task")
    assert ("within a day it had 5 %" in found.evidence) == (kind == "task")
    # Half of the two slots of its worker.
    assert found.remedy.endswith("--max-executing 1")
    if kind == "tenant":
        # The row that the command writes takes the place of the prefix's.
        call(conn, "set_limit", "limit_key", "tenant:*", max_executing=50, rate=90, per="1 min", max_cost=70, burst=60)
        assert why(conn).remedy.endswith(
            "limit_key tenant:a --max-executing 1 --rate 90 --per 00:01:00 --max-cost 70 --burst 60"
        )
        call(conn, "set_limit", "limit_key", "tenant:a", max_executing=50)
        assert why(conn).remedy.endswith("limit_key tenant:a --max-executing 1")


def test_too_few_workers_with_what_comes_in_and_what_starts(conn: psycopg.Connection, clock: Clock) -> None:
    hello(conn)
    for n in range(12):
        enqueue_many(conn, 30 if n else 400)
        beat(conn, {"queue": "default", "task": "t", "started": 20})
        table(conn, "reserve", "gone", 20, lease="5 hours")
        clock.advance("10 s")
        maintain(conn)
    hello(conn)
    start(conn, 2)
    found = why(conn)
    assert found.cause == "workers"
    assert "executing jobs take 2 of 2 slots of worker w" in found.evidence
    assert "2.18 a second start and 3.18 come in: they do not get fewer" in found.evidence


def test_beside_free_slots_more_workers_are_no_remedy(conn: psycopg.Connection, clock: Clock) -> None:
    # Sessions that are years old by another clock are a cause.
    clock.back_to_real()
    clock.advance("-10 min")
    enqueue(conn)
    clock.advance("8 min")
    hello(conn)
    for seconds in (0, 11):
        clock.advance(f"{seconds} s")
        maintain(conn)
    # Not for long enough: between two jobs a slot is free, too.
    assert "slots are free" not in why(conn).evidence
    assert why(conn).remedy.startswith("start more workers")
    clock.back_to_real()
    hello(conn)
    maintain(conn)
    found = why(conn)
    assert found.cause == "workers"
    assert "take 0 of 2 slots of worker w" in found.evidence
    assert found.evidence.endswith("; slots are free, so more of them do not help")
    assert found.remedy == "see what these workers do: pgqueue workers list, and their logs"


def test_a_session_that_holds_a_lock_while_slots_are_free(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    second = database.connect()
    hello(conn)
    enqueue(conn)
    clock.advance("20 min")
    hello(conn)
    # By the clock of this test, its transaction is that old.
    with second.transaction():
        second.execute("select pg_current_xact_id()")
        found = why(conn)
        assert found.cause == "database"
        assert "holds back vacuum" in found.evidence


def test_a_lock_for_which_sessions_of_the_queue_wait(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    # Beside sessions that are years old there is another cause.
    clock.back_to_real()
    enqueue(conn)
    clock.advance("1 min")
    hello(conn)
    migration, producer = database.session(), database.session()
    migration.run("begin")
    migration.run("lock table pgqueue.jobs in share mode")
    enqueued = producer.start("select pgqueue.enqueue('t')")
    wait_until(lambda: producer.waits_behind(migration))
    found = why(conn)
    assert (found.cause, found.subject) == ("database", f"session {migration.pid}")
    assert found.evidence == f"1 session of the queue waits for a lock that session {migration.pid} holds"
    conn.execute(found.remedy.encode())
    assert len(enqueued.result(timeout=10)) == 1


def test_ten_queues_without_a_worker_are_one_finding(conn: psycopg.Connection, clock: Clock) -> None:
    for n in range(10):
        enqueue(conn, queue=f"q{n}")
    clock.advance(timedelta(minutes=1))
    [finding] = doctor(conn, "no_worker")
    assert (finding.severity, finding.subject) == ("critical", "10 queues")
    assert finding.remedy.count("--queue") == 10
    assert len(table(conn, "why_late")) == 10


def test_the_metric_of_a_late_queue_names_its_cause(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue(conn, queue="mail")
    enqueue(conn, queue="other", delay="1 h")
    clock.advance("10 min")
    maintain(conn)
    late = conn.execute(
        "select labels, value from pgqueue.metrics() where name = 'pgqueue_queue_late_seconds'"
    ).fetchall()
    assert sorted(late, key=str) == [
        ({"queue": "mail", "cause": "no_worker"}, 600), ({"queue": "other", "cause": "on_time"}, 0)
    ]  # fmt: skip
    start(conn, 1)
    clock.advance("1 min")
    maintain(conn)
    oldest = "select value from pgqueue.metrics() where name = 'pgqueue_queue_oldest_attempt_seconds' and value > 0"
    assert value(conn, oldest) == 60
