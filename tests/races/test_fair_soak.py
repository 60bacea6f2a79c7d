"""Workers claim, fail and release while a queue is made fair and plain again: each job ends, and none is lost.

PGQUEUE_SOAK=1000 switches that many times.
"""

from __future__ import annotations

import os
import random
import threading
from dataclasses import dataclass, field

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.calls import call, maintain, pairs, reserve, table, value
from tests.databases import Database
from tests.facts import wait_until

SWITCHES = int(os.environ.get("PGQUEUE_SOAK", "30"))
WORKERS = 4


@dataclass
class Soak:
    database: Database
    stop: threading.Event = field(default_factory=threading.Event)
    turns: list[int] = field(default_factory=lambda: [0] * (WORKERS + 2))
    errors: list[BaseException] = field(default_factory=list)

    def run(self, work: str, number: int) -> None:
        try:
            with psycopg.connect(self.database.dsn, autocommit=True) as conn:
                while not self.stop.is_set():
                    getattr(self, work)(conn, number, random.Random(self.turns[number]))
        except BaseException as error:
            self.errors.append(error)
            self.stop.set()

    def claim(self, conn: psycopg.Connection, number: int, rng: random.Random) -> None:
        if held := reserve(conn, rng.randint(1, 8), f"w{number}"):
            if rng.random() < 0.1:
                table(conn, "release", *pairs(held))
            elif rng.random() < 0.1:
                call(conn, "fail", held[0].id, held[0].reservation, Jsonb({"message": "x"}), "10 ms")
                table(conn, "complete_many", *pairs(held[1:]))
            else:
                table(conn, "complete_many", *pairs(held))
        self.turns[number] += 1

    def produce(self, conn: psycopg.Connection, number: int, rng: random.Random) -> None:
        if value(conn, "select count(*) from pgqueue.jobs") > 300:
            self.stop.wait(0.01)
            return
        # Some transactions stay open for a moment, and some are rolled back.
        with conn.transaction(force_rollback=rng.random() < 0.1):
            for _ in range(rng.randint(1, 5)):
                limit_key = rng.choice([None, *(f"tenant:{n}" for n in range(10))])
                delay = rng.choice([None, None, None, "50 ms"])
                call(conn, "enqueue", "t", priority=rng.choice([0, 0, 1]), limit_key=limit_key, delay=delay)
            self.stop.wait(rng.choice([0, 0, 0.02]))
        self.turns[number] += 1


@pytest.mark.long
def test_each_job_ends_while_its_queue_is_made_fair_and_plain_again(
    database: Database, conn: psycopg.Connection
) -> None:
    soak = Soak(database)
    threads = [threading.Thread(target=soak.run, args=("claim", number)) for number in range(WORKERS)]
    threads += [threading.Thread(target=soak.run, args=("produce", WORKERS + number)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(SWITCHES):
            before = list(soak.turns)
            if number % 2 == 0:
                call(conn, "configure_queue", "default", fair_by="limit_key")
                call(conn, "set_share", "tenant:1", 1 + number % 5)
            else:
                call(conn, "configure_queue", "default", reset=["fair_by"])
            maintain(conn)
            wait_until(lambda seen=before: soak.errors or all(a > b for a, b in zip(soak.turns, seen, strict=True)))
    finally:
        soak.stop.set()
        for thread in threads:
            thread.join()
    assert soak.errors == []

    def drained() -> bool:
        maintain(conn)
        if held := reserve(conn, 50):
            table(conn, "complete_many", *pairs(held))
        return value(conn, "select count(*) = 0 from pgqueue.jobs")

    wait_until(drained, timeout=60)
    # What maintenance had to find would be a hole in the rules.
    assert value(conn, "select coalesce(max(hidden), 0) from pgqueue.maintenance_runs") == 0
