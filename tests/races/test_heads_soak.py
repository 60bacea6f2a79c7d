"""Producers that hold their transactions open for random times while others flood the queue: every job runs.

Heads move past uncommitted jobs; none may be left below them. The report says how late jobs ran after their commit.
PGQUEUE_SOAK_HELD=5 holds transactions open for up to that many seconds, and runs longer for it.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from dataclasses import dataclass, field

import psycopg
import pytest

from tests.calls import call, column, enqueue, enqueue_many, maintain, pairs, reserve, value
from tests.databases import Database

HELD_S = float(os.environ.get("PGQUEUE_SOAK_HELD", "0.5"))
PRODUCERS = 6
CLAIMERS = 2
TURNS = 12
QUEUES = ("default", "other")


@dataclass
class Soak:
    database: Database
    done: threading.Event = field(default_factory=threading.Event)
    stop: threading.Event = field(default_factory=threading.Event)
    commits: dict[int, float] = field(default_factory=dict)
    claims: dict[int, float] = field(default_factory=dict)
    errors: list[BaseException] = field(default_factory=list)

    def hold(self, number: int) -> None:
        rng = random.Random(number)
        with self.connect() as conn:
            for _ in range(TURNS):
                with conn.transaction():
                    some = [enqueue(conn, "held", queue=rng.choice(QUEUES)) for _ in range(3)]
                    self.stop.wait(rng.random() * HELD_S)
                    some.append(enqueue(conn, "held", queue=rng.choice(QUEUES)))
                now = time.monotonic()
                self.commits.update(dict.fromkeys(some, now))

    def hold_long(self, number: int) -> None:
        with self.connect() as conn:
            with conn.transaction():
                some = [enqueue(conn, "long", queue=queue) for queue in QUEUES]
                # A queue that is new to all.
                some.append(enqueue(conn, "long", queue="new"))
                self.done.wait()
            now = time.monotonic()
            self.commits.update(dict.fromkeys(some, now))

    def flood(self, number: int) -> None:
        rng = random.Random(number)
        with self.connect() as conn:
            while not self.done.is_set():
                enqueue_many(conn, rng.randint(50, 300), "flood", queue=rng.choice((*QUEUES, "new")))
                self.done.wait(0.02)

    def claim(self, number: int) -> None:
        rng = random.Random(number)
        with self.connect() as conn:
            while not self.stop.is_set():
                held = reserve(conn, rng.choice((1, 20, 200)), f"w{number}", lease="2 s")
                now = time.monotonic()
                self.claims.update({row.id: now for row in held})
                if held and rng.random() < 0.05:
                    column(conn, "release", *pairs(held))
                elif held and rng.random() < 0.05:
                    call(conn, "fail", held[0].id, held[0].reservation, retry_in="10 ms")
                    column(conn, "complete_many", *pairs(held[1:]))
                elif held and rng.random() < 0.98:
                    column(conn, "complete_many", *pairs(held))
                # Else they lapse.
                if not held:
                    self.stop.wait(0.01)

    def keep_house(self, number: int) -> None:
        with self.connect() as conn:
            while not self.stop.wait(0.2):
                maintain(conn)

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(self.database.dsn, autocommit=True)


@pytest.mark.long
@pytest.mark.covers("D1", "D3")
@pytest.mark.timeout(120 + 30 * HELD_S)
def test_every_job_runs_however_late_its_producer_commits(database: Database) -> None:
    conn = database.connect()
    soak = Soak(database)

    def start(*works: object) -> list[threading.Thread]:
        def guarded(work: object, number: int) -> None:
            try:
                assert callable(work)
                work(number)
            except BaseException as error:
                soak.errors.append(error)

        threads = [threading.Thread(target=guarded, args=[work, n]) for n, work in enumerate(works)]
        for thread in threads:
            thread.start()
        return threads

    rest = start(*[soak.claim] * CLAIMERS, soak.keep_house)
    producers = start(*[soak.hold] * PRODUCERS)
    others = start(soak.flood, soak.hold_long)
    try:
        for thread in producers:
            thread.join()
        soak.done.set()
        for thread in others:
            thread.join()
        limit = time.monotonic() + 60
        while value(conn, "select exists (select from pgqueue.jobs)") and time.monotonic() < limit:
            soak.stop.wait(0.1)
    finally:
        soak.done.set()
        soak.stop.set()
        for thread in rest:
            thread.join()

    assert soak.errors == []
    left = conn.execute("select id, queue, task, state::text from pgqueue.jobs order by id limit 10").fetchall()
    assert left == []
    assert value(conn, "select max(hidden) from pgqueue.maintenance_runs") == 0
    assert value(conn, "select count(*) from pgqueue.heads where head > '-infinity'") > 0
    late = sorted(soak.claims[job_id] - at for job_id, at in soak.commits.items())
    total = value(conn, "select count(*) from pgqueue.history where state = 'succeeded'")
    sys.stdout.write(
        f"heads: {total:,} jobs, {len(late)} of transactions held for up to {HELD_S:g} s; after their commit these ran"
        f" within {late[len(late) // 2] * 1000:.0f} ms (median), {late[-1] * 1000:.0f} ms (all)\n"
    )
