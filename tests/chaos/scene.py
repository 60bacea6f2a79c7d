"""One run: a server, a database, workers, a load, faults, and the verdict of the checker."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import psycopg
from psycopg.conninfo import make_conninfo

from pgqueue.errors import EmbeddedError
from pgqueue.schema.migrate import migrate
from pgqueue.testing import Clock
from tests.chaos import load
from tests.chaos.checker import Findings, Step, Violation, check
from tests.chaos.load import Bulk, Consumer, Mixed, Patient, Producer, Single, Walker
from tests.chaos.recorder import Records
from tests.chaos.weaver import CANCELLABLE, GROUPS
from tests.databases import uri
from tests.proxy import Proxy
from tests.worker import test_failover, test_pgbouncer
from tests.workers import WorkerProcess

LEASE_S = load.LEASE_S
TRANSACTIONAL = frozenset({"effect", "effect_sync"})
UNRUN = frozenset({"gathered"}) | GROUPS
# For a server that is to answer, or to end. It is no measure of it: a busy machine may take a minute.
PATIENCE_S = 300.0
# How many of the jobs are not plain ones.
MIXED = 0.2
# With a default of their own.
ROLES = {"chaos_repeatable": "repeatable read", "chaos_serializable": "serializable"}
LEVELS = ("read committed", "repeatable read", "serializable")


# Advisory locks of sessions in which no transaction is open: of session level, and held for nothing.
LEFT_LOCKS = """
select distinct l.pid, l.classid::bigint, l.objid::bigint, a.state_change, a.application_name
from pg_locks l
join pg_stat_activity a on a.pid = l.pid
where l.locktype = 'advisory' and a.datname = current_database() and a.state = 'idle'
    and a.state_change < clock_timestamp() - interval '0.2 s'
"""


class Server(test_failover.Server):
    """Few connections, so that they can run out. Checks for deadlocks soon: some faults make them on purpose."""

    options: ClassVar[dict[str, str]] = {
        "synchronous_commit": "on",
        "shared_buffers": "256MB",
        "max_connections": "150",
        "deadlock_timeout": "100ms",
        "max_wal_size": "1GB",
        "wal_sender_timeout": "5s",
        "log_min_messages": "error",
        "log_min_error_statement": "panic",
    }

    def start(self) -> None:
        """However long it takes on a machine that has other things to do."""
        _patiently(super().start)

    def stop(self) -> None:
        _patiently(super().stop)

    def database(self, name: str) -> str:
        """Create a database of this name and migrate it; returns its DSN.

        Clients speak UTF-8, and this encoding has bytes that no text in UTF-8 has.
        """
        self.execute(f"create database {name} template template0 encoding 'WIN1252' locale_provider libc locale 'C'")
        dsn = uri(self.dsn, dbname=name)
        migrate(dsn)
        return dsn


def _patiently(do: Callable[[], None]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return do()
        except EmbeddedError:
            if time.monotonic() > deadline:
                raise


@dataclass(slots=True)
class Slot:
    """A worker that is to be there: started again whenever it has ended."""

    name: str
    dsn: str
    options: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    process: WorkerProcess | None = None
    killed: bool = False

    def pids(self) -> list[int]:
        """The process, and those it has started."""
        if self.process is None:
            return []
        mine = self.process.pid
        with suppress(OSError):
            return [mine, *map(int, Path(f"/proc/{mine}/task/{mine}/children").read_text().split())]
        return [mine]


@dataclass(slots=True)
class Verdict:
    """What became of a run."""

    name: str
    seed: int
    seconds: float
    drained_in: float | None
    findings: Findings
    injected: Counter[str]
    skipped: dict[str, str]

    @property
    def committed(self) -> int:
        return self.findings.counts["promised: committed"]


# A handler emits in a transaction of its own. A standby that lags may not have it, and gets the end of its job all the
# same: an application that loses commits has to send such an event again.
_EMITTED_AGAIN = """
select pgqueue.emit_event(w.name, jsonb_build_object('by', h.id, 'reservation', h.reservation))
from pgqueue.event_waits w
join pgqueue.history h on h.task = 'emitting' and h.state = 'succeeded' and h.args ->> 'event' = w.name
where not exists (select from pgqueue.events e where e.name = w.name)
"""


class Scene:
    """Everything of one run. `dsn` leads to the database, through a list of hosts where there are several.

    With `is_calm` jobs come one by one to idle workers, and there are no limits: so they are handed off. Leases are
    longer there than a handler holds the interpreter's lock.
    """

    def __init__(
        self,
        name: str,
        dsn: str,
        directory: Path,
        seed: int,
        *,
        server: Server | None = None,
        pace: float = 1500.0,
        fleet: str = "full",
        is_calm: bool = False,
    ) -> None:
        self.name = name
        self.dsn = dsn
        self.seed = seed
        self.server = server
        self.pace = pace
        self.directory = directory
        self.records = Records(directory / "records", dsn)
        self.injected: Counter[str] = Counter()
        self.skipped: dict[str, str] = {}
        self.over = threading.Event()
        self.slots: list[Slot] = []
        self.walkers: list[Walker] = []
        self.proxy: Proxy | None = None
        self.pooler: test_pgbouncer.PgBouncer | None = None
        self.steps: list[Step] = []
        self.is_hurried = threading.Event()
        self.notes: list[Violation] = []
        # One at a time touches what all share.
        self.of_server = threading.RLock()
        self._fleet = fleet
        self._is_calm = is_calm
        self.lease = 4 * LEASE_S if is_calm else LEASE_S
        self._backlog = (0, 0)
        self._feeding = True
        self._keepers: list[threading.Thread] = []
        self._fleet_lock = threading.Lock()
        self._started_at = 0.0

    # The stages of a run, in their order.

    def prepare(self) -> None:
        self.records.prepare()
        with self.control() as conn:
            if not self._is_calm:
                conn.execute(load.LIMITS.encode())
            for role, level in ROLES.items():
                with suppress(psycopg.errors.DuplicateObject):
                    conn.execute(f"create role {role} superuser login".encode())
                conn.execute(f"alter role {role} set default_transaction_isolation to '{level}'".encode())
        if self._fleet == "full":
            self.proxy = Proxy(self.dsn)
            if test_pgbouncer.PROGRAM is not None:
                self.pooler = test_pgbouncer.PgBouncer(self)  # type: ignore[arg-type]
            else:
                self.skipped["pgbouncer_restarts"] = "pgbouncer is not installed"
        self.slots = list(self._slots())
        self.walkers = list(self._walkers())

    def start(self) -> None:
        self._started_at = time.monotonic()
        for each in self.walkers:
            each.start()
        for work in (self._keep_fleet, self._watch_backlog):
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            self._keepers.append(thread)

    def run_faults(self, groups: Sequence[Sequence[Any]], seconds: float, jobs: int = 0) -> None:
        """Inject one fault after the other of each group, groups side by side, for at least `seconds` and `jobs`."""
        deadline = time.monotonic() + seconds
        done = threading.Event()

        def inject(faults: Sequence[Any], seed: int) -> None:
            rng = random.Random(seed)
            # In a new order each time round, so that all of them come.
            left: list[Any] = []
            while not done.is_set():
                left = left or rng.sample(faults, len(faults))
                fault = left.pop()
                try:
                    self.inject(fault, rng)
                except Exception as error:
                    # Nobody would heal what it has broken: the run may not come to its verdict.
                    self.notes.append(Violation("fault", fault.__name__, f"{type(error).__name__}: {error}"))
                    traceback.print_exc()
                    return
                done.wait(rng.random() * 1.5)

        threads = [threading.Thread(target=inject, args=[g, self.seed * 31 + n]) for n, g in enumerate(groups) if g]
        for thread in threads:
            thread.start()
        while time.monotonic() < deadline or (self.committed() < jobs and time.monotonic() < deadline + seconds / 2):
            time.sleep(0.2)
        done.set()
        for thread in threads:
            thread.join(PATIENCE_S)

    def inject(self, fault: Any, rng: random.Random) -> None:
        why = fault(self, rng)
        if why:
            self.skipped[fault.__name__] = why
        else:
            self.injected[fault.__name__] += 1

    def drain(self) -> float | None:
        """Stop what feeds the queue and wait until it is empty; returns how long that took, None if it never was."""
        self._feeding = False
        if self.proxy is not None:
            # A producer that waits on a half-open connection does so for ever.
            self.proxy.drop()
        producers = [each for each in self.walkers if isinstance(each, Producer)]
        for complaint in load.wait_for_end(list(producers)):
            self.notes.append(Violation("load", "producers", complaint))
        if any(abs(step.seconds) > 60 for step in self.steps):
            # What was delayed or deferred while the clock was ahead is due then.
            with self.control() as conn:
                Clock(conn).advance("1 hour 1 minute")
        # Those of a producer whose commit was not answered, or that was stopped.
        self.ask("select pgqueue.close_group(id) from pgqueue.jobs where blocked_on = '@open'")
        began = time.monotonic()
        bound = 60 + self._count() / 150
        while time.monotonic() < began + bound:
            if self._count() == 0:
                return time.monotonic() - began
            if self.records.losses:
                self.ask(_EMITTED_AGAIN)
            time.sleep(0.2)
        return None

    def stop(self) -> None:
        self.over.set()
        for thread in self._keepers:
            thread.join(30)
        for complaint in load.wait_for_end(self.walkers):
            self.notes.append(Violation("load", "consumers", complaint))
        for slot in self.slots:
            for pid in slot.pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            if slot.process is not None:
                slot.process.send(signal.SIGTERM)
        for slot in self.slots:
            if slot.process is not None:
                with suppress(Exception):
                    slot.process.wait(15)
                slot.process.kill()
        if self.pooler is not None:
            self.pooler.close()
        if self.proxy is not None:
            self.proxy.close()

    def verdict(self, drained_in: float | None) -> Verdict:
        try:
            findings = self._check()
        except psycopg.OperationalError:
            # A cluster may still be settling who is its primary.
            time.sleep(20)
            with self.control():
                findings = self._check()
        findings.counts.update(self._figures_of_the_server())
        findings.add(self.notes)
        findings.add(self._refusals())
        seconds = time.monotonic() - self._started_at
        return Verdict(self.name, self.seed, seconds, drained_in, findings, self.injected, self.skipped)

    def _check(self) -> Findings:
        self.records.load()
        with self.records.evidence(
            transactional=TRANSACTIONAL,
            unrun=UNRUN,
            cancellable=CANCELLABLE,
            stepped=bool(self.steps),
            steps=tuple(self.steps),
            lease=self.lease,
        ) as evidence:
            return check(evidence)

    def _refusals(self) -> Iterator[Violation]:
        """Parents and groups that were committed, and were unknown though history was whole."""
        for each in self.walkers:
            for at in each.weaver.refusals if isinstance(each, Mixed) else ():
                # What a server has lost stays unknown.
                is_lost = any(start <= at for start, _ in self.records.losses)
                if not is_lost and not any(start <= at <= end for start, end in self.records.away):
                    yield Violation("dependency", each.name, f"a parent that it had committed was unknown at {at:.3f}")

    # What faults use.

    @contextmanager
    def control(self) -> Iterator[psycopg.Connection]:
        """A connection of the test's own to whatever is the primary, as soon as there is one."""
        deadline = time.monotonic() + PATIENCE_S
        dsn = make_conninfo(
            self.dsn, connect_timeout=3, target_session_attrs="read-write", application_name="chaos control"
        )
        while True:
            try:
                conn = psycopg.connect(dsn, autocommit=True, options="-c statement_timeout=0")
                break
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        with conn:
            yield conn

    def ask(self, question: str, *params: object) -> list[tuple[Any, ...]]:
        """Rows of a question to the database, or none while it does not answer."""
        with suppress(psycopg.Error), self.control() as conn:
            cursor = conn.execute(question.encode(), params or None)
            return cursor.fetchall() if cursor.description else []
        return []

    def step_clock(self, seconds: float) -> None:
        """Move the queue's clock, and write down when."""
        for _ in range(20):
            began = time.time()
            # Two that replace one function at a time fail; so does one whose server goes away.
            with suppress(psycopg.Error), self.control() as conn:
                Clock(conn).advance(f"{seconds} seconds")
                break
        # One that failed may have been committed all the same.
        self.steps.append(Step(began, time.time(), seconds))

    def committed(self) -> int:
        return sum(each.log.committed for each in self.walkers if isinstance(each, Producer))

    def take(self, rng: random.Random, which: Callable[[Slot], bool] = lambda slot: True) -> Slot | None:
        """One of the workers that run."""
        running = [slot for slot in self.slots if which(slot) and slot.process is not None and slot.process.is_alive()]
        return rng.choice(running) if running else None

    def kill(self, slot: Slot) -> None:
        with self._fleet_lock:
            if slot.process is not None:
                slot.killed = True
                slot.process.kill()

    def _slots(self) -> Iterator[Slot]:
        common = (
            *("-r", "tests.chaos.tasks", "--log-level", "warning"),
            *("--lease", str(self.lease), "--poll-interval", "1", "--shutdown-timeout", "3"),
        )
        records = {"CHAOS_RECORDS": str(self.records.directory)}

        def slot(name: str, dsn: str, *options: str, **environment: str) -> Slot:
            return Slot(name, dsn, (*common, "--name", name, *options), records | environment)

        yield slot("direct", self.dsn, "-c", "30", CHAOS_CLOCK="3600")
        if self._fleet == "small":
            yield slot("second", self.dsn, "-c", "20", CHAOS_CLOCK="-3600")
            return
        yield slot("family", uri(self.dsn, user="chaos_serializable"), "-c", "15", "--processes", "2")
        if self.proxy is not None:
            yield slot("remote", self.proxy.dsn, "-c", "20", CHAOS_CLOCK="-3600")
        if self.pooler is not None:
            yield slot("pooled", self.pooler.dsn, "-c", "10", "--no-listen")

    def _walkers(self) -> Iterator[Walker]:
        logs = self.records.directory
        seed = self.seed * 1000
        if self._is_calm:
            for n, dsn in enumerate([self.dsn, *(each.dsn for each in (self.pooler, self.proxy) if each is not None)]):
                yield Single(dsn, f"single {n}", seed + n, logs, lambda: self._feeding)
            return
        yield Bulk(self.dsn, "bulk", seed, logs, self._may_bulk)
        for n, role in enumerate(("postgres", *ROLES)):
            yield Mixed(uri(self.dsn, user=role), f"mixed {n}", seed + 1 + n, logs, self._may_mix)
        if self.pooler is not None:
            yield Mixed(self.pooler.dsn, "mixed pooled", seed + 5, logs, self._may_mix)
        if self.proxy is not None:
            yield Mixed(self.proxy.dsn, "mixed remote", seed + 6, logs, self._may_mix)
        for n, level in enumerate(LEVELS):
            yield Consumer(self.dsn, f"sql{n}", seed + 10 + n, logs, level)
        patient = Patient(self.dsn, "sql patient", seed + 20, logs)
        patient.is_hurried = self.is_hurried.is_set
        yield patient

    def _may_bulk(self) -> bool:
        return self._feeding and self.committed() < self._due() and self._backlog[0] < 10_000

    def _may_mix(self) -> bool:
        mixed = sum(each.log.committed for each in self.walkers if isinstance(each, Mixed))
        return self._feeding and mixed < self._due() * MIXED and self._backlog[1] < 1_500

    def _due(self) -> float:
        """How many jobs should have been sent by now."""
        return self.pace * (time.monotonic() - self._started_at)

    def _watch_backlog(self) -> None:
        question = """
            select (select count(*) from (select from pgqueue.jobs where queue = 'bulk' limit 20000) b),
                (select count(*) from (select from pgqueue.jobs where queue <> 'bulk' limit 5000) m)
        """
        left: set[tuple[Any, ...]] = set()
        while not self.over.wait(0.4):
            rows = self.ask(question)
            if rows:
                self._backlog = rows[0]
            # Twice the same: the first time a transaction may have ended between the reads of both views.
            seen = set(self.ask(LEFT_LOCKS))
            for pid, *_, name in left & seen:
                self.notes.append(
                    Violation("lock left", f"session {pid} of {name}", "an advisory lock, and no transaction")
                )
            left = seen - left

    def _keep_fleet(self) -> None:
        while not self.over.is_set():
            for slot in self.slots:
                with self._fleet_lock:
                    process = slot.process
                    if process is not None and process.is_alive():
                        continue
                    if process is not None and not slot.killed:
                        last = " | ".join(process.log().strip().splitlines()[-4:])
                        what = f"ended by itself with {process.process.returncode}: {last}"
                        self.notes.append(Violation("worker", slot.name, what))
                    slot.killed = False
                    slot.process = WorkerProcess(self.directory, slot.dsn, *slot.options, environment=slot.environment)
            self.over.wait(0.2)

    def _count(self) -> int:
        rows = self.ask("select count(*) from pgqueue.jobs")
        return int(rows[0][0]) if rows else 1

    def _figures_of_the_server(self) -> dict[str, int]:
        """What shows that the faults did something."""
        rows = self.ask(
            """
            select
                (select max(rescued) from pgqueue.maintenance_runs),
                (select max(grace_periods) from pgqueue.maintenance_runs),
                (select deadlocks from pg_stat_database where datname = current_database()),
                (select count(*) from chaos.effects),
                (select count(*) from pgqueue.history where attempts > 1),
                (
                    select count(*) from chaos.ledger l join pgqueue.history h on h.id = l.job and h.attempts = 1
                    where l.handed
                )
            """
        )
        names = (
            "leases taken back by maintenance",
            "grace periods after a gap",
            "deadlocks since the server last crashed",
            "effects in a job's own transaction",
            "jobs tried more than once",
            "jobs handed off that ended under their first reservation",
        )
        return dict(zip(names, rows[0], strict=True)) if rows else {}
