"""A small scene, every step of which is forced: a database, with a bug in it or without, and its records."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from tests.calls import call, maintain, reserve, value
from tests.chaos.checker import COMMITTED, check
from tests.chaos.recorder import EFFECT, Intent, ProducerLog, Records, Witness
from tests.chaos.scene import LEFT_LOCKS
from tests.chaos.workflow_recorder import StepWitness
from tests.databases import Database
from tests.facts import wait_until

_EXECUTING = "select exists (select from pgqueue.jobs where state = 'executing')"


class Stage:
    """The database, its records, and one connection to both."""

    def __init__(self, database: Database, directory: Path) -> None:
        self.database = database
        self.conn = database.connect()
        self.records = Records(directory / "records", database.dsn)
        self.records.prepare()
        self.witness = Witness.of_this_process(self.records.directory)
        self.steps = StepWitness(self.records.directory)
        self._log = ProducerLog(self.records.directory)

    def bug(self, function: str, was: str, becomes: str) -> None:
        """Put a bug into a function."""
        [(text,)] = self.conn.execute("select pg_get_functiondef(%s::regproc)", [function]).fetchall()
        assert was in text, f"{function} reads otherwise now: put the bug in another way"
        self.conn.execute(text.replace(was, becomes).encode())

    def enqueue(self, kind: str, key: str | None = None, conn: psycopg.Connection | None = None, **options: Any) -> int:
        token = secrets.token_hex(4)
        job: int = call(conn or self.conn, "enqueue", kind, Jsonb({"token": token}), queue="q", key=key, **options)
        self._promise(job, kind, token, key)
        return job

    def open_group(self, **options: Any) -> int:
        token = secrets.token_hex(4)
        group: int = call(self.conn, "open_group", token, **options)
        self._promise(group, "group", token, None)
        return group

    def lapse(self) -> None:
        """What is reserved now lapses, and is ready again."""
        # As if the grace period after a gap in maintenance was given already.
        self.conn.execute("update pgqueue.jobs set lease_expires_at = clock_timestamp(), grace_given = true")
        maintain(self.conn)
        wait_until(lambda: maintain(self.conn) and not value(self.conn, _EXECUTING))

    def effect(self, conn: psycopg.Connection, job: int, reservation: int) -> None:
        conn.execute(EFFECT, {"job": job, "reservation": reservation, "queue": "q", "key": None})

    def work_off(self) -> None:
        """Run all that is there, as a worker would."""
        while taken := reserve(self.conn, 50):
            for job in taken:
                self.witness.ran(job.id, job.reservation)
                assert call(self.conn, "complete", job.id, job.reservation)

    def left_locks(self) -> list[tuple[object, ...]]:
        """Advisory locks that are held by no transaction."""
        return self.conn.execute(LEFT_LOCKS.encode()).fetchall()

    def rules(self) -> list[str]:
        self.records.load()
        with self.records.evidence(
            transactional=frozenset({"effect"}), unrun=frozenset({"group"}), cancellable=frozenset({"child", "group"})
        ) as found:
            return sorted(check(found).broken)

    def _promise(self, job: int, kind: str, token: str, key: str | None) -> None:
        self._log.intends(token, [Intent(job, kind, "q", key, 0.0)])
        self._log.learns(token, COMMITTED, 1)
