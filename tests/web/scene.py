"""A shop at work, for pictures of the pages: an hour of jobs in every state, and a day of samples."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from pgqueue.testing import Clock
from tests.calls import call, column, enqueue, enqueue_many, maintain, reserve

# Queue, task, jobs that end in a second, the part that fails, mean seconds of a run.
WORK = [
    ("mail", "send_email", 21.0, 0.012, 0.09),
    ("billing", "charge_card", 4.2, 0.03, 0.7),
    ("reports", "render_report", 0.6, 0.004, 9.0),
    ("webhooks", "deliver_webhook", 11.0, 0.06, 0.2),
    ("imports", "load_rows", 2.5, 0.0, 1.8),
]

WORKERS = ("web-1:1", "web-1:2", "web-2:1", "reports-1", "pay-1")

# MiB that each holds at first.
MEMORY = dict(zip(WORKERS, (140, 150, 210, 120, 95), strict=True))

# Minutes since when all slots of the only worker of payments are held by jobs that do not end.
HELD = 40

ERRORS = [
    ("mail", "send_email", "SMTPServerDisconnected", "Connection unexpectedly closed", 9),
    ("webhooks", "deliver_webhook", "TimeoutError", "no answer from hooks.{}.example.com within 10 s", 14),
    ("webhooks", "deliver_webhook", "HTTPStatusError", "410 Gone for https://shop.example.com/hooks/17", 4),
    ("billing", "charge_card", "CardDeclined", "insufficient_funds", 5),
    ("reports", "render_report", "MemoryError", "", 1),
]

TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/tasks/remote.py", line 41, in call
    answer = client.post(url, json=event, timeout=10)
  File "/srv/shop/.venv/lib/python3.13/site-packages/httpx/_client.py", line 1144, in post
    return self.request("POST", url, content=content, json=json)"""


def play(conn: psycopg.Connection) -> None:
    """Fill the queue of an empty database."""
    clock = Clock(conn)
    now = clock.now()
    clock.advance("-50 min")
    _declare(conn)
    _grow(conn, now)
    _hold(conn, clock)
    _work_and_fail(conn, clock)
    _wait(conn)
    clock.back_to_real()
    for worker in WORKERS:
        call(conn, "beat", worker, None, _held(worker))
    _reserve(conn)
    _operate(conn)
    _retry(conn)
    call(conn, "maintain")
    conn.execute("delete from pgqueue.samples")
    with conn.cursor() as cursor:
        cursor.executemany(
            "insert into pgqueue.samples (at, span, queue, waiting, due, scheduled, failed, blocked, executing, dead,"
            " oldest_due_at, ended) values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
            list(_samples(clock.now())),
        )
    maintain(conn)


def live_on(conn: psycopg.Connection) -> None:
    """Let three seconds of its work be reported: workers beat, and maintenance runs."""
    for number, (queue, task, rate, failing, run) in enumerate(WORK):
        ended = {"started": round(3.1 * rate), "succeeded": round(3 * rate), "failed": round(3 * rate * failing)}
        times = {"run": _times(3 * rate, run), "wait": _times(3 * rate, 0.02)}
        report: dict[str, Any] = {"jobs": [{"queue": queue, "task": task, **ended, **times}]}
        report["troubles"] = [each for each in _troubles() if each["queue"] == queue]
        worker = WORKERS[number % len(WORKERS)]
        call(conn, "beat", worker, Jsonb(report), _held(worker))
    maintain(conn)


def _held(worker: str) -> int:
    return (MEMORY[worker] + (310 if worker == "reports-1" else 0)) << 20


def _troubles() -> Iterator[dict[str, Any]]:
    """Yield what failed within three seconds, now and then."""
    chance = random.Random()
    for number, (queue, task, kind, message, _) in enumerate(ERRORS):
        if chance.random() < 0.3:
            state = "dead" if number == 1 else "failed"
            text = message.format(chance.choice(["acme", "lumen"]))
            yield {
                "ago": round(chance.random() * 3, 1), "job_id": 60 + number, "queue": queue, "task": task,
                "attempt": 12 if state == "dead" else 2, "state": state, "class": kind, "line": text,
            }  # fmt: skip


def _declare(conn: psycopg.Connection) -> None:
    for queue, task, *_ in WORK:
        about = {"docs": f"https://wiki.example.com/runbooks/{task}", "owner": "payments" if "card" in task else "shop"}
        call(conn, "declare_task", task, queue=queue, max_attempts=12, **about)
    call(conn, "declare_task", "build_catalogue", queue="imports")
    for worker, queues, host in [
        ("web-1:1", ["mail", "webhooks"], "web-1"), ("web-1:2", ["billing", "mail"], "web-1"),
        ("web-2:1", ["imports", "webhooks", "mail"], "web-2"), ("reports-1", ["reports"], "reports-1"),
        ("pay-1", ["payments"], "pay-1"),
    ]:  # fmt: skip
        pid = 4000 + len(worker) * 17
        info = {"host": host, "pid": pid, "version": "0.1.0", "concurrency": 12, "heartbeat": 10, "listen": True}
        info["memory_limit"] = 512 << 20
        if ":" in worker:
            info["supervisor"] = {"name": host, "pid": 4011}
        call(conn, "hello", worker, queues, Jsonb(info))
    call(conn, "schedule", "nightly report", "30 2 * * *", "render_report", timezone="Europe/Berlin")
    call(conn, "schedule", "month's invoices", "0 6 1 * *", "charge_card", timezone="Europe/Berlin")
    call(conn, "schedule", "ping partners", every="5 min", task="deliver_webhook")
    call(conn, "set_limit", "queue", "webhooks", max_executing=40)
    call(conn, "set_limit", "task", "charge_card", rate=300, per="1 min")
    call(conn, "set_limit", "limit_key", "tenant:*", max_executing=2)


def _grow(conn: psycopg.Connection, now: datetime) -> None:
    """Let workers have held memory for an hour: one of them ever more."""
    for minute in range(50):
        for number, worker in enumerate(WORKERS):
            grown = 330 * (1 - math.exp(-minute / 22)) if worker == "reports-1" else 6 * math.sin(minute / 5 + number)
            conn.execute(
                "insert into pgqueue.heartbeats (worker, at, memory) values (%s, %s, %s)",
                [worker, now - timedelta(minutes=50 - minute), round(MEMORY[worker] + grown) << 20],
            )


def _hold(conn: psycopg.Connection, clock: Clock) -> None:
    clock.advance(f"{50 - HELD} min")
    for task in ("review_case", "capture_payment", "refund"):
        call(conn, "declare_task", task, queue="payments")
    enqueue_many(conn, 12, "review_case", queue="payments")
    held = reserve(conn, 12, "pay-1", queues=["payments"], lease="1 day")
    column(conn, "started", [row.id for row in held], [row.reservation for row in held])
    for tenant, jobs in (("lumen", 80), ("acme", 44), ("northwind", 20)):
        enqueue_many(conn, jobs, "capture_payment", queue="payments", limit_key=f"tenant:{tenant}", tags=["eu"])
    conn.execute("set application_name = 'backfill.py'")
    enqueue_many(conn, 16, "refund", queue="payments")
    conn.execute("reset application_name")


def _work_and_fail(conn: psycopg.Connection, clock: Clock) -> None:
    for queue, task, kind, message, count in ERRORS:
        clock.advance("4 min")
        ids = enqueue_many(conn, count, task, queue=queue)
        for row in reserve(conn, count, "web-2:1", queues=[queue]):
            text = message.format("acme" if row.id % 4 == 0 else "lumen")
            error = {"class": kind, "message": text, "traceback": f"{TRACEBACK}\n{kind}: {text}"}
            call(conn, "fail", row.id, row.reservation, Jsonb(error), retry=row.id == ids[0])
    for queue, task, *_ in WORK:
        enqueue_many(conn, 26, task, queue=queue, tags=["eu"])
        for row in reserve(conn, 26, "web-1:1", queues=[queue]):
            call(conn, "complete", row.id, row.reservation, Jsonb({"ok": True}))
    clock.advance("12 min")


def _wait(conn: psycopg.Connection) -> None:
    order = {"order": {"id": 48213, "currency": "EUR", "total": "119.90"}, "card_token": "tok_1N", "attempt": 1}
    for _ in range(3):
        enqueue(conn, "charge_card", order, queue="billing", key="customer:812", tags=["vip"])
    enqueue_many(conn, 40, "render_report", queue="reports", delay="6 hours", limit_key="tenant:7")
    group = call(conn, "open_group", "import of 12 May")
    first = enqueue_many(conn, 6, "load_rows", queue="imports", group_id=group)
    build = enqueue(conn, "build_catalogue", queue="imports", group_id=group, depends_on=first)
    enqueue(conn, "send_email", queue="mail", group_id=group, depends_on=[build])
    call(conn, "close_group", group)
    for row in reserve(conn, 4, "web-2:1", queues=["imports"]):
        call(conn, "complete", row.id, row.reservation)


def _reserve(conn: psycopg.Connection) -> None:
    for queue, task, *_ in WORK:
        enqueue_many(conn, 5, task, queue=queue, tags=["eu"])
    for worker, queues, count in [
        ("web-1:1", ["mail", "webhooks"], 9), ("web-1:2", ["billing"], 5), ("web-2:1", ["imports"], 3),
        ("reports-1", ["reports"], 2),
    ]:  # fmt: skip
        for number, row in enumerate(reserve(conn, count, worker, queues=queues, lease="10 min")):
            if number == 0 and worker == "web-2:1":
                call(conn, "progress", row.id, row.reservation, 1840, 5200, "rows of products.csv")


def _operate(conn: psycopg.Connection) -> None:
    for actor, via, function, *arguments in [
        ("mara", "web", "pause_queue", "imports"),
        ("mara", "web", "resume_queue", "imports"),
        ("jonas", "pgqueue queues", "configure_queue", "mail", 10, 3),
        ("jonas", "pgqueue top", "quiet_worker", "web-2:1"),
        ("deploy", "psql", "pause_schedule", "month's invoices"),
    ]:
        with conn.transaction():
            conn.execute(
                "select set_config('pgqueue.actor', %s, true), set_config('pgqueue.via', %s, true)", [actor, via]
            )
            call(conn, str(function), *arguments)
    call(conn, "worker_command", "web-2:1", "quiet")


def _retry(conn: psycopg.Connection) -> None:
    with conn.transaction():
        conn.execute("select set_config('pgqueue.actor', 'mara', true)")
        call(conn, "retry_many", queue="mail", task="send_email")
    [ids] = conn.execute("select job_ids from pgqueue.retries").fetchone() or [[]]
    for row in reserve(conn, 40, "web-1:2", queues=["mail"], lease="10 min"):
        if row.id in ids[:5]:
            call(conn, "complete", row.id, row.reservation)
        elif row.id not in ids[:7]:
            column(conn, "release", [row.id], [row.reservation])
    for name, payload in (("paid:48213", {"total": "119.90"}), ("shipped:48101", {"parcel": "DE-17"})):
        call(conn, "emit_event", name, Jsonb(payload))


def _samples(now: datetime) -> Iterator[tuple[Any, ...]]:
    """Yield rows of samples: by ten seconds for an hour, by ten minutes for a week."""
    chance = random.Random(17)
    for span, count in ((10, 360), (600, 1008)):
        for number in range(count):
            at = now - timedelta(seconds=span * (count - number))
            # Busy by day, and a spike some minutes ago.
            day = 1 + 0.55 * math.sin((at.hour + at.minute / 60 - 9) / 24 * 2 * math.pi)
            ago = (now - at).total_seconds()
            spike = 60 * math.exp(-(((ago - 420) / 60) ** 2))
            every: dict[str, Any] = {}
            sums = [0] * 3
            for queue, task, rate, failing, run in WORK:
                done = max(0.0, span * rate * day * chance.uniform(0.85, 1.15))
                failed = done * failing * chance.uniform(0.5, 1.5)
                entry = {
                    "started": round(done * 1.05 + failed), "succeeded": round(done), "failed": round(failed),
                    "dead": int(failed * 0.02 + chance.random() * 0.1),
                    "run": _times(done, run), "wait": _times(done, 0.02),
                }  # fmt: skip
                every[task] = entry
                due = round(rate * 0.3 + (spike if queue == "webhooks" else 0))
                executing = round(rate * run + 1)
                sums = [sums[0] + due, sums[1] + executing, sums[2] + 2]
                oldest = at - timedelta(seconds=due * 0.05)
                yield (at, span, queue, due + 8, due, 8, 2, 0, executing, 4, oldest, Jsonb({task: entry}))
            held = ago < HELD * 60
            due = round(4 * (HELD * 60 - ago) / 60) if held else 0
            entry = {"started": 0 if held else span // 10, "succeeded": 0 if held else span // 10}
            every["review_case"] = {**entry, "run": _times(1, 2.0)}
            sums = [sums[0] + due, sums[1] + 12 * held, sums[2]]
            since = now - timedelta(minutes=HELD) if held else None
            ended = Jsonb({"review_case": every["review_case"]})
            yield (at, span, "payments", due, due, 0, 0, 0, 12 * held, 0, since, ended)
            yield (at, span, "", sums[0] + 40, sums[0], 40, sums[2], 3, sums[1], 30, since or at, Jsonb(every))


def _times(count: float, mean: float) -> dict[str, Any]:
    buckets = [0] * 12
    at = next(index for index, bound in enumerate((0.001, 0.004, 0.016, 0.064, 0.25, 1.0, 4.0, 16.0)) if mean < bound)
    buckets[at], buckets[at + 1] = round(count * 0.8), round(count * 0.2)
    return {"sum": count * mean, "max": mean * 6, "buckets": buckets}
