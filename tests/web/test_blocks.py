"""How many blocks the statements of a refresh read: as many beside 200,000 jobs as beside 20,000, and few."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pgqueue._filters import parse
from pgqueue.db import observe, samples
from pgqueue.db.call import Call, perform
from pgqueue.testing import Clock
from pgqueue.web import database as pool
from pgqueue.web import series
from pgqueue.web.database import PageDatabase
from tests.calls import call, enqueue_many, maintain, pairs, reserve, value
from tests.databases import Database
from tests.facts import wait_until
from tests.web.test_guard import Ask

QUEUES, TASKS = 30, 200

# Beside those that are read once a minute for all viewers: metrics(), dead_groups(), doctor(), what samples tell of
# tasks; and why_late(), while several queues are late.
MOST = 1000

_JOBS = f"""
insert into pgqueue.jobs (run_at, ready_at, created_at, state, priority, queue, task, args, limit_key, blocked_on)
select
    t.at, t.at, pgqueue._clock(), case when g %% 50 = 7 then 'blocked' else 'waiting' end::pgqueue.job_state, 0,
    'q' || g %% {QUEUES}, 't' || g %% {TASKS}, jsonb_build_object('user', g),
    case when g %% 5 < 3 then 'tenant:' || g %% 20 end, case when g %% 50 = 7 then 'limit_key:tenant:7' end
from generate_series(%(first)s, %(last)s) g
-- One queue is late; the jobs of the others are for later.
cross join lateral (
    select pgqueue._clock() + g * interval '1 us' + case g %% {QUEUES} when 1 then -1 else 1 end * interval '1 h' as at
) t
"""

_ENDED = f"""
insert into pgqueue.history (
    id, reservation, run_at, created_at, reserved_at, finished_at, kept_until, state, attempts, losses, priority,
    granularity, queue, task, args, errors
)
select
    nextval('pgqueue.jobs_id_seq'), 1, c.now, c.now, c.now, c.now, c.now + interval '1 day',
    case when g %% 20 = 0 then 'dead' else 'succeeded' end::pgqueue.job_state, 1, 0, 0, 'd', 'q' || g %% {QUEUES},
    't' || g %% {TASKS}, '{{}}',
    case when g %% 20 = 0 then format('[{{"class": "E", "message": "order %%s is gone"}}]', g)::jsonb end
from generate_series(%(first)s, %(last)s) g
cross join (select pgqueue._clock() as now) c
"""


def fill(conn: psycopg.Connection, first: int, last: int) -> None:
    """Add live and ended jobs with these numbers, as many of each, and take a sample."""
    between = {"first": first, "last": last}
    for text in (_JOBS, _ENDED):
        conn.execute((text % between).encode())
    conn.execute("delete from pgqueue.lanes where queue ~ '^q'")
    conn.execute(
        "insert into pgqueue.lanes (queue, priority, until) select 'q' || g, 0, pgqueue._clock() + interval '1 hour'"
        f" from generate_series(0, {QUEUES - 1}) g".encode()
    )
    for worker in ("w1", "w2", "w3"):
        call(conn, "beat", worker, memory=2**27)
    maintain(conn)
    # Every large queue was counted.
    conn.execute("update pgqueue.samples set counted_to = null, counted_at = at where counted_to is not null")


def tidy(conn: psycopg.Connection) -> None:
    """As autovacuum leaves the tables."""
    for name in ("jobs", "history", "samples", "heartbeats", "tasks", "limits", "lanes", "heads", "workers"):
        conn.execute(f"vacuum analyze pgqueue.{name}".encode())

    # While autovacuum analyzes a table here, its snapshot keeps pages from being marked as visible to all.
    def is_visible() -> bool:
        hidden = conn.execute(
            "select oid::regclass::text from pg_class where relnamespace = 'pgqueue'::regnamespace and relkind = 'r'"
            " and relallvisible < relpages"
        ).fetchall()
        for [name] in hidden:
            conn.execute(f"vacuum {name}".encode())
        return not hidden

    wait_until(is_visible)


@pytest.fixture
def fleet(conn: psycopg.Connection, clock: Clock) -> psycopg.Connection:
    """Three workers with an hour of heartbeats and a day of samples, and limits. The clock stands still."""
    clock.set(datetime.now(UTC))
    for number in range(TASKS):
        call(conn, "declare_task", f"t{number}")
    for worker in ("w1", "w2", "w3"):
        call(conn, "hello", worker, None, Jsonb({"concurrency": 12, "host": "h"}))
    conn.execute(
        "insert into pgqueue.heartbeats (worker, at, memory)"
        " select 'w' || w, pgqueue._clock() - n * interval '10 s', 100000000"
        " from generate_series(360, 1, -1) n, generate_series(1, 3) w"
    )
    # One that has died, of whose heartbeats none is left.
    call(conn, "hello", "gone", None, Jsonb({"concurrency": 12}))
    conn.execute("delete from pgqueue.heartbeats where worker = 'gone'")
    times = {"sum": 4.0, "max": 0.9, "buckets": [1] * 12}
    ended = {
        f"t{task}": {"started": 10, "succeeded": 9, "dead": 1, "run": times, "wait": times}
        for task in range(0, TASKS, QUEUES)
    }
    conn.execute(
        "insert into pgqueue.samples"
        " (at, span, queue, waiting, due, scheduled, failed, blocked, executing, dead, ended)"
        " select pgqueue._clock() - n * make_interval(secs => s), s, case q when 0 then '' else 'q' || q - 1 end,"
        " 9, 9, 0, 0, 0, 1, 1, %s"
        " from (values (10, 360), (600, 144)) v (s, most), generate_series(1, most) n, generate_series(0, %s) q",
        [Jsonb(ended), QUEUES],
    )
    call(conn, "set_limit", "limit_key", "tenant:*", max_executing=2)
    call(conn, "set_limit", "task", "t3", max_executing=50)
    call(conn, "set_limit", "queue", "q4", rate=100, per="1 min")
    return conn


def asked(conn: psycopg.Connection) -> dict[str, Call[Any]]:
    """The statements that the pages, the terminal and monitors send at each refresh."""

    def listed(line: str) -> Call[Any]:
        return observe.jobs(perform(conn, observe.search("newest", parse(line), None, 50)).ids)

    return {
        "stats(recent)": observe.stats(),
        "why_late()": observe.why_late(),
        "why_late(queue)": observe.why_late("q1"),
        "executing": observe.executing(),
        "the next one due of a queue": observe.next_due("q1", datetime.now(UTC).timestamp()),
        "what executes of a queue": observe.running_in("q1"),
        "worker_status": observe.workers(),
        "a worker": observe.worker("w1"),
        "rates of queues": samples.lately(60),
        "times of queues, within a minute": samples.since(
            value(conn, f"select max(n) - {6 * QUEUES} from pgqueue.samples")
        ),
        "a plot of all queues": samples.series("", 900),
        "a plot of a queue": samples.series("q1", 3600),
        "a plot of a week": samples.series("q1", 604_800),
        "troubles": observe.troubles(),
        "tenants that execute": observe.executing_by_tenant(None),
        "tenants that execute of a queue": observe.executing_by_tenant("q1"),
        "tasks": observe.tasks(),
        "a task": observe.task("t1"),
        "search state:dead": observe.search("newest", parse("state:dead"), None, 50),
        "jobs of state:dead": listed("state:dead"),
        "search queue:q1 state:waiting": observe.search("newest", parse("queue:q1 state:waiting"), None, 50),
        "jobs of queue:q1 state:waiting": listed("queue:q1 state:waiting"),
    }


def once_a_minute() -> dict[str, Call[Any]]:
    """Those that a page reads once a minute, however many look at it."""
    return {
        "metrics()": observe.metrics(),
        "doctor()": observe.doctor(),
        "dead_groups()": observe.dead_groups(None),
        "times of queues, at first": samples.since(None),
        "what fills a queue": observe.queue_facets("q1"),
        "what fills all queues": observe.queue_facets(None),
        "since when tenants wait": observe.due_since("q1", ["tenant:1", "tenant:11"]),
        "who set the options of a queue": observe.last_changes("q1"),
        "when the history begins": samples.begins(3600),
        "fates of retries": observe.retry_fates(),
        "a plot of a task": series.of_task("t1", 3600),
        "usual waits of a queue": series.usual_waits("q1"),
        "trends": samples.trends(),
        "memory of workers": observe.worker_memory(),
        "how tasks perform": samples.ended_by_task(3600),
        "usual times of runs": series.usual(),
        "died within an hour": samples.died(3600),
        "died within a day": samples.died(86_400),
        "died within a day, of a queue": samples.died(86_400, "q1"),
        "usual deaths of a day": samples.usual_deaths(),
        "how long the dead are kept": observe.dead_kept(None),
        "how long the dead of a queue are kept": observe.dead_kept("q1"),
    }


# As the pages name them.
_MUCH = {
    ("facets", "mail"),
    ("due since", "mail"),
    ("changes", "mail"),
    "facets",
    "fates",
    "doctor",
    ("dead", None),
    ("dead", "mail"),
    "trends",
    "memory",
    ("ended", 3600),
    "usual",
    "dead today",
    ("dead today", "mail"),
    "died in an hour",
    "usual deaths",
    ("kept", None),
}


def blocks(conn: psycopg.Connection, statement: Call[Any]) -> int:
    """Return the blocks that a statement of a page reads, once its plans are made."""
    query = b"explain (analyze, buffers, format json) " + statement.text
    with conn.transaction():
        conn.execute(pool._READS)
        conn.execute(query, statement.params).fetchone()
        found = conn.execute(query, statement.params).fetchone()
    assert found is not None
    plan = found[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.partitions
def test_statements_of_a_refresh_read_few_blocks_and_no_more_with_ten_times_the_jobs(fleet: psycopg.Connection) -> None:
    fill(fleet, 1, 10_000)
    held = reserve(fleet, 36, "w1", lease="1 hour")
    call(fleet, "started", [each.id for each in held], [each.reservation for each in held])
    tidy(fleet)
    few = {name: blocks(fleet, statement) for name, statement in {**asked(fleet), **once_a_minute()}.items()}
    fill(fleet, 10_001, 100_000)
    tidy(fleet)
    many = {name: blocks(fleet, statement) for name, statement in {**asked(fleet), **once_a_minute()}.items()}
    sys.stdout.write("\n".join(["", *(f"{name:<32}{few[name]:>9,}{many[name]:>9,}" for name in many), ""]))
    assert {name: many[name] for name in asked(fleet) if many[name] >= MOST} == {}
    # What reads up to 10,000 dead or blocked jobs, or 5,000 due ones, grows to that.
    growing = {name: (few[name], many[name]) for name in many if many[name] > 1.5 * few[name] + 200}
    assert growing.keys() <= {"dead_groups()", "doctor()", "what fills a queue", "what fills all queues"}
    assert {name: read for name, read in many.items() if read >= 12 * MOST} == {}


def test_what_executes_is_read_from_the_head_of_the_leases_beside_an_old_snapshot(
    database: Database, conn: psycopg.Connection, clock: Clock
) -> None:
    holder = database.connect()
    holder.execute("begin isolation level repeatable read")
    holder.execute("select from pgqueue.jobs")
    call(conn, "hello", "w", None, Jsonb({}))
    for _ in range(6):
        enqueue_many(conn, 500)
        held = reserve(conn, 500, "w", lease="10 s")
        call(conn, "complete_many", *pairs(held))
        clock.advance("1 min")
        maintain(conn)
    enqueue_many(conn, 3)
    reserve(conn, 3, "w")
    for statement in (observe.workers(), observe.executing(), observe.running_in("default")):
        assert blocks(conn, statement) < 300, statement.text
    assert [each["executing"] for each in perform(conn, observe.workers())] == [3]
    holder.execute("rollback")


@pytest.mark.parametrize("page", ["/", "/dead", "/tasks", "/queue?name=mail", "/workers", "/health"])
def test_what_reads_much_is_read_once_a_minute_for_all_viewers(
    filled: psycopg.Connection, ask: Ask, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    asked: list[object] = []
    original = PageDatabase._ask

    async def record(self: PageDatabase, key: object, call: Call[Any]) -> Any:
        asked.append(key)
        return await original(self, key, call)

    monkeypatch.setattr(PageDatabase, "_ask", record)
    now = time.monotonic()
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: now))
    assert ask("GET", page).status_code == 200
    first, asked[:] = set(asked), []
    assert first & _MUCH
    now += 59
    ask("GET", page)
    assert set(asked) & _MUCH == set()


async def test_why_queues_are_late_is_read_once_a_minute_while_several_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, asked = 1000.0, 0
    answer: list[dict[str, Any]] = [{}]

    async def ask(self: PageDatabase, key: object, call: Call[Any]) -> Any:
        nonlocal asked
        asked += 1
        self._answers[key] = (now, answer)
        return answer

    monkeypatch.setattr(PageDatabase, "_ask", ask)
    monkeypatch.setattr(pool, "time", SimpleNamespace(monotonic=lambda: now))
    database = PageDatabase("")

    async def look(after: float) -> int:
        nonlocal now, asked
        now, asked = now + after, 0
        await database.late()
        return asked

    assert [await look(after) for after in (0, 9, 2, 9)] == [1, 0, 1, 0]
    answer = [{}, {}]
    assert [await look(after) for after in (2, 11, 48, 2)] == [1, 0, 0, 1]
