"""The load: producers, and consumers that speak nothing but SQL. Threads, which go on through every fault."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psycopg
from psycopg.types.json import Jsonb

from tests.chaos.checker import COMMITTED, ROLLED_BACK, UNKNOWN
from tests.chaos.recorder import EFFECT, Intent, ProducerLog, Witness
from tests.chaos.weaver import GRAPHS, Weaver
from tests.chaos.workflow_recorder import StepWitness

LEASE_S = 3.0
HOT_KEYS = 5
MANY_KEYS = 3_000
# The first of them have the most jobs.
TENANTS = 5

# What a consumer in SQL may take: it does by itself what the handlers of these do.
CONSUMED = ["bulk", "keyed", "effects", "limits", GRAPHS]
# How many transactions of a producer of all kinds make a graph, a group or a story.
WOVEN = 0.3

LIMITS = """
select pgqueue.set_limit('task', 'limited', max_executing => 4);
select pgqueue.set_limit('limit_key', 'slot*', max_executing => 1);
select pgqueue.set_limit('task', 'rated', rate => 40, per => '1 s');
select pgqueue.declare_task('gathered', accumulate => true, batch_size => 3);
select pgqueue.configure_queue('mixed', fair_by => 'limit_key', max_share => 0.8);
"""


def tenant(rng: random.Random) -> str | None:
    """One of the tenants, or none."""
    return f"tenant{min(int(rng.expovariate(1)), TENANTS - 1)}" if rng.random() < 0.6 else None


class Walker(threading.Thread):
    """Does one thing again and again, on a connection that it opens again whenever it is lost."""

    def __init__(self, dsn: str, name: str, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.rng = random.Random(seed)
        self.stopped = threading.Event()
        self.errors: list[str] = []
        self._dsn = dsn

    def run(self) -> None:
        while not self.stopped.is_set():
            try:
                with psycopg.connect(
                    self._dsn,
                    autocommit=True,
                    connect_timeout=3,
                    application_name=f"chaos {self.name}",
                    prepare_threshold=None,
                ) as conn:
                    while not self.stopped.is_set():
                        self.step(conn)
            except psycopg.Error as error:
                # A refusal of ours would be a mistake of the load's.
                if (error.sqlstate or "").startswith(("22", "42")):
                    self.errors.append(f"{self.name}: {error}")
                self.stopped.wait(0.05)

    def step(self, conn: psycopg.Connection) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self.stopped.set()


class Producer(Walker):
    """Enqueues what `choose` returns in transactions of its own, and rolls some of them back.

    `may` returns whether the backlog has room for more.
    """

    def __init__(self, dsn: str, name: str, seed: int, directory: Path, may: Callable[[], bool]) -> None:
        super().__init__(dsn, name, seed)
        self.log = ProducerLog(directory)
        self._may = may

    def choose(self, conn: psycopg.Connection, token: str) -> list[Intent]:
        raise NotImplementedError

    def learns(self, outcome: str) -> None:
        """What became of what was chosen last."""

    def step(self, conn: psycopg.Connection) -> None:
        if not self._may():
            self.stopped.wait(0.02)
            return
        token = secrets.token_hex(6)
        outcome = ROLLED_BACK
        intents: list[Intent] = []
        try:
            conn.execute("begin")
            intents = self.choose(conn, token)
            self.log.intends(token, intents)
            if self.rng.random() < 0.02:
                conn.execute("rollback")
            else:
                outcome = UNKNOWN
                conn.execute("commit")
                outcome = COMMITTED
        except psycopg.errors.TransactionRollback:
            # A serialization failure or a deadlock, also at the commit: it is rolled back for sure.
            outcome = ROLLED_BACK
            with suppress(psycopg.Error):
                conn.execute("rollback")
        finally:
            self.log.learns(token, outcome, len(intents))
            self.learns(outcome)


class Bulk(Producer):
    """Plain jobs, some hundred at once."""

    size = 300

    def choose(self, conn: psycopg.Connection, token: str) -> list[Intent]:
        count = self.rng.randint(self.size // 2, self.size)
        task = "plain" if self.rng.random() < 0.9 else "plain_sync"
        args = [Jsonb({"token": token})] * count
        rows = conn.execute(
            "select * from pgqueue.enqueue_many(%s, %s, queue => 'bulk', priority => %s, limit_key => %s)",
            [task, args, self.rng.randint(0, 1), tenant(self.rng)],
        )
        return [Intent(job, task, "bulk", None, 0.0) for (job,) in rows]


class Mixed(Producer):
    """A few jobs of all kinds in one transaction."""

    def __init__(self, dsn: str, name: str, seed: int, directory: Path, may: Callable[[], bool]) -> None:
        super().__init__(dsn, name, seed, directory, may)
        self.weaver = Weaver(self.rng)

    def choose(self, conn: psycopg.Connection, token: str) -> list[Intent]:
        if self.rng.random() < WOVEN:
            return self.weaver.weave(conn, token)
        chosen = [self._one(conn, token) for _ in range(self.rng.randint(1, 8))]
        return [intent for intent in chosen if intent is not None]

    def learns(self, outcome: str) -> None:
        self.weaver.learns(outcome == COMMITTED, outcome != UNKNOWN)

    def _one(self, conn: psycopg.Connection, token: str) -> Intent | None:
        rng = self.rng
        key: str | None = f"many{rng.randrange(MANY_KEYS)}"
        if rng.random() < 0.2:
            key = f"hot{rng.randrange(HOT_KEYS)}"
        priority, delay, limit_key = rng.randint(-1, 1), 0.0, tenant(rng)
        kind, queue = rng.choices(
            [
                ("keyed", "keyed"),
                ("keyed_sync", "keyed"),
                ("effect", "effects"),
                ("effect_sync", "effects"),
                ("flaky", "mixed"),
                ("slow", "mixed"),
                ("steady", "mixed"),
                ("stubborn", "mixed"),
                ("limited", "limits"),
                ("slotted", "limits"),
                ("rated", "limits"),
                ("gathered", "gathered"),
                ("deduped", "mixed"),
            ],
            [30, 8, 10, 5, 12, 0.4, 30, 0.2, 8, 8, 3, 6, 6],
        )[0]
        task, dedupe = kind, None
        if kind in ("limited", "rated", "slow", "steady", "stubborn"):
            key = None
        if kind in ("effect", "effect_sync", "flaky") and rng.random() < 0.5:
            key = None
        if kind == "slotted":
            key, limit_key = None, f"slot{rng.randrange(4)}"
        if kind == "deduped":
            task, key, dedupe = "plain", None, f"d{rng.randrange(200)}"
        if kind in ("gathered", "deduped"):
            limit_key = None
        if kind in ("keyed", "flaky", "effect", "gathered") and rng.random() < 0.2:
            delay = round(rng.random() * 3, 2)
        row = conn.execute(
            "select pgqueue.enqueue(%(task)s, %(args)s, queue => %(queue)s, priority => %(priority)s, key => %(key)s,"
            " delay => make_interval(secs => %(delay)s), limit_key => %(limit_key)s, dedupe => %(dedupe)s)",
            {
                "task": task,
                "args": Jsonb({"token": token}),
                "queue": queue,
                "priority": priority,
                "key": key,
                "delay": delay,
                "limit_key": limit_key,
                "dedupe": dedupe,
            },
        ).fetchone()
        assert row is not None
        if dedupe is not None:
            mine = "select from pgqueue.jobs where id = %s and args ->> 'token' = %s"
            if conn.execute(mine, [row[0], token]).fetchone() is None:
                # The job of another producer, which has recorded it.
                return None
        return Intent(row[0], kind, queue, key, delay)


class Single(Producer):
    """One job in a transaction, and then a pause: most are handed to an idle worker. Some transactions stay open."""

    def step(self, conn: psycopg.Connection) -> None:
        self.stopped.wait(self.rng.random() * 0.1)
        super().step(conn)

    def choose(self, conn: psycopg.Connection, token: str) -> list[Intent]:
        tasks = ["plain", "plain_sync", "effect", "effect_sync", "flaky", "slow", "steady", "stubborn", "keyed"]
        [task] = self.rng.choices(tasks, [20, 10, 10, 5, 12, 3, 30, 1, 5])
        key = f"hot{self.rng.randrange(HOT_KEYS)}" if task == "keyed" else None
        row = conn.execute(
            "select pgqueue.enqueue(%s, %s, queue => 'mixed', key => %s, limit_key => %s)",
            [task, Jsonb({"token": token}), key, tenant(self.rng)],
        ).fetchone()
        assert row is not None
        if self.rng.random() < 0.03:
            # Past the first lease, too.
            self.stopped.wait(self.rng.choice((0.3, 1.5, LEASE_S + 1)))
        return [Intent(row[0], task, "mixed", key, 0.0)]


class Consumer(Walker):
    """Reserves, does what handlers do, and completes in one transaction, by SQL alone; now and then it gives back."""

    def __init__(self, dsn: str, name: str, seed: int, directory: Path, level: str = "read committed") -> None:
        super().__init__(dsn, name, seed)
        self._witness = Witness(directory / f"{name}-{secrets.token_hex(3)}.runs")
        self._steps = StepWitness(directory)
        self._level = level

    def step(self, conn: psycopg.Connection) -> None:
        rng = self.rng
        conn.execute("set default_transaction_isolation = 'read committed'")
        lease_ends_at = time.monotonic() + LEASE_S
        taken = conn.execute(
            "select r.id, r.reservation, r.queue, r.key, r.task, r.args"
            " from pgqueue.reserve(%s, %s, %s, lease => %s) r",
            [self.name, rng.randint(1, 12), CONSUMED, f"{LEASE_S} s"],
        ).fetchall()
        if not taken:
            conn.execute("select pgqueue.maintain(max_age => '1 s')")
            self.stopped.wait(0.05)
            return
        for job, reservation, queue, key, task, args in taken:
            conn.execute(f"begin isolation level {self._level}".encode())
            if time.monotonic() > lease_ends_at:
                # Another one may have these jobs by now.
                conn.execute("rollback")
                return
            self._witness.starts(job, reservation)
            # No lease is extended here: some lapse while this one dawdles.
            if rng.random() < 0.001:
                self.stopped.wait(LEASE_S + 1)
            chance = rng.random()
            if chance < 0.9:
                if task.startswith("effect"):
                    conn.execute(EFFECT, {"job": job, "reservation": reservation, "queue": queue, "key": key})
                if task == "emitting":
                    payload = Jsonb({"by": job, "reservation": reservation})
                    conn.execute("select pgqueue.emit_event(%s, %s)", [args["event"], payload])
                self._witness.done(job, reservation)
                held = conn.execute("select pgqueue.complete(%s, %s)", [job, reservation]).fetchone()
                try:
                    conn.execute("commit" if held == (True,) else "rollback")
                except psycopg.errors.SerializationFailure:
                    held = None
                if held == (True,):
                    if task == "emitting":
                        self._steps.emitted(args["event"])
                    continue
            elif chance < 0.95:
                self._witness.failed(job, reservation)
                conn.execute("select pgqueue.fail(%s, %s, retry_in => '50 ms')", [job, reservation])
                conn.execute("commit")
            elif chance < 0.98:
                self._witness.failed(job, reservation)
                conn.execute("rollback")
                conn.execute("select pgqueue.release(%s, %s)", [[job], [reservation]])
            else:
                self._witness.failed(job, reservation)
                conn.execute("rollback")
                conn.execute("select pgqueue.snooze(%s, %s, '20 ms')", [job, reservation])


class Patient(Consumer):
    """A consumer that keeps its session whatever the server cancels, and sets itself timeouts that are too short.

    `is_hurried` returns whether it does so now. What a cancelled statement leaves in its session stays there.
    """

    is_hurried: Callable[[], bool] = staticmethod(lambda: False)

    def step(self, conn: psycopg.Connection) -> None:
        try:
            hurry = self.rng.randint(1, 20) if self.is_hurried() else 0
            conn.execute(f"set statement_timeout = '{hurry}ms'".encode())
            super().step(conn)
        except psycopg.errors.QueryCanceled:
            with suppress(psycopg.errors.QueryCanceled):
                conn.execute("rollback")


def wait_for_end(threads: list[Walker], timeout: float = 15) -> list[str]:
    """Stop them all; returns what they have to complain of."""
    for each in threads:
        each.stop()
    deadline = time.monotonic() + timeout
    for each in threads:
        each.join(max(0.0, deadline - time.monotonic()))
    stuck = [f"{each.name} did not end" for each in threads if each.is_alive()]
    return stuck + [error for each in threads for error in each.errors]
