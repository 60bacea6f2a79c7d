"""Samples: what maintain() writes down every ten seconds, and who reads it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, enqueue, enqueue_many, maintain, reserve, reserve_one, value
from tests.facts import wait_until
from tests.sql.plans import blocks

NOON = "2030-01-01 12:00+00"
BUCKETS = [0, 0, 2, 5, 8, 3, 0, 0, 0, 0, 0, 0]


def sample(conn: psycopg.Connection, queue: str, column: str) -> Any:
    return value(
        conn, f"select {column} from pgqueue.samples where queue = %s and span = 10 order by n desc limit 1", queue
    )


def report(**fields: object) -> Jsonb:
    return Jsonb({"jobs": [{"queue": "mail", "task": "t", **fields}]})


def test_a_sample_has_the_numbers_of_each_queue_and_of_all(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 5, queue="mail")
    enqueue(conn, queue="mail", delay="1 h")
    enqueue_many(conn, 3, queue="keyed", key="k")
    reserve(conn, 2, queues=["mail"])
    reserve(conn, 3, queues=["keyed"])
    dead = reserve_one(conn, queues=["mail"])
    call(conn, "fail", dead.id, dead.reservation, Jsonb({"class": "E"}), retry=False)
    failed = reserve_one(conn, queues=["mail"])
    call(conn, "fail", failed.id, failed.reservation, Jsonb({"class": "E"}), "1 h")
    maintain(conn)
    columns = "array[waiting, due, scheduled, failed, blocked, executing, dead]"
    assert sample(conn, "mail", columns) == [2, 1, 2, 1, 0, 2, 1]
    assert sample(conn, "keyed", columns) == [0, 0, 0, 0, 2, 1, 0]
    assert sample(conn, "", columns) == [2, 1, 2, 1, 2, 3, 1]
    assert sample(conn, "mail", "counted_to") is None


def block_jobs(conn: psycopg.Connection) -> None:
    """In queue q: four jobs behind one of their key, two at a limit, three behind a parent; one of each has a key."""
    call(conn, "set_limit", "limit_key", "l", max_executing=1)
    enqueue_many(conn, 5, queue="q", key="k")
    enqueue_many(conn, 2, queue="q", limit_key="l")
    enqueue(conn, queue="q", limit_key="l", key="other")
    parent = enqueue(conn, queue="parents", delay="1 h")
    enqueue_many(conn, 2, queue="q", depends_on=[parent])
    enqueue(conn, queue="q", depends_on=[parent], key="third")
    reserve(conn, 20, queues=["q"])


def test_blocked_jobs_are_told_apart_by_what_they_wait_for(conn: psycopg.Connection) -> None:
    block_jobs(conn)
    maintain(conn)
    columns = "array[blocked, blocked_by_limit, blocked_by_parents]"
    assert sample(conn, "q", columns) == [9, 2, 3]
    assert sample(conn, "", columns) == [9, 2, 3]
    assert sample(conn, "parents", columns) == [0, 0, 0]
    for recent in (False, True):
        found = {each["queue"]: each["blocked_by"] for each in call(conn, "stats", recent=recent)["queues"]}
        assert found["q"] == {"key": 4, "limit": 2, "parents": 3}
        assert found["parents"] == {"key": 0, "limit": 0, "parents": 0}


def test_a_sample_of_before_does_not_tell_blocked_jobs_apart(conn: psycopg.Connection) -> None:
    block_jobs(conn)
    maintain(conn)
    conn.execute("update pgqueue.samples set blocked_by_limit = null, blocked_by_parents = null")
    found = {each["queue"]: each for each in call(conn, "stats", recent=True)["queues"]}
    assert (found["q"]["blocked"], found["q"]["blocked_by"]) == (9, None)


def test_recent_stats_agree_with_stats_that_count(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 5, queue="mail")
    enqueue_many(conn, 3, queue="keyed", key="k")
    reserve(conn, 4)
    maintain(conn)
    counted, recent = call(conn, "stats"), call(conn, "stats", recent=True)
    for one, other in zip(counted["queues"], recent["queues"], strict=True):
        assert {name: other[name] for name in one if name != "lag"} == {
            name: one[name] for name in one if name != "lag"
        }
    assert recent["sampled_at"] is not None
    assert {name: recent["total"][name] for name in counted["total"] if name != "lag"} == {
        name: counted["total"][name] for name in counted["total"] if name != "lag"
    }


def test_recent_stats_do_not_count(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 5, queue="mail")
    maintain(conn)
    enqueue_many(conn, 5, queue="mail")
    assert call(conn, "stats", recent=True)["total"]["waiting"] == 5
    assert call(conn, "stats")["total"]["waiting"] == 10


def test_samples_come_every_ten_seconds_and_not_with_each_run(conn: psycopg.Connection, clock: Clock) -> None:
    # A span of ten minutes ends among these runs.
    clock.set(datetime(2026, 11, 22, 12, 9, 51, tzinfo=UTC))
    for _ in range(12):
        maintain(conn)
        clock.advance(timedelta(seconds=2))
    assert value(conn, "select count(*) from pgqueue.samples where queue = '' and span = 10") == 3


def test_counting_stops_at_a_bound_and_says_so(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 2000, queue="mail")
    rows = conn.execute("select due, is_cut from pgqueue._count_queues(pgqueue._clock(), 1000) where queue = 'mail'")
    assert rows.fetchone() == (1000, True)


def test_a_bound_that_queues_share_shows_in_each_of_them(conn: psycopg.Connection) -> None:
    parent = enqueue(conn, queue="parents", delay="1 h")
    for queue in ("one", "other"):
        enqueue_many(conn, 25, queue=queue, depends_on=[parent])
    count = "select bool_or(is_cut), bool_and(is_cut) from pgqueue._count_queues(pgqueue._clock(), %s)"
    assert conn.execute(count, [4]).fetchone() == (True, True)
    assert conn.execute(count, [10]).fetchone() == (False, False)


def test_a_number_at_which_counting_stopped_has_a_sign(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    enqueue(conn, queue="mail")
    assert metric(conn, "pgqueue_queue_counted_to", queue="mail") is None
    conn.execute(
        "insert into pgqueue.jobs"
        " (run_at, ready_at, created_at, priority, args, lease_expires_at, lease, queue, task, state)"
        " select now.at, now.at, now.at, 0, '{}', now.at + interval '1 h', '1 h', 'mail', 't', 'executing'"
        " from generate_series(1, 100001), (select pgqueue._clock() as at) now"
    )
    assert metric(conn, "pgqueue_queue_jobs", queue="mail", state="executing") == 100_000
    assert metric(conn, "pgqueue_queue_counted_to", queue="mail") == 10_000
    maintain(conn)
    assert sample(conn, "mail", "array[executing, counted_to]") == [100_000, 10_000]


def test_a_bound_that_queues_share_leaves_the_ready_jobs_of_each_exact(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(NOON)
    conn.execute(
        "insert into pgqueue.history (id, reservation, run_at, created_at, reserved_at, finished_at, kept_until, state,"
        " attempts, losses, priority, granularity, queue, task, args)"
        " select nextval('pgqueue.jobs_id_seq'), 1, c.now, c.now, c.now, c.now, c.now + interval '1 day', 'dead',"
        " 1, 0, 0, 'd', 'dead', 't', '{}' from generate_series(1, 100001) g, (select pgqueue._clock() as now) c"
    )
    counts = "array[waiting, due, scheduled, failed]"
    enqueue_many(conn, 3, queue="mail")
    enqueue(conn, queue="later", delay="1 h")
    for _ in range(3):
        maintain(conn)
        clock.advance("11 s")
    assert sample(conn, "mail", counts) == [3, 3, 0, 0]
    for expected in (4, 5):
        enqueue(conn, queue="mail")
        enqueue(conn, queue="later", delay="1 h")
        maintain(conn)
        clock.advance("11 s")
        assert sample(conn, "mail", counts) == [expected, expected, 0, 0]
        assert sample(conn, "later", counts) == [expected - 2, 0, expected - 2, 0]
    assert sample(conn, "dead", "dead") == 100_001
    # Only the numbers that are of before say so.
    kept = [each for each in call(conn, "stats", recent=True)["queues"] if each["counted_at"] is not None]
    assert kept
    assert {each["ready_counted_at"] for each in kept} == {None}


def test_large_queues_are_counted_whole_each_in_its_turn(conn: psycopg.Connection, clock: Clock) -> None:
    for queue in ("a", "b", "c"):
        for jobs in (9000, 1050):
            enqueue_many(conn, jobs, queue=queue)
    # Exact, however many lanes there are.
    conn.execute(
        "insert into pgqueue.lanes (queue, priority, until)"
        " select 'x' || n, 0, 'infinity' from generate_series(1, 400) n"
    )
    enqueue_many(conn, 9900, queue="small")

    def next_sample() -> dict[str, tuple[int, int | None, bool]]:
        clock.advance("11 s")
        conn.execute("select pgqueue._sample(pgqueue._clock())")
        found = call(conn, "stats", recent=True)["queues"]
        return {
            each["queue"]: (each["waiting"], each["counted_to"], each["counted_at"] is None)
            for each in found
            if each["waiting"]
        }

    once = next_sample()
    assert once["small"] == (9900, None, True)
    # One was counted; of the others it says that there are more.
    assert sorted(once[queue] for queue in "abc") == [(10000, 10000, True), (10000, 10000, True), (10050, None, True)]
    next_sample()
    third = next_sample()
    assert {third[queue][:2] for queue in "abc"} == {(10050, None)}
    for queue in ("a", "b", "c", "small"):
        enqueue_many(conn, 50, queue=queue)
    fourth = next_sample()
    assert fourth["small"] == (9950, None, True)
    assert sorted(fourth[queue] for queue in "abc") == [(10050, None, False), (10050, None, False), (10100, None, True)]
    # Their numbers say how old they are, while a worker lives.
    call(conn, "hello", "w")
    call(conn, "beat", "w")
    ages = conn.execute("select value from pgqueue.metrics() where name = 'pgqueue_queue_counted_age_seconds'")
    assert len(ages.fetchall()) == 2
    counted = value(
        conn, "select counted_at from pgqueue.samples where queue = '' and span = 10 order by n desc limit 1"
    )
    assert timedelta(seconds=20) < clock.now() - counted < timedelta(seconds=30)
    call(conn, "purge_queue", "a", max_jobs=10_000)
    # What is left of it is small, and counted at once.
    assert next_sample()["a"] == (100, None, True)


def test_stats_and_recent_stats_count_the_same_things(conn: psycopg.Connection, clock: Clock) -> None:
    call(conn, "open_group", "import")
    enqueue_many(conn, 3, queue="mail", max_attempts=1)
    enqueue(conn, queue="mail", delay="1 h")
    dead = reserve_one(conn)
    call(conn, "fail", dead.id, dead.reservation, Jsonb({}))
    # Expired, and its partition stands.
    conn.execute("update pgqueue.history set kept_until = kept_until - interval '400 days'")
    maintain(conn)
    counted, recent = call(conn, "stats"), call(conn, "stats", recent=True)
    assert [each["queue"] for each in recent["queues"]] == [each["queue"] for each in counted["queues"]] == ["mail"]
    for one, other in ((counted["queues"][0], recent["queues"][0]), (counted["total"], recent["total"])):
        assert {**one, "lag": 0} == {**other, "lag": 0}
        assert (one["due"], one["scheduled"], one["dead"]) == (2, 1, 1)


def test_counting_reads_no_more_than_its_bound(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 10_000, queue="mail")
    conn.execute("vacuum analyze pgqueue.jobs")
    few, many = (
        blocks(conn, f"pgqueue._count_ready('mail', 0::smallint, false, now(), {most})") for most in (500, 20_000)
    )
    assert few < 70
    assert 2 * few < many


def test_what_workers_report_goes_into_the_next_sample(conn: psycopg.Connection) -> None:
    call(conn, "hello", "w")
    times = {"sum": 4.0, "max": 0.9, "buckets": BUCKETS}
    assert call(conn, "beat", "w", report(started=19, succeeded=17, failed=1, run=times)) is True
    assert call(conn, "beat", "w", report(succeeded=3, run={**times, "max": 2})) is True
    maintain(conn)
    assert sample(conn, "mail", "ended") == {
        "t": {
            "started": 19,
            "succeeded": 20,
            "failed": 1,
            "run": {"sum": 8, "max": 2, "buckets": [2 * each for each in BUCKETS]},
        }
    }
    assert sample(conn, "", "ended")[""]["succeeded"] == 20
    assert value(conn, "select count(*) from pgqueue.worker_reports") == 0


@pytest.mark.parametrize(
    "wrong",
    [
        *([], {}, {"jobs": 1}, {"jobs": [1]}, {"jobs": [{}]}, {"jobs": [{"queue": "q"}]}),
        *({"jobs": [{"queue": "q", "task": "t", "succeeded": each}]} for each in (-1, "1", 1e13, None, [])),
        {"jobs": [{"queue": "q", "task": "t", "surprise": 1}]},
        *({"jobs": [], "id": each} for each in (None, "17", -1, 1e13)),
        *(
            {"jobs": [{"queue": "q", "task": "t", "run": each}]}
            for each in (1, {}, {"sum": 1, "max": 1, "buckets": [1]}, {"sum": 1, "max": 1, "buckets": ["x"] * 12})
        ),
        {"jobs": [{"queue": "q", "task": "t"}] * 1001},
    ],
)
def test_a_report_that_cannot_be_summed_is_refused(conn: psycopg.Connection, wrong: object) -> None:
    call(conn, "hello", "w")
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        call(conn, "beat", "w", Jsonb(wrong))
    maintain(conn)
    assert call(conn, "stats")["maintenance"]["failures"] == {}


def test_a_heartbeat_needs_no_report(conn: psycopg.Connection) -> None:
    assert call(conn, "beat", "nobody") is False
    call(conn, "hello", "w")
    assert call(conn, "beat", "w") is True


def test_ten_minutes_are_folded_into_one_row(conn: psycopg.Connection, clock: Clock) -> None:
    clock.set(datetime(2026, 11, 22, 12, 0, 5, tzinfo=UTC))
    enqueue_many(conn, 4, queue="mail")
    call(conn, "hello", "w")
    block_jobs(conn)
    for _ in range(3):
        call(conn, "beat", "w", report(started=6, succeeded=5))
        maintain(conn)
        clock.advance(timedelta(minutes=3))
    clock.advance(timedelta(minutes=3))
    maintain(conn)
    found = conn.execute(
        "select at, due, ended, span from pgqueue.samples where span = 600 and queue = 'mail' order by at"
    ).fetchall()
    folded = (
        "select blocked, blocked_by_limit, blocked_by_parents from pgqueue.samples where span = 600 and queue = 'q'"
    )
    assert conn.execute(folded).fetchall() == [(9, 2, 3)]
    assert [(row[1], row[2]) for row in found] == [(4, {"t": {"started": 18, "succeeded": 15}})]


def test_old_samples_are_forgotten(conn: psycopg.Connection, clock: Clock) -> None:
    enqueue(conn, queue="mail")
    maintain(conn)
    clock.advance(timedelta(days=1, minutes=1))
    maintain(conn)
    assert (
        value(conn, "select count(*) from pgqueue.samples where span = 10 and at < pgqueue._clock() - interval '1 day'")
        == 0
    )
    clock.advance(timedelta(days=91))
    maintain(conn)
    clock.advance(timedelta(minutes=2))
    maintain(conn)
    assert value(conn, "select count(*) from pgqueue.samples where at < pgqueue._clock() - interval '90 days'") == 0


def test_an_empty_queue_has_no_rows_and_still_one_for_all(conn: psycopg.Connection) -> None:
    maintain(conn)
    assert conn.execute("select queue, waiting from pgqueue.samples").fetchall() == [("", 0)]


def test_metrics_have_the_names_of_the_page(conn: psycopg.Connection) -> None:
    enqueue_many(conn, 3, queue="mail")
    call(conn, "set_limit", "queue", "mail", max_executing=1)
    call(conn, "schedule", "s", "0 3 * * *", "t")
    call(conn, "declare_task", "t")
    call(conn, "hello", "w", ["mail"], Jsonb({"concurrency": 2}))
    call(conn, "beat", "w", memory=2**20)
    enqueue(conn, queue="mail", limit_key="tenant:a")
    dead = reserve_one(conn)
    call(conn, "fail", dead.id, dead.reservation, Jsonb({"class": "E", "message": "row 17"}), retry=False)
    call(conn, "throttle", "task", "t", "1 min")
    maintain(conn)
    names = {row[0] for row in conn.execute("select name from pgqueue.metrics()")}
    assert names == {
        "pgqueue_queue_jobs", "pgqueue_queue_lag_seconds", "pgqueue_queue_stuck_seconds", "pgqueue_queue_paused",
            "pgqueue_queue_late_seconds", "pgqueue_queue_oldest_attempt_seconds",
            "pgqueue_workers", "pgqueue_pauses", "pgqueue_slots", "pgqueue_heartbeat_memory_bytes",
            "pgqueue_tenant_jobs", "pgqueue_dead_jobs", "pgqueue_events", "pgqueue_event_waits",
        "pgqueue_limit_executing", "pgqueue_limit_waiting", "pgqueue_schedule_lag_seconds", "pgqueue_task_info",
        "pgqueue_sample_age_seconds", "pgqueue_maintenance_age_seconds", "pgqueue_rescued_total",
        "pgqueue_unblocked_total", "pgqueue_partitions_overdue", "pgqueue_dead_tuples",
        "pgqueue_oldest_xmin_age_seconds", "pgqueue_notify_queue_usage_ratio",
    }  # fmt: skip
    found = value(conn, 'select value from pgqueue.metrics() where labels = \'{"queue": "mail", "state": "due"}\'')
    assert found == 3


def metric(conn: psycopg.Connection, name: str, **labels: str) -> float | None:
    return conn.execute(
        "select (select value from pgqueue.metrics() where name = %s and labels @> %s)", (name, Jsonb(labels))
    ).fetchone()[0]  # type: ignore[index]


def test_without_a_living_worker_the_metrics_count_so_that_the_alerts_fire(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set(NOON)
    call(conn, "hello", "w", ["mail"])
    call(conn, "beat", "w")
    maintain(conn)
    enqueue(conn, queue="mail")
    clock.advance("6 min")
    # As PgqueueNoWorker, PgqueueLag and PgqueueMaintenance ask; the last sample has none of it.
    assert metric(conn, "pgqueue_workers", queue="mail") == 0
    assert metric(conn, "pgqueue_queue_jobs", queue="mail", state="due") == 1
    assert metric(conn, "pgqueue_queue_lag_seconds", queue="mail") == 360
    assert metric(conn, "pgqueue_maintenance_age_seconds") == 360
    assert metric(conn, "pgqueue_sample_age_seconds") == 360


def test_maintenance_that_has_never_run_is_as_old_as_the_schema(conn: psycopg.Connection, clock: Clock) -> None:
    assert value(conn, "select count(*) from pgqueue.maintenance_runs") == 0
    clock.advance("1 h")
    assert (metric(conn, "pgqueue_maintenance_age_seconds") or 0) >= 3600
    assert metric(conn, "pgqueue_rescued_total") == 0
    assert metric(conn, "pgqueue_sample_age_seconds") is None


def by_label(conn: psycopg.Connection, name: str) -> dict[str, float]:
    """A metric by the value of its first label."""
    rows = conn.execute("select labels, value from pgqueue.metrics() where name = %s", [name])
    return {next(iter(labels.values())): number for labels, number in rows}


def test_slots_that_are_used_free_and_taken_far_too_long_are_metrics(conn: psycopg.Connection, clock: Clock) -> None:
    assert by_label(conn, "pgqueue_slots") == {}
    for worker in ("v", "w"):
        call(conn, "hello", worker, None, Jsonb({"concurrency": 4, "heartbeat": 60}))
    enqueue_many(conn, 3)
    slow = reserve_one(conn, lease="1 hour")
    call(conn, "started", [slow.id], [slow.reservation])
    clock.advance("6 min")
    for worker in ("v", "w"):
        call(conn, "beat", worker)
    for row in reserve(conn, 2, "v"):
        call(conn, "started", [row.id], [row.reservation])
    assert by_label(conn, "pgqueue_slots") == {"running": 2, "overlong": 1, "free": 5}


def test_members_of_a_batch_and_prefetched_jobs_take_no_slots_of_their_own(conn: psycopg.Connection) -> None:
    call(conn, "hello", "w", None, Jsonb({"concurrency": 4, "heartbeat": 60}))
    enqueue_many(conn, 9)
    reserve(conn, 9, "w")
    assert by_label(conn, "pgqueue_slots") == {"running": 4, "overlong": 0, "free": 0}


def test_the_ten_tenants_with_most_jobs_that_wait_are_a_metric_and_the_rest_is_one_row(
    conn: psycopg.Connection,
) -> None:
    assert by_label(conn, "pgqueue_tenant_jobs") == {}
    for number in range(1, 13):
        enqueue_many(conn, number, limit_key=f"tenant:{number}")
    enqueue_many(conn, 5)
    reserve(conn, 1)
    found = by_label(conn, "pgqueue_tenant_jobs")
    # The job of tenant 1 runs.
    assert found == {f"tenant:{number}": number for number in range(3, 13)} | {"(others)": 2}


def test_the_tenants_of_a_large_table_are_estimated_from_as_many_blocks_as_of_a_small_one(
    conn: psycopg.Connection,
) -> None:
    for _ in range(2):
        enqueue_many(conn, 10_000, limit_key="tenant:a")
        enqueue_many(conn, 5000, limit_key="tenant:b")
    conn.execute("vacuum analyze pgqueue.jobs")
    size = value(conn, "select pg_relation_size('pgqueue.jobs') / 8192")
    assert size > 500
    assert blocks(conn, "pgqueue._count_tenants(10, 200)") < 250
    estimated = dict(conn.execute("select tenant, jobs from pgqueue._count_tenants(10, 200)").fetchall())
    # Half of the blocks at least are read; both tenants fill theirs alike.
    assert estimated["tenant:a"] + estimated["tenant:b"] == pytest.approx(30_000, rel=0.05)
    assert 10_000 < estimated["tenant:a"] < 27_000


def test_what_the_newest_dead_jobs_died_of_is_a_metric_by_masked_error(conn: psycopg.Connection) -> None:
    for number in range(40):
        enqueue(conn, "pay")
        job = reserve_one(conn)
        error = Jsonb({"class": "Refused", "message": f"card {number} was refused"})
        call(conn, "fail", job.id, job.reservation, error, retry=False)
    rows = conn.execute("select labels, value from pgqueue.metrics() where name = 'pgqueue_dead_jobs'").fetchall()
    assert rows == [({"task": "pay", "class": "Refused", "error": "card <n> was refused"}, 40)]


def test_memory_that_heartbeats_reported_is_a_metric_of_living_workers(conn: psycopg.Connection, clock: Clock) -> None:
    for worker in ("v", "w"):
        call(conn, "hello", worker)
    call(conn, "beat", "v", memory=2**20)
    call(conn, "beat", "v", memory=2**21)
    call(conn, "beat", "w")
    assert by_label(conn, "pgqueue_heartbeat_memory_bytes") == {"v": 2**21}
    clock.advance("2 min")
    assert by_label(conn, "pgqueue_heartbeat_memory_bytes") == {}


def test_events_and_jobs_that_wait_for_one_are_metrics(conn: psycopg.Connection) -> None:
    conn.execute("select pgqueue.emit_event('paid:' || n, '{}') from generate_series(1, 3) n")
    read = "select name, value from pgqueue.metrics() where name ~ '^pgqueue_event'"

    def are_counted() -> bool:
        # Before PostgreSQL 15 another process gathers the statistics, and may add the three rows to what this counts.
        conn.execute("analyze pgqueue.events")
        return dict(conn.execute(read).fetchall()) == {"pgqueue_events": 3, "pgqueue_event_waits": 0}

    wait_until(are_counted)


def test_of_more_than_sixty_large_queues_enough_are_counted_in_a_sample_that_none_is_older_than_ten_minutes(
    conn: psycopg.Connection,
) -> None:
    # So many jobs in all that a queue of a thousand is a large one.
    conn.execute(
        "insert into pgqueue.samples (at, span, queue, waiting, due, scheduled, failed, blocked, executing, dead)"
        " select (select pgqueue._clock()), 10, case n when 0 then '' else 'x' || n end, 10000, 10000, 0, 0, 0, 0, 0"
        " from generate_series(0, 1000) n"
    )
    conn.execute("select pgqueue.enqueue('t', queue => 'q' || n) from generate_series(1, 61) n")
    conn.execute(
        "insert into pgqueue.jobs (run_at, ready_at, created_at, state, priority, queue, task, args)"
        " select j.run_at, j.ready_at, j.created_at, j.state, j.priority, j.queue, j.task, j.args"
        " from pgqueue.jobs j cross join generate_series(1, 1004)"
    )
    conn.execute("select pgqueue._sample(pgqueue._clock())")
    found = conn.execute(
        "select is_large, counted_to, due, count(*) from pgqueue.samples"
        " where queue ~ '^q' and span = 10 group by 1, 2, 3 order by 2"
    ).fetchall()
    # One of sixty in each sample, which comes every ten seconds.
    assert found == [(True, 1000, 1000, 59), (True, None, 1005, 2)]


def test_queues_that_the_shared_bound_alone_cuts_are_counted_by_one_scan_now_and_then(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set(NOON)
    conn.execute("select pgqueue.enqueue('t', queue => 'q' || n) from generate_series(1, 70) n")
    conn.execute(
        "insert into pgqueue.jobs (run_at, ready_at, created_at, state, priority, queue, task, args, blocked_on)"
        " select c.now, c.now, c.now, 'blocked', 0, 'blocked', 't', '{}', 'task:t'"
        " from generate_series(1, 100001), (select pgqueue._clock() as now) c"
    )
    ages = []
    for _ in range(8):
        clock.advance("10 s")
        conn.execute("select pgqueue._sample(pgqueue._clock())")
        enqueue(conn, queue="q1")
        rows = conn.execute(
            "select counted_to, extract(epoch from at - counted_at)::integer, count(*), sum(due), sum(blocked)::integer"
            " from pgqueue.samples where at = pgqueue._clock() and queue <> '' group by 1, 2"
        ).fetchall()
        [(counted_to, age, queues, due, blocked)] = rows
        ages.append(age)
        assert (counted_to, queues, due, blocked) == (None, 71, 70 + len(ages) - 1, 100_001)
    assert ages == [0, 10, 20, 30, 40, 50, 0, 10]


def test_the_age_of_the_oldest_snapshot_is_of_this_database(conn: psycopg.Connection) -> None:
    info = conn.info
    parts = {**info.get_parameters(), "password": info.password, "dbname": "postgres"}
    with psycopg.connect(psycopg.conninfo.make_conninfo("", **parts)) as other:
        other.execute("set transaction isolation level repeatable read")
        other.execute("select 1 from pg_class")
        assert metric(conn, "pgqueue_oldest_xmin_age_seconds") == 0


def test_samples_from_before_the_clock_stepped_back_do_not_stand_for_the_newest(
    conn: psycopg.Connection, clock: Clock
) -> None:
    clock.set("2031-01-01 12:00+00")
    enqueue_many(conn, 3, queue="mail")
    for _ in range(2):
        maintain(conn)
        clock.advance(timedelta(minutes=10))
    clock.set(NOON)
    maintain(conn)
    reserve(conn, 2, queues=["mail"])
    for _ in range(3):
        clock.advance(timedelta(minutes=10))
        maintain(conn)
    [mail] = [each for each in call(conn, "stats", recent=True)["queues"] if each["queue"] == "mail"]
    assert mail["length"] == value(conn, "select count(*) from pgqueue.jobs where state in ('waiting', 'failed')")
    assert sample(conn, "mail", "at") == max(
        row[0] for row in conn.execute("select at from pgqueue.samples where span = 10").fetchall()
    )
    folded = "select max(at) from pgqueue.samples where span = 600"
    assert value(conn, folded) == datetime(2030, 1, 1, 12, 30, tzinfo=UTC)
