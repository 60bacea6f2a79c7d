"""Workers claim while an operator pauses and resumes: nothing that is paused is claimed, and no job is lost.

Each claim notes the times before it is sent and after it is answered, each pause those after its commit and before its
end, all by the server's clock. PGQUEUE_SOAK=1000 runs that many pauses.
"""

from __future__ import annotations

import os
import random
import threading
from dataclasses import dataclass, field
from datetime import datetime

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.calls import call, maintain, pairs, reserve, table, value
from tests.databases import Database
from tests.facts import wait_until

PAUSES = int(os.environ.get("PGQUEUE_SOAK", "40"))
WORKERS = 4
TARGETS = [("task", "a"), ("queue", "q"), ("limit_key", "x:1"), ("limit_key", "x:*")]


@dataclass(frozen=True)
class Claim:
    asked_at: datetime
    answered_at: datetime
    job_id: int
    task: str
    queue: str
    limit_key: str | None

    def is_of(self, kind: str, target: str) -> bool:
        if kind == "limit_key":
            mine = self.limit_key or ""
            return mine.startswith(target[:-1]) if target.endswith("*") else mine == target
        return target == (self.task if kind == "task" else self.queue)


@dataclass
class Soak:
    database: Database
    stop: threading.Event = field(default_factory=threading.Event)
    claims: list[Claim] = field(default_factory=list)
    turns: list[int] = field(default_factory=lambda: [0] * WORKERS)
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
        asked_at = now(conn)
        held = reserve(conn, rng.randint(1, 8), f"w{number}")
        answered_at = now(conn)
        self.claims += [
            Claim(asked_at, answered_at, row.id, row.task, row.queue, row.args["limit_key"]) for row in held
        ]
        if held:
            ends = rng.choice(["complete_many", "complete_many", "release"])
            table(conn, ends, *pairs(held))
        self.turns[number] += 1

    def produce(self, conn: psycopg.Connection, number: int, rng: random.Random) -> None:
        if value(conn, "select count(*) from pgqueue.jobs") > 200:
            self.stop.wait(0.01)
            return
        limit_key = rng.choice(["x:1", "x:2", "y", None])
        options = {"queue": rng.choice(["q", "r"]), "limit_key": limit_key, "priority": rng.choice([0, 1])}
        call(conn, "enqueue", rng.choice(["a", "b"]), Jsonb({"limit_key": limit_key}), **options)
        self.turns[number] += 1


def now(conn: psycopg.Connection) -> datetime:
    at: datetime = value(conn, "select clock_timestamp()")
    return at


@pytest.mark.long
def test_nothing_that_is_paused_is_claimed_and_no_job_is_lost(database: Database, conn: psycopg.Connection) -> None:
    soak = Soak(database)
    soak.turns.append(0)
    rng = random.Random(7)
    claimers = [threading.Thread(target=soak.run, args=("claim", number)) for number in range(WORKERS)]
    producer = threading.Thread(target=soak.run, args=("produce", WORKERS))
    for thread in [*claimers, producer]:
        thread.start()
    stood: list[tuple[str, str, datetime, datetime]] = []

    def turned(before: list[int]) -> bool:
        maintain(conn)
        return bool(soak.errors) or all(new > old + 2 for new, old in zip(soak.turns[:WORKERS], before, strict=False))

    try:
        for _ in range(PAUSES):
            kind, target = rng.choice(TARGETS)
            source = rng.choice(["operator", "throttle"])
            if source == "operator":
                assert call(conn, "pause", kind, target)
            else:
                assert call(conn, "throttle", kind, target, "1 hour")
            since = now(conn)
            before = list(soak.turns)
            wait_until(lambda before=before: turned(before), 60)
            stood.append((kind, target, since, now(conn)))
            assert call(conn, "resume", kind, target, source)
            assert soak.errors == []
        made = value(conn, "select count(*) from pgqueue.history")
        assert made > 0
    finally:
        soak.stop.set()
        for thread in [*claimers, producer]:
            thread.join()
    assert soak.errors == []
    for kind, target, since, until in stood:
        assert [
            each
            for each in soak.claims
            if since < each.asked_at and each.answered_at < until and each.is_of(kind, target)
        ] == []

    def drained() -> bool:
        maintain(conn)
        held = reserve(conn, 100)
        table(conn, "complete_many", *pairs(held))
        return value(conn, "select count(*) = 0 from pgqueue.jobs") is True

    wait_until(drained, 60)
