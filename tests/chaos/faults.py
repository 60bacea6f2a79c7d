"""The faults. Each is done to a scene, lasts a few seconds at most, and ends by itself.

A fault that is not possible here returns why, and the report shows it. `CLIENT_FAULTS` are done to workers and
connections, `SERVER_FAULTS` to the server: mixed, one of each kind goes on at the same time.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from tests.chaos.checker import COMMITTED, ROLLED_BACK, UNKNOWN
from tests.chaos.recorder import Intent, ProducerLog
from tests.chaos.scene import LEASE_S, Scene, Slot

Fault = Callable[[Scene, random.Random], str | None]

PAST_LEASE_S = LEASE_S + 1.5


# Done to workers.


def worker_killed(scene: Scene, rng: random.Random) -> str | None:
    """SIGKILL of a worker."""
    slot = scene.take(rng, lambda slot: not _is_family(slot))
    if slot is not None:
        scene.kill(slot)
    time.sleep(1)
    return None


def child_killed(scene: Scene, rng: random.Random) -> str | None:
    """SIGKILL of a worker process under a supervisor."""
    slot = scene.take(rng, _is_family)
    children = [] if slot is None else slot.pids()[1:]
    # There is a second one as soon as the first was ready. A supervisor whose first never is gives up after three.
    if len(children) > 1:
        with suppress(ProcessLookupError):
            os.kill(rng.choice(children), signal.SIGKILL)
    time.sleep(1)
    return None


def supervisor_killed(scene: Scene, rng: random.Random) -> str | None:
    """SIGKILL of a supervisor: its children must not outlive it."""
    slot = scene.take(rng, _is_family)
    if slot is not None:
        scene.kill(slot)
    time.sleep(1)
    return None


def worker_stopped(scene: Scene, rng: random.Random) -> str | None:
    """SIGSTOP of a worker past its lease, then SIGCONT: it finishes what others have by now."""
    slot = scene.take(rng)
    pids = [] if slot is None else slot.pids()
    # Of a supervisor its children alone: it would take them for hung, and replace them.
    for pid in pids[1:] or pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    time.sleep(scene.lease + 1.5)
    for pid in pids[1:] or pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return None


def fleet_frozen(scene: Scene, rng: random.Random) -> str | None:
    """SIGSTOP of half of the workers at once, past their leases: what was handed to them comes back, once."""
    slots = [slot for slot in scene.slots if slot.process is not None and slot.process.is_alive()]
    half = rng.sample(slots, len(slots) // 2)
    pids = [pid for slot in half for pid in slot.pids()[1:] or slot.pids()]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    time.sleep(scene.lease + 1.5)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return None


def interpreter_held(scene: Scene, rng: random.Random) -> str | None:
    """Handlers that keep the interpreter's lock: nothing else runs in their workers for longer than 5 s."""
    _enqueue(scene, "holding", 2)
    time.sleep(7)
    return None


def large_ends(scene: Scene, rng: random.Random) -> str | None:
    """Results of 8 MB, and exceptions with messages of 20 MB: other ends go on meanwhile."""
    for task in ("large_result", "large_error"):
        _enqueue(scene, task, 3)
    time.sleep(rng.random() * 3)
    return None


def tasks_cancelled(scene: Scene, rng: random.Random) -> str | None:
    """Handlers that cancel their own tasks, and the slots in which others run."""
    _enqueue(scene, "cancelling", 20)
    time.sleep(rng.random() * 2)
    return None


def unreadable_rows(scene: Scene, rng: random.Random) -> str | None:
    """Rows with a byte that no text in UTF-8 has: those jobs are dead, and stop no others."""
    if scene.ask("show server_encoding") == [("UTF8",)]:
        return "a database in UTF-8 holds no row that cannot be read"
    # The byte 81 is no character of WIN1252.
    _enqueue(scene, "plain", 3, "jsonb_build_object('token', %s::text, 'caf' || chr(129), 1)")
    time.sleep(rng.random() * 2)
    return None


def _enqueue(scene: Scene, task: str, count: int, args: str = "jsonb_build_object('token', %s::text)") -> None:
    log = ProducerLog(scene.records.directory)
    with suppress(psycopg.Error), scene.control() as conn:
        for _ in range(count):
            token = secrets.token_hex(6)
            conn.execute("begin")
            row = conn.execute(
                f"select pgqueue.enqueue(%s, {args}, queue => 'mixed')".encode(), [task, token]
            ).fetchone()
            assert row is not None
            log.intends(token, [Intent(row[0], task, "mixed", None, 0.0)])
            outcome = UNKNOWN
            try:
                conn.execute("commit")
                outcome = COMMITTED
            finally:
                log.learns(token, outcome, 1)


# Done to connections.


def backends_terminated(scene: Scene, rng: random.Random) -> str | None:
    """pg_terminate_backend of sessions of every kind, one after the other."""
    for _ in range(rng.randint(2, 8)):
        scene.ask(f"select pg_terminate_backend(pid) from ({_A_SESSION.format('')}) s")
        time.sleep(rng.random() * 0.2)
    return None


def statements_cancelled(scene: Scene, rng: random.Random) -> str | None:
    """57014, as statement_timeout raises it, in the middle of anything."""
    for _ in range(rng.randint(3, 12)):
        scene.ask(f"select pg_cancel_backend(pid) from ({_A_SESSION.format('and state = $$active$$')}) s")
        time.sleep(rng.random() * 0.1)
    return None


def network_frozen(scene: Scene, rng: random.Random) -> str | None:
    """Nothing is delivered any more, and no side is notified."""
    if scene.proxy is not None:
        scene.proxy.freeze()
        time.sleep(rng.choice((0.5, PAST_LEASE_S)))
        scene.proxy.thaw()
    return None


def network_stranded(scene: Scene, rng: random.Random) -> str | None:
    """Open connections are half-open for ever; new ones work."""
    if scene.proxy is not None:
        scene.proxy.strand()
        time.sleep(1)
    return None


def network_dropped(scene: Scene, rng: random.Random) -> str | None:
    """Every connection is reset, and for a while no new one taken."""
    if scene.proxy is not None:
        scene.proxy.refuse()
        scene.proxy.drop()
        time.sleep(rng.random())
        scene.proxy.accept()
    return None


def network_slow(scene: Scene, rng: random.Random) -> str | None:
    if scene.proxy is not None:
        scene.proxy.delay(0.03)
        time.sleep(2)
        scene.proxy.delay(0)
    return None


def network_cut(scene: Scene, rng: random.Random) -> str | None:
    """A reply with reserved jobs breaks off in the middle, and one to a commit."""
    if scene.proxy is not None:
        for marker in (b"plain", b"keyed", b"COMMIT"):
            scene.proxy.cut_reply_with(marker)
            time.sleep(0.7)
    return None


def pgbouncer_restarts(scene: Scene, rng: random.Random) -> str | None:
    if scene.pooler is None:
        return scene.skipped.get("pgbouncer_restarts", "it is not in this scene")
    with scene.of_server:
        scene.pooler.stop()
        time.sleep(rng.random())
        # It is asked whether it answers: the server has to be there.
        with scene.control():
            scene.pooler.start()
    return None


# Done to the server.


def server_crashes(scene: Scene, rng: random.Random) -> str | None:
    """Immediate shutdown, and recovery at the start."""
    assert scene.server is not None
    with scene.of_server:
        try:
            scene.server.crash()
            time.sleep(rng.choice((0, 0.5, PAST_LEASE_S + 2)))
        finally:
            scene.server.start()
    return None


def server_restarts(scene: Scene, rng: random.Random) -> str | None:
    assert scene.server is not None
    with scene.of_server:
        try:
            scene.server.stop()
        finally:
            scene.server.start()
    return None


def snapshot_held(scene: Scene, rng: random.Random) -> str | None:
    """A REPEATABLE READ snapshot that sees none of it end."""
    with suppress(psycopg.Error), scene.control() as conn:
        conn.execute("begin isolation level repeatable read")
        conn.execute("select count(*) from pgqueue.queues")
        time.sleep(4)
        conn.execute("commit")
    return None


def writer_held(scene: Scene, rng: random.Random) -> str | None:
    """Producers that take their time before they commit: their jobs are older than what was claimed meanwhile."""
    log = ProducerLog(scene.records.directory)
    with ExitStack() as stack, suppress(psycopg.Error):
        held = []
        for n in range(4):
            conn = stack.enter_context(scene.control())
            token = secrets.token_hex(6)
            conn.execute("begin")
            key = f"hot{rng.randrange(5)}" if n % 2 else None
            task, queue = ("keyed", "keyed") if key else ("plain", "bulk")
            row = conn.execute(
                "select pgqueue.enqueue(%s, %s, queue => %s, key => %s, priority => %s)",
                [task, Jsonb({"token": token}), queue, key, rng.randint(0, 1)],
            ).fetchone()
            assert row is not None
            held.append((conn, token, Intent(row[0], task, queue, key, 0.0)))
            time.sleep(rng.random())
        for conn, token, intent in held:
            time.sleep(rng.random() * 1.5)
            log.intends(token, [intent])
            if rng.random() < 0.3:
                conn.execute("rollback")
                log.learns(token, ROLLED_BACK, 1)
                continue
            outcome = UNKNOWN
            try:
                conn.execute("commit")
                outcome = COMMITTED
            finally:
                log.learns(token, outcome, 1)
    return None


def connections_exhausted(scene: Scene, rng: random.Random) -> str | None:
    """All connections of the server are in use: a client that loses one gets no other for a while."""
    with ExitStack() as stack:
        with suppress(psycopg.Error):
            for _ in range(500):
                stack.enter_context(psycopg.connect(scene.dsn, connect_timeout=3, application_name="chaos hog"))
        scene_pids = "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'pgqueue %'"
        with suppress(psycopg.Error), psycopg.connect(scene.dsn, autocommit=True, connect_timeout=3) as conn:
            conn.execute(scene_pids)
        time.sleep(2)
    return None


def statement_timeout(scene: Scene, rng: random.Random) -> str | None:
    """A statement_timeout too short for some statements, in all sessions."""
    try:
        _for_the_database(scene, sql.SQL("set statement_timeout to '15ms'"))
        time.sleep(2.5)
    finally:
        _for_the_database(scene, sql.SQL("reset statement_timeout"))
    return None


def deadlocks(scene: Scene, rng: random.Random) -> str | None:
    """Sessions that lock executing jobs in the wrong order, and hold them for a moment."""
    for _ in range(5):
        with suppress(psycopg.Error), scene.control() as conn:
            conn.execute("begin")
            conn.execute("set local lock_timeout = '3s'")
            rows = conn.execute(
                "select id from pgqueue.jobs where state = 'executing' order by id desc limit 6 for update skip locked"
            ).fetchall()
            time.sleep(0.15)
            low = "select from pgqueue.jobs where id < %s and state = 'executing' order by id desc for update"
            if rows:
                conn.execute(low.encode(), [rows[-1][0]])
            conn.execute("rollback")
    return None


def server_clock_steps(scene: Scene, rng: random.Random) -> str | None:
    """The queue's clock goes an hour forth and back, or back and forth, under load."""
    with scene.of_server:
        first = rng.choice((3600.0, -3600.0))
        for step in (first, -first):
            scene.step_clock(step)
            time.sleep(rng.random() * 3)
    return None


CLIENT_FAULTS: list[Fault] = [
    worker_killed,
    child_killed,
    supervisor_killed,
    worker_stopped,
    fleet_frozen,
    interpreter_held,
    large_ends,
    tasks_cancelled,
    unreadable_rows,
    backends_terminated,
    statements_cancelled,
    network_frozen,
    network_stranded,
    network_dropped,
    network_slow,
    network_cut,
    pgbouncer_restarts,
]
SERVER_FAULTS: list[Fault] = [
    server_crashes,
    server_restarts,
    snapshot_held,
    writer_held,
    connections_exhausted,
    statement_timeout,
    deadlocks,
    server_clock_steps,
]

# Of every kind in the same measure: a random kind first, then one of it. A worker has four connections.
_A_SESSION = """
select a.pid
from (
    select pid, row_number() over (
        partition by application_name, left(query, 20) order by random()
    ) as nth
    from pg_stat_activity
    where (datname = current_database() or backend_type = 'walsender') and pid <> pg_backend_pid()
        and application_name not in ('chaos control', 'chaos hog') {}
) a
where a.nth = 1
order by random()
limit 1
"""


def _is_family(slot: Slot) -> bool:
    return "--processes" in slot.options


def _for_the_database(scene: Scene, setting: sql.SQL) -> None:
    """Set or reset something for all sessions of the database, which begin anew for it."""
    with scene.control() as conn:
        # Where the server is about to restart, once more.
        name = conn.info.dbname
        conn.execute(sql.SQL("alter database {} {}").format(sql.Identifier(name), setting))
        conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and application_name ~ '^(pgqueue|chaos sql)'"
        )
